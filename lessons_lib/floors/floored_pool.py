"""A pool with floors below it: what it evicts goes down, and what it misses comes up."""

from collections.abc import Iterable
from itertools import islice

from lessons_lib.floors.host_floor import HostFloor
from lessons_lib.floors.loading import load_prefix
from lessons_lib.kv_cache.prefix_cache import PrefixCache


class FlooredPrefixCache(PrefixCache):
    """A PrefixCache whose evicted blocks are kept on floors below.

    Attributes:
        below: the first of these floors. It is set once the memory of the blocks is there.
        depths: block -> see Floor; valid for cached blocks.
    """

    below: HostFloor

    @property
    def num_loaded(self) -> int:
        """Number of blocks loaded so far."""
        return self.below.num_loaded

    def reset(self) -> None:
        """Free all blocks and forget all contents, on all floors."""
        super().reset()
        self.depths = [0] * self.num_blocks
        if hasattr(self, "below"):
            self.below.clear()

    def allocate(self, count: int) -> list[int]:
        """See PrefixCache. Blocks that are evicted are copied down before."""
        blocks = self.replace(count)
        self.below.mover.guard()
        return blocks

    def replace(self, count: int) -> list[int]:
        """Allocate blocks that only loads write to, until they are loaded; see `allocate`."""
        if 0 < count <= len(self.free_queue):
            self.move_down(islice(self.free_queue, count))
        return super().allocate(count)

    def move_down(self, blocks: Iterable[int]) -> None:
        """Copy those of some blocks that are cached to the floor below."""
        cached = {block: self.block_to_hash[block] for block in blocks if block in self.block_to_hash}
        self.below.keep(cached, self.depths)

    def close(self) -> None:
        """Let all blocks move down as far as they can. The floors end."""
        self.move_down(self.free_queue)
        self.below.close()

    def load(self, block_hashes: list[bytes], depth: int) -> list[int]:
        """Find the blocks of these hashes, on any floor, and load those that aren't in the pool.

        Args:
            block_hashes: at most as many as blocks are free.
            depth: of the first one, see Floor.

        Returns:
            blocks in use, up to the first that is nowhere. Those that were loaded aren't registered yet.
        """
        return load_prefix(self, block_hashes, depth)
