"""Judges 16.2, `all_reduce`: how much each worker sends."""

import torch

from lessons_lib.checks.exercise import Mistake
from lessons_lib.checks.lesson_16.reducing_runs import random_tensors, reduced


def check_bytes(attempt) -> None:
    for world_size, length in ((2, 12), (3, 12), (4, 12), (4, 10), (3, 2), (4, 7), (4, 3)):
        _, workers, case = reduced(attempt, random_tensors(world_size, length), f"{length} float32 elements each.")
        limit = 2 * (world_size - 1) * -(-length // world_size)
        sent = [worker.sent_bytes // 4 for worker in workers]
        if max(sent) <= limit:
            continue
        raise Mistake(
            f"worker {sent.index(max(sent))} should send at most {limit} elements, {4 * limit} bytes; yours sends "
            f"{max(sent)}. In order of rank they send {sent}.",
            case=case,
            idea="That is twice the limit. Are the parts sent in a wider type than the tensor's, or as whole tensors?"
            if min(sent) == 2 * limit
            else _why_bytes(sent, length, world_size),
        )


def check_bytes_of_rows(attempt) -> None:
    tensors = [torch.arange(6.0).view(2, 3) + 10 * rank for rank in range(3)]
    _, workers, case = reduced(attempt, tensors, "tensors of shape [2, 3].")
    sent = [worker.sent_bytes // 4 for worker in workers]
    if max(sent) > 8:
        raise Mistake(
            f"worker {sent.index(max(sent))} should send at most 8 elements; yours sends {max(sent)}. In order of rank "
            f"they send {sent}.",
            case=case,
            idea="With one axis, yours keeps the limit. Does it cut along the first axis here? Two rows can't be "
            "shared evenly by three workers, but six elements can.",
        )


def _why_bytes(sent: list[int], length: int, world_size: int) -> str:
    if length == 3:
        return (
            "With more elements than workers, yours keeps the limit; here there are fewer. One worker gets no part, "
            "and each of the others gets one element: no special case is needed."
        )
    if world_size > 2 and max(sent) >= 2 * min(sent):
        return "One worker does the work of all, and its link is the slowest. Let each add up a part of the tensor."
    if min(sent) >= (world_size - 1) * length and not any(count % length for count in sent):
        return "Whole tensors are sent. A worker that adds up one part only needs that part from the others."
    if length % world_size == 0 and sent.count(max(sent)) == 1:
        return (
            f"Worker {sent.index(max(sent))} sends more than the others. Are the finished parts collected in it, and "
            "sent on from there? Each worker can send its own finished part to all others."
        )
    if length % world_size and max(sent) > min(sent):
        return "The parts aren't equally long: the worker with the longest one sends it to all others. Are they as even as possible?"  # noqa: E501
    return (
        "Each element has to leave a worker about twice: once to be added, and once as part of the result. Are N - 1 "
        "messages enough for each of the two?"
    )
