"""An engine at work, in one picture: throughput, batch slots, blocks, utilization."""

import math
from collections.abc import Mapping, Sequence

from lessons_lib.engine.metrics import BOUNDS, EngineStep
from lessons_lib.recording.engine_lanes import PREFILL, STALLED, Lane, PoolUse
from lessons_lib.recording.words import count, listed
from lessons_lib.viz.charts.time_axis import say_seconds
from lessons_lib.viz.drawing.palette import EDGE, INK, PAPER, SERIES, SOFT_INK, color_of, tint
from lessons_lib.viz.drawing.picture import Picture
from lessons_lib.viz.drawing.svg import WIDTH, Drawing, number
from lessons_lib.viz.masks.token_axis import runs_of
from lessons_lib.viz.pressure.grid import draw_cached

_LEFT = 16
_BEFORE = "The engine before its first step"
_NAMES = 108  # where the names of requests begin
_MOST_NAME = 12  # characters
_TILES = (116, 204, 204, 106, 92, 146)  # widths: enough for the widest of the usual fonts
_LANES, _POOL, _LANE_STEPS = 548, 292, 60  # widths of the two; steps that the lanes have room for


def draw_dashboard(
    snapshot: Mapping,
    steps: Sequence[EngineStep],
    waiting: Sequence[str],
    running: Sequence[str],
    lanes: Sequence[tuple[Lane | None, ...]],
    pool: PoolUse,
) -> Picture:
    """An engine's metrics, its last steps, and its current requests.

    snapshot, steps   `EngineMetrics.snapshot()` and `.recent`
    waiting, running  names of requests, in order
    lanes, pool       what has become of them, and which blocks they use
    """
    d = Drawing(height=404)
    title = f"The engine after {count(snapshot['steps'], 'step')}" if snapshot["steps"] else _BEFORE
    d.text(_LEFT, 20, title, 15, bold=True)
    x = float(_LEFT)
    for width, (what, value) in zip(_TILES, _figures(snapshot)):
        d.text(x, 52, value, 16, bold=True)
        d.text(x, 74, what, 11, fill=SOFT_INK)
        x += width
    draw_lanes(d, lanes, _LANE_STEPS, _LEFT, 112, _LANES, 130)
    draw_pool_use(d, pool, WIDTH - _LEFT - _POOL, 112, _POOL, 124)
    for row, gauge in enumerate(_gauges(snapshot, steps)):
        _gauge(d, 274 + 24 * row, *gauge)
    for y, what, names in ((348, "running", running), (376, "waiting", waiting)):
        d.text(_LEFT, y + 10, f"{what} {len(names)}", 12, bold=True)
        short = [name if len(name) <= _MOST_NAME else f"{name[:5]}…{name[6 - _MOST_NAME :]}" for name in names]
        d.names(_NAMES, y, short, WIDTH - 100, moves=False)
    told = [f"{what}: {value}" for what, value in _figures(snapshot)]
    told += [f"{what}: {used:,} of {limit:,}" for what, used, limit, *_ in _gauges(snapshot, steps)]
    return d.picture(f"{title}. {'; '.join(told)}. Running: {listed(running)}. Waiting: {listed(waiting)}.")


def _figures(snapshot: Mapping) -> list[tuple[str, str]]:
    """(what, value) of each tile."""
    ended = snapshot["requests"]
    return [
        ("tokens per second", f"{snapshot['throughput']:,.0f}" if snapshot["steps"] else "–"),
        ("first token (TTFT), p50 · p99", _quantiles(snapshot["ttft"])),
        ("next token (ITL), p50 · p99", _quantiles(snapshot["itl"])),
        ("requests ended", f"{sum(ended.values()):,}"),
        ("preemptions", f"{snapshot['preemptions']:,}"),
        ("prompts found in cache", f"{100 * snapshot['prefix_hit_rate']:.0f} %"),
    ]


def _quantiles(histogram: Mapping) -> str:
    """Both are histogram bounds: the value itself is at most that."""
    bounds = [histogram[name] for name in ("p50", "p99")] if histogram["count"] else []
    told = [f"> {say_seconds(BOUNDS[-1])}" if bound is None else f"≤ {say_seconds(bound)}" for bound in bounds]
    return " · ".join(told) or "–"


