"""Judges 16.2, `all_reduce`, with workers whose messages are counted."""

import re
import threading

import torch

from lessons_lib.checks.exercise import Mistake, current_case, short
from lessons_lib.checks.sandbox import TimeLimit, _raise_in
from lessons_lib.serving.workers import Deadlock, Worker, run_workers

WORDS = ("no times", "once", "twice", "three times", "four times")


def check_all_reduce(attempt) -> None:
    for check in (
        _check_example, _check_one, _check_lengths, _check_who_counts, _check_places, _check_shape, _check_same_bits,
        _check_bits_left_over, _check_bytes, _check_bytes_of_rows, _check_rounding, _check_half_precision,
        _check_whole_numbers, _check_transposed, _check_no_dimensions, _check_two_in_a_row,
    ):  # fmt: skip
        check(attempt)


def _reduced(attempt, tensors: list[torch.Tensor], case: str, times: int = 1):
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


def _check_example(attempt) -> None:
    tensors = [torch.tensor([1.0, 2, 3, 4]), torch.tensor([10.0, 20, 30, 40])]
    results, workers, case = _reduced(attempt, tensors, "[1, 2, 3, 4] and [10, 20, 30, 40].")
    for rank, got in enumerate(results):
        if not torch.equal(got, sum(tensors)):
            raise Mistake(
                f"worker {rank} should return [11, 22, 33, 44]; yours returned {short(got)}.",
                case=case,
                idea=_why_not_the_sum(got, tensors, rank),
            )
    _check_all_have_sent(workers, case)


def _why_not_the_sum(got: torch.Tensor, tensors: list[torch.Tensor], rank: int) -> str:
    want = tensors[0] + tensors[1]
    if torch.allclose(got, want / 2):
        return "That is the mean; the sum is wanted."
    if torch.equal(got, tensors[rank]):
        return "That is its own tensor: nothing was added."
    others = torch.cat(tensors)
    if bool(((got > want) & torch.isin(got, others)).any()):
        return (
            "Some elements come from another position of a worker's tensor. Is each part that arrives stored under the "
            "index of the part that was sent? And was it complete?"
        )
    if bool((got > want).any()):
        return "Something was added a second time. A sum that is complete takes the place of a part."
    if bool(((got == want) | (got == tensors[rank])).all()):
        return "The elements that aren't complete here are complete in the other worker: they have to be passed on."
    return (
        "Some elements are the other worker's own numbers. Was a part sent back before it was complete, or was this "
        "worker's own part left out of the sum?"
    )


def _check_all_have_sent(workers: list[Worker], case: str) -> None:
    for worker in workers:
        if not worker.num_sent:
            raise Mistake(
                f"worker {worker.rank} has sent nothing, but the others know its tensor.",
                case=case,
                idea="Workers stand for processes. Only `send` leads from one to another: no variable outside of the "
                "function.",
            )


def _check_one(attempt) -> None:
    tensor = torch.tensor([5.0, 6, 7])
    (got,), _, case = _reduced(attempt, [tensor], "[5, 6, 7].")
    if not torch.equal(got, tensor):
        raise Mistake(f"expected [5, 6, 7]; yours returned {short(got)}.", case=case, idea="One worker has the sum.")
    if got.untyped_storage().data_ptr() == tensor.untyped_storage().data_ptr():
        raise Mistake(
            "the result shares the memory of the argument.",
            case=case,
            idea="The caller may change one of them: return a new tensor, also if there is nothing to add.",
        )


def _check_lengths(attempt) -> None:
    """Refuse an attempt that remembers how the tensors of an earlier sum were cut.

    With 5 workers, it adds up 5 elements before and after 10, and 6 workers add up 12: so only an earlier sum can be
    why 10 elements go wrong. Whatever else is wrong is left to the other checks.
    """

    def what_is_wrong(world_size: int, length: int) -> str:
        tensors = [torch.arange(float(length)) + 10 * rank for rank in range(world_size)]
        try:
            results, _, _ = _reduced(attempt, tensors, f"{length} elements each.")
        except Mistake as mistake:
            return mistake.what
        except Exception as error:
            return f"your code raised {type(error).__name__}: {error}."
        wrong = [
            f"worker {rank} returned {short(got)}." for rank, got in enumerate(results) if (got != sum(tensors)).any()
        ]
        return wrong[0] if wrong else ""

    if what_is_wrong(6, 12) or what_is_wrong(5, 5):
        return
    wrong = what_is_wrong(5, 10)
    if wrong and not what_is_wrong(5, 5):
        raise Mistake(
            f"the first sum is right, the second one isn't: {wrong}",
            case="5 workers; a sum of 5 elements each, and after it one of 10 elements each.",
            idea="Does your code remember something of the first sum, such as the size of a part? The next tensor may "
            "have another length: cut each one anew.",
        )


