"""Lesson 11: a block pool that tracks block contents, so that sequences with the same prefix share blocks."""

from collections import OrderedDict
from collections.abc import Hashable, Iterable

from lessons_lib.kv_cache.block_pool import BlockPool


class LruQueue(OrderedDict[int, None]):
    """A pool's free queue that also supports removal from the middle."""

    def popleft(self) -> int:
        return self.popitem(last=False)[0]

    def append(self, block: int) -> None:
        self[block] = None

    def extend(self, blocks: Iterable[int]) -> None:
        self.update(dict.fromkeys(blocks))


class SharedBlockPool(BlockPool):
    """A block pool whose blocks may be shared by several sequences.

    A free block keeps its contents until it is allocated again. Until then it can be taken from anywhere in the free
    queue, which is ordered from least to most recently used.

    Attributes:
        ref_count: block -> number of sequences that use it, for blocks in use.
    """

    def reset(self) -> None:
        """Free all blocks."""
        super().reset()
        self.free_queue = LruQueue.fromkeys(range(self.num_blocks))  # type: ignore[assignment]
        self.ref_count: dict[int, int] = {}

    def allocate(self, count: int) -> list[int]:
        """Allocate `count` blocks to one sequence, least recently used first.

        Raises:
            OutOfBlocks, ValueError: as in `BlockPool.allocate`; nothing changes.
        """
        blocks = super().allocate(count)
        self.ref_count.update(dict.fromkeys(blocks, 1))
        return blocks

    def touch(self, blocks: list[int]) -> None:
        """Add one user to each block. Free blocks leave the free queue.

        Args:
            blocks: distinct blocks of this pool, free or in use.
        """
        for block in blocks:
            self.ref_count[block] = self.ref_count.get(block, 0) + 1
            self.free_queue.pop(block, None)  # type: ignore[call-arg]
        self.used.update(blocks)

    def free(self, blocks: list[int]) -> None:
        """Remove one user from blocks, given in the order of the sequence's tokens. Unused ones join the free queue.

        Raises:
            ValueError: a block is not in use, or is given twice; nothing changes.
        """
        if len(set(blocks)) < len(blocks):
            raise ValueError(f"a block is given twice in {list(blocks)}. Give each block once. Nothing was freed.")
        # A block without a count is not in use; `super().free` refuses it.
        super().free([block for block in blocks if self.ref_count.get(block, 1) == 1])
        for block in blocks:
            self.ref_count[block] -= 1
            if not self.ref_count[block]:
                del self.ref_count[block]


class PrefixCache(SharedBlockPool):
    """A shared pool whose full blocks can be found by the hash of their contents, in use or free.

    Attributes:
        block_to_hash: block -> its hash, for full blocks whose keys and values are computed, or will be in the step
            being scheduled.
        hash_to_block: hash -> block.
        evicted: number of cached blocks evicted so far.
    """

    evicted = 0

    def reset(self) -> None:
        """Free all blocks and forget their contents."""
        super().reset()
        self.block_to_hash: dict[int, Hashable] = {}
        self.hash_to_block: dict[Hashable, int] = {}

    def match_prefix(self, block_hashes: list[bytes]) -> list[int]:
        """Find the longest cached prefix of a sequence.

        Args:
            block_hashes: hashes of its full blocks, in order.

        Returns:
            the blocks found, up to the first miss.
        """
        blocks = []
        for block_hash in block_hashes:
            if block_hash not in self.hash_to_block:
                break
            blocks.append(self.hash_to_block[block_hash])
        return blocks

    def allocate(self, count: int) -> list[int]:
        """Allocate `count` blocks for new tokens, least recently used first, and evict their contents.

        Raises:
            OutOfBlocks, ValueError: as in `BlockPool.allocate`; nothing changes.
        """
        blocks = super().allocate(count)
        for block in blocks:
            if block in self.block_to_hash:
                del self.hash_to_block[self.block_to_hash.pop(block)]
                self.evicted += 1
        return blocks

    def is_writable(self, block: int) -> bool:
        """True if the block's owner may write to it: no other sequence reads it, now or later."""
        return self.ref_count.get(block) == 1 and block not in self.block_to_hash

    def touch(self, blocks: list[int]) -> None:
        """Add one user to each block. Free blocks leave the free queue.

        Raises:
            ValueError: a block is free and has no hash, so there is nothing to share; nothing changes.
        """
        for block in blocks:
            if block not in self.ref_count and block not in self.block_to_hash:
                raise ValueError(
                    f"block {block} is free and has no hash; touch blocks in use, or those that `match_prefix` "
                    "returned. Nothing changed."
                )
        super().touch(blocks)

    def cache_full_block(self, block: int, block_hash: Hashable) -> None:
        """Register a full block in use under its hash, unless another block has that hash.

        Raises:
            ValueError: the block is not in use; nothing changes.
        """
        if block not in self.ref_count:
            raise ValueError(f"block {block} is not in use; only an allocated block can be cached. Nothing changed.")
        if block_hash not in self.hash_to_block and block not in self.block_to_hash:
            self.block_to_hash[block] = block_hash
            self.hash_to_block[block_hash] = block
