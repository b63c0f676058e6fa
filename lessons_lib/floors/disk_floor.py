"""The floor below host memory: blocks in a file, which the next engine finds again."""

from collections.abc import Callable, Iterable
from itertools import count
from pathlib import Path

from torch import Tensor

from lessons_lib.floors.floor import EvictionOrder, Floor
from lessons_lib.floors.model_identity import name_of
from lessons_lib.floors.segment_file import ENTRY_BYTES, SegmentFile

MOST_ENGINES = 64  # that use one folder at a time


class DiskFloor(Floor):
    """Blocks that left host memory, in a file of a folder that is private to the user.

    Each engine has a file of its own: the first of its model that no other engine uses.

    Attributes:
        identity: function () -> what the blocks belong to, see `model_identity`. Asked again after `clear`: the model
            may have other weights then.
        segment: the SegmentFile.
    """

    def __init__(
        self, folder: Path, num_bytes: int, identity: Callable[[], bytes], block_bytes: int, block_size: int,
        choose: EvictionOrder | None = None,
    ):  # fmt: skip
        """
        Raises:
            OSError: the folder or the file can't be used.
        """
        super().__init__(num_bytes // (block_bytes + ENTRY_BYTES), block_size, choose)
        self.folder, self.identity, self.block_bytes = folder, identity, block_bytes
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.open()

    def open(self) -> None:
        """Open a file, and find what an earlier engine left in it."""
        header = self.identity()
        for number in count():
            path = self.folder / f"{name_of(header)}-{number}.kv"
            try:
                self.segment = SegmentFile(path, header, self.num_blocks, self.block_bytes)
                break
            except BlockingIOError:
                if number == MOST_ENGINES:
                    raise
        self.num_failed += self.segment.was_foreign
        for slot, block_hash, depth in self.segment.entries():
            if block_hash not in self.hash_to_block:
                self.free_queue.move_to_end(slot)  # type: ignore[attr-defined]
                self.block_to_hash[slot], self.hash_to_block[block_hash] = block_hash, slot
                self.depths[slot] = depth

    def keep(self, block_hash: bytes, row: Tensor, depth: int) -> None:
        """Write a block that leaves host memory, unless it is here or the disk is full."""
        if self.renew(block_hash) or not self.free_queue:
            return
        slot = self.take()
        try:
            self.segment.write(slot, block_hash, depth, memoryview(row.numpy()))
            self.fill(slot, block_hash, depth)
        except OSError:
            self.num_failed += 1
        self.release([slot])

    def read(self, block_hash: bytes, row: Tensor) -> bool:
        """Read a block to a row of host memory. Returns False if it isn't here, or is damaged; then it is forgotten.
        OSError if the disk is broken."""
        if (slot := self.hash_to_block.get(block_hash)) is None:
            return False
        is_whole = self.segment.read(slot, block_hash, memoryview(row.numpy()))
        if not is_whole:
            self.num_failed += 1
            self.forget([block_hash])
        self.hits[slot] += is_whole
        return is_whole

    def forget(self, block_hashes: Iterable[bytes]) -> None:
        """See Floor. No later engine finds them either."""
        for block_hash in block_hashes:
            if (slot := self.hash_to_block.get(block_hash)) is not None:
                self.segment.erase(slot)
        super().forget(block_hashes)

    def clear(self) -> None:
        """Remove all blocks, and go on with a file for the model as it is now."""
        self.segment.empty()
        self.segment.close()
        self.reset()
        self.open()

    def close(self) -> None:
        """See HostFloor. Another engine may have the file."""
        self.segment.close()
