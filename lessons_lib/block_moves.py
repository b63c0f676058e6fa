"""Lesson 10: carries out what a plan orders for the contents of blocks."""

from itertools import groupby

from lessons_lib.paged_cache import PagedKVCache
from lessons_lib.preemption import SWAP_IN, SWAP_OUT, Move


def apply_moves(moves: list[Move], cache: PagedKVCache, swap_cache: PagedKVCache | None) -> None:
    """Copy the contents of blocks, in the given order, in all layers. Neighbours of one kind go together, unless one needs another.

    Args:
        cache: the cache of the pool.
        swap_cache: that of the swap space, in the memory of the CPU; None if nothing is ever swapped.
    """
    for kind, run in groupby(moves, key=lambda move: move.kind):
        source = swap_cache if kind == SWAP_IN else cache
        target = swap_cache if kind == SWAP_OUT else cache
        for group in _independent(list(run), source is target):
            sources, targets = [move.source for move in group], [move.target for move in group]
            for read, written in zip([*source.keys, *source.values], [*target.keys, *target.values]):
                written[targets] = read[sources].to(written.device)


def _independent(moves: list[Move], within_one_cache: bool) -> list[list[Move]]:
    """Cut a run of moves where one reads or overwrites what one before it has written."""
    groups = [[]]
    written = set()
    for move in moves:
        if move.target in written or (within_one_cache and move.source in written):
            groups.append([])
            written.clear()
        groups[-1].append(move)
        written.add(move.target)
    return groups
