"""Lesson 11: the free queue of a shared pool at one moment, as plain data for a picture."""

from dataclasses import dataclass

from lessons_lib.kv_cache.prefix_cache import SharedBlockPool


@dataclass(frozen=True)
class QueueState:
    """A shared pool at one moment.

    Attributes:
        event: the last event, in a few words.
        free_queue: the free blocks, next to be allocated first.
        ref_count: block -> number of sequences that use it.
        hash_names: block -> a short name for its hash, for blocks that have one.
    """

    event: str
    free_queue: tuple[int, ...]
    ref_count: dict[int, int]
    hash_names: dict[int, str]


def queue_state(pool: SharedBlockPool, event: str, names: dict[bytes, str] | None = None) -> QueueState:
    """Copy the current state of a pool.

    Args:
        names: hash -> a short name for it; None if the pool knows no hashes.
    """
    hashes = getattr(pool, "block_to_hash", {}) if names else {}
    hash_names = {block: (names or {})[block_hash] for block, block_hash in hashes.items()}
    return QueueState(event, tuple(pool.free_queue), dict(sorted(pool.ref_count.items())), hash_names)
