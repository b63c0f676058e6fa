"""Judges 16.2, `all_reduce`, with workers whose messages are counted."""

import torch

from lessons_lib.checks.exercise import Mistake, short
from lessons_lib.checks.lesson_16.reducing_bytes import check_bytes, check_bytes_of_rows
from lessons_lib.checks.lesson_16.reducing_runs import random_tensors, reduced
from lessons_lib.serving.workers import Worker

WORDS = ("no times", "once", "twice", "three times", "four times")


def check_all_reduce(attempt) -> None:
    for check in (
        _check_example, _check_one, _check_lengths, _check_who_counts, _check_places, _check_shape, _check_same_bits,
        _check_bits_left_over, check_bytes, check_bytes_of_rows, _check_rounding, _check_half_precision,
        _check_whole_numbers, _check_transposed, _check_no_dimensions, _check_two_in_a_row,
    ):  # fmt: skip
        check(attempt)


def _check_example(attempt) -> None:
    tensors = [torch.tensor([1.0, 2, 3, 4]), torch.tensor([10.0, 20, 30, 40])]
    results, workers, case = reduced(attempt, tensors, "[1, 2, 3, 4] and [10, 20, 30, 40].")
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
    if torch.equal(got.sort().values, want.sort().values):
        return "These are the right sums, in another order. Each part goes back to its own place in the tensor."
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


def _expect_sum(results: list[torch.Tensor], tensors: list[torch.Tensor], case: str, idea="", when="") -> None:
    want = sum(tensors)
    for rank, got in enumerate(results):
        if not torch.equal(got, want):
            what = f"{when}worker {rank} should return {short(want)}; yours returned {short(got)}."
            raise Mistake(what, case=case, idea=idea)


def _check_one(attempt) -> None:
    tensor = torch.tensor([5.0, 6, 7])
    (got,), _, case = reduced(attempt, [tensor], "[5, 6, 7].")
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
            results, _, _ = reduced(attempt, tensors, f"{length} elements each.")
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
        results, _, case = reduced(attempt, tensors, f"{length} element{'s' if length > 1 else ''} each.")
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
        results, _, case = reduced(attempt, tensors, f"element i of worker r is 100 i + r; {length} elements each.")
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
    results, _, case = reduced(attempt, tensors, "tensors of shape [2, 3].")
    for rank, got in enumerate(results):
        if not torch.equal(got, sum(tensors)):
            raise Mistake(f"worker {rank} should return {short(sum(tensors))}; yours returned {short(got)}.", case=case)


def _check_same_bits(attempt) -> None:
    for world_size in (3, 4):
        results, _, case = reduced(attempt, random_tensors(world_size, 240), "240 random elements each.")
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
        results, _, case = reduced(attempt, tensors, f"{length} element{'s' if length > 1 else ''} each: {each}.")
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


def _check_rounding(attempt) -> None:
    tensors = [torch.tensor([1.0, 3e-5, 1e4, 0.1]) * (1 + rank / 7) for rank in range(4)]
    results, _, case = reduced(attempt, tensors, "float32 numbers from 0.00003 to 10,000.")
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
    results, workers, case = reduced(attempt, tensors, "12 bfloat16 elements each.")
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
    results, _, case = reduced(attempt, tensors, "one int64 element each: 2**40 + 1 and 2.")
    _expect_sum(results, tensors, case, "A float32 can't hold such a number. Send and add in the type of the tensor.")


def _check_transposed(attempt) -> None:
    tensors = [(torch.arange(6.0) + 10 * rank).view(2, 3).T for rank in range(2)]
    results, _, case = reduced(attempt, tensors, "a tensor of shape [2, 3], transposed: [3, 2].")
    _expect_sum(
        results,
        tensors,
        case,
        "In memory, the elements of a transposed tensor are in another order than in its rows. `flatten` "
        "takes them in the order of the rows, and `view(tensor.shape)` puts them back so.",
    )


def _check_no_dimensions(attempt) -> None:
    tensors = [torch.tensor(1.0), torch.tensor(10.0)]
    results, _, case = reduced(attempt, tensors, "tensors of no dimensions, tensor(1.) and tensor(10.).")
    _expect_sum(results, tensors, case)


def _check_two_in_a_row(attempt) -> None:
    tensors = [torch.arange(7.0) + 10 * rank for rank in range(3)]
    results, _, case = reduced(attempt, tensors, "the same sum twice, one after the other.", times=2)
    _expect_sum(results, tensors, case, "Nothing may be left of the first sum.", "the second time, ")
