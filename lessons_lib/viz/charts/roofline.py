"""The roofline: what a machine allows at each intensity, and what was achieved."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from lessons_lib.measuring.roofline import Machine, Work, attainable
from lessons_lib.viz.charts.figure import WIDE, described, look, new_figure, styled, write_note, write_title
from lessons_lib.viz.drawing.palette import INK, PAPER, SERIES, SOFT_INK, mix
from lessons_lib.viz.drawing.picture import Picture

_LINE = 0.033  # the height of a label, as a share of the y axis
_BESIDE = 0.2  # share of the x axis in which labels would meet


@dataclass(frozen=True)
class RooflinePoint:
    """What had to be done, and what it took. Points with one name are the same work; a series is a way of doing it."""

    name: str
    work: Work
    seconds: float
    series: str

    @property
    def flop_per_s(self) -> float:
        return self.work.flop / self.seconds


@styled
def draw_roofline(machine: Machine, points: Sequence[RooflinePoint], title: str = "", note: str = "") -> Picture:
    """Operations per second against operations per byte, below the machine's two limits, on logarithmic axes. A label
    has the share of the limit that is reached; `note` is written under the picture: the source of the figures.
    """
    title = title or f"Roofline of the machine: {machine.name}"
    intensities = [machine.ridge / 2, 2 * machine.ridge, *(point.work.intensity for point in points)]
    rates = [machine.flop_per_s / 100, machine.flop_per_s, *(point.flop_per_s for point in points)]
    x_low, x_high = _decades(min(intensities) / 2, 3 * max(intensities))
    y_low, y_high = _decades(min(rates) / 1.2e12, 1.2 * max(rates) / 1e12)
    fig, ax = new_figure(WIDE, 5.2)
    ax.set(xscale="log", yscale="log", xlim=(x_low, x_high), ylim=(y_low, y_high))
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_major_formatter("{x:,.10g}")
    ax.set(xlabel="intensity: operations per byte (FLOP/byte)", ylabel="TFLOP/s")
    _draw_limits(ax, machine, x_low, x_high, y_low)
    series = list(dict.fromkeys(point.series for point in points))
    for index, name in reversed(list(enumerate(series))):  # the first series is on top, the others larger
        own = [point for point in points if point.series == name]
        places = [point.work.intensity for point in own], [point.flop_per_s / 1e12 for point in own]
        ax.plot(*places, linestyle="", label=name, markersize=8 + 2 * index, markeredgecolor=PAPER, **look(index))
    _label_points(ax, points, machine)
    if points:
        note_on_labels = "percent: share of the limit that is reached"
        ax.legend(loc="center right", reverse=True, title=note_on_labels, alignment="left")
    write_title(fig, title)
    write_note(fig, note)
    limits = (
        f"Limits of {machine.name}: {_tera(machine.bytes_per_s)} TB/s read from memory, {_tera(machine.flop_per_s)} "
        f"TFLOP/s in matrix products; they meet at the ridge, {machine.ridge:,.0f} FLOP/byte."
    )
    told = [
        f"{point.series}, {point.name}: {_tera(point.flop_per_s)} TFLOP/s at {point.work.intensity:.3g} FLOP/byte, "
        f"bound by {'memory' if point.work.intensity < machine.ridge else 'operations'}, "
        f"{_percent(point, machine)} % of what the machine allows."
        for point in points
    ]
    return Picture.from_figure(fig, described(title, [limits, *told], note))


def _decades(low: float, high: float) -> tuple[float, float]:
    return 10.0 ** math.floor(math.log10(low)), 10.0 ** math.ceil(math.log10(high))


def _draw_limits(ax, machine: Machine, left: float, right: float, bottom: float) -> None:
    ridge, roof = machine.ridge, machine.flop_per_s / 1e12
    xs, ys = [left, ridge, right], [left * machine.bytes_per_s / 1e12, roof, roof]
    ax.fill_between(xs, ys, bottom, color=mix(SERIES[0], PAPER, 0.94))
    ax.plot(xs, ys, color=INK, linewidth=2.5)
    ax.vlines(ridge, bottom, roof, color=SOFT_INK, linestyle=":", linewidth=1.5)
    middle, reading = left**0.38 * ridge**0.62, f"reading memory: {_tera(machine.bytes_per_s)} TB/s"
    for words, x, y, move, where, weight in (
        (f"matrix products: {_tera(machine.flop_per_s)} TFLOP/s", right, roof, (-6, 5), "right", "bold"),
        (reading, middle, middle * roof / ridge, (-14, 12), "right", "bold"),
        (f"ridge: {ridge:,.0f} FLOP/byte", ridge, bottom, (8, 24), "left", "normal"),
        ("← bound by memory", ridge, bottom, (-8, 8), "right", "normal"),
        ("bound by operations →", ridge, bottom, (8, 8), "left", "normal"),
    ):
        ax.annotate(words, (x, y), move, textcoords="offset points", ha=where, weight=weight)


def _label_points(ax, points: Sequence[RooflinePoint], machine: Machine) -> None:
    """Each label right of its point, or left where there is no room; lower where it would cover the one above."""
    (x_low, x_high), (y_low, y_high) = (map(math.log10, limits) for limits in (ax.get_xlim(), ax.get_ylim()))
    placed: list[tuple[float, float]] = []
    for point in sorted(points, key=lambda point: -point.flop_per_s):
        x = (math.log10(point.work.intensity) - x_low) / (x_high - x_low)
        y = (math.log10(point.flop_per_s / 1e12) - y_low) / (y_high - y_low)
        y = min([y, *(other - _LINE for at, other in placed if abs(at - x) < _BESIDE and other - _LINE < y)])
        placed.append((x, y))
        is_left = x > 1 - _BESIDE / 2
        ax.annotate(
            f"{point.name}: {_percent(point, machine)} %", (x, y), (-9 if is_left else 9, 0), "axes fraction",
            textcoords="offset points", ha="right" if is_left else "left", va="center",
        )  # fmt: skip


def _percent(point: RooflinePoint, machine: Machine) -> str:
    share = 100 * attainable(point.work, machine) / point.seconds
    return f"{share:.2g}" if share < 10 else f"{share:.0f}"


def _tera(rate: float) -> str:
    return f"{rate / 1e12:,.3g}"
