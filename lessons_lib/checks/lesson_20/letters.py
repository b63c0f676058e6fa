"""Floors whose blocks hold a letter in place of keys and values: their hash is this letter, too."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from lessons_lib.floors.host_floor import HostFloor


def hashes(letters: str) -> list[bytes]:
    return [letter.encode() for letter in letters]


def fields(text: str) -> Iterator[list[str]]:
    """The fields of each case; - stands for none."""
    for line in text.strip().split("\n"):
        yield line.replace("-", "").split(" ")


class Letters:
    """A mover, and what the blocks of the pool hold. The host loses what is in a slot that isn't in use."""

    floor: HostFloor

    def __init__(self, num_blocks: int, num_slots: int, fails: bool = False):
        self.cells, self.fails = ["?"] * num_blocks, fails
        rows = torch.full((num_slots, 1), ord("?"), dtype=torch.uint8)
        self.host = SimpleNamespace(num_blocks=num_slots, block_size=4, rows=rows)

    def store(self, blocks: list[int], slots: list[int]) -> None:
        for block, slot in zip(blocks, slots, strict=True):
            self.host.rows[slot] = ord(self.cells[block])

    def load(self, slots: list[int], blocks: list[int]) -> None:
        for slot, block in zip(slots, blocks, strict=True):
            is_lost = self.fails or slot not in self.floor.used
            self.cells[block] = "?" if is_lost else chr(self.host.rows[slot])
        if self.fails and slots:
            raise OSError("the copy failed")

    def wait(self) -> None:
        pass

    guard = wait


class Disk(dict[bytes, int]):
    """A floor below the host's, with room for everything."""

    def keep(self, block_hash: bytes, row: Tensor, depth: int) -> None:
        self[block_hash] = int(row)

    renew = dict.__contains__

    def read(self, block_hash: bytes, row: Tensor) -> bool:
        row[0] = self[block_hash]
        return True


def host_floor(letters: str, mover: Letters, below: Any = None) -> HostFloor:
    floor = mover.floor = HostFloor(mover, below)  # type: ignore[arg-type]
    for depth, letter in enumerate(letters):
        slot = floor.take()
        mover.host.rows[slot] = ord(letter)
        floor.fill(slot, letter.encode(), depth)
        floor.release([slot])
    return floor
