"""The stretch task of lesson 11: which free block should be lost first? Scored on requests that the learner hasn't
seen.
"""

import random
from collections.abc import Callable, Container
from dataclasses import dataclass
from functools import cache
from math import inf
from typing import Any

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
    known: dict[int, list[int]] = {}  # hash -> [index, uses, last used at, computed at]
    found = 0
    for now, prompt in enumerate(prompts):
        matched = _matched(prompt, known)
        found += matched
        for one in prompt[:matched]:
            known[one][1:3] = known[one][1] + 1, now
        for one in prompt[matched:]:
            known.pop(one, None)  # behind a gap: computed again
        missing = len(known) + len(prompt) - matched - num_blocks
        if missing > 0:
            used = set(prompt[:matched])
            free = {one: _seen(entry, now) for one, entry in known.items() if one not in used}
            for one in sorted(free, key=lambda one: rank(free[one]), reverse=True)[:missing]:
                del known[one]
        for index in range(matched, len(prompt)):
            known[prompt[index]] = [index, 1, now, now]
    return found


def _matched(prompt: tuple[int, ...], known: Container[int]) -> int:
    return next((n for n, one in enumerate(prompt) if one not in known), len(prompt))


def _seen(entry: list[int], now: int) -> CachedBlock:
    index, uses, used, computed = entry
    return CachedBlock(index, uses, now - used, now - computed)


def found_knowing_the_future(prompts: list[tuple[int, ...]], num_blocks: int) -> int:
    """The same, but the block whose next use is farthest away is lost first."""
    uses: dict[int, list[int]] = {}
    index_of: dict[int, int] = {}
    for now, prompt in enumerate(prompts):
        for index, one in enumerate(prompt):
            uses.setdefault(one, []).append(now)
            index_of[one] = index
    known: set[int] = set()
    found = 0
    for now, prompt in enumerate(prompts):
        matched = _matched(prompt, known)
        found += matched
        known.difference_update(prompt[matched:])
        missing = len(known) + len(prompt) - matched - num_blocks
        if missing > 0:
            next_use = {one: next((when for when in uses[one] if when > now), inf) for one in known}
            free = sorted(known.difference(prompt[:matched]))
            free.sort(key=lambda one: (next_use[one], index_of[one]), reverse=True)
            known.difference_update(free[:missing])
        known.update(prompt)
    return found


def eviction_scoreboard(rank: Callable[[CachedBlock], Any]) -> Table:
    """The rule next to least recently used, and next to one that knows the future.

    Args:
        rank: function of a CachedBlock; the free block with the largest value is lost first.
    """
    workloads = [eviction_workload(seed) for seed in SEEDS]
    total = sum(len(prompt) for prompts in workloads for prompt in prompts)

    def share(counts: list[int]) -> float:
        return 100 * sum(counts) / total

    base = share([found_blocks(prompts, least_recently_used, NUM_BLOCKS) for prompts in workloads])
    best = share([found_knowing_the_future(prompts, NUM_BLOCKS) for prompts in workloads])
    try:
        yours = share([found_blocks(prompts, rank, NUM_BLOCKS) for prompts in workloads])
    except Exception as error:
        cell, verdict = "–", f"Your rule raised {type(error).__name__}: {error}"
    else:
        cell, verdict = f"{yours:.1f} %", f"Yours: {yours - base:+.1f} percentage points."
    return Table(
        columns=["lost first", "prompt tokens found"],
        rows=[
            ["least recently used", f"{base:.1f} %"],
            ["yours", cell],
            ["farthest next use (knows the future)", f"{best:.1f} %"],
        ],
        caption=f"{len(SEEDS)} hidden workloads of {NUM_REQUESTS} requests, {NUM_BLOCKS} blocks",
        verdict=verdict,
    )
