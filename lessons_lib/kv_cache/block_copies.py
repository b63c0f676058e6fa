"""Lesson 10: carries out what a plan orders for the contents of blocks."""

from dataclasses import dataclass
from itertools import groupby

from lessons_lib.kv_cache.paged_kv_cache import PagedKVCache

COPY, SWAP_OUT, SWAP_IN = "copy", "swap out", "swap in"


@dataclass(frozen=True)
class BlockCopy:
    """The contents of one block go to another, before the step computes anything.

    Attributes:
        kind: COPY from block to block of the pool, SWAP_OUT from the pool to the swap space, SWAP_IN back.
        source, target: block numbers.
    """

    kind: str
    source: int
    target: int


def copy_blocks(block_copies: list[BlockCopy], cache: PagedKVCache, swap_cache: PagedKVCache | None) -> None:
    """Copy the contents of blocks, in the given order, in all layers. Neighbours of one kind go together, unless one needs another.

    Args:
        cache: the cache of the pool.
        swap_cache: that of the swap space, in the memory of the CPU; None if nothing is ever swapped.
    """
    for kind, run in groupby(block_copies, key=lambda move: move.kind):
        source = swap_cache if kind == SWAP_IN else cache
        target = swap_cache if kind == SWAP_OUT else cache
        for group in _independent(list(run), source is target):
            sources, targets = [move.source for move in group], [move.target for move in group]
            for read, written in zip([*source.keys, *source.values], [*target.keys, *target.values]):
                written[targets] = read[sources].to(written.device)


def _independent(block_copies: list[BlockCopy], within_one_cache: bool) -> list[list[BlockCopy]]:
    """Cut a run of moves where one reads or overwrites what one before it has written."""
    groups = [[]]
    written = set()
    for move in block_copies:
        if move.target in written or (within_one_cache and move.source in written):
            groups.append([])
            written.clear()
        groups[-1].append(move)
        written.add(move.target)
    return groups
