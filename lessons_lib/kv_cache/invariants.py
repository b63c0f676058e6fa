"""Lesson 10: invariants of the pool: every block is either free or used by `ref_count` sequences."""

from collections import Counter
from copy import copy
from typing import Any

from lessons_lib.kv_cache.block_pool import blocks_for


class LostBlocks(AssertionError):
    """The pool, its sequences and its block hashes do not agree."""


def audit(scheduler: Any) -> None:
    """Compare a PreemptiveScheduler's pool with its sequences' blocks.

    Raises:
        LostBlocks: names the first mismatch.
    """
    pool = scheduler.pool
    sequences = [*scheduler.running, *scheduler.leaving, *scheduler.waiting]
    owned = Counter(block for sequence in sequences for block in sequence.blocks)
    free = set(pool.free_queue)
    _agree("blocks that are free and in use", free & set(owned), set())
    _agree("blocks that are neither free nor in use", set(range(pool.num_blocks)) - free - set(owned), set())
    _agree("blocks in use", pool.used, set(owned))
    shares = hasattr(pool, "ref_count")  # a PrefixCache, the learner's included
    if shares:
        _agree("reference counts", pool.ref_count, dict(owned))
        _agree("block hashes", {hash: block for block, hash in pool.block_to_hash.items()}, pool.hash_to_block)
    swapped = Counter(block for sequence in sequences for block in sequence.swapped)
    _agree("swapped blocks", scheduler.swap_space.used, set(swapped))
    _agree("swapped blocks with two owners", [block for block, count in swapped.items() if count > 1], [])
    for sequence in sequences:
        needed = blocks_for(sequence.num_computed_tokens, pool.block_size)
        _agree(
            f"blocks of {sequence.id!r}, which has {sequence.num_computed_tokens} tokens in the cache",
            len(sequence.blocks or sequence.swapped),
            needed,
        )
        if shares:
            unhashed = copy(sequence)
            unhashed.block_hashes = []
            hashes = scheduler.hashes_of(unhashed)
            _agree(f"block hashes of {sequence.id!r}", sequence.block_hashes, hashes[: len(sequence.block_hashes)])
            wrong = [block for block, own in zip(sequence.blocks, hashes) if pool.block_to_hash.get(block, own) != own]
            _agree(f"blocks of {sequence.id!r} with the hash of other tokens", wrong, [])


def _agree(what: str, found: Any, expected: Any) -> None:
    if found != expected:
        raise LostBlocks(f"{what}: {found}; expected {expected}.")
