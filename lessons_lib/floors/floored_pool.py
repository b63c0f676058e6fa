"""A pool with floors below it: what it evicts goes down, and what it misses comes up."""

from collections.abc import Iterable
from itertools import islice

from lessons_lib.floors.host_floor import HostFloor
from lessons_lib.floors.loading import load_prefix
from lessons_lib.kv_cache.prefix_cache import PrefixCache


class FlooredPrefixCache(PrefixCache):
    """A PrefixCache whose evicted blocks are kept on floors below.

    Attributes:
        below: the first of these floors; None as long as there is none.
        depths: block -> see Floor; valid for cached blocks.
        num_loaded: number of blocks loaded so far.
    """

    below: HostFloor | None = None
    num_loaded = 0

    def reset(self) -> None:
        """Free all blocks and forget all contents, on all floors."""
        super().reset()
        self.depths = [0] * self.num_blocks
        if self.below:
            self.below.clear()

    def allocate(self, count: int) -> list[int]:
        """See PrefixCache. Blocks that are evicted are copied down before."""
        if self.below and 0 < count <= len(self.free_queue):
            self.move_down(islice(self.free_queue, count))
        return super().allocate(count)

    def move_down(self, blocks: Iterable[int]) -> None:
        """Copy those of some blocks that are cached to the floor below."""
        cached = {block: self.block_to_hash[block] for block in blocks if block in self.block_to_hash}
        if self.below and cached:
            self.below.keep(cached, self.depths)

    def close(self) -> None:
        """Let all blocks move down as far as they can. The floors end."""
        self.move_down(self.free_queue)
        if self.below:
            self.below.close()

    def load(self, block_hashes: list[bytes], depth: int) -> list[int]:
        """Find the blocks of these hashes, on any floor, and load those that aren't in the pool.

        Args:
            block_hashes: at most as many as blocks are free.
            depth: of the first one, see Floor.

        Returns:
            blocks in use, up to the first that is nowhere.
        """
        return load_prefix(self, block_hashes, depth) if self.below else []

    def register(self, blocks: list[int], block_hashes: list[bytes], depth: int) -> None:
        """Register blocks that were loaded; see `load`."""
        self.num_loaded += len(blocks)
        for index, (block, block_hash) in enumerate(zip(blocks, block_hashes), depth):
            self.depths[block] = index
            self.cache_full_block(block, block_hash)
