"""Code of every shape that an exercise may have."""

import functools
import math
from dataclasses import dataclass, field

SIDES = 4


def area(width: float, height: float) -> float:
    """Area of a rectangle.

    Args:
        width, height: in metres.
    """

    # Both sides count.
    if width < 0:
        # A wall has no negative length.
        return 0.0
    return math.fabs(width * height)
    # The sign was dealt with above.


@dataclass
class Counter:
    """Counts what it is given."""

    step: int = 1
    seen: list[int] = field(default_factory=list)
    limit = SIDES

    def __post_init__(self):
        self.total = 0

    def add(self, value: int) -> int:
        """Add `value` steps."""
        self.seen.append(value)
        self.total += self.step * value
        return self.total

    @property
    def mean(self) -> float:
        return self.total / len(self.seen)

    def reset(self):
        self.total = 0
        self.seen.clear()


def no_docstring(text):
    return text.upper()


def outer(n: int = (lambda: 3)(), *, keys: dict[str, int] = {"a": 1}) -> list[int]:  # a comment: with a colon
    """Nested functions belong to the outer body."""

    def inner(k):
        """Hidden with the rest."""
        return k + n

    text = """
not indented: this line starts at the margin
    # not a comment
"""
    return [inner(k) for k in keys.values()] + [len(text)]


@functools.lru_cache(
    maxsize=None,
)
def long_signature(
    first: int,
    second: int = 2,  # the second: of two
) -> int:
    # A comment before the first statement.
    return first + second


async def waits(seconds: float) -> float:
    """A coroutine."""
    return seconds


def counts(n: int):
    """A generator."""
    for k in range(n):
        yield k


class Outer:
    """A class with a class in it, and abstract parts."""

    class Inner:
        def value(self) -> int:
            return 1

    def abstract(self) -> int:
        """Left to others."""
        raise NotImplementedError

    def nothing(self) -> None:
        ...

    if SIDES == 4:

        async def later(self):
            return self.Inner().value()


class OnlyData:
    """Nothing to write here."""

    x: int = 0
