"""Judges 13.6, `largest_that_fits`: the right size, at both ends of the range too, with few tries."""

from itertools import pairwise
from random import Random

from lessons_lib.checks.exercise import Mistake, call, short


class Tries:
    """A `fits` that knows the answer and records every call."""

    def __init__(self, largest: int, most: int, case: str):
        self.largest, self.most, self.case = largest, most, case
        self.sizes: list[int] = []

    def __call__(self, size):
        if isinstance(size, bool) or not hasattr(size, "__index__"):
            raise Mistake(
                f"a size should be an int; your code tried {size!r}.",
                case=self.case,
                idea="`/` always returns a float. Halve with `//`.",
            )
        if not 1 <= size <= self.most:
            idea = f"Sizes go from 1 to `most`, which is {self.most}. "
            idea += (
                "Larger sizes aren't worth trying."
                if size > 1
                else "0 needs no try: it is the answer if 1 doesn't fit."
            )
            raise Mistake(f"your code tried the size {int(size)}.", case=self.case, idea=idea)
        self.sizes.append(int(size))
        if len(self.sizes) > 3 * self.most + 10:
            idea = (
                "The range must get smaller with every try. It doesn't if `middle` equals an end that stays in the "
                "range."
            )
            raise Mistake(
                f"your code is still going after {len(self.sizes)} tries; the last ones were {short(self.sizes[-4:])}.",
                case=self.case,
                idea=idea,
            )
        return size <= self.largest


def check_largest_that_fits(attempt) -> None:
    for largest, most in ((1, 1), (2, 3), (5, 8), (5, 5), (0, 1), (0, 8)):
        _check_size(attempt, largest, most)
    for most in (1, 2, 3, 5, 8, 64):
        for largest in sorted({*range(min(most, 4) + 1), most // 2, most - 1, most}):
            _check_size(attempt, largest, most)
    for most in (64, 1000):
        for largest in (most, 0, most // 2 + 3):
            _check_tries(attempt, largest, most)
    rng = Random(4)
    for _ in range(100):
        most = rng.randint(1, 3000)
        largest = rng.randint(0, most)
        _check_size(attempt, largest, most)
        _check_tries(attempt, largest, most)


def _told(largest: int, most: int) -> str:
    which = "no size fits" if not largest else f"sizes up to {largest} fit" if largest < most else "every size fits"
    return f"most = {most}, and {which}."


def _tried(attempt, largest: int, most: int):
    case = _told(largest, most)
    fits = Tries(largest, most, case)
    return call(attempt, fits, most, case=case), fits.sizes, case


def _check_size(attempt, largest: int, most: int) -> None:
    got, sizes, case = _tried(attempt, largest, most)
    if isinstance(got, bool) or (not isinstance(got, (int, float)) and not hasattr(got, "__index__")):
        raise Mistake(
            f"expected the size {largest}; yours returned {short(got)}.",
            case=case,
            idea="Return the largest size for which `fits` returned True, or 0.",
        )
    if got != largest or isinstance(got, float):
        raise Mistake(
            f"expected {largest}; yours returned {got!r}.",
            case=f"{case} You tried {short(sizes)}.",
            idea=_why(got, sizes, largest, most),
        )


def _why(got, sizes: list[int], largest: int, most: int) -> str:
    if isinstance(got, float):
        return "A size is an int: halve with `//`."
    for number, size in enumerate(sizes):
        if fitted := [before for before in sizes[:number] if size < before <= largest]:
            return f"{fitted[0]} fits, so every smaller size fits, too. Go on above it; yours tried {size}."
    if sizes and got & (got - 1) == 0 and all(size & (size - 1) == 0 for size in sizes) and got < largest:
        return (
            "You tried only powers of two. Keep halving between the last one that fits and the first one that doesn't."
        )
    if largest == most and most not in sizes:
        return "You never tried `most` itself. It may fit: the smallest size known to be too large is `most` + 1."
    if largest == 0 and got == 1:
        return "Not even 1 fits here, and only a try can tell. Start with 0 as the size known to fit."
    if sizes and got == sizes[-1] and (got > largest or any(got < size <= largest for size in sizes)):
        return "You returned the size that you tried last. Return the largest one that fit."
    if largest + 1 == got:
        return "That is the smallest size that doesn't fit. Return the other end of the range."
    if got < largest and not any(got < size <= largest for size in sizes):
        return (
            f"You never tried the sizes between {got} and the smallest one known to be too large. Go on until the "
            "two ends differ by 1."
        )
    if got < largest:
        return "A larger size fit. When a size fits, it becomes the new lower end; don't skip any."
    return "When a size doesn't fit, it becomes the new upper end: no larger size fits either."


def _check_tries(attempt, largest: int, most: int) -> None:
    _, sizes, case = _tried(attempt, largest, most)
    twice = next((size for size in sizes if sizes.count(size) > 1), None)
    allowed = most.bit_length() + 1
    if twice is not None:
        raise Mistake(
            f"your code tried the size {twice} more than once: {short(sizes)}.",
            case=case,
            idea="A try takes seconds, and you already know the result of this one: keep it.",
        )
    if len(sizes) > allowed:
        idea = "A try takes seconds. A try in the middle rules out half of the remaining range, whatever the result."
        steps = {after - before for before, after in pairwise(sizes)}
        if steps == {1}:
            idea = "You go up one size at a time. " + idea
        elif steps == {-1}:
            idea = "You go down one size at a time. " + idea
        raise Mistake(f"{allowed} tries are enough; yours took {len(sizes)}: {short(sizes, 60)}.", case=case, idea=idea)
