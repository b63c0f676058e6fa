"""Where the time of an engine's steps goes: the parts of each step, and the laps of a step in several setups."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING

from lessons_lib.viz.charts.figure import WIDE, described, legend_above, new_figure, styled, write_title
from lessons_lib.viz.charts.time_axis import say_seconds
from lessons_lib.viz.drawing.palette import PAPER, SERIES, SOFT_INK
from lessons_lib.viz.drawing.picture import Picture
from lessons_lib.viz.drawing.svg import count

if TYPE_CHECKING:
    from lessons_lib.engine.metrics import EngineStep

BETWEEN = "between two steps"
_MODEL = "forward"
# The model is gray, at the bottom of each bar; the engine's own parts are stacked on it.
_COLOURS = {_MODEL: SERIES[2], "schedule": SERIES[0], "move": SERIES[1], "sample": SERIES[3], "update": SERIES[4]}
_OTHER = SERIES[5]
_MOST_BARS = 100


@styled
def draw_step_parts(steps: Sequence[EngineStep], title: str = "Where the time of a step goes") -> Picture:
    """Stacked bars of the parts of each step; below them, the same without the model on its own scale. Shares are also
    given in words.

    If there are more steps than bars, a bar is the mean of several consecutive steps.
    """
    parts = _parts(steps)
    totals = {part: sum(step.seconds.get(part, 0.0) for step in steps) for part in parts}
    size = -(-len(steps) // _MOST_BARS)
    groups = [steps[start : start + size] for start in range(0, len(steps), size)]
    at = [1 + size * (place + 0.5) for place in range(len(groups))]
    fig, axes = new_figure(WIDE, 4.4, 2, sharex=True)
    for ax, own, name in zip(axes, (parts, [part for part in parts if part != _MODEL]), ("whole", "without the model")):
        below = [0.0] * len(groups)
        for part in own:
            means = [1e3 * sum(step.seconds.get(part, 0.0) for step in group) / len(group) for group in groups]
            ax.bar(at, means, 0.88 * size, below, color=_COLOURS.get(part, _OTHER), label=_told(part, totals))
            below = [start + mean for start, mean in zip(below, means)]
        ax.set(ylabel=f"{name}, ms")
        ax.grid(False, axis="x")
    mean_of = f", each bar the mean of {size}" if size > 1 else ""
    axes[1].set_xlabel(f"{count(len(steps), 'step')}{mean_of}")
    legend_above(axes[0], 3)
    write_title(fig, title)
    whole = sum(totals.values())
    told = "; ".join(_told(part, totals) for part in sorted(totals, key=totals.__getitem__, reverse=True))
    model = f"All but the model: {_share(whole - totals[_MODEL], whole)}." if _MODEL in totals else ""
    head = f"{count(len(steps), 'step')}, {say_seconds(whole)} in all: {told}."
    return Picture.from_figure(fig, described(title, [head, model]))


@styled
def draw_laps(setups: Mapping[str, Sequence[EngineStep]], title: str = "The laps of a step") -> Picture:
    """One bar for each setup: the median of each lap, one after the other, and of the time between two steps.

    Args:
        setups: what it is called -> its steps, in order.
    """
    laps = {name: median_laps(steps) for name, steps in setups.items()}
    parts = [*_parts([step for steps in setups.values() for step in steps]), BETWEEN]
    fig, ax = new_figure(WIDE, 1.4 + 0.5 * len(setups))
    before = [0.0] * len(laps)
    for part in parts:
        widths = [1e3 * max(0.0, each.get(part, 0.0)) for each in laps.values()]
        style = {"color": PAPER, "edgecolor": SOFT_INK, "linestyle": "--"} if part == BETWEEN else {
            "color": _COLOURS.get(part, _OTHER)
        }  # fmt: skip
        bars = ax.barh(list(laps), widths, 0.6, before, label=part, **style)
        before = [start + width for start, width in zip(before, widths)]
    ax.bar_label(bars, [say_seconds(sum(each.values())) for each in laps.values()], padding=6, weight="bold")
    ax.invert_yaxis()
    ax.margins(x=0.1)
    ax.grid(False, axis="y")
    ax.set(xlabel="ms")
    legend_above(ax, len(parts))
    write_title(fig, title)
    told = [
        f"{name}: {say_seconds(sum(each.values()))} from one step to the next, of which "
        + ", ".join(f"{part} {say_seconds(each[part])}" for part in parts if part in each)
        + "."
        for name, each in laps.items()
    ]
    return Picture.from_figure(fig, described(title, told))


def median_laps(steps: Sequence[EngineStep]) -> dict[str, float]:
    """Median seconds of each part of these steps, and from the end of one to the start of the next: a few steps in
    which other programs had the processor change nothing.
    """
    laps = {part: median(step.seconds.get(part, 0.0) for step in steps) for part in _parts(steps)}
    return laps | {BETWEEN: median(b.start - a.start - a.total_seconds for a, b in pairwise(steps))}


def _parts(steps: Sequence[EngineStep]) -> list[str]:
    """The parts that occur, the model's first."""
    found = dict.fromkeys(part for step in steps for part in step.seconds)
    return [part for part in _COLOURS if part in found] + [part for part in found if part not in _COLOURS]


def _told(part: str, totals: Mapping[str, float]) -> str:
    return f"{part} {_share(totals[part], sum(totals.values()))}, {say_seconds(totals[part])}"


def _share(part: float, whole: float) -> str:
    percent = 100 * part / whole if whole else 0.0
    return f"{percent:.1f} %" if percent < 9.95 else f"{percent:.0f} %"
