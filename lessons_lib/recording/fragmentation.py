"""Lesson 03: what a layout of the cache wastes, counted on the steps of a recorded run."""

from dataclasses import dataclass, field, replace

from lessons_lib.kv_cache.block_pool import BlockPool, BlockTable, blocks_for
from lessons_lib.recording.serving import RecordedRun
from lessons_lib.recording.trace import Trace


@dataclass(frozen=True)
class Region:
    """Neighbouring places that one request has to itself.

    Attributes:
        request: whose they are.
        start: the first place.
        size: how many places.
        tokens: how many of them hold a token now, from the front.
        final_tokens: how many of them will hold a token when the request ends.
    """

    request: str
    start: int
    size: int
    tokens: int
    final_tokens: int


@dataclass(frozen=True)
class MemoryUse:
    """What the places of the cache are doing in one step. A place has room for one token.

    Attributes:
        tokens: they hold a token.
        later: reserved, and the request that owns them will use them before it ends.
        never: reserved, and nobody will ever use them: internal fragmentation.
        gaps: between reservations, with nobody in them: external fragmentation.
        regions: what lies where, in the order of the places; empty for a layout in blocks.
    """

    tokens: int
    later: int
    never: int
    gaps: int
    regions: tuple[Region, ...] = field(default=(), repr=False)

    @property
    def places(self) -> int:
        """All places that the layout takes up, from the first to the last in use."""
        return self.tokens + self.later + self.never + self.gaps


def tokens_held(trace: Trace) -> list[dict[str, int]]:
    """For every step of a run: request -> tokens that the cache held for it after the step.

    A request is listed from the step in which it got its place to the step before it lost it.
    """
    held, total = [], {}
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
    """Tokens that each request held at its end."""
    return {name: tokens for step in held for name, tokens in step.items()}


def contiguous_use(held: list[dict[str, int]], reserve: dict[str, int]) -> list[MemoryUse]:
    """Lay the requests out in one piece each, reserved when the request begins, in the first gap that is large enough.

    Args:
        held: see `tokens_held`.
        reserve: request -> places to reserve for it.

    Raises:
        ValueError: a request holds more tokens than are reserved for it.
    """
    final = final_tokens(held)
    for name, tokens in final.items():
        if tokens > reserve[name]:
            raise ValueError(
                f"request {name!r} comes to hold {tokens} tokens; {reserve[name]} places are reserved for it. Reserve more."
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
            for name in sorted(starts, key=starts.get)
        )
        uses.append(_count(regions))
    return uses


def _first_gap(starts: dict[str, int], reserve: dict[str, int], size: int) -> int:
    """The lowest start from which `size` places are free."""
    start = 0
    for name in sorted(starts, key=starts.get):
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
    """Lay the requests out in blocks, taken from a pool as they grow and given back when they end."""
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


def waste(uses: list[MemoryUse]) -> float:
    """Share of the places taken up that held no token, averaged over the steps, 0 to 1."""
    places = sum(use.places for use in uses)
    return 1 - sum(use.tokens for use in uses) / places if places else 0.0


def counted_in_blocks(run: RecordedRun, block_size: int) -> RecordedRun:
    """The same run, with the cache that it would have reserved in blocks of `block_size`. Nothing is computed again."""
    uses = paged_use(tokens_held(run.trace), block_size)
    steps = [
        replace(step, cache_reserved=use.places, cache_used=use.tokens) for step, use in zip(run.trace.steps, uses)
    ]
    return replace(run, trace=Trace(steps))
