"""An engine at work, in one picture: throughput, running and waiting requests, utilization."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from lessons_lib.engine.metrics import BOUNDS, EngineStep
from lessons_lib.recording.engine_lanes import Lane, PoolUse
from lessons_lib.viz.charts.time_axis import round_ticks, say_seconds
from lessons_lib.viz.dashboard.lanes import color_of_sequence, draw_lanes, draw_pool_use
from lessons_lib.viz.drawing.palette import EDGE, INK, PAPER, SERIES, SOFT_INK
from lessons_lib.viz.drawing.picture import Picture
from lessons_lib.viz.drawing.svg import WIDTH, Drawing, mono_width, number

_LEFT, _GAP = 16, 28
_HALF = (WIDTH - 2 * _LEFT - _GAP) / 2
_CHART, _AXIS = 96, 44
_MOST_POINTS = 120  # of a curve; more wouldn't be visible
_GRID = "#E6E6E6"
_NAMES = 90  # where the names of requests begin
_MOST_NAME = 12  # characters
_LANES, _POOL, _LANE_STEPS = 548, 292, 60  # widths of the two; steps that the lanes have room for


def draw_dashboard(
    snapshot: Mapping,
    steps: Sequence[EngineStep],
    waiting: Sequence[str] = (),
    running: Sequence[str] = (),
    lanes: Sequence[tuple[Lane | None, ...]] = (),
    pool: PoolUse | None = None,
) -> Picture:
    """An engine's metrics, its last steps, and its current requests.

    Args:
        snapshot: `EngineMetrics.snapshot()`.
        steps: `EngineMetrics.recent`, oldest first.
        waiting, running: names of requests, in order.
        lanes, pool: what has become of them, and who uses the blocks; drawn instead of the curves if `pool` is given.
    """
    d = Drawing(height=404)
    count = snapshot["steps"]
    d.text(
        _LEFT,
        20,
        f"The engine after {count:,} step{'s' if count != 1 else ''}" if count else "The engine before its first step",
        15,
        bold=True,
    )
    _tiles(d, 38, _figures(snapshot))
    if pool:
        draw_lanes(d, lanes, _LANE_STEPS, _LEFT, 112, _LANES, _CHART + 34)
        draw_pool_use(d, pool, WIDTH - _LEFT - _POOL, 112, _POOL, _CHART + 28)
    else:
        _curves(d, steps)
    for row, gauge in enumerate(_gauges(snapshot, steps)):
        _gauge(d, 274 + 24 * row, *gauge)
    _names(d, 348, "running", running)
    _names(d, 376, "waiting", waiting)
    return d.picture(_describe(snapshot, steps, waiting, running))


def _curves(d: Drawing, steps: Sequence[EngineStep]) -> None:
    points = _points(list(steps))
    _chart(d, _LEFT, 112, "new tokens per second", points, [(_tokens_a_second, SERIES[0])])
    _chart(
        d,
        _LEFT + _HALF + _GAP,
        112,
        "sequences",
        points,
        [(_running, SERIES[0]), (_waiting, SERIES[1])],
        ("running", "waiting"),
    )
    if len(steps) > 1:
        d.text(WIDTH / 2, 252, f"the last {len(steps):,} steps", 11, "middle", fill=SOFT_INK)


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
    return " · ".join(_at_most(histogram[name]) for name in ("p50", "p99")) if histogram["count"] else "–"


def _at_most(seconds: float | None) -> str:
    return f"> {say_seconds(BOUNDS[-1])}" if seconds is None else f"≤ {say_seconds(seconds)}"


def _tiles(d: Drawing, y: float, figures: Sequence[tuple[str, str]]) -> None:
    widths = (116, 204, 204, 106, 92, 146)  # enough for the widest of the usual fonts
    x = float(_LEFT)
    for width, (what, value) in zip(widths, figures):
        d.text(x, y + 14, value, 16, bold=True)
        d.text(x, y + 36, what, 11, fill=SOFT_INK)
        x += width


def _points(steps: list[EngineStep]) -> list[list[EngineStep]]:
    """Steps in groups, as many as a curve can show."""
    size = max(-(-len(steps) // _MOST_POINTS), 1)
    return [steps[start : start + size] for start in range(0, len(steps), size)]


def _tokens_a_second(steps: Sequence[EngineStep]) -> float:
    seconds = sum(step.total_seconds for step in steps)
    return sum(step.new_tokens for step in steps) / seconds if seconds else 0.0


def _running(steps: Sequence[EngineStep]) -> float:
    return sum(step.running for step in steps) / len(steps)


def _waiting(steps: Sequence[EngineStep]) -> float:
    return sum(step.waiting for step in steps) / len(steps)


def _chart(
    d: Drawing, x: float, y: float, title: str, points: list[list[EngineStep]], curves: list[tuple[Callable, str]], names: Sequence[str] = ()  # noqa: E501
) -> None:  # fmt: skip
    """Curves over the steps. The area under the first is filled; the others are lines."""
    d.text(x, y, title, 12, bold=True)
    for index, (name, (_, colour)) in enumerate(zip(names, curves)):
        at = x + 110 + 90 * index
        d.rect(at, y - (5 if index == 0 else 1.5), 16, 10 if index == 0 else 3, colour)
        d.text(at + 22, y, name, 12)
    left, right, top, bottom = x + _AXIS, x + _HALF, y + 18, y + 18 + _CHART
    values = [[of(group) for group in points] for of, _ in curves]
    highest = max((value for curve in values for value in curve), default=0.0) or 1.0
    ticks = [
        tick for tick in round_ticks(highest, 3) if tick.is_integer() and (highest - tick) / highest * _CHART >= 12
    ]
    for tick in [*ticks, highest]:
        height = bottom - tick / highest * _CHART
        d.lines(f"M{number(left)} {number(height)}H{number(right)}", _GRID if tick else SOFT_INK)
        d.text(
            left - 6,
            height,
            f"{tick:,.10g}" if tick.is_integer() or highest < 10 else f"{tick:,.0f}",
            11,
            "end",
            fill=SOFT_INK,
        )
    if not points:
        d.text((left + right) / 2, (top + bottom) / 2, "no steps yet", 12, "middle", fill=SOFT_INK)
        return
    width = (right - left) / len(points)
    for (_, colour), curve in zip(curves, values):
        # A staircase: each value spans its step's width, so even a single step is visible.
        heights = [number(bottom - value / highest * _CHART) for value in curve]
        stair = "".join(f"V{height}H{number(left + width * (n + 1))}" for n, height in enumerate(heights))
        if curve is values[0]:
            d.lines(f"M{number(left)} {number(bottom)}{stair}V{number(bottom)}Z", "none", fill=colour)
        else:
            d.lines(f"M{number(left)} {heights[0]}{stair}", PAPER, 5)
            d.lines(f"M{number(left)} {heights[0]}{stair}", colour, 2.2)


def _gauges(snapshot: Mapping, steps: Sequence[EngineStep]) -> list[tuple[str, int, int, float, str]]:
    """(what, used, limit, mean share over all steps, when it was counted) of each. Blocks are counted after the step
    has freed some.
    """
    last = steps[-1] if steps else None
    return [
        ("slots", last.running if last else 0, snapshot["max_num_seqs"], snapshot["slot_utilization"], "in"),
        (
            "token budget",
            last.tokens if last else 0,
            snapshot["max_num_batched_tokens"],
            snapshot["token_utilization"],
            "in",
        ),
        ("blocks", last.used_blocks if last else 0, snapshot["num_blocks"], snapshot["block_utilization"], "after"),
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


def _names(d: Drawing, y: float, what: str, names: Sequence[str]) -> None:
    """Requests as chips, as many as fit on one line."""
    d.text(_LEFT, y + 10, f"{what} {len(names)}", 12, bold=True)
    x = float(_NAMES + 18)
    for index, name in enumerate(names):
        short = name if len(name) <= _MOST_NAME else f"{name[:5]}…{name[5 - _MOST_NAME + 1 :]}"
        width = max(22.0, mono_width(short, 12) + 10)
        left_over = len(names) - index
        if x + width > WIDTH - _LEFT - (70 if left_over > 1 else 0):
            d.text(x + 2, y + 10, f"+ {left_over:,} more", 12, fill=SOFT_INK)
            return
        colour = color_of_sequence(name)
        d.rect(x, y, width, 20, colour, radius=3, title=name)
        d.text(x + width / 2, y + 10, short, 12, "middle", on=colour, mono=True)
        x += width + 4


def _describe(snapshot: Mapping, steps: Sequence[EngineStep], waiting: Sequence[str], running: Sequence[str]) -> str:
    figures = "; ".join(f"{what}: {value}" for what, value in _figures(snapshot))
    ended = ", ".join(f"{count} by {reason}" for reason, count in snapshot["requests"].items())
    gauges = _gauges(snapshot, steps)
    full = "; ".join(
        f"{what} {used:,} of {limit:,} {when} it, mean {100 * mean:.0f} %" for what, used, limit, mean, when in gauges
    )
    requests = f"Running {len(running)}{_listed(running)}; waiting {len(waiting)}{_listed(waiting)}."
    after = f"The engine after {snapshot['steps']:,} step{'s' if snapshot['steps'] != 1 else ''}"
    return f"{after}. {figures}{f' ({ended})' if ended else ''}. The last step: {full}. {requests}"


def _listed(names: Sequence[str], most: int = 12) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return f": {', '.join(names[:most])}{more}" if names else ""
