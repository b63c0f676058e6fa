"""The roofline: what a machine allows at each intensity, and what was achieved."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from lessons_lib.measuring.roofline import Machine, Work, attainable
from lessons_lib.viz.drawing.label_places import Box, place_labels
from lessons_lib.viz.drawing.notes import sans_width, write_note
from lessons_lib.viz.drawing.palette import INK, PAPER, SERIES, SOFT_INK, mix
from lessons_lib.viz.drawing.picture import Picture
from lessons_lib.viz.drawing.signs import RADIUS, draw_sign
from lessons_lib.viz.drawing.svg import WIDTH, Drawing, flow, number

_LEFT, _RIGHT, _HEIGHT = 74, 24, 400
_LABEL = 12
_NEAR = 12  # pixels; closer signs overlap
_HIDDEN, _LARGER = 5, 1.7  # pixels; of signs this close only the upper one would be seen, so the lower one is larger
_GRID = "#E6E6E6"
_PERCENT = "percent: the share of the machine's limit that is reached"


@dataclass(frozen=True)
class RooflinePoint:
    """Something that was timed.

    Attributes:
        name: of the case; points with one name are the same work done in different ways.
        work: what had to be done.
        seconds: what it took.
        series: the way in which it was done; points of one series share a color and a sign.
    """

    name: str
    work: Work
    seconds: float
    series: str

    @property
    def flop_per_s(self) -> float:
        return self.work.flop / self.seconds


@dataclass(frozen=True)
class _Plane:
    """Two logarithmic axes, with limits in powers of ten."""

    x_low: int
    x_high: int
    y_low: int
    y_high: int
    top: float

    def x(self, intensity: float) -> float:
        return _LEFT + (math.log10(intensity) - self.x_low) / (self.x_high - self.x_low) * (WIDTH - _LEFT - _RIGHT)

    def y(self, rate: float) -> float:
        return self.top + _HEIGHT - (math.log10(rate) - self.y_low) / (self.y_high - self.y_low) * _HEIGHT

    @property
    def bottom(self) -> float:
        return self.top + _HEIGHT


def draw_roofline(machine: Machine, points: Sequence[RooflinePoint], title: str = "", note: str = "") -> Picture:
    """Operations per second against operations per byte, on logarithmic axes, below the machine's two limits.

    Each point is labeled with its case and the share of the machine's limit that it reaches; hover texts give all
    values.

    Args:
        note: the source of the figures, written under the picture; for recorded ones, their provenance.

    Raises:
        ValueError: a point has no time, no operations or no bytes.
    """
    for point in points:
        if min(point.seconds, point.work.flop, point.work.bytes) <= 0:
            raise ValueError(
                f"point {point.name!r} has {point.work.flop} operations and {point.work.bytes} bytes in "
                f"{point.seconds} s; each must be above 0."
            )
    title = title or f"Roofline of the machine: {machine.name}"
    series = list(dict.fromkeys(point.series for point in points))
    d = Drawing()
    d.text(16, 20, title, 15, bold=True)
    plane = _plane(machine, points, _legend(d, series, 43) + 40)
    _axes(d, plane)
    words = _limits(d, plane, machine)
    _points(d, plane, machine, points, series, words)
    d.height = write_note(d, plane.bottom + 48, note) + 10
    return d.picture(_describe(title, machine, points, note))


def _plane(machine: Machine, points: Sequence[RooflinePoint], top: float) -> _Plane:
    intensities = [machine.ridge, 2 * machine.ridge, *(point.work.intensity for point in points)]
    rates = [machine.flop_per_s / 100, *(point.flop_per_s for point in points)]
    x_low, x_high = math.floor(math.log10(min(intensities) / 2)), math.ceil(math.log10(max(intensities) * 3))
    y_low, y_high = (
        math.floor(math.log10(min(rates) / 1.2)),
        math.ceil(math.log10(max(machine.flop_per_s, *rates) * 1.2)),
    )
    return _Plane(x_low, x_high, y_low, y_high, top)


def _axes(d: Drawing, plane: _Plane) -> None:
    right = WIDTH - _RIGHT
    for power in range(plane.x_low, plane.x_high + 1):
        x = plane.x(10.0**power)
        d.lines(f"M{number(x)} {number(plane.top)}V{number(plane.bottom)}", _GRID)
        d.text(x, plane.bottom + 12, f"{10.0**power:,.10g}", 11, "middle", fill=SOFT_INK)
    for power in range(plane.y_low, plane.y_high + 1):
        y = plane.y(10.0**power)
        d.lines(f"M{_LEFT} {number(y)}H{right}", _GRID)
        d.text(_LEFT - 8, y, f"{10.0 ** (power - 12):,.10g}", 11, "end", fill=SOFT_INK)
    d.lines(f"M{_LEFT} {number(plane.top)}V{number(plane.bottom)}H{right}", SOFT_INK)
    d.text(16, plane.top - 14, "TFLOP/s", 12, fill=SOFT_INK)
    d.text(
        (_LEFT + right) / 2,
        plane.bottom + 32,
        "intensity: operations per byte (FLOP/byte)",
        12,
        "middle",
        fill=SOFT_INK,
    )


def _limits(d: Drawing, plane: _Plane, machine: Machine) -> list[Box]:
    """The two limits and the ridge. Returns the boxes of their labels."""
    ridge, roof = plane.x(machine.ridge), plane.y(machine.flop_per_s)
    floor = (
        10.0**plane.y_low / machine.bytes_per_s
    )  # where the slope meets the bottom, or the left edge if it comes first
    start = max(floor, 10.0**plane.x_low)
    left, low = plane.x(start), plane.y(start * machine.bytes_per_s)
    right, bottom = WIDTH - _RIGHT, plane.bottom
    d.lines(
        f"M{number(left)} {number(low)}L{number(ridge)} {number(roof)}H{right}V{number(bottom)}H{number(left)}z",
        "none",
        fill=mix(SERIES[0], PAPER, 0.94),
    )
    d.lines(f"M{number(ridge)} {number(roof)}V{number(bottom)}", SOFT_INK, 1.5, dots=5)
    d.lines(f"M{number(left)} {number(low)}L{number(ridge)} {number(roof)}H{right}", INK, 2.5)
    boxes = []

    def say(x: float, y: float, words: str, anchor: str, bold: bool = False) -> None:
        width = sans_width(words, _LABEL)
        d.text(x, y, words, _LABEL, anchor, bold=bold, fill=INK if bold else SOFT_INK, halo=PAPER)
        edge = {"start": x, "middle": x - width / 2, "end": x - width}[anchor]
        boxes.append(Box(edge, y - 9, edge + width, y + 9))

    say(right - 6, roof - 13, f"matrix products: {_tera(machine.flop_per_s)} TFLOP/s", "end", bold=True)
    along = 0.62  # of the way up the slope
    say(
        left + along * (ridge - left) - 14,
        low + along * (roof - low) - 10,
        f"reading memory: {_tera(machine.bytes_per_s)} TB/s",
        "end",
        bold=True,
    )
    say(ridge + 8, bottom - 32, f"ridge: {machine.ridge:,.0f} FLOP/byte", "start")
    say(ridge - 8, bottom - 12, "← bound by memory", "end")
    say(ridge + 8, bottom - 12, "bound by operations →", "start")
    # No label on the slope or the roof: short boxes along them.
    for share in range(60):
        x, y = left + share / 60 * (ridge - left), low + share / 60 * (roof - low)
        boxes.append(Box(x - 6, y - 6, x + 6, y + 6))
    return [*boxes, Box(ridge, roof - 5, right, roof + 5)]


def _legend(d: Drawing, series: Sequence[str], y: float) -> float:
    """The signs of the series. Returns the y of their last line."""
    widths = [20 + sans_width(name, 12.5) for name in series]
    room = WIDTH - 32 - sans_width(_PERCENT, _LABEL) - 18
    for index, (name, (line, x)) in enumerate(zip(series, flow(widths, room, gap=18))):
        draw_sign(d, 23 + x, y + 22 * line, index, name)
        d.text(35 + x, y + 22 * line, name, 12.5)
        last = y + 22 * line
    if series:
        d.text(WIDTH - _RIGHT, last, _PERCENT, _LABEL, "end", fill=SOFT_INK)
    return last if series else y - 22


def _points(
    d: Drawing,
    plane: _Plane,
    machine: Machine,
    points: Sequence[RooflinePoint],
    series: Sequence[str],
    words: list[Box],
) -> None:
    def place(point: RooflinePoint) -> tuple[float, float]:
        return plane.x(point.work.intensity), plane.y(point.flop_per_s)

    groups = _groups(points, place)
    labels = [_label(group, points, machine) for group in groups]
    places = [place(group[0]) for group in groups]
    area = Box(_LEFT + 4, plane.top + 2, WIDTH - 6, plane.bottom - 4)
    widths, ridge = [sans_width(label, _LABEL) for label in labels], plane.x(machine.ridge)
    boxes = place_labels(
        places, widths, _LABEL + 4, area, [*words, Box(ridge - 3, plane.top, ridge + 3, plane.bottom)], RADIUS
    )
    if not all(box.is_within(area) for box in boxes):  # long names: let them cross the ridge line
        boxes = place_labels(places, widths, _LABEL + 4, area, words, RADIUS)
    for (x, y), box in zip(places, boxes):
        middle = (box.top + box.bottom) / 2
        end = box.left - 2 if box.left > x else box.right + 2
        if abs(end - x) > 16 or abs(middle - y) > 8:
            d.lines(f"M{number(x)} {number(y)}L{number(end)} {number(middle)}", SOFT_INK, 1.2)
    drawn = [*reversed(points)]
    drawn.sort(key=lambda point: -series.index(point.series))  # the first series is on top
    for index, point in enumerate(drawn):
        above = (place(other) for other in drawn[index + 1 :] if other.series != point.series)
        is_hidden = any(math.dist(place(point), other) < _HIDDEN for other in above)
        size = _LARGER if is_hidden else 1
        draw_sign(d, *place(point), series.index(point.series), _hover(point, machine), size)
    for (x, _), box, label in zip(places, boxes, labels):
        is_right = box.left > x
        d.text(
            box.left if is_right else box.right,
            (box.top + box.bottom) / 2,
            label,
            _LABEL,
            "start" if is_right else "end",
            halo=PAPER,
        )


def _groups(points: Sequence[RooflinePoint], place) -> list[list[RooflinePoint]]:
    """Overlapping points of one series share a label. The fastest of a group comes first."""
    groups: list[list[RooflinePoint]] = []
    for point in sorted(points, key=lambda point: -point.flop_per_s):
        x, y = place(point)
        near = (g for g in groups if g[0].series == point.series and math.dist(place(g[-1]), (x, y)) < _NEAR)
        group = next(near, None)
        if group is None:
            groups.append([point])
        else:
            group.append(point)
    return groups


def _label(group: list[RooflinePoint], points: Sequence[RooflinePoint], machine: Machine) -> str:
    """The case and its share of the limit. A case is named once, at its fastest point, unless others have the same
    intensity.
    """
    first, shares = group[0], [_share(point, machine) for point in group]
    if len(group) > 1:
        return f"{first.name} and {len(group) - 1} more: {_percent(min(shares))}–{_percent(max(shares))} %"
    fastest = min((point for point in points if point.name == first.name), key=lambda point: point.seconds)
    others = (point for point in points if point.name != first.name)
    is_alone = not any(abs(math.log(point.work.intensity / first.work.intensity)) < 0.2 for point in others)
    share = f"{_percent(shares[0])} %"
    return share if is_alone and first is not fastest else f"{first.name}: {share}"


def _percent(share: float) -> str:
    return f"{share:.2g}" if share < 10 else f"{share:.0f}"


def _share(point: RooflinePoint, machine: Machine) -> float:
    return 100 * attainable(point.work, machine) / point.seconds


def _hover(point: RooflinePoint, machine: Machine) -> str:
    least = attainable(point.work, machine)
    return (
        f"{point.series}, {point.name}: {point.seconds * 1e6:,.4g} µs, {_tera(point.flop_per_s)} TFLOP/s at "
        f"{point.work.intensity:.3g} FLOP/byte; "
        f"the machine allows {least * 1e6:,.4g} µs, {_percent(_share(point, machine))} % of which is reached"
    )


def _tera(rate: float) -> str:
    return f"{rate / 1e12:,.3g}"


def _describe(title: str, machine: Machine, points: Sequence[RooflinePoint], note: str) -> str:
    limits = (
        f"{title}. Limits of {machine.name}: {_tera(machine.bytes_per_s)} TB/s read from memory, "
        f"{_tera(machine.flop_per_s)} TFLOP/s "
        f"in matrix products; they meet at the ridge, {machine.ridge:,.0f} FLOP/byte."
    )
    told = []
    for point in points:
        bound = "memory" if point.work.intensity < machine.ridge else "operations"
        told.append(
            f"{point.series}, {point.name}: {_tera(point.flop_per_s)} TFLOP/s at {point.work.intensity:.3g} "
            f"FLOP/byte, bound by {bound}, "
            f"{_percent(_share(point, machine))} % of what the machine allows."
        )
    return " ".join([limits, *told, note]).strip()
