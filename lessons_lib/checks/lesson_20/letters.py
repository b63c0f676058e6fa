"""Floors whose blocks hold a letter in place of keys and values: their hash is this letter, too."""

from types import SimpleNamespace
from typing import Any

from lessons_lib.floors.host_floor import HostFloor


def hashes(letters: str) -> list[bytes]:
    return [letter.encode() for letter in letters]


class Letters:
    """A mover, and what the blocks of the pool and the rows of the host hold."""

    def __init__(self, num_blocks: int, num_slots: int, fails: bool = False):
        self.cells, self.fails = ["?"] * num_blocks, fails
        self.host = SimpleNamespace(num_blocks=num_slots, block_size=4, rows=[["?"] for _ in range(num_slots)])

    def store(self, blocks: list[int], slots: list[int]) -> None:
        for block, slot in zip(blocks, slots, strict=True):
            self.host.rows[slot][0] = self.cells[block]

    def load(self, slots: list[int], blocks: list[int]) -> None:
        for slot, block in zip(slots, blocks, strict=True):
            self.cells[block] = "?" if self.fails else self.host.rows[slot][0]
        if self.fails and slots:
            raise OSError("the copy failed")

    def wait(self) -> None:
        pass

    guard = wait


class Disk(dict[bytes, str]):
    """A floor below the host's, with room for everything."""

    def keep(self, block_hash: bytes, row: list[str], depth: int) -> None:
        self[block_hash] = row[0]

    def renew(self, block_hash: bytes) -> bool:
        return block_hash in self

    def read(self, block_hash: bytes, row: list[str]) -> bool:
        row[0] = self[block_hash]
        return True


def host_floor(letters: str, mover: Letters, below: Any = None) -> HostFloor:
    floor = HostFloor(mover, below)  # type: ignore[arg-type]
    for depth, letter in enumerate(letters):
        slot = floor.take()
        mover.host.rows[slot][0] = letter
        floor.fill(slot, letter.encode(), depth)
        floor.release([slot])
    return floor
