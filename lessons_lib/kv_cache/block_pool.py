"""Lesson 03: a pool of blocks, from which requests allocate memory for their keys and values."""

from collections import deque


class OutOfBlocks(RuntimeError):
    """More blocks are needed than are free."""


class BlockPool:
    """A fixed number of blocks, each with room for the keys and values of `block_size` tokens.

    Attributes:
        num_blocks: number of blocks; their ids are 0 to num_blocks - 1.
        block_size: tokens per block.
        free_queue: ids of the free blocks. Blocks are allocated from the front and freed to the end.
        used: ids of the allocated blocks.
    """

    def __init__(self, num_blocks: int, block_size: int):
        if num_blocks < 0 or block_size < 1:
            raise ValueError(
                f"{num_blocks} blocks of {block_size} tokens: a pool needs 0 or more blocks of at least 1 token each."
            )
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.reset()

    def reset(self) -> None:
        """Free all blocks."""
        self.free_queue = deque(range(self.num_blocks))
        self.used: set[int] = set()

    def allocate(self, count: int) -> list[int]:
        """Allocate `count` blocks from the front of the free queue: all of them or none.

        Returns:
            list of int: their ids, in the order in which they left the queue.

        Raises:
            OutOfBlocks: fewer blocks are free; nothing changes.
            ValueError: `count` is negative; nothing changes.
        """
        if count < 0:
            raise ValueError(f"can't allocate {count} blocks; `count` must be at least 0.")
        if count > len(self.free_queue):
            raise OutOfBlocks(
                f"{count} block{'s' if count != 1 else ''} needed, {len(self.free_queue)} free of {self.num_blocks}. "
                "Free a finished request, stop a running one, or make the pool larger. Nothing was allocated."
            )
        blocks = [self.free_queue.popleft() for _ in range(count)]
        self.used.update(blocks)
        return blocks

    def free(self, blocks: list[int]) -> None:
        """Free a request's blocks, given in the order of its tokens.

        They go to the end of the free queue, last block first, so that a request's tail is reallocated before its
        beginning. Requests often share a beginning: lesson 11 reuses such blocks if they are still intact.

        Raises:
            ValueError: a block is not allocated (freed before, or of another pool) or is listed twice; nothing changes.
        """
        for block in blocks:
            if block not in self.used:
                raise ValueError(
                    f"block {block!r} is not allocated; this pool has blocks 0 to {self.num_blocks - 1}, "
                    f"{len(self.used)} of them in use. Free each block once, in the pool that it came from. "
                    "Nothing was freed."
                )
        if len(set(blocks)) < len(blocks):
            raise ValueError(f"a block is listed twice in {list(blocks)}. Free each block once. Nothing was freed.")
        self.used.difference_update(blocks)
        self.free_queue.extend(reversed(blocks))


def blocks_for(num_tokens: int, block_size: int) -> int:
    """Minimum number of blocks for `num_tokens` tokens.

    Args:
        num_tokens: 0 or more.
        block_size: tokens per block, at least 1.
    """
    return (num_tokens + block_size - 1) // block_size
