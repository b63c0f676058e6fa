"""Lesson 20: an eviction order that looks at more than the time of the last use."""

from itertools import islice
from typing import Any


def cheapest_to_lose(floor: Any) -> int:
    """Choose the block that leaves a full floor.

    It is one of the older half of `free_queue` (rounded up): that which was asked for least often; of several, the
    deepest; of several of these, the least recently used.

    Args:
        floor: a Floor. Its `free_queue` has the slots to choose from, least recently used first.

    Returns:
        a slot.
    """
    older = islice(floor.free_queue, (len(floor.free_queue) + 1) // 2)
    return min(older, key=lambda slot: (floor.hits[slot], -floor.depths[slot]))
