"""A floor of the prefix cache: slots for blocks below the pool, and the order in which blocks leave them."""

from collections.abc import Callable, Iterable

from lessons_lib.kv_cache.prefix_cache import LruQueue, PrefixCache


class Floor(PrefixCache):
    """A PrefixCache whose blocks are copies, in slots. A slot is in use only while its block is copied.

    Attributes:
        choose: EvictionOrder; it may look at all attributes, and changes nothing.
        depths: slot -> how many blocks of the sequence are in front of the block; a deeper one costs more to compute.
        hits: slot -> how often the block was asked for since it came.
        num_failed: number of copies that failed. The block is lost, or found to be damaged.
        below: the next floor; None if there is none.
    """

    below: "Floor | None" = None

    def __init__(self, num_slots: int, block_size: int, choose: "EvictionOrder | None" = None):
        super().__init__(num_slots, block_size)
        self.choose = choose or least_recently_used
        self.depths, self.hits = [0] * num_slots, [0] * num_slots
        self.num_failed = 0

    def renew(self, block_hash: bytes) -> bool:
        """Return True if the block is here. It then counts as just used."""
        slot = self.hash_to_block.get(block_hash)
        if slot in self.free_queue:
            self.free_queue.move_to_end(slot)  # type: ignore[attr-defined]
        return slot is not None

    def take(self) -> int:
        """Allocate a slot. If none is empty, a block leaves the floor. OutOfBlocks if all slots are in use."""
        if self.free_queue and (slot := next(iter(self.free_queue))) in self.block_to_hash:
            slot = self.choose(self)
            self.leave(slot, self.block_to_hash[slot])
            self.free_queue.move_to_end(slot, last=False)  # type: ignore[attr-defined]
        return self.allocate(1)[0]

    def leave(self, slot: int, block_hash: bytes) -> None:
        """Hook: a block is about to leave the floor."""

    def fill(self, slot: int, block_hash: bytes, depth: int) -> None:
        """Register the block in a slot, once its contents are complete."""
        self.depths[slot], self.hits[slot] = depth, 0
        self.cache_full_block(slot, block_hash)

    def release(self, slots: list[int]) -> None:
        """Free slots, given in the order of a sequence's blocks. Empty ones are allocated first."""
        self.free(slots)
        for slot in slots:
            if slot not in self.block_to_hash and slot in self.free_queue:
                self.free_queue.move_to_end(slot, last=False)  # type: ignore[attr-defined]

    def forget(self, block_hashes: Iterable[bytes]) -> None:
        """Remove blocks, if they are here or below. No copy may be under way."""
        for block_hash in block_hashes:
            if (slot := self.hash_to_block.pop(block_hash, None)) is not None:
                self.block_to_hash.pop(slot, None)
                self.free_queue.move_to_end(slot, last=False)  # type: ignore[attr-defined]
        if self.below:
            self.below.forget(block_hashes)

    def recover(self) -> None:
        """Return what a copy that was interrupted left in use, here and below. Registered blocks are complete, so they
        stay."""
        lost = [slot for slot in range(self.num_blocks) if slot not in self.free_queue]
        queue = sorted([*lost, *self.free_queue], key=self.block_to_hash.__contains__)  # empty ones first
        self.free_queue = LruQueue.fromkeys(queue)  # type: ignore[assignment]
        self.used, self.ref_count = set(), {}
        self.hash_to_block = {block_hash: slot for slot, block_hash in self.block_to_hash.items()}
        if self.below:
            self.below.recover()


EvictionOrder = Callable[[Floor], int]


def least_recently_used(floor: Floor) -> int:
    """Choose the block that leaves a full floor.

    Args:
        floor: its `free_queue` has the slots to choose from, least recently used first; none is empty.

    Returns:
        a slot.
    """
    return next(iter(floor.free_queue))
