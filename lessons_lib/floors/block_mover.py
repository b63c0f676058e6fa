"""Copies blocks between the pool's cache and host memory."""

from lessons_lib.floors.host_cache import HostCache
from lessons_lib.kv_cache.block_copies import SWAP_IN, SWAP_OUT, BlockCopy, copy_blocks
from lessons_lib.kv_cache.paged_kv_cache import PagedKVCache


class BlockMover:
    """Copies in order, on a CPU. `gpu_mover.GPUMover` copies while a GPU computes.

    Attributes:
        cache: the pool's.
        host: the slots.
    """

    def __init__(self, cache: PagedKVCache, host: HostCache):
        self.cache, self.host = cache, host

    def store(self, blocks: list[int], slots: list[int]) -> None:
        """Copy blocks of the pool to slots. No pass may write to them before `guard`."""
        copy_blocks([BlockCopy(SWAP_OUT, *pair) for pair in zip(blocks, slots)], self.cache, self.host)

    def guard(self) -> None:
        """Let passes that are launched from now on write to blocks that were stored."""

    def load(self, slots: list[int], blocks: list[int]) -> None:
        """Copy slots to blocks of the pool. No pass may read them as long as `is_loading`."""
        copy_blocks([BlockCopy(SWAP_IN, *pair) for pair in zip(slots, blocks)], self.cache, self.host)

    def is_loading(self, blocks: list[int]) -> bool:
        """True if a copy to one of these blocks isn't finished."""
        return False

    def wait(self) -> None:
        """Wait for all copies. The host may then read and write the slots."""
