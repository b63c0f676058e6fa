"""Checks 01.3, `wave_steps`: a wave takes as many steps as its longest answer has tokens."""

from itertools import accumulate

from lessons_lib.batching.static_batching import wave_steps
from lessons_lib.checks.exercise import Mistake, call, short
from lessons_lib.checks.lesson_01.words import kind

WAVE_CASES = (
    ([3], 1),
    ([6, 9, 1, 2], 4),
    ([5, 2], 1),
    ([2, 5, 4, 1, 3], 2),
    ([3, 4], 5),
    ([20, 30, 40, 60], 4),
    ([30, 60, 100, 20, 80, 40], 4),
    ([], 3),
)


def test_wave_steps(attempt) -> None:
    for lengths, batch_size in WAVE_CASES:
        case = f"wave_steps({lengths}, batch_size={batch_size})"
        got = call(attempt, list(lengths), batch_size, case=case)
        want = wave_steps(lengths, batch_size)
        got = got.tolist() if hasattr(got, "tolist") and not isinstance(got, (int, float)) else got
        if not isinstance(got, (list, tuple)):
            total = " You seem to add up the waves." if got == sum(want) and len(want) > 1 else ""
            raise Mistake(
                f"it should return a list with the steps of each wave, here {want}; yours returned {kind(got)}.{total}",
                case=case,
                idea="The list has one element per wave.",
            )
        if list(got) != want:
            raise Mistake(
                f"the steps of the waves should be {want}; yours are {short(list(got))}.",
                case=case,
                idea=_why_steps(attempt, lengths, batch_size, want, list(got)),
            )


def _why_steps(attempt, lengths, size: int, want, got) -> str:
    waves = [lengths[i : i + size] for i in range(0, len(lengths), size)]
    if got == [w + 1 for w in want]:
        return (
            "Each wave has one step too many: the prefill already gives the first token. An answer of n tokens takes n "
            "passes, including the prefill."
        )
    if got == [w - 1 for w in want]:
        return "Each wave has one step too few: the prefill is a forward pass too, and it gives the first token."
    if any(len(wave) > 1 for wave in waves):
        for name, rule in (
            (
                "You seem to add up the lengths. The rows of a wave are computed in the same pass, so one step serves "
                "all of them.",
                sum,
            ),
            (
                "You seem to take the mean. A wave can't leave before its longest answer is done.",
                lambda wave: sum(wave) / len(wave),
            ),
            ("You seem to stop with the shortest answer, before the others of its wave have finished.", min),
        ):
            if got in (
                [rule(wave) for wave in waves],
                [int(rule(wave)) for wave in waves],
                [-int(-rule(wave) // 1) for wave in waves],
            ):
                return name
        if got == [wave[-1] for wave in waves] or got == [wave[0] for wave in waves]:
            return (
                "Yours are the lengths of the first or last request of each wave. The longest one decides, wherever "
                "it is."
            )
        if got in ([len(wave) * max(wave) for wave in waves], [size * max(wave) for wave in waves]):
            return (
                "You seem to multiply by the number of rows. One forward pass computes all rows of the wave, so it is "
                "one step."
            )
        if got == [max(wave) for wave in waves for _ in wave]:
            return "Your list has one element per request. Return one per wave: all of its rows share its steps."
    if len(got) == 1 and len(want) > 1 and got != want[:1]:
        return (
            f"Your list has 1 element, but there are {len(want)} waves. No request joins a running wave, so each wave "
            "has steps of its own."
        )
    if got == [*want, 0]:
        return (
            "The last element belongs to a wave without requests. Does your code add the last, incomplete wave even "
            "if it is empty?"
        )
    if len(want) > 1 and got == [sum(want[: i + 1]) for i in range(len(want))]:
        return "Yours are the steps since the start of the run. Return the steps of each wave by itself."
    if len(got) == 1 and len(want) == 2 and attempt([2, 5], 1) == [5]:
        return "Yours is the longest answer of all. Return one element per wave: the longest answer in that wave."
    if got == want[:-1]:
        return "The last wave is missing. It may have fewer requests than `batch_size`, but it still has to run."
    if got in (wave_steps(sorted(lengths), size), wave_steps(sorted(lengths, reverse=True), size)):
        return (
            "You seem to sort the requests. The length of an answer isn't known when it starts, so waves follow the "
            "order of arrival."
        )
    if got == list(accumulate(want, max)) and attempt([2, 5], 1) == [2, 5]:
        return (
            "You seem to carry the longest answer over from the wave before. Every wave starts anew and waits only "
            "for its own longest answer."
        )
    if len(want) > 1 and got == [max(lengths)] * len(want):
        return "You seem to use the longest answer of all for every wave. A wave waits only for its own longest answer."
    if len(want) > 1 and got == [max(lengths[i :: len(want)]) for i in range(len(want))]:
        return (
            "You seem to deal the requests out to the waves in turn. A wave has `batch_size` requests that follow "
            "each other in the list."
        )
    parts = [lengths[i::size] for i in range(size)]
    if got == [max(part) for part in parts if part] or len(got) == size != len(want):
        return (
            "`batch_size` is the number of requests in a wave, not the number of waves. The first wave is "
            "`answer_lengths[:batch_size]`."
        )
    if len(got) > len(want):
        return (
            "Your list has more elements than there are waves. Waves don't overlap: each one starts `batch_size` "
            "requests after the previous one."
        )
    if got[:-1] == want[:-1] and len(got) == len(want) and len(waves[-1]) < size:
        return (
            "Only the last wave is wrong. It has fewer requests than `batch_size`, but also takes one step per token "
            "of its longest answer."
        )
    return "Split the list into waves of `batch_size`, in order, and take the longest answer of each."
