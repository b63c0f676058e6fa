"""Lesson 20: blocks that another engine has computed."""

from collections.abc import Callable
from typing import Any

from torch import Tensor


def receive_blocks(floor: Any, block_hashes: list[bytes], receive: Callable[[bytes, Tensor], bool]) -> int:
    """Receive the blocks of a prompt, in order.

    Args:
        floor: a HostFloor.
        block_hashes: the hashes of the prompt's full blocks.
        receive: function (hash, row) -> True if it has written the block's bytes to this row of host memory. If it
            returns False, the block was lost or is damaged, and the row may hold anything.

    Returns:
        how many of the first blocks are here: up to the first that wasn't received, or for which no slot is free.
    """
    slots: list[int] = []
    for depth, block_hash in enumerate(block_hashes):
        if (slot := floor.hash_to_block.get(block_hash)) is not None:
            floor.touch([slot])
        elif not floor.free_queue:
            break
        else:
            slot = floor.take()
            if not receive(block_hash, floor.row(slot)):
                floor.release([slot])
                break
            floor.fill(slot, block_hash, depth)
        slots.append(slot)
    floor.release(slots)
    return len(slots)
