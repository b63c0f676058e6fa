"""What 09.4 and 09.5 ask of the ranks of any policy: that they are numbers, and can be compared."""

from lessons_lib.checks.exercise import Mistake, short


def refuse_no_number(rank, case: str) -> None:
    """A tuple may be a rank, too: it is compared number by number."""
    if rank is None:
        raise Mistake(
            "`rank` should return a number; yours returned None.",
            case=case,
            idea="The queue sorts by what `rank` returns, so end with `return ...`.",
        )
    parts = rank if isinstance(rank, tuple | list) else (rank,)
    if isinstance(rank, str) or any(part != part for part in parts):
        raise Mistake(
            f"`rank` should return a number; yours returned {short(rank)}.",
            case=case,
            idea="Text is sorted letter by letter, and NaN is neither smaller nor larger than any number.",
        )


def is_before(one, other, case: str) -> bool:
    try:
        return bool(one < other)
    except TypeError:
        what = f"the ranks {short(one)} and {short(other)} can't be compared."
        raise Mistake(what, case=case, idea="Return a number for every sequence: the smaller one goes first.") from None
