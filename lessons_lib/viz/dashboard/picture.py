"""An engine at work, in one picture: throughput, batch slots, blocks, utilization."""

from collections.abc import Mapping, Sequence

from lessons_lib.engine.metrics import BOUNDS, EngineStep
from lessons_lib.recording.engine_lanes import Lane, PoolUse
from lessons_lib.viz.charts.time_axis import say_seconds
from lessons_lib.viz.dashboard.lanes import color_of_sequence, draw_lanes, draw_pool_use
from lessons_lib.viz.drawing.palette import EDGE, INK, SERIES, SOFT_INK
from lessons_lib.viz.drawing.picture import Picture
from lessons_lib.viz.drawing.svg import WIDTH, Drawing, count, mono_width, number

_LEFT = 16
_BEFORE = "The engine before its first step"
_NAMES = 90  # where the names of requests begin
_MOST_NAME = 12  # characters
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

    Args:
        snapshot: `EngineMetrics.snapshot()`.
        steps: `EngineMetrics.recent`, oldest first.
        waiting, running: names of requests, in order.
        lanes, pool: what has become of them, and which blocks they use.
    """
    d = Drawing(height=404)
    d.text(_LEFT, 20, _title(snapshot), 15, bold=True)
    _tiles(d, 38, _figures(snapshot))
    draw_lanes(d, lanes, _LANE_STEPS, _LEFT, 112, _LANES, 130)
    draw_pool_use(d, pool, WIDTH - _LEFT - _POOL, 112, _POOL, 124)
    for row, gauge in enumerate(_gauges(snapshot, steps)):
        _gauge(d, 274 + 24 * row, *gauge)
    _names(d, 348, "running", running)
    _names(d, 376, "waiting", waiting)
    return d.picture(_describe(snapshot, steps, waiting, running))


def _title(snapshot: Mapping) -> str:
    return f"The engine after {count(snapshot['steps'], 'step')}" if snapshot["steps"] else _BEFORE


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
    ended = ", ".join(f"{requests} by {reason}" for reason, requests in snapshot["requests"].items())
    gauges = _gauges(snapshot, steps)
    full = "; ".join(
        f"{what} {used:,} of {limit:,} {when} it, mean {100 * mean:.0f} %" for what, used, limit, mean, when in gauges
    )
    requests = f"Running {len(running)}{_listed(running)}; waiting {len(waiting)}{_listed(waiting)}."
    return f"{_title(snapshot)}. {figures}{f' ({ended})' if ended else ''}. The last step: {full}. {requests}"


def _listed(names: Sequence[str], most: int = 12) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return f": {', '.join(names[:most])}{more}" if names else ""
