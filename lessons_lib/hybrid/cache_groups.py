"""Lesson 19: how much of a cached prefix a sequence can use, if layers remember differently."""

from typing import NamedTuple


class CacheGroup(NamedTuple):
    """Layers that remember in the same way, and which blocks of a prefix they still have.

    Attributes:
        is_kept: of each block of the prefix, in order. Of layers with a state: a copy of the state at its end is kept.
        num_needed: how many blocks at the end of a prefix must be kept so that a sequence can go on behind it: all for
            full attention, those of a window, 1 for a state. A shorter prefix needs all of its blocks.
    """

    is_kept: list[bool]
    num_needed: int


def longest_usable(groups: list[CacheGroup]) -> int:
    """Find the longest prefix behind which a sequence can go on.

    Args:
        groups: one or more, with equally many blocks.

    Returns:
        its number of blocks; 0 if there is none.
    """
    for count in range(len(groups[0].is_kept), 0, -1):
        if all(all(group.is_kept[max(0, count - group.num_needed) : count]) for group in groups):
            return count
    return 0
