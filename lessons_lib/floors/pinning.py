"""Blocks that stay in host memory for a time: a conversation that pauses finds its prompt when it comes back."""

import time
from collections.abc import Iterable
from typing import Any

from lessons_lib.floors.host_floor import HostFloor
from lessons_lib.floors.transfer import changing
from lessons_lib.models.validate import BadRequest


class PinningFloor(HostFloor):
    """A HostFloor of which up to a half can be pinned. The slot of a pinned block stays in use, so no other takes it.

    Attributes:
        pins: hash -> when its time is over, by `clock`; also of blocks that are still in the pool.
    """

    clock = staticmethod(time.monotonic)

    def __init__(self, *args: Any):
        self.pins: dict[bytes, float] = {}
        super().__init__(*args)

    def pin(self, block_hashes: Iterable[bytes], seconds: float) -> None:
        """Keep blocks for a time from now on, the first ones if they are too many; 0 ends it."""
        self.unpin([each for each, end in self.pins.items() if end <= self.clock()])
        self.unpin(block_hashes)
        for block_hash in block_hashes if seconds else ():
            if len(self.pins) < self.num_blocks // 2:
                self.pins[block_hash] = self.clock() + seconds
                self.hold(block_hash)

    def unpin(self, block_hashes: Iterable[bytes]) -> None:
        """Let blocks go as others do."""
        for block_hash in block_hashes:
            if self.pins.pop(block_hash, None) and (slot := self.hash_to_block.get(block_hash)) is not None:
                self.release([slot])

    def hold(self, block_hash: bytes) -> None:
        """Use the slot of a block that is pinned and here."""
        if block_hash in self.pins and (slot := self.hash_to_block.get(block_hash)) is not None:
            self.touch([slot])

    def fill(self, slot: int, block_hash: bytes, depth: int) -> None:
        """See Floor."""
        super().fill(slot, block_hash, depth)
        if slot in self.block_to_hash:  # no other slot has the block
            self.hold(block_hash)

    def keep(self, evicted: dict[int, bytes], depths: list[int]) -> None:
        """See HostFloor."""
        self.pin((), 0)  # ends what is over
        super().keep(evicted, depths)

    def forget(self, block_hashes: Iterable[bytes]) -> None:
        """See Floor."""
        self.unpin(block_hashes)
        super().forget(block_hashes)

    def recover(self) -> None:
        """See Floor."""
        super().recover()
        for block_hash in self.pins:
            self.hold(block_hash)


def open_pinned(engine: Any, prompt: Any, params: Any, pin_seconds: float | None = None, **options: Any) -> Any:
    """`LLMEngine.open`. For `pin_seconds` from now on, the full blocks of the prompt stay in host memory once they get
    there; 0 ends that. Those of another salt are others.

    Raises:
        BadRequest: also if the engine has no floors.
    """
    floor = getattr(engine.scheduler.pool, "below", None)
    if pin_seconds is not None and floor is None:
        raise BadRequest("cache_control is given, and host_cache_bytes is 0; leave it out, or serve with more.")
    reader = engine.open(prompt, params, **options)
    if pin_seconds is not None:
        with changing(engine):
            floor.pin(engine.scheduler.hashes_of(reader.group.completions[0]), pin_seconds)
    return reader
