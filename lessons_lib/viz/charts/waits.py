"""Queue time against arrival time: one panel per run, one sign per tier. Starvation shows as a rising line."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from lessons_lib.scheduling.simulator import Simulation
from lessons_lib.viz.charts.time_axis import round_ticks, say_seconds, tick_words, unit_of
from lessons_lib.viz.drawing.notes import sans_width
from lessons_lib.viz.drawing.palette import PAPER, SERIES, SOFT_INK, mix
from lessons_lib.viz.drawing.picture import Picture
from lessons_lib.viz.drawing.signs import draw_sign
from lessons_lib.viz.drawing.svg import WIDTH, Drawing, number

_MARGIN, _GUTTER, _LEFT, _HEIGHT = 16, 24, 46, 180
_BINS = 60
_MOST_POINTS = 300  # in a panel; more requests are drawn as bins
_GRID = "#E6E6E6"
_LINE = 16


@dataclass(frozen=True)
class Bin:
    """Requests of one tier that arrived at about the same time.

    Attributes:
        arrival: the middle of the bin's time span.
        mean, most: of their queue times.
        count: how many requests.
    """

    arrival: float
    mean: float
    most: float
    count: int


@dataclass(frozen=True)
class _Panel:
    """The panel of one run: arrival time on x, queue time on y."""

    left: float
    right: float
    top: float
    last_arrival: float
    longest: float

    def x(self, arrival: float) -> float:
        return self.left + arrival / (self.last_arrival or 1) * (self.right - self.left)

    def y(self, wait: float) -> float:
        return self.top + _HEIGHT * (1 - wait / (self.longest or 1))

    @property
    def bottom(self) -> float:
        return self.top + _HEIGHT


def draw_waits(runs: Mapping[str, Simulation], tiers: Mapping[str, int], title: str = "") -> Picture:
    """Queue time against arrival time, per tier, with all panels on the same axes.

    A few requests are drawn as points. Many are binned by arrival time: a thick line for each bin's mean, and a pale
    band up to a thin line, its longest wait.

    Args:
        tiers: sequence id -> tier, for every sequence of the runs.

    Raises:
        ValueError: a sequence has no tier.
    """
    waits = {name: waits_by_tier(run, tiers) for name, run in runs.items()}
    everything = [points for by_tier in waits.values() for points in by_tier.values()]
    last_arrival, longest = np.concatenate([np.zeros((1, 2)), *everything]).max(axis=0).tolist()
    columns = min(max(len(runs), 1), 2)
    width = (WIDTH - 2 * _MARGIN - (columns - 1) * _GUTTER) / columns
    head = 24 + _LINE * max(map(len, waits.values()), default=1)  # a line for each tier
    d = Drawing()
    d.text(_MARGIN, 20, title or "Queue time against time of arrival", 15, bold=True)
    y = 36.0
    for index, (name, by_tier) in enumerate(waits.items()):
        left = _MARGIN + (index % columns) * (width + _GUTTER)
        panel = _Panel(left + _LEFT, left + width, y + head, last_arrival, longest)
        _head(d, name, by_tier, left, y)
        _axes(d, panel)
        if _is_many(by_tier):
            _draw_bins(d, panel, {tier: binned(points, last_arrival) for tier, points in by_tier.items()})
        else:
            _draw_points(d, panel, by_tier)
        if index % columns == columns - 1 or index == len(waits) - 1:
            y = panel.bottom + 44
    if not waits:
        d.text(_MARGIN, y + 8, "There are no runs to compare.", fill=SOFT_INK)
        y += 28
    d.height = _legend(
        d, sorted({tier for by_tier in waits.values() for tier in by_tier}), any(map(_is_many, waits.values())), y
    )
    return d.picture(_describe(title or "Queue time against time of arrival", waits))


def waits_by_tier(run: Simulation, tiers: Mapping[str, int]) -> dict[int, np.ndarray]:
    """Tier -> float array [sequences, 2]: arrival and queue time of each, in the order of arrival."""
    missing = run.times.keys() - tiers.keys()
    if missing:
        raise ValueError(
            f"sequence {min(missing)!r} has no tier; `tiers` must name the tier of each sequence of the runs, and "
            f"names {len(tiers)}."
        )
    count = len(run.times)
    own = np.fromiter(map(tiers.__getitem__, run.times), int, count)
    arrivals = np.fromiter((times.arrival for times in run.times.values()), float, count)
    waits = np.fromiter((times.admitted for times in run.times.values()), float, count) - arrivals
    points = np.stack([arrivals, waits], axis=1)
    order = np.argsort(points[:, 0], kind="stable")
    own, points = own[order], points[order]
    return {tier: points[own == tier] for tier in np.unique(own).tolist()}


def binned(points: np.ndarray, last_arrival: float, bins: int = _BINS) -> list[Bin]:
    """The points [sequences, 2] in equal bins of arrival time; empty bins are left out."""
    bin_of = np.minimum(points[:, 0] / (last_arrival or 1) * bins, bins - 1).astype(int)
    counts = np.bincount(bin_of, minlength=bins)
    sums = np.bincount(bin_of, points[:, 1], minlength=bins)
    most = np.zeros(bins)
    np.maximum.at(most, bin_of, points[:, 1])
    return [
        Bin((n + 0.5) / bins * last_arrival, float(sums[n] / counts[n]), float(most[n]), int(counts[n]))
        for n in np.flatnonzero(counts).tolist()
    ]


def _is_many(by_tier: dict[int, np.ndarray]) -> bool:
    return sum(map(len, by_tier.values())) > _MOST_POINTS


def _head(d: Drawing, name: str, by_tier: dict[int, np.ndarray], left: float, y: float) -> None:
    d.text(left, y + 6, name, 13.5, bold=True)
    told = [
        f"tier {tier}: mean {say_seconds(_mean(points))}, longest {say_seconds(_longest(points))}"
        for tier, points in by_tier.items()
    ]
    for line, words in enumerate(told or ["no request was served"]):
        d.text(left, y + 24 + _LINE * line, words, 12, fill=SOFT_INK)


def _axes(d: Drawing, panel: _Panel) -> None:
    unit, per_second = unit_of(panel.longest)
    ticks = round_ticks(panel.longest, 5)
    for tick in ticks:
        y, words = panel.y(tick), tick_words(tick, per_second)
        d.lines(f"M{number(panel.left)} {number(y)}H{number(panel.right)}", _GRID)
        d.text(panel.left - 6, y, f"{words} {unit}" if tick == ticks[-1] else words, 11, "end", fill=SOFT_INK)
    unit, per_second = unit_of(panel.last_arrival)
    for tick in round_ticks(panel.last_arrival, int((panel.right - panel.left) / 80)):
        words = tick_words(tick, per_second)
        x = min(panel.x(tick), panel.right - sans_width(words, 11) / 2)
        d.text(x, panel.bottom + 12, words, 11, "middle", fill=SOFT_INK)
    d.lines(f"M{number(panel.left)} {number(panel.top)}V{number(panel.bottom)}H{number(panel.right)}", SOFT_INK)
    d.text(panel.right, panel.bottom + 27, f"time of arrival ({unit})", 11, "end", fill=SOFT_INK)


def _draw_points(d: Drawing, panel: _Panel, by_tier: dict[int, np.ndarray]) -> None:
    for tier, points in reversed(by_tier.items()):  # the best tier is drawn on top
        for arrival, wait in points.tolist():
            draw_sign(
                d,
                panel.x(arrival),
                panel.y(wait),
                tier,
                f"tier {tier}: arrived at {say_seconds(arrival)}, waited {say_seconds(wait)}",
            )


def _draw_bins(d: Drawing, panel: _Panel, by_tier: dict[int, list[Bin]]) -> None:
    """All pale bands first, then all lines, so that no band hides a line. Where two tiers coincide, the wider line
    shows below the other.
    """
    tiers = list(reversed(by_tier.items()))
    for tier, bins in tiers:
        colour, tops = SERIES[tier % len(SERIES)], _path(panel, bins, "most")
        back = _path(panel, bins[::-1], "mean").replace("M", "L", 1)
        d.lines(f"{tops}{back}z", "none", fill=mix(colour, PAPER, 0.8))
        d.lines(tops, colour, 1)
    for tier, bins in tiers:
        d.lines(_path(panel, bins, "mean"), SERIES[tier % len(SERIES)], 2.2 + 2.4 * min(tier, 2))
    for tier, bins in tiers:
        every = max(len(bins) // 6, 1)
        for b in bins[tier * every // 2 % every :: every]:
            words = (
                f"tier {tier}: {b.count:,} arrived about {say_seconds(b.arrival)}, mean wait "
                f"{say_seconds(b.mean)}, longest {say_seconds(b.most)}"
            )
            draw_sign(d, panel.x(b.arrival), panel.y(b.mean), tier, words)


def _path(panel: _Panel, bins: list[Bin], value: str) -> str:
    return "M" + "L".join(f"{number(panel.x(b.arrival))} {number(panel.y(getattr(b, value)))}" for b in bins)


def _legend(d: Drawing, tiers: list[int], is_binned: bool, y: float) -> float:
    x = float(_MARGIN)
    for tier in tiers:
        draw_sign(d, x + 10, y + 8, tier, f"tier {tier}")
        d.text(x + 26, y + 8, f"tier {tier}" + (", the best" if tier == 0 else ""), 12)
        x += 60 + sans_width(f"tier {tier}, the best", 12)
    how = (
        "thick line: mean of the requests that arrived then; thin line: their longest wait"
        if is_binned
        else "queue time, each request"
    )
    d.text(WIDTH - _MARGIN, y + 8, how if tiers else "", 12, "end", fill=SOFT_INK)
    return y + 28


def _mean(points: np.ndarray) -> float:
    return float(points[:, 1].mean())


def _longest(points: np.ndarray) -> float:
    return float(points[:, 1].max())


def _describe(title: str, waits: dict[str, dict[int, np.ndarray]]) -> str:
    told = [f"{title}."]
    for name, by_tier in waits.items():
        parts = []
        for tier, points in by_tier.items():
            third = max(len(points) // 3, 1)
            first, last = say_seconds(_mean(points[:third])), say_seconds(_mean(points[-third:]))
            parts.append(
                f"tier {tier}, {len(points):,} served: mean wait {say_seconds(_mean(points))}, of the first third {first}, "  # noqa: E501
                f"of the last third {last}, longest {say_seconds(_longest(points))}"
            )
        told.append(f"{name}: {'; '.join(parts) or 'no request was served'}.")
    return " ".join(told if waits else [*told, "There are no runs."])
