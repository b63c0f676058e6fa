"""Lesson 10: execute the block copies that the scheduler requests."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lessons_lib.kv_cache.paged_kv_cache import PagedKVCache

COPY, SWAP_OUT, SWAP_IN = "copy", "swap out", "swap in"


@dataclass(frozen=True)
class BlockCopy:
    """A copy of one block's contents to another block, before the step's forward pass.

    Attributes:
        kind: COPY within the pool, SWAP_OUT from the pool to the swap space, SWAP_IN back.
        source, target: block ids.
    """

    kind: str
    source: int
    target: int


def copy_blocks(block_copies: list[BlockCopy], cache: PagedKVCache, swap_cache: PagedKVCache | None) -> None:
    """Copy blocks in the given order, in all layers, within the pool's cache or between it and that of the swap space,
    in CPU memory. Independent neighbors of one kind are copied together."""
    for kind, run in groupby(block_copies, key=lambda copy: copy.kind):
        source = swap_cache if kind == SWAP_IN else cache
        target = swap_cache if kind == SWAP_OUT else cache
        assert source and target, f"a block copy of kind {kind!r} needs a swap cache."
        for group in _independent(list(run), source is target):
            sources, targets = [copy.source for copy in group], [copy.target for copy in group]
            for read, written in zip([*source.keys, *source.values], [*target.keys, *target.values]):
                written[targets] = read[sources].to(written.device)


def _independent(block_copies: list[BlockCopy], within_one_cache: bool) -> list[list[BlockCopy]]:
    """Split a run of copies wherever one reads or overwrites an earlier target."""
    groups: list[list[BlockCopy]] = [[]]
    written: set[int] = set()
    for copy in block_copies:
        if copy.target in written or (within_one_cache and copy.source in written):
            groups.append([])
            written.clear()
        groups[-1].append(copy)
        written.add(copy.target)
    return groups
