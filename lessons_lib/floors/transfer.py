"""Blocks for another engine: one computes prompts, the other decodes. What gets lost on the way is computed again."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Protocol

from torch import Tensor

from lessons_lib.floors.segment_file import SegmentFile
from lessons_lib.kv_cache.block_hashes import hash_full_blocks
from lessons_lib.scheduling.sequence import Sequence


class Transfer(Protocol):
    """A way for blocks from one engine to another. It may lose any, but must not return a damaged one."""

    def send(self, block_hash: bytes, depth: int, row: Tensor) -> None:
        """Send the bytes of a block."""

    def receive(self, block_hash: bytes, row: Tensor) -> bool:
        """Write a block to a row of bytes. Return False if it hasn't come."""


class FileTransfer:
    """A Transfer between processes: a file, which is shared memory if it is in /dev/shm. New blocks replace the oldest
    ones, even while they are read: their checksums tell.

    Attributes:
        places: hash -> record, as far as they are known.
        num_sent: blocks sent so far.
    """

    def __init__(self, path: Path, identity: bytes, num_records: int, block_bytes: int, is_sender: bool):
        """See SegmentFile. The sender makes the file."""
        self.segment = SegmentFile(path, identity, num_records, block_bytes, is_sender)
        self.places: dict[bytes, int] = {}
        self.num_sent = 0

    def send(self, block_hash: bytes, depth: int, row: Tensor) -> None:
        """See Transfer."""
        self.segment.write(self.num_sent % self.segment.num_records, block_hash, depth, memoryview(row.numpy()))
        self.num_sent += 1

    def receive(self, block_hash: bytes, row: Tensor) -> bool:
        """See Transfer."""
        if block_hash not in self.places:
            self.places = {found: record for record, found, _ in self.segment.entries()}
        record = self.places.pop(block_hash, None)
        return record is not None and self.segment.read(record, block_hash, memoryview(row.numpy()))


def send_prompt(engine: Any, token_ids: list[int], transfer: Transfer, cache_salt: str | None = None) -> int:
    """Send the full blocks of a prompt that an engine with floors has computed.

    Returns:
        how many were sent.
    """
    num_sent, pool = 0, engine.scheduler.pool
    with changing(engine), suppress(OSError):
        hashes = hash_full_blocks(Sequence("", token_ids, 1, cache_salt=cache_salt), pool.block_size)
        pool.move_down(pool.match_prefix(hashes))
        while slots := pool.below.lend(hashes[num_sent:], num_sent):
            try:
                for slot in slots:
                    transfer.send(hashes[num_sent], num_sent, pool.below.row(slot))
                    num_sent += 1
            finally:
                pool.below.release(slots)
    return num_sent


def receive_prompt(engine: Any, token_ids: list[int], transfer: Transfer, cache_salt: str | None = None) -> int:
    """Receive the blocks of a prompt before it is added to an engine with floors, which finds them in host memory.

    Returns:
        how many are there, up to the first that hasn't come.
    """
    floor, slots = engine.scheduler.pool.below, []
    with changing(engine):
        hashes = hash_full_blocks(Sequence("", token_ids, 1, cache_salt=cache_salt), floor.block_size)
        while received := floor.lend(hashes[len(slots) :], len(slots), transfer.receive):
            slots += received
        floor.release(slots)  # not before: a long prompt mustn't push out its own first blocks
    return len(slots)


@contextmanager
def changing(engine: Any) -> Iterator[None]:
    """Between two steps of an engine. If an interrupt comes, it begins again, as in the middle of a step."""
    with engine.core.lock:
        engine.core.settle()
        engine.core.is_whole = False
        yield
        engine.core.is_whole = True
