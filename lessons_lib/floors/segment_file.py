"""A file with many blocks: a header, then records of one size."""

import os
import stat
import weakref
import zlib
from collections.abc import Iterator
from pathlib import Path

from lessons_lib.models.validate import must

HASH_BYTES = 32
ENTRY_BYTES = HASH_BYTES + 8  # the block's hash, its depth, and a CRC-32 of these and the data
PAGE = 4096


class SegmentFile:
    """Records of an entry and a block's data. An entry isn't trusted: only its checksum says that the data is complete
    and belongs to the hash. So a crash leaves nothing wrong, and nothing needs to be repaired.

    CRC-32 finds damage. It's no protection from a user with write access, so the file is private to its owner.

    Attributes:
        path: of the file.
        header: what the file holds blocks of; a file with another one is foreign.
        num_records, data_bytes: records, and size of a block's data.
    """

    def __init__(self, path: Path, header: bytes, num_records: int, data_bytes: int, is_owner: bool = True):
        """
        Args:
            is_owner: no other process writes to the file. A file with another header is emptied.

        Raises:
            OSError: another process owns the file, it belongs to another user, or can't be read or written.
            ValueError: it isn't the owner, and the file has another header.
        """
        self.path, self.num_records, self.data_bytes = path, num_records, data_bytes
        self.header = header + b" " * (-len(header) % PAGE)
        self.record_bytes = ENTRY_BYTES + data_bytes
        # A link could point at a file of the user that others want to be overwritten.
        self.file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        self.closing = weakref.finalize(self, os.close, self.file)
        try:
            if is_owner:
                import fcntl  # not on Windows

                fcntl.flock(self.file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # until it is closed, or the process ends
            found = os.fstat(self.file)
            if found.st_uid != os.geteuid() or not stat.S_ISREG(found.st_mode):
                raise PermissionError(f"{path} isn't a file of this user; its blocks could be anything.")
            os.fchmod(self.file, 0o600)
            header_found = os.pread(self.file, len(self.header), 0)
            if not is_owner:
                must(header_found == self.header, "the header", header_found.strip(), "that of the reader's blocks")
            elif header_found != self.header:
                self.empty()
            elif found.st_size > self.start_of(num_records):
                os.ftruncate(self.file, self.start_of(num_records))
        except BaseException:
            self.close()
            raise

    def start_of(self, record: int) -> int:
        """Where a record starts, in bytes."""
        return len(self.header) + record * self.record_bytes

    def empty(self) -> None:
        """Remove all records."""
        os.ftruncate(self.file, 0)
        self.put(0, self.header)

    def put(self, start: int, data: "bytes | memoryview") -> None:
        if os.pwrite(self.file, data, start) < len(data):
            raise OSError(f"the disk with {self.path} is full.")

    def write(self, record: int, block_hash: bytes, depth: int, data: memoryview) -> None:
        """Write a block, its entry last. OSError if the disk is full or broken; then the record has no block."""
        self.put(self.start_of(record) + ENTRY_BYTES, data)
        self.put(self.start_of(record), entry_of(block_hash, depth, data))

    def read(self, record: int, block_hash: bytes, data: memoryview) -> bool:
        """Read a block to `data`. Returns False if the record is damaged, or has another block."""
        entry = bytearray(ENTRY_BYTES)
        # Not by a memory map: a file that is cut meanwhile, or a broken disk, would end the process.
        count = os.preadv(self.file, [entry, data], self.start_of(record))
        depth = int.from_bytes(entry[HASH_BYTES : HASH_BYTES + 4], "little")
        return count == self.record_bytes and entry == entry_of(block_hash, depth, data)

    def erase(self, record: int) -> None:
        """Make sure that the record's block isn't found again, if need be by removing the file."""
        try:
            self.put(self.start_of(record), bytes(ENTRY_BYTES))
        except OSError:
            self.path.unlink(missing_ok=True)

    def entries(self) -> Iterator[tuple[int, bytes, int]]:
        """(record, hash, depth) of all records that seem to have a block."""
        for record in range(self.num_records):
            entry = os.pread(self.file, ENTRY_BYTES, self.start_of(record))
            if any(entry) and len(entry) == ENTRY_BYTES:
                yield record, entry[:HASH_BYTES], int.from_bytes(entry[HASH_BYTES : HASH_BYTES + 4], "little")

    def close(self) -> None:
        """Close the file. The next process may open it."""
        self.file = -1  # its number may soon be that of another file
        self.closing()


def entry_of(block_hash: bytes, depth: int, data: memoryview) -> bytes:
    start = block_hash + depth.to_bytes(4, "little")
    return start + zlib.crc32(data, zlib.crc32(start)).to_bytes(4, "little")
