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
            ValueError: `count` is negative; nothing changes.
        """
        if count < 0:
            raise ValueError(f"can't append {count} tokens; `count` must be at least 0. `release()` frees the blocks.")
        needed = blocks_for(self.num_tokens + count, self.pool.block_size)
        self.blocks += self.pool.allocate(needed - len(self.blocks))
        self.num_tokens += count

    def release(self) -> None:
        """Return all blocks to the pool. The table is empty afterwards and can be reused."""
        self.pool.free(self.blocks)
        self.blocks = []
        self.num_tokens = 0
