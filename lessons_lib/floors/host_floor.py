"""The first floor below the pool: blocks in host memory."""

from collections.abc import Iterable
from typing import Protocol

from torch import Tensor

from lessons_lib.floors.block_mover import BlockMover
from lessons_lib.floors.floor import EvictionOrder, Floor


class Below(Protocol):
    """A floor below host memory, such as a DiskFloor."""

    def keep(self, block_hash: bytes, row: Tensor, depth: int) -> None:
        """Take a block that leaves the floor above, if it can."""

    def renew(self, block_hash: bytes) -> bool:
        """See `Floor.renew`."""

    def read(self, block_hash: bytes, row: Tensor) -> bool:
        """Write a block to a row of host memory. Return False if it isn't here, or is damaged."""

    def forget(self, block_hashes: Iterable[bytes]) -> None:
        """Remove blocks, if they are here."""

    def recover(self) -> None:
        """See `Floor.recover`."""

    def clear(self) -> None:
        """Remove all blocks."""

    def close(self) -> None:
        """No block will be asked for any more."""


class HostFloor(Floor):
    """Blocks that the pool evicted, in host memory. The least recently used ones go on to the floor below.

    A block that is loaded stays here, so that its next eviction costs no copy.

    Attributes:
        mover: copies between the slots and the pool.
        below: the next floor; None if there is none.
    """

    def __init__(self, mover: BlockMover, below: Below | None = None, choose: EvictionOrder | None = None):
        self.mover, self.below = mover, below
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
            for slot, (block, block_hash) in zip(slots, blocks.items()):
                self.fill(slot, block_hash, depths[block])
        except Exception:
            self.num_failed += 1
        self.release(slots[::-1])  # `free` takes the last one for the least recently used

    def leave(self, slot: int, block_hash: bytes) -> None:
        """See Floor. The block moves to the floor below."""
        if self.below:
            self.below.keep(block_hash, self.row(slot), self.depths[slot])

    def row(self, slot: int) -> Tensor:
        """The bytes of a slot, once all copies are finished."""
        self.mover.wait()
        return self.mover.host.rows[slot]

    def lend(self, block_hashes: list[bytes], depth: int) -> list[int]:
        """Find the first of these blocks, here or on the floor below, up to the first that is on neither. At most half
        of the slots: blocks that the pool evicts meanwhile need room, too.

        Args:
            depth: of the first one.

        Returns:
            their slots, in use until `release`.
        """
        slots: list[int] = []
        most = max(1, len(self.free_queue) // 2)
        for index, block_hash in enumerate(block_hashes[:most], depth):
            if (slot := self.hash_to_block.get(block_hash)) is not None:
                self.touch([slot])
            elif (slot := self.fetch(block_hash, index)) is None:
                break
            self.hits[slot] += 1
            slots.append(slot)
        return slots

    def fetch(self, block_hash: bytes, depth: int) -> int | None:
        """Read a block from the floor below. Returns its slot, in use; None if there is no such block."""
        if not (self.below and self.free_queue and self.below.renew(block_hash)):
            return None
        slot = self.take()
        if self.below.read(block_hash, self.row(slot)):
            self.fill(slot, block_hash, depth)
            return slot
        self.release([slot])
        return None

    def load(self, slots: list[int], blocks: list[int]) -> bool:
        """Copy slots to blocks of the pool. Returns False if the copy failed."""
        try:
            self.mover.load(slots, blocks)
            return True
        except Exception:
            self.num_failed += 1
            return False

    def forget(self, block_hashes: Iterable[bytes]) -> None:
        """See Floor. The blocks are removed from all floors."""
        super().forget(block_hashes)
        if self.below:
            self.below.forget(block_hashes)

    def recover(self) -> None:
        """See Floor."""
        self.mover.wait()
        super().recover()
        if self.below:
            self.below.recover()

    def clear(self) -> None:
        """Remove all blocks, from all floors."""
        self.mover.wait()
        self.reset()
        if self.below:
            self.below.clear()

    def close(self) -> None:
        """Let the blocks move to the floor below, where the next engine may find them."""
        self.mover.wait()
        if self.below:
            for slot in self.free_queue:
                if slot in self.block_to_hash:
                    self.leave(slot, self.block_to_hash[slot])
            self.below.close()
