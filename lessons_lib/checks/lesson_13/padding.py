"""Judges 13.5, `least_padding`: sizes with room for every step, and with as little padding as possible."""

from random import Random

from lessons_lib.checks.exercise import Mistake, call, short
from lessons_lib.measuring.step_sizes import least_padding, padding

# (how many steps have so many tokens, graphs), smallest case first.
CASES = (
    ({4: 1}, 1),
    ({2: 1, 4: 1, 6: 1}, 1),
    ({2: 1, 4: 1}, 2),
    ({2: 1, 4: 1}, 3),
    ({1: 1, 2: 1, 10: 1}, 2),
    ({1: 1, 9: 1, 10: 1}, 2),
    ({1: 1, 10: 1, 11: 1, 12: 1, 20: 1}, 2),
    ({4: 1, 6: 5, 10: 1}, 2),
    ({4: 5, 6: 1, 10: 1}, 2),
    ({4: 1, 7: 1, 10: 9}, 2),
    ({10: 1, 2: 1, 1: 1}, 2),
    ({1: 3, 2: 3, 50: 1, 51: 1, 100: 2}, 3),
    ({3: 2, 4: 2, 5: 2, 6: 2, 7: 2, 8: 2}, 3),
)


def check_least_padding(attempt) -> None:
    for histogram, max_graphs in CASES:
        _check(attempt, histogram, max_graphs)
    rng = Random(13)
    for _ in range(200):
        counts = rng.sample(range(1, 60), rng.randint(1, 9))
        _check(attempt, {count: rng.choice((1, 1, 2, 5, 30)) for count in counts}, rng.randint(1, 5))
    many = {count: rng.randint(1, 20) for count in rng.sample(range(1, 600), 100)}
    _check(attempt, many, 10, "steps of 100 different numbers of tokens, 10 graphs: too many choices to try them all.")


def _check(attempt, histogram: dict[int, int], max_graphs: int, case: str = "") -> None:
    case = case or f"histogram {histogram}, max_graphs {max_graphs}."
    got = call(attempt, dict(histogram), max_graphs, case=case)
    if not isinstance(got, list) or any(not isinstance(size, int) or isinstance(size, bool) for size in got):
        raise Mistake(f"expected a list of ints; yours returned {short(got)}.", case=case,
                      idea="Return the sizes, in tokens.")  # fmt: skip
    if got != sorted(set(got)):
        raise Mistake(f"the sizes should be ascending, each once; yours are {short(got)}.", case=case,
                      idea="A step takes the first size that has room for it.")  # fmt: skip
    if not got or max(got) < max(histogram):
        raise Mistake(f"no size has room for a step of {max(histogram)} tokens; yours are {short(got)}.", case=case,
                      idea="Every step of the histogram must fit.")  # fmt: skip
    if len(got) > max_graphs:
        what = f"at most {max_graphs} of the sizes can be captured; yours are {len(got)}: {short(got)}."
        raise Mistake(what, case=case, idea="The largest size counts as well.")
    best = least_padding(histogram, max_graphs)
    least, yours = padding(histogram, best), padding(histogram, got)
    if yours > least:
        what = f"with your sizes {short(got)}, the padding adds up to {yours}; with {short(best)}, to {least}."
        raise Mistake(what, case=case, idea=_why(histogram, max_graphs, got, best))


def _why(histogram: dict[int, int], max_graphs: int, got: list[int], best: list[int]) -> str:
    unused = [size for size in got if size not in histogram]
    if unused:
        return (
            f"No step has exactly {unused[0]} tokens. Lowered to the next number that occurs, a size never pads more."
        )
    if len(got) < min(max_graphs, len(histogram)):
        return f"You chose {len(got)} of {max_graphs} sizes. Another one would take padding from some steps."
    once = dict.fromkeys(histogram, 1)
    if histogram != once and padding(once, got) == padding(once, least_padding(once, max_graphs)):
        return "Would these sizes be the best if each number of tokens occurred once? The histogram says how often."
    worst, of_best = (max(padding({count: 1}, sizes) for count in histogram) for sizes in (got, best))
    if worst < of_best:
        return (
            f"No step of yours has more than {worst} tokens of padding, where the others have up to {of_best}. But the "
            "sum over all steps counts."
        )
    return (
        "A choice that looks best on its own can spoil the others. What is the best choice for all "
        "steps up to some size, if that size is captured?"
    )
