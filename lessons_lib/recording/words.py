"""Numbers and lists in words, and the error for an index that is out of range."""

from collections.abc import Iterable, Sequence
from itertools import groupby


def check_index(what: str, index: int, count: int) -> None:
    """Raise IndexError if there is no such index of something of which there are `count`."""
    if not 0 <= index < count:
        limits = f"it may be from 0 to {count - 1}" if count else "there are none"
        raise IndexError(f"there is no {what} {index}; {limits}.")


def count(n: int, noun: str) -> str:
    """ "1 token", "1,200 tokens"."""
    return f"{n:,} {noun}{'' if n == 1 else 's'}"


def span(noun: str, first: int, length: int) -> str:
    """ "step 3", "steps 3 to 5"."""
    return f"{noun} {first:,}" if length == 1 else f"{noun}s {first:,} to {first + length - 1:,}"


def listed(words: Sequence[str], most: int = 12) -> str:
    """ "A, B and 3 more"; "none"."""
    more = f" and {len(words) - most} more" if len(words) > most else ""
    return ", ".join(words[:most]) + more or "none"


def numbered(noun: str, numbers: Sequence[int]) -> str:
    """ "block 7", "blocks 3, 0 to 8", "no block"; in the given order."""
    words = run_words(numbers)
    return f"{noun}{'s' if len(numbers) != 1 else ''} {', '.join(words)}" if words else f"no {noun}"


def run_words(numbers: Iterable[int]) -> list[str]:
    """Numbers in the given order, three and more neighbors together: ["3", "0 to 8"]."""
    words: list[str] = []
    for first, last in runs_of_numbers(numbers):
        words += [f"{first} to {last}"] if last > first + 1 else map(str, range(first, last + 1))
    return words


def runs_of_numbers(numbers: Iterable[int]) -> list[tuple[int, int]]:
    """(first, last) of each run of consecutive numbers, in the given order."""
    runs: list[tuple[int, int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1] = runs[-1][0], number
        else:
            runs.append((number, number))
    return runs


def runs_of(values: Iterable) -> list[tuple]:
    """(value, first index, length) of the runs of equal neighbors."""
    runs, start = [], 0
    for value, group in groupby(values):
        runs.append((value, start, len(list(group))))
        start += runs[-1][2]
    return runs
