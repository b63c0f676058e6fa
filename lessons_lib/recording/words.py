"""Indices in words: ranges of them, and the error for one that is out of range."""

from collections.abc import Iterable


def check_index(what: str, index: int, count: int) -> None:
    """Refuse an index of something of which there are `count`.

    Raises:
        IndexError: it is out of range.
    """
    if not 0 <= index < count:
        limits = f"it may be from 0 to {count - 1}" if count else "there are none"
        raise IndexError(f"there is no {what} {index}; {limits}.")


def runs_of_numbers(numbers: Iterable[int]) -> list[tuple[int, int]]:
    """(first, last) of each run of consecutive numbers, in the given order."""
    runs: list[tuple[int, int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1] = runs[-1][0], number
        else:
            runs.append((number, number))
    return runs
