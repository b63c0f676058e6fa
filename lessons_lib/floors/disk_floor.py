"""The floor below host memory: blocks in a file, which the next engine finds again."""

import hashlib
from collections.abc import Callable, Iterable
from contextlib import suppress
from itertools import count
from pathlib import Path

from torch import Tensor

from lessons_lib.floors.floor import EvictionOrder, Floor
from lessons_lib.floors.host_cache import HostCache
from lessons_lib.floors.segment_file import ENTRY_BYTES, SegmentFile


class DiskFloor(Floor):
    """Blocks that left host memory, in a file of a folder that is private to the user.

    Each engine has a file of its own: the first of its model that no other engine uses.

    Attributes:
        identity: function () -> what the blocks belong to, see `model_identity`. Asked again after `clear`: the model
            may have other weights then.
        segment: the SegmentFile.
    """

    def __init__(
        self, path: Path, size: int, identity: Callable[[], bytes], like: HostCache, choose: EvictionOrder | None = None
    ):
        """
        Args:
            path: of the folder.
            size: of the file, in bytes.
            like: the slots above; the blocks are alike.

        Raises:
            OSError: the folder or the file can't be used.
        """
        self.folder, self.identity, self.block_bytes = path, identity, like.rows.shape[1]
        super().__init__(size // (self.block_bytes + ENTRY_BYTES), like.block_size, choose)
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.open()

    def open(self) -> None:
        """Open a file, and find what an earlier engine left in it."""
        header = self.identity()
        for number in count():
            path = self.folder / f"{hashlib.sha256(header).hexdigest()[:16]}-{number}.kv"
            with suppress(BlockingIOError):  # another engine has it
                self.segment = SegmentFile(path, header, self.num_blocks, self.block_bytes)
                break
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
        """Read a block that is here to a row of host memory. Returns False if it is damaged; then it is forgotten.
        OSError if the disk is broken."""
        slot = self.hash_to_block[block_hash]
        is_whole = self.segment.read(slot, block_hash, memoryview(row.numpy()))
        if not is_whole:
            self.num_failed += 1
            self.forget([block_hash])
        self.hits[slot] += is_whole
        return is_whole

    def forget(self, block_hashes: Iterable[bytes]) -> None:
        """See Floor. No later engine finds them either."""
        for block_hash in self.hash_to_block.keys() & block_hashes:
            self.segment.erase(self.hash_to_block[block_hash])
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
