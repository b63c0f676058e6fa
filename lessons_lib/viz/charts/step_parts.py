"""Where the time of an engine's steps goes: the parts of each step, and the laps of a step in several setups."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING

from lessons_lib.recording.words import count
from lessons_lib.viz.charts.figure import WIDE, described, legend_above, new_figure, styled, write_title
from lessons_lib.viz.charts.time_axis import say_seconds
from lessons_lib.viz.drawing.palette import PAPER, SERIES, SOFT_INK
from lessons_lib.viz.drawing.picture import Picture

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
    """Stacked bars of each step's parts, and the same without the model on its own scale; of many steps, means."""
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
    head = f"{count(len(steps), 'step')}, {say_seconds(whole)} in all: {told}."
    return Picture.from_figure(fig, described(title, [head]))


@styled
def draw_laps(setups: Mapping[str, Sequence[EngineStep]], title: str = "The laps of a step") -> Picture:
    """One bar for each setup (name -> its steps): the median of each lap in turn, and of the time between two steps."""
    laps = {name: median_laps(steps) for name, steps in setups.items()}
    parts = [*_parts([step for steps in setups.values() for step in steps]), BETWEEN]
    fig, ax = new_figure(WIDE, 1.4 + 0.5 * len(setups))
    before = [0.0] * len(laps)
    for part in parts:
        widths = [1e3 * max(0.0, each.get(part, 0.0)) for each in laps.values()]
        style = {"color": _COLOURS.get(part, _OTHER)}
        if part == BETWEEN:
            style = {"color": PAPER, "edgecolor": SOFT_INK, "linestyle": "--"}
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
        f"{', '.join(f'{part} {say_seconds(each[part])}' for part in parts if part in each)}."
        for name, each in laps.items()
    ]
    return Picture.from_figure(fig, described(title, told))


def median_laps(steps: Sequence[EngineStep]) -> dict[str, float]:
    """Median seconds of each part, and between two steps: a few disturbed steps change nothing."""
    laps = {part: median(step.seconds.get(part, 0.0) for step in steps) for part in _parts(steps)}
    return laps | {BETWEEN: median(b.start - a.start - a.total_seconds for a, b in pairwise(steps))}


def _parts(steps: Sequence[EngineStep]) -> list[str]:
    """The parts that occur, the model's first."""
    found = dict.fromkeys(part for step in steps for part in step.seconds)
    return [part for part in _COLOURS if part in found] + [part for part in found if part not in _COLOURS]


def _told(part: str, totals: Mapping[str, float]) -> str:
    percent = 100 * totals[part] / (sum(totals.values()) or 1.0)
    return f"{part} {percent:.{0 if percent >= 9.95 else 1}f} %, {say_seconds(totals[part])}"
