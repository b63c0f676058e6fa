"""Judges 01.3, `wave_steps`: a wave takes as many steps as its longest answer has tokens."""

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
            total = " You seem to add the waves up." if got == sum(want) and len(want) > 1 else ""
            raise Mistake(
                f"it should return a list, the steps of each wave, here {want}; yours returned {kind(got)}.{total}",
                case=case,
                idea="One number for each wave.",
            )
        if list(got) != want:
            raise Mistake(
                f"the waves should take {want} steps; yours take {short(list(got))}.",
                case=case,
                idea=_why_steps(lengths, batch_size, want, list(got)),
            )


def _why_steps(lengths, size: int, want, got) -> str:
    waves = [lengths[i : i + size] for i in range(0, len(lengths), size)]
    if got == [w + 1 for w in want]:
        return "One too many: the prefill gives the first token already. An answer of n tokens takes n passes, the prefill among them."
    if got == [w - 1 for w in want]:
        return "One too few: the prefill is a forward pass too, and it gives the first token."
    if any(len(wave) > 1 for wave in waves):
        for name, rule in (
            (
                "You add the lengths up. The rows of a wave are computed in the same pass: one step serves all of them.",
                sum,
            ),
            (
                "You take the mean. A wave cannot leave before its longest answer is done.",
                lambda wave: sum(wave) / len(wave),
            ),
            ("You stop with the shortest answer; the others of its wave have not finished then.", min),
        ):
            if got in (
                [rule(wave) for wave in waves],
                [int(rule(wave)) for wave in waves],
                [-int(-rule(wave) // 1) for wave in waves],
            ):
                return name
        if got == [wave[-1] for wave in waves] or got == [wave[0] for wave in waves]:
            return "You look at one request of each wave by its place. The longest one decides, wherever it sits."
    if got == want[:-1]:
        return (
            "The last wave is missing. It may have fewer requests than `batch_size`, and it is computed all the same."
        )
    if got in (wave_steps(sorted(lengths), size), wave_steps(sorted(lengths, reverse=True), size)):
        return "You seem to sort the requests. How long an answer will be is not known when it begins, so waves follow the order of arrival."
    if len(want) > 1 and got == [max(lengths)] * len(want):
        return "You give every wave the longest answer of all. A wave waits for its own longest answer only."
    parts = [lengths[i::size] for i in range(size)]
    if got == [max(part) for part in parts if part] or len(got) == size != len(want):
        return "`batch_size` is the number of requests in a wave, not the number of waves. The first wave is `answer_lengths[:batch_size]`."
    if len(got) > len(want):
        return (
            "There are more numbers than waves. Waves do not overlap: the next one begins `batch_size` requests later."
        )
    return "Cut the list into pieces of `batch_size`, in order, and take the longest answer of each piece."
