"""Judges 13.1, `largest_that_fits`: the right size at both ends, with few tries."""

from random import Random

from lessons_lib.checks.exercise import Mistake, call, short


class Tries:
    """A `fits` that knows the answer, and writes down what it is asked."""

    def __init__(self, largest: int, most: int, case: str):
        self.largest, self.most, self.case = largest, most, case
        self.sizes: list[int] = []

    def __call__(self, size):
        if isinstance(size, float) and not size.is_integer() or not hasattr(size, "__int__"):
            raise Mistake(
                f"a size should be a whole number; yours tried {size!r}.",
                case=self.case,
                idea="Half of an odd number is no size: use `//`.",
            )
        if not 1 <= size <= self.most:
            idea = f"Sizes are 1 to `most`, which is {self.most}. 0 needs no try: it is the answer when 1 does not fit."
            raise Mistake(f"the size {int(size)} was tried.", case=self.case, idea=idea)
        self.sizes.append(int(size))
        if len(self.sizes) > 3 * self.most + 10:
            idea = "Does the range get smaller with every try? If `middle` stays what one end is already, it does not."
            raise Mistake(
                f"after {len(self.sizes)} tries your code still goes on, and tries {short(self.sizes[-4:])}.",
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
    which = "nothing fits" if not largest else f"sizes up to {largest} fit" if largest < most else "every size fits"
    return f"most = {most}, and {which}."


def _tried(attempt, largest: int, most: int):
    case = _told(largest, most)
    fits = Tries(largest, most, case)
    return call(attempt, fits, most, case=case), fits.sizes, case


def _check_size(attempt, largest: int, most: int) -> None:
    got, sizes, case = _tried(attempt, largest, most)
    if isinstance(got, bool) or not isinstance(got, (int, float)) and not hasattr(got, "__index__"):
        raise Mistake(
            f"a size should come back, {largest}; yours returned {short(got)}.",
            case=case,
            idea="Return the largest size for which `fits` said yes, or 0.",
        )
    if got != largest or isinstance(got, float):
        raise Mistake(
            f"{largest} should come back; yours returned {got!r}.",
            case=f"{case} You tried {short(sizes)}.",
            idea=_why(got, sizes, largest, most),
        )


def _why(got, sizes: list[int], largest: int, most: int) -> str:
    if isinstance(got, float):
        return "A size is a whole number: use `//`."
    if sizes and got & (got - 1) == 0 and all(size & (size - 1) == 0 for size in sizes) and got < largest:
        return "Only powers of two were tried. Between the last that fits and the first that does not, go on by halves."
    if largest == most and most not in sizes:
        return "`most` itself was never tried. It is of interest too: the first size that is surely too large is `most` + 1."
    if largest == 0 and got == 1:
        return "Not even 1 fits, and that has to be tried. Begin with 0 as the size that surely fits."
    if got in sizes and got == sizes[-1]:
        return "That is the size that was tried last. Keep the largest one that fitted."
    if largest + 1 == got:
        return "That is the smallest size that does not fit. Return the other end of the range."
    if got < largest and not any(got < size <= largest for size in sizes):
        return f"Sizes between {got} and what is known to be too large were never tried. Go on until the two are neighbours."
    if got < largest:
        return "A larger size did fit. After a yes, this size is the new lower end; do not skip any."
    return "After a no, this size is the new upper end: it does not fit, and none above it does."


def _check_tries(attempt, largest: int, most: int) -> None:
    _, sizes, case = _tried(attempt, largest, most)
    twice = next((size for size in sizes if sizes.count(size) > 1), None)
    allowed = most.bit_length() + 1
    if len(sizes) > allowed:
        idea = "A try takes seconds. One in the middle of what is left rules out half of it, whatever the answer is."
        if sizes == sorted(sizes):
            idea = "You go up step by step. " + idea
        elif sizes == sorted(sizes, reverse=True):
            idea = "You go down step by step. " + idea
        raise Mistake(f"{allowed} tries are enough; yours took {len(sizes)}: {short(sizes, 60)}.", case=case, idea=idea)
    if twice is not None:
        raise Mistake(
            f"the size {twice} was tried more than once: {short(sizes)}.",
            case=case,
            idea="A try takes seconds, and its answer is known already: remember it.",
        )