def _gauges(snapshot: Mapping, steps: Sequence[EngineStep]) -> list[tuple[str, int, int, float, str]]:
    """(what, used, limit, mean share, when counted) of each. Blocks are counted after the step has freed some."""
    slots, tokens, blocks = (steps[-1].running, steps[-1].tokens, steps[-1].used_blocks) if steps else (0, 0, 0)
    return [
        ("slots", slots, snapshot["max_num_seqs"], snapshot["slot_utilization"], "in"),
        ("token budget", tokens, snapshot["max_num_batched_tokens"], snapshot["token_utilization"], "in"),
        ("blocks", blocks, snapshot["num_blocks"], snapshot["block_utilization"], "after"),
    ]


def _gauge(d: Drawing, y: float, what: str, used: int, limit: int, mean: float, when: str) -> None:
    left, width = _LEFT + 102, 460
    share = min(used / limit, 1.0) if limit else 0.0
    d.text(_LEFT, y, what, 12, bold=True)
    d.rect(left, y - 7, width, 14, "none", EDGE)
    d.rect(left, y - 7, width * share, 14, SERIES[3], title=f"{what}: {used:,} of {limit:,} {when} the last step")
    x = left + width * min(mean, 1.0)
    d.lines(f"M{number(x)} {number(y - 10)}V{number(y + 10)}", INK, 2)
    d.text(left + width + 12, y, f"{used:,} of {limit:,} {when} the last step; mean (│) {100 * mean:.0f} %", 12)


_TALLEST_LANE, _MOST_LANES, _GAP = 24.0, 16, 3
_LARGEST, _SMALLEST = 32, 4  # of a block's square


Steps = Sequence[tuple[Lane | None, ...]]


def draw_lanes(d: Drawing, steps: Steps, most_steps: int, x: float, y: float, width: float, height: float) -> None:
    """One row for each batch slot, one column for each step, the newest step last. Few steps get wider columns."""
    count = max((len(step) for step in steps), default=0)
    title = f"batch slots in the last {len(steps)} steps" if len(steps) > 1 else "batch slots"
    d.text(x, y, title, 12, bold=True)
    if not count:
        d.text(x + width / 2, y + 20 + height / 2, "no steps yet", 12, "middle", fill=SOFT_INK)
        return
    shown = min(count, _MOST_LANES)
    if count > shown:
        d.text(x + width, y, f"{count - shown} more slots", 11, "end", fill=SOFT_INK)
    row = min(_TALLEST_LANE, height / shown)
    rooms = (most_steps // 4, most_steps // 2, most_steps)
    cell = width / next((room for room in rooms if room >= len(steps)), len(steps))
    for lane in range(shown):
        top = y + 16 + lane * row
        d.lines(f"M{number(x)} {number(top + row - 1.5)}H{number(x + len(steps) * cell)}", EDGE, 0.5)

        for state, column, size in runs_of([step[lane] if lane < len(step) else None for step in steps]):
            if state:
                colour, wide, is_prefill = color_of(state.name), size * cell, state.work == PREFILL
                fits = wide >= 8 * len(state.name) + 4 and row >= 15 and not is_prefill
                d.cell(
                    x + column * cell, top, wide, row - 3, tint(colour) if state.work == STALLED else colour,
                    state.name if fits else "", f"{state.name}: {state.work}", framed=is_prefill, size=11,
                )  # fmt: skip


def draw_pool_use(d: Drawing, use: PoolUse, x: float, y: float, width: float, height: float) -> None:
    """A square for each block in the color of its sequence; dots: free, and still to be found by its hash."""
    used = len(use.owners)
    d.text(x, y, f"blocks: {used:,} in use, {len(use.cached):,} free but cached, of {use.num_blocks:,}", 12, bold=True)
    sizes = range(_LARGEST, _SMALLEST, -1)
    fitting = (size for size in sizes if math.ceil(use.num_blocks / max(width // size, 1)) * size <= height)
    size = next(fitting, _SMALLEST)
    columns = max(int(width // size), 1)
    rows = min(math.ceil(use.num_blocks / columns), int(height // size))
    for block in range(min(use.num_blocks, rows * columns)):
        row, column = divmod(block, columns)
        left, top, side = x + column * size, y + 16 + row * size, size - 2
        owners = use.owners.get(block, ())
        if block in use.cached:
            draw_cached(d, left, top, side, side)
        elif not owners:
            d.rect(left, top, side, side, PAPER, EDGE)
        for place, owner in enumerate(owners):
            each, label = side / len(owners), owner if len(owners) == 1 and 8 * len(owner) <= side - 4 else ""
            title = f"block {block}: {', '.join(owners)}"
            d.cell(left + place * each, top, each, side, color_of(owner), label, title, size=min(11, side - 3))
    if rows * columns < use.num_blocks:
        d.text(x + width, y + 8, f"the first {rows * columns:,} are drawn", 11, "end", fill=INK)
