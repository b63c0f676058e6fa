"""Runs an answer to 16.2, `all_reduce`, in workers whose messages are counted."""

import re
import threading

import torch

from lessons_lib.checks.exercise import Mistake, current_case, short
from lessons_lib.checks.sandbox import TimeLimit, _raise_in
from lessons_lib.serving.workers import Deadlock, Worker, run_workers


def reduced(attempt, tensors: list[torch.Tensor], case: str, times: int = 1):
    """What each worker returns, and the workers; the messages, tensors and shapes are in order."""
    case = f"{len(tensors)} worker{'s' if len(tensors) > 1 else ''}; {case}"
    current_case.text = case
    given = [tensor.clone() for tensor in tensors]

    def work(worker: Worker):
        return [attempt(tensors[worker.rank], worker) for _ in range(times)][-1]

    try:
        results, workers = _run(work, len(tensors), case)
    except RuntimeError as error:
        idea = _why_not_that_shape(str(error), tensors[0].numel(), len(tensors))
        if not tensors[0].is_contiguous():
            idea = (
                "The elements of a transposed tensor aren't in memory in the order of its rows, and `view` can't "
                "change that. `flatten()` and `reshape(-1)` copy them where they have to."
            )
        if not idea:
            raise
        raise Mistake(f"your code raised RuntimeError: {error}.", case=case, idea=idea) from None
    except IndexError as error:
        if tensors[0].numel() % len(tensors) == 0:
            raise
        raise Mistake(
            f"your code raised IndexError: {error}.",
            case=case,
            idea=f"N, here {len(tensors)}, doesn't divide n, here {tensors[0].numel()}. Does your code make N parts "
            "all the same, if need be empty ones? `torch.chunk` may return fewer.",
        ) from None
    for rank, (tensor, before) in enumerate(zip(tensors, given)):
        if not torch.equal(tensor, before):
            raise Mistake(
                f"your code changed the tensor of worker {rank}. It was {short(before)} before the call and "
                f"{short(tensor)} after it.",
                case=case,
                idea="The parts of a tensor are views: they share its memory. Cut a copy: `tensor.flatten().clone()`.",
            )
    for rank, got in enumerate(results):
        _check_kind(got, tensors[rank], rank, case)
    unread = {pair: len(sent) for pair, sent in workers[0].network.unread.items() if sent}
    if unread:
        (source, to), count = next(iter(unread.items()))
        raise Mistake(
            f"worker {to} has not received {count} of the tensors that worker {source} sent to it.",
            case=case,
            idea="What is left over is received in the *next* sum, as if it belonged to that. Each `send` needs a "
            "`receive`.",
        )
    return results, workers, case


def _run(work, world_size: int, case: str):
    before = set(threading.enumerate())
    try:
        return run_workers(work, world_size)
    except Deadlock as error:
        raise Mistake(f"no worker can go on.\n{error}", case=case, idea=_why_stuck(str(error))) from None
    except TimeLimit:
        for thread in set(threading.enumerate()) - before:
            _raise_in(thread, TimeLimit)
        raise


def _why_not_that_shape(error: str, length: int, world_size: int) -> str:
    """The idea, if a `view` or `reshape` fails because the parts can't be equal; otherwise ""."""
    match = re.search(r"is invalid for input of size (\d+)", error)
    rest = length % world_size
    if match is None or not rest:
        return ""
    uneven = "Parts may differ by one in length, or the last ones may be shorter, or empty."
    if int(match[1]) == length - rest:
        lost = "the last element is" if rest == 1 else f"the last {rest} elements are"
        return (
            f"N, here {world_size}, doesn't divide n, here {length}. If all parts have n // N elements, {lost} in none "
            f"of them. {uneven}"
        )
    if int(match[1]) == length:
        return f"N, here {world_size}, doesn't divide n, here {length}, so no N equal parts are possible. {uneven}"
    return ""


def _why_stuck(places: str) -> str:
    if "has returned" in places:
        return "A worker has returned, and another one still needs something from it. All must make the same steps."
    if places.count("after 0 sent") == places.count("worker ") / 2:
        return "All wait and none has sent anything. `send` doesn't wait, so send first, then receive."
    return "Each `receive(source)` needs a `send` by that worker to this one: is the direction the same in both?"


def _check_kind(got, tensor: torch.Tensor, rank: int, case: str) -> None:
    if not isinstance(got, torch.Tensor):
        raise Mistake(
            f"worker {rank} should return a tensor; yours returned {short(got, 60)}.",
            case=case,
            idea="*Every* worker needs the sum." if rank else "Put the parts together, and return them.",
        )
    if got.shape != tensor.shape:
        raise Mistake(
            f"worker {rank} should return shape {list(tensor.shape)}; yours is {list(got.shape)}.",
            case=case,
            idea="The parts come from the flattened tensor; give the result its shape back."
            if got.numel() == tensor.numel() and tensor.dim()
            else "A tensor without dimensions is one number, and `flatten` makes a list of it: `.view(tensor.shape)` "
            "works here, too."
            if not tensor.dim()
            else "Your result has more elements than the tensor. Did you fill up the tensor, to get equal parts? Then "
            f"cut the result off after its first {tensor.numel()} elements."
            if got.numel() > tensor.numel()
            else "If the number of workers doesn't divide the length, some parts are one element longer than others.",
        )
    if got.dtype != tensor.dtype:
        raise Mistake(
            f"worker {rank} should return {str(tensor.dtype)[6:]}; yours is {str(got.dtype)[6:]}.",
            case=case,
            idea="The sum has the type of the tensors."
            if tensor.dtype.is_floating_point
            else "The sum of whole numbers is a whole number. Is there a division? `/` turns them into floats.",
        )


def random_tensors(world_size: int, length: int, dtype=torch.float32) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(world_size * 100 + length)
    return [torch.randn(length, generator=generator).to(dtype) for _ in range(world_size)]
