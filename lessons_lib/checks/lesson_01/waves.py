"""Checks 01.3, `wave_steps`: when each request starts, gets its last token and is returned."""

from collections.abc import Callable
from itertools import accumulate, pairwise

from lessons_lib.batching.static_batching import wave_steps, waves
from lessons_lib.checks.exercise import Mistake, call, short
from lessons_lib.checks.lesson_01.words import kind
from lessons_lib.viz.words import marked

Times = list[tuple[int, int, int]]

WAVE_CASES = (
    ([3], 1),
    ([3, 6, 2, 5], 4),
    ([5, 2], 1),
    ([4, 1, 2, 3, 1], 2),
    ([1, 2, 3, 4, 5], 4),
    ([6, 9, 1, 2], 4),
    ([3, 4], 5),
    ([30, 60, 100, 20, 80, 40, 10], 3),
)
NUMBERS = ("starts after step", "has its last token in step", "is returned after step")


def test_wave_steps(attempt) -> None:
    answers = []
    for lengths, batch_size in WAVE_CASES:
        case = f"wave_steps({lengths}, batch_size={batch_size})"
        got = _as_times(_call(attempt, lengths, batch_size, case), lengths, batch_size, case)
        want = wave_steps(lengths, batch_size)
        if got == want:
            answers.append((got, case))
            continue
        row = next(row for row, pair in enumerate(zip(got, want)) if pair[0] != pair[1])
        column = next(i for i, pair in enumerate(zip(got[row], want[row])) if pair[0] != pair[1])
        raise Mistake(
            f"the request at index {row} {NUMBERS[column]} {want[row][column]}; yours says {short(got[row][column])}. "
            f"All of it should be {want}; yours is {marked(want, got)}.",
            case=case,
            idea=_why_times(lengths, batch_size, want, got) or _why_number(lengths, batch_size, want, got, column),
        )
    for got, case in answers:  # at the end: a wrong number says more than its type
        _refuse_tensors(got, case)


def _call(attempt, lengths: list[int], size: int, case: str):
    try:
        return call(attempt, list(lengths), size, case=case)
    except ValueError as error:
        if "empty" not in str(error) or len(lengths) % size:
            raise
        full = "The only wave is full" if len(lengths) == size else "All waves are full"
        raise Mistake(
            f"your code raised ValueError: {str(error)[:120]}",
            case=case,
            idea=f"{full}, and no request is left: does your code make another, an empty one? It has no longest "
            "answer.",
        ) from error


def _refuse_tensors(got: Times, case: str) -> None:
    for row, time in enumerate(got):
        for number in time:
            if isinstance(number, float) or not hasattr(number, "__index__") or hasattr(number, "dim"):
                raise Mistake(
                    f"the numbers are right, but those of the request at index {row} contain {number!r}, a "
                    f"{type(number).__name__}; they should be ints.",
                    case=case,
                    idea="`int(...)` converts a number; `tolist()` converts a whole tensor.",
                )


def _as_times(got, lengths: list[int], size: int, case: str) -> Times:
    got = got.tolist() if hasattr(got, "tolist") else got
    if not isinstance(got, (list, tuple)):
        raise Mistake(
            f"it should return a list with three numbers for each request; yours returned {kind(got)}.",
            case=case,
            idea="Collect one element for each request in a list, in order of arrival, and return the list.",
        )
    got = [time.tolist() if hasattr(time, "tolist") else time for time in got]
    number = len(waves(lengths, size))
    if len(got) != len(lengths):
        idea = "The list has one element per request, in order of arrival."
        if len(got) == number:
            idea = "Yours has one element per wave. The requests of a wave start together, but get their last tokens "
            idea += "in different steps, so return one element per request."
        elif len(got) == len(lengths) // size * size:
            idea = "The last wave is missing. It may have fewer requests than `batch_size`, but it still has to run."
        elif len(got) == number * size:
            idea = "The last wave has fewer requests than `batch_size`, and a row without a request has no times."
        raise Mistake(f"the list should have {len(lengths)} elements; yours has {len(got)}.", case=case, idea=idea)
    for time in got:
        if not isinstance(time, (list, tuple)) or len(time) != 3:
            raise Mistake(
                f"each element should have three numbers (start, last token, returned); one of yours is {kind(time)}.",
                case=case,
                idea="Return one flat list with one element for each request, whatever its wave.",
            )
    return [tuple(time) for time in got]


