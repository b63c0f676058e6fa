"""The stretch task of lesson 11: which free block should be lost first? Scored on hidden requests."""

import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from math import inf
from typing import Any

from lessons_lib.checks.scoreboards import Scored, scoreboard
from lessons_lib.viz.tables.table import Table

SEEDS = (21, 22, 23)
NUM_BLOCKS, NUM_REQUESTS = 96, 400


@dataclass(frozen=True)
class CachedBlock:
    """What a rule knows about a block that is free and cached.

    Attributes:
        index: its place in the sequence that computed it; 0 is the first block.
        uses: how many requests have used it, the one that computed it included.
        last_use: how many requests ago it was used, 1 or more.
        first_use: how many requests ago it was computed.
    """

    index: int
    uses: int
    last_use: int
    first_use: int


def least_recently_used(block: CachedBlock) -> tuple[int, int]:
    """As in the free queue: the block unused for longest goes first; of those used together, the last one."""
    return block.last_use, block.index


@cache
def eviction_workload(seed: int) -> list[tuple[int, ...]]:
    """The prompts of one request after another, as tuples of block hashes (ints, different ones for different
    beginnings).

    Questions after one of six system prompts, conversations that grow turn by turn, and long documents, which come
    once.
    """
    draw = random.Random(seed)
    new = iter(range(1_000_000))

    def blocks(count: int) -> tuple[int, ...]:
        return tuple(next(new) for _ in range(count))

    systems = [blocks(draw.randint(4, 8)) for _ in range(6)]
    conversations = [draw.choice(systems) for _ in range(5)]
    prompts = []
    for _ in range(NUM_REQUESTS):
        kind = draw.random()
        if kind < 0.15:
            prompts.append(blocks(draw.randint(20, 40)))
        elif kind < 0.55:
            prompts.append(draw.choice(systems) + blocks(draw.randint(1, 3)))
        else:
            place = draw.randrange(len(conversations))
            conversations[place] += blocks(draw.randint(1, 3))
            prompts.append(conversations[place])
            if len(conversations[place]) > 20:
                conversations[place] = draw.choice(systems)
    return prompts


def found_blocks(prompts: list[tuple[int, ...]], rank: Callable[[CachedBlock], Any], num_blocks: int) -> int:
    """Serve the prompts one at a time, and count the blocks that were in the cache.

    Args:
        rank: the free block with the largest rank is lost first.
    """

    def rank_of(one: int, entry: list[int], now: int) -> Any:
        index, uses, used, computed = entry
        return rank(CachedBlock(index, uses, now - used, now - computed))

    return _found(prompts, rank_of, num_blocks)


def found_knowing_the_future(prompts: list[tuple[int, ...]], num_blocks: int) -> int:
    """The same, but the block whose next use is farthest away is lost first."""
    uses: dict[int, list[int]] = {}
    for now, prompt in enumerate(prompts):
        for one in prompt:
            uses.setdefault(one, []).append(now)

    def rank_of(one: int, entry: list[int], now: int) -> tuple[float, int, int]:
        return next((when for when in uses[one] if when > now), inf), entry[0], -one

    return _found(prompts, rank_of, num_blocks)


def _found(prompts: list[tuple[int, ...]], rank_of: Callable[[int, list[int], int], Any], num_blocks: int) -> int:
    known: dict[int, list[int]] = {}  # hash -> [index, uses, last used at, computed at]
    found = 0
    for now, prompt in enumerate(prompts):
        matched = next((n for n, one in enumerate(prompt) if one not in known), len(prompt))
        found += matched
        for one in prompt[:matched]:
            known[one][1:3] = known[one][1] + 1, now
        for one in prompt[matched:]:
            known.pop(one, None)  # behind a gap: computed again
        missing = len(known) + len(prompt) - matched - num_blocks
        if missing > 0:
            free = {one: rank_of(one, entry, now) for one, entry in known.items() if one not in prompt[:matched]}
            for one in sorted(free, key=lambda one: free[one], reverse=True)[:missing]:
                del known[one]
        for index in range(matched, len(prompt)):
            known[prompt[index]] = [index, 1, now, now]
    return found


def eviction_scoreboard(rank: Callable[[CachedBlock], Any]) -> Table:
    """Score a function of a CachedBlock; the free block with the largest value is lost first."""
    workloads = [eviction_workload(seed) for seed in SEEDS]
    total = sum(len(prompt) for prompts in workloads for prompt in prompts)

    def share(rank: Callable[[CachedBlock], Any]) -> float:
        return 100 * sum(found_blocks(prompts, rank, NUM_BLOCKS) for prompts in workloads) / total

    def yours() -> Scored:
        found = share(rank)
        return [f"{found:.1f} %"], f"Yours: {found - base:+.1f} percentage points."

    base = share(least_recently_used)
    best = 100 * sum(found_knowing_the_future(prompts, NUM_BLOCKS) for prompts in workloads) / total
    rows = {
        "least recently used": [f"{base:.1f} %"],
        "yours": yours,
        "farthest next use (knows the future)": [f"{best:.1f} %"],
    }
    caption = f"{len(SEEDS)} hidden workloads of {NUM_REQUESTS} requests, {NUM_BLOCKS} blocks"
    return scoreboard(["lost first", "prompt tokens found"], rows, caption)
