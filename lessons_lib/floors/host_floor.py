"""The first floor below the pool: blocks in host memory."""

from collections.abc import Callable

from torch import Tensor

from lessons_lib.floors.block_mover import BlockMover
from lessons_lib.floors.disk_floor import DiskFloor
from lessons_lib.floors.fetching import fetch_block
from lessons_lib.floors.floor import EvictionOrder, Floor

Read = Callable[[bytes, Tensor], bool]


class HostFloor(Floor):
    """Blocks that the pool evicted, in host memory. The least recently used ones go on to the floor below.

    A block that is loaded stays here, so that its next eviction costs no copy.

    Attributes:
        mover: copies between the slots and the pool.
    """

    below: DiskFloor | None

    def __init__(self, mover: BlockMover, below: DiskFloor | None = None, choose: EvictionOrder | None = None):
        self.mover, self.below, self.num_loaded = mover, below, 0
        super().__init__(mover.host.num_blocks, mover.host.block_size, choose)

    def keep(self, evicted: dict[int, bytes], depths: list[int]) -> None:
        """Copy blocks of the pool that will be overwritten, before the next pass. If they are too many at once, the
        first ones go on to the floor below.

        Args:
            evicted: block -> its hash, least recently used first.
            depths: block -> see Floor.
        """
        new = [block for block, block_hash in evicted.items() if not self.renew(block_hash)]
        room = max(1, len(self.free_queue))
        for start in range(0, len(new), room) if self.below else [max(0, len(new) - room)]:
            self.store({block: evicted[block] for block in new[start : start + room]}, depths)

    def store(self, blocks: dict[int, bytes], depths: list[int]) -> None:
        """Copy blocks of the pool here, if there is room; see `keep`."""
        if not blocks or len(blocks) > len(self.free_queue):
            return
        slots = [self.take() for _ in blocks]
        try:
            self.mover.store(list(blocks), slots)
        except Exception:
            self.num_failed += 1
        else:
            for slot, (block, block_hash) in zip(slots, blocks.items()):
                self.fill(slot, block_hash, depths[block])
        self.release(slots[::-1])  # `free` takes the last one for the least recently used

    def leave(self, slot: int, block_hash: bytes) -> None:
        """See Floor. The block moves to the floor below."""
        if self.below:
            self.below.keep(block_hash, self.row(slot), self.depths[slot])

    def row(self, slot: int) -> Tensor:
        """The bytes of a slot, once all copies are finished."""
        self.mover.wait()
        return self.mover.host.rows[slot]

    def lend(self, block_hashes: list[bytes], depth: int, receive: Read | None = None) -> list[int]:
        """Find the first of these blocks, here or on the floor below, up to the first that is on neither. At most half
        of the slots: blocks that the pool evicts meanwhile need room, too.

        Args:
            depth: of the first one.
            receive: reads blocks that aren't here, in place of the floor below; see `fetch_block`.

        Returns:
            their slots, in use until `release`.
        """
        slots: list[int] = []
        most = max(1, len(self.free_queue) // 2)
        for index, block_hash in enumerate(block_hashes[:most], depth):
            if (slot := self.hash_to_block.get(block_hash)) is not None:
                self.touch([slot])
            elif read := receive or (self.below and self.below.renew(block_hash) and self.below.read):
                slot = self.fetch(block_hash, index, read)
            if slot is None:
                break
            self.hits[slot] += 1
            slots.append(slot)
        return slots

    def fetch(self, block_hash: bytes, depth: int, read: Read) -> int | None:
        """See `fetch_block`. If `read` raises, the block is lost."""

        def read_or_fail(block_hash: bytes, row: Tensor) -> bool:
            try:
                return read(block_hash, row)
            except Exception:
                self.num_failed += 1
                return False

        return fetch_block(self, block_hash, depth, read_or_fail)

    def load(self, slots: list[int], blocks: list[int]) -> bool:
        """Copy slots to blocks of the pool. Returns False if the copy failed."""
        try:
            self.mover.load(slots, blocks)
        except Exception:
            self.num_failed += 1
            self.mover.guard()
            return False
        self.num_loaded += len(blocks)
        return True

    def clear(self) -> None:
        """Remove all blocks, from all floors."""
        self.mover.wait()
        self.reset()
        if self.below:
            self.below.clear()

    def close(self) -> None:
        """Let the blocks move to the floor below, where the next engine may find them."""
        if self.below:
            for slot in [slot for slot in (*self.free_queue, *self.used) if slot in self.block_to_hash]:
                self.leave(slot, self.block_to_hash[slot])
            self.below.close()