def _why_times(lengths: list[int], size: int, want: Times, got: Times) -> str:
    """Why all three numbers are those of another way of serving; "" if they aren't."""
    other: dict[str, Callable[[], Times]] = {
        "These are the times with the requests sorted by length. The length of an answer isn't known when it starts, "
        "so waves follow the order of arrival.": lambda: _in_other_order(lengths, size, sorted(lengths)),
        "These are the times with the longest request first. The length of an answer isn't known when it starts, so "
        "waves follow the order of arrival.": lambda: _in_other_order(lengths, size, sorted(lengths, reverse=True)),
        "These are the times of the requests sorted by length, in that order. Waves follow the order of arrival, and "
        "so does the list.": lambda: wave_steps(sorted(lengths), size),
        "You seem to add the last requests to the wave before them. No wave has more than `batch_size` requests: they "
        "are a smaller wave of their own.": lambda: _last_wave_merged(lengths, size),
        "Requests with equal lengths got the same times. Do you look up a request by its length? Use its index: two "
        "requests can have the same length.": lambda: [dict(zip(lengths[::-1], want[::-1]))[n] for n in lengths],
        "These are the times with the first number counted from 1. A request of the first wave starts after step 0.": (
            lambda: [(start + 1, last, end) for start, last, end in want]
        ),
        "Yours counts decode steps only. The prefill is a step too, and gives the first token: an answer of n tokens "
        "takes n steps.": lambda: wave_steps([length - 1 for length in lengths], size),
        "Yours counts one step too many for each wave. The prefill already gives the first token: an answer of n "
        "tokens takes n steps.": lambda: wave_steps([length + 1 for length in lengths], size),
        "You seem to start every wave at 0. A wave starts when the previous one has been returned.": (
            lambda: [(0, last - start, end - start) for start, last, end in want]
        ),
        "`batch_size` is the number of requests in a wave, not the number of waves.": (
            lambda: wave_steps(lengths, -(-len(lengths) // size))
        ),
        "You seem to share the requests evenly among the waves. Every wave takes `batch_size` requests, and only the "
        "last may have fewer.": lambda: _shared_evenly(lengths, size),
        "You seem to deal the requests out to the waves in turn. A wave takes the next requests in order of arrival: "
        f"the first one those at index 0 to {min(size, len(lengths)) - 1}.": lambda: _dealt_out(lengths, size),
        "The three numbers are right, but in another order: start, last token, returned.": (
            lambda: [time if sorted(time) == sorted(right) else right for time, right in zip(got, want)]
        ),
    }
    return next((idea for idea, times in other.items() if got == times() != want), "")


def _why_number(lengths: list[int], size: int, want: Times, got: Times, column: int) -> str:
    mine, right = ([time[column] for time in times] for times in (got, want))
    if column == 1:
        if mine == lengths:
            return "Yours is the length of the answer. Add the step after which its wave started."
        if mine == [end for *_, end in want]:
            return "Yours is the last step of the wave. This request's own answer is shorter and complete before that."
        return "A request has its last token as many steps after its start as its answer has tokens."
    split = waves(lengths, size)
    rules: dict[str, Callable[[list[int]], float]] = {
        "You seem to end a wave with its shortest answer. The barrier holds until the longest is done.": min,
        "You seem to add up the lengths of a wave. Its rows share each forward pass, so its steps are those of its "
        "longest answer.": sum,
        "You seem to take the mean of a wave. The barrier holds until the longest answer is done.": (
            lambda wave: sum(wave) / len(wave)
        ),
        "You seem to end a wave with its last request. The longest answer decides, wherever it is.": (
            lambda wave: wave[-1]
        ),
        "You seem to end a wave with its first request. The longest answer decides, wherever it is.": (
            lambda wave: wave[0]
        ),
        "You seem to give every wave the steps of the longest answer of all. A wave waits only for its own.": (
            lambda wave: max(lengths)
        ),
        "That is one step too few for a wave. Its prefill is a step too, and gives the first token: a wave takes as "
        "many steps as its longest answer has tokens.": lambda wave: max(wave) - 1,
        "That is one step too many for a wave. The next one starts right after the longest answer, and its prefill "
        "is its first step.": lambda wave: max(wave) + 1,
    }
    for idea, rule in rules.items():
        ends = list(accumulate(rule(wave) for wave in split))
        starts = [0, *ends[:-1]]
        values = ends if column == 2 else starts
        for rounded in (values, [int(value) for value in values]):
            if mine == [value for value, wave in zip(rounded, split) for _ in wave] != right:
                return idea
    if column == 2 and mine == [last for _, last, _ in want]:
        return "That is the step of its last token. Behind the barrier, its answer leaves with the longest of its wave."
    if column == 2 and mine == [end - start for start, _, end in want]:
        return "Yours counts from the start of the wave. Count from the start of the first wave."
    if column == 0 and not any(mine):
        return "You seem to start every wave at 0. A wave starts when the previous one has been returned."
    if column == 0 and mine == [row // size for row in range(len(lengths))]:
        return "Yours is the number of the wave. Count the steps of all waves before it."
    if column == 0:
        return "A wave starts after the longest answers of all waves before it."
    return "All requests of a wave are returned when its longest answer is done."


def _dealt_out(lengths: list[int], size: int) -> Times:
    """The times if n waves take the requests in turn: wave k those at index k, k + n, k + 2n, ..."""
    number, start, times = len(waves(lengths, size)), 0, {}
    for first in range(number):
        rows = range(first, len(lengths), number)
        end = start + max(lengths[row] for row in rows)
        times |= {row: (start, start + lengths[row], end) for row in rows}
        start = end
    return [times[row] for row in range(len(lengths))]


def _times_of(split: list[list[int]]) -> Times:
    ends = list(accumulate(max(wave) for wave in split))
    starts = [0, *ends[:-1]]
    return [(start, start + length, end) for wave, start, end in zip(split, starts, ends) for length in wave]


def _shared_evenly(lengths: list[int], size: int) -> Times:
    """The times if the waves, as many as needed, are as equal as possible, the larger ones first."""
    number = len(waves(lengths, size))
    each, larger = divmod(len(lengths), number)
    bounds = list(accumulate([each + (wave < larger) for wave in range(number)], initial=0))
    return _times_of([lengths[begin:end] for begin, end in pairwise(bounds)])


def _last_wave_merged(lengths: list[int], size: int) -> Times:
    """The times if a last wave with fewer requests joins the one before it."""
    *before, last = split = waves(lengths, size)
    if before and len(last) < size:
        split = [*before[:-1], [*before[-1], *last]]
    return _times_of(split)


def _in_other_order(lengths: list[int], size: int, order: list[int]) -> Times:
    """The times of the waves in this order, given to the requests by their lengths."""
    by_length = dict(zip(order, wave_steps(order, size)))
    return [by_length[length] for length in lengths]
