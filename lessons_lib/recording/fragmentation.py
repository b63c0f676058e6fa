"""Lesson 03: the waste of a cache layout, counted on the steps of a recorded run."""

from dataclasses import dataclass, field

from lessons_lib.kv_cache.block_pool import BlockPool, blocks_for
from lessons_lib.kv_cache.block_table import BlockTable
from lessons_lib.recording.trace import Trace


@dataclass(frozen=True)
class Region:
    """Adjacent cache slots of a request; `tokens` of them contain one now, `final_tokens` when it finishes."""

    request: str
    start: int
    size: int
    tokens: int
    final_tokens: int


@dataclass(frozen=True)
class MemoryUse:
    """Use of the cache slots in one step. A cache slot holds one token.

    Attributes:
        tokens: slots that contain a token.
        later: reserved slots that their request will use before it finishes.
        never: reserved slots that are never used: internal fragmentation.
        gaps: unowned slots between reservations: external fragmentation.
        regions: the reservations, in the order of the slots; empty for a layout in blocks.
    """

    tokens: int
    later: int
    never: int
    gaps: int
    regions: tuple[Region, ...] = field(default=(), repr=False)

    @property
    def slots(self) -> int:
        """Number of cache slots that the layout spans, from slot 0 to the last one in use."""
        return self.tokens + self.later + self.never + self.gaps


def tokens_held(trace: Trace) -> list[dict[str, int]]:
    """For every step: request -> its tokens in the cache after it, from admission until its memory is freed."""
    held: list[dict[str, int]] = []
    total: dict[str, int] = {}
    for step in trace.steps:
        for row in step.rows:
            if row.request is not None:
                total[row.request] = total.get(row.request, 0) + row.useful
        held.append(
            {
                row.request: total[row.request]
                for row in step.rows
                if row.request is not None and row.phase != "finished"
            }
        )
    return held


def final_tokens(held: list[dict[str, int]]) -> dict[str, int]:
    """Tokens in the cache of each request when it finishes."""
    return {name: tokens for step in held for name, tokens in step.items()}


def contiguous_use(held: list[dict[str, int]], reserve: dict[str, int]) -> list[MemoryUse]:
    """Reserve one contiguous region per request when it starts, in the first gap that is large enough.

    Args:
        held: see `tokens_held`.
        reserve: request -> cache slots to reserve for it.

    Raises:
        ValueError: a request has more tokens than cache slots.
    """
    final = final_tokens(held)
    for name, tokens in final.items():
        if tokens > reserve[name]:
            raise ValueError(
                f"request {name!r} grows to {tokens} tokens; {reserve[name]} cache slots are reserved for it. "
                "Reserve more."
            )
    starts: dict[str, int] = {}
    uses = []
    for step in held:
        starts = {name: start for name, start in starts.items() if name in step}
        for name in step:
            if name not in starts:
                starts[name] = _first_gap(starts, reserve, reserve[name])
        regions = tuple(
            Region(name, starts[name], reserve[name], step[name], final[name])
            for name in sorted(starts, key=starts.__getitem__)
        )
        uses.append(_count(regions))
    return uses


def _first_gap(starts: dict[str, int], reserve: dict[str, int], size: int) -> int:
    """Find the lowest start of `size` free cache slots."""
    start = 0
    for name in sorted(starts, key=starts.__getitem__):
        if starts[name] - start >= size:
            break
        start = max(start, starts[name] + reserve[name])
    return start


def _count(regions: tuple[Region, ...]) -> MemoryUse:
    end = max((region.start + region.size for region in regions), default=0)
    return MemoryUse(
        tokens=sum(region.tokens for region in regions),
        later=sum(region.final_tokens - region.tokens for region in regions),
        never=sum(region.size - region.final_tokens for region in regions),
        gaps=end - sum(region.size for region in regions),
        regions=regions,
    )


def paged_use(held: list[dict[str, int]], block_size: int) -> list[MemoryUse]:
    """Lay the requests out in blocks, allocated as they grow and freed when they finish."""
    final = final_tokens(held)
    pool = BlockPool(sum(blocks_for(tokens, block_size) for tokens in final.values()), block_size)
    tables: dict[str, BlockTable] = {}
    uses = []
    for step in held:
        for name in [name for name in tables if name not in step]:
            tables.pop(name).release()
        for name, tokens in step.items():
            table = tables.setdefault(name, BlockTable(pool))
            table.append(tokens - table.num_tokens)
        tokens = sum(step.values())
        later = sum(
            min(len(table.blocks) * block_size, final[name]) - table.num_tokens for name, table in tables.items()
        )
        uses.append(MemoryUse(tokens, later, len(pool.used) * block_size - tokens - later, gaps=0))
    return uses
