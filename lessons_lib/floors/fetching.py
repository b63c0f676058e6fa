"""Lesson 20: a block from the disk, or from another engine."""

from collections.abc import Callable
from typing import Any

from torch import Tensor


def fetch_block(floor: Any, block_hash: bytes, depth: int, read: Callable[[bytes, Tensor], bool]) -> int | None:
    """Read a block to a slot of host memory.

    Args:
        floor: a HostFloor that doesn't have the block.
        depth: how many blocks of the sequence are in front of it.
        read: function (hash, row) -> True if it has written the block's bytes to this row. If it returns False, the
            block is lost or damaged, and the row may hold anything.

    Returns:
        its slot, in use; None if the block couldn't be read, or no slot is free.
    """
    if not floor.free_queue:
        return None
    slot: int = floor.take()
    if read(block_hash, floor.row(slot)):
        floor.fill(slot, block_hash, depth)
        return slot
    floor.release([slot])
    return None
