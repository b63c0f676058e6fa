"""Where sequences end on the axes of a mask."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate


@dataclass(frozen=True)
class End:
    """Where a sequence's tokens end on an axis of a mask.

    name   what dragging it changes: "cached 0" and "new 0" for the sequence with the id 0, and so on, or "padding"
    axis   "x", among the keys, or "y", among the queries
    at     how many tokens stand before it on its axis
    count  how many tokens of this kind the sequence has
    """

    name: str
    axis: str
    at: int
    count: int


def ends_of(lengths: Sequence[int], cached: Sequence[int], padding: int) -> list[End]:
    """All ends on both axes of the mask of one pass, in order. Its keys are the cached tokens of every sequence, then
    the new ones, then the padding; its queries are the same without what is cached.
    """
    old = [(f"cached {index}", count) for index, count in enumerate(cached)]
    new = [*((f"new {index}", count) for index, count in enumerate(lengths)), ("padding", padding)]
    return [
        End(name, axis, at, count)
        for axis, tokens in (("x", old + new), ("y", new))
        for (name, count), at in zip(tokens, accumulate(count for _, count in tokens))
    ]