def _check_who_counts(attempt) -> None:
    """Worker r has 10 ** r everywhere, so digit r of a result says how many times its tensor was counted."""
    for world_size, length in ((2, 6), (3, 6), (4, 8), (2, 5), (3, 7), (4, 10), (3, 2), (4, 1)):
        tensors = [torch.full([length], 10.0**rank) for rank in range(world_size)]
        results, _, case = _reduced(attempt, tensors, f"{length} element{'s' if length > 1 else ''} each.")
        for rank, got in enumerate(results):
            for index, value in enumerate(got.long().tolist()):
                counts = [value // 10**other % 10 for other in range(world_size)]
                if counts != [1] * world_size:
                    raise Mistake(
                        f"element {index} of worker {rank} should count the tensor of every worker once; yours counts "
                        + ", ".join(f"worker {other} {_times(count)}" for other, count in enumerate(counts))
                        + ".",
                        case=case,
                        idea=_why_counts(counts, got, length, world_size),
                    )


def _times(count: int) -> str:
    return WORDS[count] if count < len(WORDS) else f"{count} times"


def _why_counts(counts: list[int], got: torch.Tensor, length: int, world_size: int) -> str:
    if max(counts) > 1:
        return "A sum that is complete was added to another one. It should take its place."
    complete = sum(value == sum(10**rank for rank in range(world_size)) for value in got.long().tolist())
    if not complete:
        return "No element of this worker is complete. With N workers, a part needs N - 1 additions."
    if length % world_size or length < world_size:
        return "The length isn't divisible here. Does some part get lost, or do two workers cut differently?"
    return f"{complete} of its {length} elements are complete. The others are complete in other workers: pass them on."


def _check_places(attempt) -> None:
    for world_size, length in ((3, 6), (4, 11), (3, 8)):
        tensors = [torch.arange(length) * 100.0 + rank for rank in range(world_size)]
        results, _, case = _reduced(attempt, tensors, f"element i of worker r is 100 i + r; {length} elements each.")
        want = sum(tensors)
        for rank, got in enumerate(results):
            if not torch.equal(got, want):
                raise Mistake(
                    f"worker {rank} should return {short(want)}; yours returned {short(got)}.",
                    case=case,
                    idea="The numbers are right, but their places aren't. Put the parts back in their order."
                    if torch.equal(got.sort().values, want)
                    else "They are nearly right, as if rounded to another type. Send and add in the type of the tensor."
                    if torch.allclose(got.double(), want.double(), rtol=0.01)
                    else "Two different parts were added up, or one has taken the place of another. Which part comes "
                    "from the left in each step?",
                )


def _check_shape(attempt) -> None:
    tensors = [torch.arange(6.0).view(2, 3) + 10 * rank for rank in range(3)]
    results, _, case = _reduced(attempt, tensors, "tensors of shape [2, 3].")
    for rank, got in enumerate(results):
        if not torch.equal(got, sum(tensors)):
            raise Mistake(f"worker {rank} should return {short(sum(tensors))}; yours returned {short(got)}.", case=case)


def _random(world_size: int, length: int, dtype=torch.float32) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(world_size * 100 + length)
    return [torch.randn(length, generator=generator).to(dtype) for _ in range(world_size)]


def _check_same_bits(attempt) -> None:
    for world_size in (3, 4):
        results, _, case = _reduced(attempt, _random(world_size, 240), "240 random elements each.")
        for rank, got in enumerate(results):
            if not torch.equal(got, results[0]):
                index = int((got != results[0]).nonzero()[0])
                raise Mistake(
                    f"all workers should return the same bits; element {index} is {results[0][index].item()!r} in "
                    f"worker 0 and {got[index].item()!r} in worker {rank}.",
                    case=case,
                    idea="Float sums depend on their order, and each worker adds in an order of its own. Let one "
                    "worker add up an element, and the others copy its result.",
                )


def _check_bits_left_over(attempt) -> None:
    """Few elements, of which the order of the additions decides every bit."""
    for world_size, length in ((3, 1), (3, 2), (4, 1), (4, 2), (4, 3), (3, 4), (3, 5), (4, 5), (4, 7)):
        tensors = [torch.full([length], (1e8, 1.0, -1e8, 1.0)[rank]) for rank in range(world_size)]
        each = "; ".join(f"[{tensor[0].item():g}{', ...' if length > 1 else ''}]" for tensor in tensors)
        results, _, case = _reduced(attempt, tensors, f"{length} element{'s' if length > 1 else ''} each: {each}.")
        for rank, got in enumerate(results):
            if not torch.equal(got, results[0]):
                index = int((got != results[0]).nonzero()[0])
                raise Mistake(
                    f"all workers should return the same bits; element {index} is {results[0][index].item()!r} in "
                    f"worker 0 and {got[index].item()!r} in worker {rank}.",
                    case=case,
                    idea=f"{world_size} doesn't divide {length}. Do the elements that are left over go to all workers, "
                    "and does each add up in an order of its own? One worker adds up each element, also these.",
                )


def _check_bytes(attempt) -> None:
    for world_size, length in ((2, 12), (3, 12), (4, 12), (4, 10), (3, 2), (4, 7), (4, 3)):
        _, workers, case = _reduced(attempt, _random(world_size, length), f"{length} float32 elements each.")
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


def _check_bytes_of_rows(attempt) -> None:
    tensors = [torch.arange(6.0).view(2, 3) + 10 * rank for rank in range(3)]
    _, workers, case = _reduced(attempt, tensors, "tensors of shape [2, 3].")
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
    if length % world_size and max(sent) > min(sent):
        return "The parts aren't equally long: the worker with the longest one sends it to all others. Are they as even as possible?"  # noqa: E501
    return (
        "Each element has to leave a worker about twice: once to be added, and once as part of the result. Are N - 1 "
        "messages enough for each of the two?"
    )


def _check_rounding(attempt) -> None:
    tensors = [torch.tensor([1.0, 3e-5, 1e4, 0.1]) * (1 + rank / 7) for rank in range(4)]
    results, _, case = _reduced(attempt, tensors, "float32 numbers from 0.00003 to 10,000.")
    exact, size = sum(each.double() for each in tensors), sum(each.double().abs() for each in tensors)
    worst = ((results[0].double() - exact).abs() / size).max().item()
    if worst > 3 * 2**-24:
        raise Mistake(
            f"three float32 additions round by at most {3 * 2**-24:.1e} of the sum; yours is off by {worst:.1e}.",
            case=case,
            idea="Add in the type of the tensors, and leave the parts as they are.",
        )


def _check_half_precision(attempt) -> None:
    tensors = [torch.full([12], float(10**rank), dtype=torch.bfloat16) for rank in range(2)]
    results, workers, case = _reduced(attempt, tensors, "12 bfloat16 elements each.")
    if not all(bool((got == 11).all()) for got in results):
        raise Mistake(f"expected 11 everywhere; yours returned {short(results[0])}.", case=case)
    if max(worker.sent_bytes for worker in workers) > 24:
        raise Mistake(
            f"each worker should send 24 bytes; yours sends {max(worker.sent_bytes for worker in workers)}.",
            case=case,
            idea="Send the parts in the type of the tensor: in float32, a bfloat16 number takes twice the bytes.",
        )


def _check_whole_numbers(attempt) -> None:
    tensors = [torch.tensor([2**40 + 1]), torch.tensor([2])]
    results, _, case = _reduced(attempt, tensors, "one int64 element each: 2**40 + 1 and 2.")
    for rank, got in enumerate(results):
        if not torch.equal(got, sum(tensors)):
            raise Mistake(
                f"worker {rank} should return {short(sum(tensors))}; yours returned {short(got)}.",
                case=case,
                idea="A float32 can't hold such a number. Send and add in the type of the tensor.",
            )


def _check_transposed(attempt) -> None:
    tensors = [(torch.arange(6.0) + 10 * rank).view(2, 3).T for rank in range(2)]
    results, _, case = _reduced(attempt, tensors, "a tensor of shape [2, 3], transposed: [3, 2].")
    for rank, got in enumerate(results):
        if not torch.equal(got, sum(tensors)):
            raise Mistake(
                f"worker {rank} should return {short(sum(tensors))}; yours returned {short(got)}.",
                case=case,
                idea="In memory, the elements of a transposed tensor are in another order than in its rows. `flatten` "
                "takes them in the order of the rows, and `view(tensor.shape)` puts them back so.",
            )


def _check_no_dimensions(attempt) -> None:
    tensors = [torch.tensor(1.0), torch.tensor(10.0)]
    results, _, case = _reduced(attempt, tensors, "tensors of no dimensions, tensor(1.) and tensor(10.).")
    for rank, got in enumerate(results):
        if not torch.equal(got, sum(tensors)):
            raise Mistake(f"worker {rank} should return 11; yours returned {short(got)}.", case=case)


def _check_two_in_a_row(attempt) -> None:
    tensors = [torch.arange(7.0) + 10 * rank for rank in range(3)]
    results, _, case = _reduced(attempt, tensors, "the same sum twice, one after the other.", times=2)
    for rank, got in enumerate(results):
        if not torch.equal(got, sum(tensors)):
            raise Mistake(
                f"the second time, worker {rank} should return {short(sum(tensors))}; yours returned {short(got)}.",
                case=case,
                idea="Nothing may be left of the first sum.",
            )
