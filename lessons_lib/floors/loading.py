"""Lesson 20: the first blocks of a prompt, from all floors."""

from typing import Any


def load_prefix(pool: Any, block_hashes: list[bytes], depth: int = 0) -> list[int]:
    """Find the blocks of a prompt on all floors, and load those that aren't in the pool.

    Args:
        pool: a FlooredPrefixCache.
        block_hashes: the hashes of blocks that follow each other.
        depth: how many blocks of the sequence are in front of the first one.

    Returns:
        blocks of the pool, in use, in the order of the hashes: up to the first that is nowhere, that can't be loaded,
        or for which none is free.
    """
    blocks: list[int] = []
    while missing := block_hashes[len(blocks) :]:
        if found := pool.match_prefix(missing):
            pool.touch(found)
            blocks += found
            continue
        slots = pool.below.lend(missing[: len(pool.free_queue)], depth + len(blocks))
        loaded = pool.replace(len(slots))
        is_loaded = pool.below.load(slots, loaded)
        pool.below.release(slots)
        if not slots or not is_loaded:
            pool.free(loaded)
            break
        blocks += loaded
    return blocks
