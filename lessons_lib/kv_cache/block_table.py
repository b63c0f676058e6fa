"""Lesson 03: the block table, which lists a request's blocks."""

from lessons_lib.kv_cache.block_pool import BlockPool, blocks_for


class BlockTable:
    """The blocks of one request: `blocks[i]` holds its tokens at positions i x block_size to (i + 1) x block_size - 1.

    Attributes:
        pool: the `BlockPool` that the blocks come from.
        blocks: block ids, in the order of the request's tokens.
        num_tokens: number of tokens stored so far.
    """

    def __init__(self, pool: BlockPool):
        self.pool = pool
        self.blocks: list[int] = []
        self.num_tokens = 0

    def append(self, count: int = 1) -> None:
        """Make room for `count` more tokens. Fill the last block first, and allocate new blocks only for the rest.

        Raises:
            OutOfBlocks: the pool has too few free blocks; nothing changes.
        """
        needed = blocks_for(self.num_tokens + count, self.pool.block_size)
        self.blocks += self.pool.allocate(needed - len(self.blocks))
        self.num_tokens += count

    def release(self) -> None:
        """Return all blocks to the pool. The table is empty afterwards and can be reused."""
        self.pool.free(self.blocks)
        self.blocks = []
        self.num_tokens = 0


def slot_of(blocks: list[int], block_size: int, position: int) -> int:
    """The cache slot of the token at `position`: the first slot of its block, plus the offset in the block.

    Args:
        blocks: ids of the request's blocks, in the order of its tokens.
        block_size: tokens per block.
        position: index of the token in its sequence, from 0.

    Returns:
        int: the slot's index, counted over the whole pool.

    Raises:
        IndexError: the position is negative or beyond the last block.
    """
    if not 0 <= position < len(blocks) * block_size:
        raise IndexError(
            f"position {position} has no slot; {len(blocks)} blocks of {block_size} "
            f"have positions 0 to {len(blocks) * block_size - 1}."
        )
    return blocks[position // block_size] * block_size + position % block_size
