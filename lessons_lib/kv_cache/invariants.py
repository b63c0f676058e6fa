"""Lesson 10: the books of the pool. Every block is free, or held by exactly as many sequences as its count says."""

from collections import Counter

from lessons_lib.kv_cache.block_pool import blocks_for


class LostBlocks(AssertionError):
    """The pool, its sequences and its names do not agree."""


def audit(scheduler) -> None:
    """Compare what a PreemptiveScheduler's pool says with what its sequences hold.

    Raises:
        LostBlocks: the first thing that does not agree.
    """
    pool, sequences = scheduler.pool, [*scheduler.running, *scheduler.waiting]
    held = Counter(block for sequence in sequences for block in sequence.blocks)
    free = set(pool.free_queue)
    _agree("blocks that are free and held", free & set(held), set())
    _agree("blocks that are neither free nor held", set(range(pool.num_blocks)) - free - set(held), set())
    _agree("blocks in use", pool.used, set(held))
    shares = hasattr(pool, "ref_count")  # a PrefixCache, a learner's own too
    if shares:
        _agree("holders of each block", pool.ref_count, dict(held))
        _agree("names", {name: block for block, name in pool.block_to_hash.items()}, pool.hash_to_block)
    swapped = Counter(block for sequence in sequences for block in sequence.swapped)
    _agree("swapped blocks", scheduler.swap_space.used, set(swapped))
    _agree("swapped blocks that are held twice", [block for block, count in swapped.items() if count > 1], [])
    for sequence in sequences:
        needed = blocks_for(sequence.num_computed_tokens, pool.block_size)
        _agree(
            f"blocks of {sequence.id!r}, which has {sequence.num_computed_tokens} tokens in the cache",
            len(sequence.blocks or sequence.swapped),
            needed,
        )
        if shares:
            names = scheduler.hashes_of(sequence)
            wrong = [
                block for block, name in zip(sequence.blocks, names) if pool.block_to_hash.get(block, name) != name
            ]
            _agree(f"blocks of {sequence.id!r} that are called after other tokens", wrong, [])


def _agree(what: str, found, expected) -> None:
    if found != expected:
        raise LostBlocks(f"{what}: {found}; expected {expected}.")
