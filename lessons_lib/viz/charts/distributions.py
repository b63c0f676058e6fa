"""The share of requests served within a given time, one curve per way of serving them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from lessons_lib.viz.charts.time_axis import say_seconds, tick_words
from lessons_lib.viz.drawing.label_places import Box, place_labels
from lessons_lib.viz.drawing.notes import sans_width
from lessons_lib.viz.drawing.palette import INK, PAPER, SERIES, SOFT_INK
from lessons_lib.viz.drawing.picture import Picture
from lessons_lib.viz.drawing.signs import RADIUS, draw_sign
from lessons_lib.viz.drawing.svg import WIDTH, Drawing, number

_LEFT, _RIGHT, _HEIGHT = 58, 24, 300
_POINTS = 200  # of a curve; more wouldn't be visible
_MOST_DECADES = 5
_LABEL = 12
_SIGN = 18.0  # its width before a name
_ROOM_ENOUGH = 40.0  # pixels to the next curve
_SHARES = (0.62, 0.38, 0.74, 0.26, 0.86, 0.14, 0.92)  # where a curve's name may be
_GRID = "#E6E6E6"
_MARKED = (50, 99)


@dataclass(frozen=True)
class _Plane:
    """A logarithmic axis of seconds, and one of shares."""

    low: float
    high: float
    top: float

    def x(self, seconds: float) -> float:
        """Values left of the axis are drawn on its left edge."""
        share = math.log(max(seconds, self.low) / self.low) / math.log(self.high / self.low)
        return _LEFT + share * (WIDTH - _LEFT - _RIGHT)

    def y(self, share: float) -> float:
        return self.top + (1 - share) * _HEIGHT

    @property
    def bottom(self) -> float:
        return self.top + _HEIGHT


def draw_distributions(values: Mapping[str, Sequence[float]], xlabel: str, title: str = "") -> Picture:
    """The share of requests within a given time, one curve per name, with the median (p50) and the 99th percentile
    (p99) marked.

    Args:
        values: name -> seconds, one for each request; may be empty, and may be many.
        xlabel: what was measured, such as "time to first token".

    Raises:
        ValueError: a value is negative or not a number.
    """
    curves = {name: np.sort(np.asarray(seconds, dtype=float)) for name, seconds in values.items()}
    for name, ordered in curves.items():
        wrong = ordered[~(np.isfinite(ordered) & (ordered >= 0))]
        if len(wrong):
            raise ValueError(f"{name!r} contains {wrong[0]}; every value must be a number of seconds, 0 or more.")
    title = title or f"Distribution of {xlabel}"
    d = Drawing()
    d.text(16, 20, title, 15, bold=True)
    plane = _plane(curves, _table(d, curves, 44) + 36)
    _axes(d, plane, xlabel)
    _curves(d, plane, curves)
    d.height = plane.bottom + 48
    return d.picture(_describe(title, xlabel, curves))


def _plane(curves: dict[str, np.ndarray], top: float) -> _Plane:
    positive = np.concatenate([np.empty(0), *(ordered[ordered > 0] for ordered in curves.values())])
    if not len(positive):
        return _Plane(0.01, 1, top)
    longest, shortest = float(positive.max()), float(positive.min())
    high = next(tick for tick in _ticks(longest, 100 * longest) if tick > longest)
    low = max(tick for tick in _ticks(shortest / 100, shortest) if tick < shortest)
    return _Plane(max(low, high / 10**_MOST_DECADES), high, top)


def _ticks(low: float, high: float) -> list[float]:
    """1, 2, 5, 10, 20, ... and their fractions, from `low` to `high`."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    ticks = (factor * 10.0**power for power in powers for factor in (1, 2, 5))
    return [tick for tick in ticks if low * (1 - 1e-9) <= tick <= high * (1 + 1e-9)]


def _axes(d: Drawing, plane: _Plane, xlabel: str) -> None:
    right = WIDTH - _RIGHT
    ticks = _ticks(plane.low, plane.high)
    for tick in ticks:
        x = plane.x(tick)
        d.lines(f"M{number(x)} {number(plane.top)}V{number(plane.bottom)}", _GRID)
        if len(ticks) < 12 or math.log10(tick).is_integer():
            d.text(x, plane.bottom + 12, tick_words(tick, 1), 11, "middle", fill=SOFT_INK)
    for percent in (0, 25, 50, 75, 99):
        y = plane.y(percent / 100)
        marked = percent in _MARKED
        d.lines(f"M{_LEFT} {number(y)}H{right}", SOFT_INK if marked else _GRID, 1, dots=5 if marked else 0)
        d.text(_LEFT - 8, y, f"{percent} %", 11, "end", bold=marked, fill=INK if marked else SOFT_INK)
    d.lines(f"M{_LEFT} {number(plane.top)}V{number(plane.bottom)}H{right}", SOFT_INK)
    d.text(
        (_LEFT + right) / 2, plane.bottom + 32, f"{xlabel}, in seconds (logarithmic axis)", 12, "middle", fill=SOFT_INK
    )
    d.text(16, plane.top - 12, "share of requests", 11, fill=SOFT_INK)


def _curves(d: Drawing, plane: _Plane, curves: dict[str, np.ndarray]) -> None:
    drawn = [(index, name, ordered) for index, (name, ordered) in enumerate(curves.items()) if len(ordered)]
    marks, taken = [], []
    for index, name, ordered in drawn:
        points = [(plane.x(seconds), plane.y(share)) for seconds, share in _thinned(ordered)]
        path = f"M{number(points[0][0])} {number(plane.bottom)}" + "".join(
            f"L{number(x)} {number(y)}" for x, y in points
        )
        d.lines(f"{path}H{WIDTH - _RIGHT}", SERIES[index % len(SERIES)], 2.2)
        taken += [Box(x - 4, y - 4, x + 4, y + 4) for x, y in points[::6]]
        marks += [(index, name, percent, _percentile(ordered, percent)) for percent in _MARKED]
    for index, name, percent, seconds in reversed(marks):  # the first curve is drawn on top
        draw_sign(
            d, plane.x(seconds), plane.y(percent / 100), index, f"{name}: {percent} % within {say_seconds(seconds)}"
        )
    taken += [
        Box(plane.x(seconds) - 9, plane.y(p / 100) - 9, plane.x(seconds) + 9, plane.y(p / 100) + 9)
        for _, _, p, seconds in marks
    ]
    widths = [sans_width(name, _LABEL) + _SIGN for _, name, _ in drawn]
    positions = _name_positions([ordered for _, _, ordered in drawn], widths, plane, taken)
    for ((x, y), box), (index, name, _) in zip(positions, drawn):
        middle, is_right = (box.top + box.bottom) / 2, box.left > x
        d.lines(
            f"M{number(x)} {number(y)}L{number(box.left - 2 if is_right else box.right + 2)} {number(middle)}",
            SERIES[index % len(SERIES)],
            1.2,
        )
        draw_sign(d, box.left + RADIUS + 1, middle, index, name)
        d.text(box.left + _SIGN, middle, name, _LABEL, bold=True, halo=PAPER)


def _name_positions(
    curves: list[np.ndarray], widths: list[float], plane: _Plane, taken: list[Box]
) -> list[tuple[tuple[float, float], Box]]:
    """For each curve, a point (x, y) and the box of its name: close to its own curve, far from the others."""
    area = Box(_LEFT + 4, plane.top + 14, WIDTH - 6, plane.bottom - 4)
    across = {share: [plane.x(_percentile(ordered, 100 * share)) for ordered in curves] for share in _SHARES}
    boxes: list[Box] = []

    def far(x: float, y: float, box: Box, others: list[float]) -> float:
        if any(box.meets(other) for other in (*taken, *boxes)):
            return math.inf
        leader = max(box.left - x, x - box.right) + abs((box.top + box.bottom) / 2 - y)
        return leader - min([_ROOM_ENOUGH, *(abs(x - other) for other in others)])

    found = []
    for index, width in enumerate(widths):
        options = []
        for share, xs in across.items():
            point = xs[index], plane.y(share)
            (box,) = place_labels([point], [width], _LABEL + 6, area, [*taken, *boxes])
            options.append((far(*point, box, xs[:index] + xs[index + 1 :]), point, box))
        _, point, box = min(options, key=lambda option: option[0])
        found.append((point, box))
        boxes.append(box)
    return found


def _thinned(ordered: np.ndarray) -> list[tuple[float, float]]:
    """(seconds, share of requests within them) along the curve: of each value, or of evenly spaced ones."""
    count = len(ordered)
    ranks = np.arange(count) if count <= _POINTS else np.linspace(0, count - 1, _POINTS).round().astype(int)
    return list(zip(ordered[ranks].tolist(), ((ranks + 1) / count).tolist()))


def _percentile(ordered: np.ndarray, percent: float) -> float:
    """The smallest value that at least `percent` percent of the values don't exceed."""
    return float(ordered[max(math.ceil(percent / 100 * len(ordered)) - 1, 0)])


def _table(d: Drawing, curves: dict[str, np.ndarray], y: float) -> float:
    """Signs, names and percentiles. Returns the y of the last line."""
    columns = (WIDTH - 310, WIDTH - 170, WIDTH - _RIGHT)
    for x, words in zip(columns, ("requests", "p50", "p99")):
        d.text(x, y, words, 11.5, "end", fill=SOFT_INK)
    for index, (name, ordered) in enumerate(curves.items()):
        y += 20
        draw_sign(d, 26, y, index, name)
        d.text(42, y, name, 12.5)
        numbers = [
            f"{len(ordered):,}",
            *(say_seconds(_percentile(ordered, percent)) if len(ordered) else "–" for percent in _MARKED),
        ]
        for x, words in zip(columns, numbers):
            d.text(x, y, words, 12.5, "end")
    return y


def _describe(title: str, xlabel: str, curves: dict[str, np.ndarray]) -> str:
    told = []
    for name, ordered in curves.items():
        if len(ordered):
            half, most = (say_seconds(_percentile(ordered, percent)) for percent in _MARKED)
            told.append(
                f"{name}, {len(ordered):,} requests: half within {half}, 99 % within {most}, all within "
                f"{say_seconds(float(ordered[-1]))}."
            )
        else:
            told.append(f"{name}: no requests.")
    return " ".join([f"{title}: share of requests by {xlabel}, in seconds.", *(told or ["Nothing was measured."])])
