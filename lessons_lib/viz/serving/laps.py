"""The laps of a step in several setups: one bar each, the median of the steps, and the time between two steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from statistics import median

from lessons_lib.engine.metrics import EngineStep
from lessons_lib.viz.charts.step_parts import COLOURS
from lessons_lib.viz.charts.time_axis import round_ticks, say_seconds, tick_words, unit_of
from lessons_lib.viz.drawing.notes import sans_width
from lessons_lib.viz.drawing.palette import PAPER, SOFT_INK
from lessons_lib.viz.drawing.picture import Picture
from lessons_lib.viz.drawing.svg import WIDTH, Drawing, flow, number

BETWEEN = "between two steps"
_LEFT, _RIGHT, _ROW, _BAR = 200, 70, 46, 28
_GRID = "#E6E6E6"


def median_laps(steps: Sequence[EngineStep]) -> dict[str, float]:
    """Median seconds of each part of these steps, and from the end of one to the start of the next: a few steps in
    which other programs had the processor change nothing.

    Raises:
        ValueError: fewer than two steps, so that there is nothing between them.
    """
    if len(steps) < 2:
        raise ValueError(f"{len(steps)} steps; the time between two steps needs at least 2.")
    parts = dict.fromkeys(part for step in steps for part in step.seconds)
    laps = {part: median(step.seconds.get(part, 0.0) for step in steps) for part in parts}
    gaps = [later.start - step.start - step.total_seconds for step, later in pairwise(steps)]
    return laps | {BETWEEN: median(gaps)}


def draw_laps(setups: Mapping[str, Sequence[EngineStep]], title: str = "") -> Picture:
    """One bar for each setup: the median of each lap, one after the other, and of the time between two steps.

    Args:
        setups: what it is called -> its steps, in order.
    """
    title = title or "The laps of a step"
    laps = {name: median_laps(steps) for name, steps in setups.items()}
    parts = [part for part in COLOURS if any(part in each for each in laps.values())]
    parts += [part for each in laps.values() for part in each if part not in parts and part != BETWEEN]
    parts = [*dict.fromkeys(parts), BETWEEN]
    longest = max((sum(each.values()) for each in laps.values()), default=0.0) or 1e-6
    d = Drawing()
    d.text(16, 20, title, 15, bold=True)
    y = _legend(d, parts, 44)
    scale = (WIDTH - _LEFT - _RIGHT) / longest
    unit, factor = unit_of(longest)
    bottom = y + len(laps) * _ROW
    for tick in round_ticks(longest, 6):
        d.lines(f"M{number(_LEFT + tick * scale)} {number(y)}V{number(bottom)}", _GRID)
        d.text(_LEFT + tick * scale, bottom + 12, f"{tick_words(tick, factor)} {unit}", 11, "middle", fill=SOFT_INK)
    for name, each in laps.items():
        _bar(d, name, each, parts, y + _ROW / 2, scale)
        y += _ROW
    d.height = bottom + 30
    return d.picture(_describe(title, laps, parts))


def _bar(d: Drawing, name: str, laps: Mapping[str, float], parts: Sequence[str], y: float, scale: float) -> None:
    d.text(_LEFT - 10, y, name, 13, "end")
    x = float(_LEFT)
    for part in parts:
        width = max(0.0, laps.get(part, 0.0)) * scale
        if width <= 0:
            continue
        hover = f"{name}, {part}: {say_seconds(laps[part])}"
        if part == BETWEEN:
            d.rect(x, y - _BAR / 2, width, _BAR, PAPER, SOFT_INK, dashed=True, title=hover)
        else:
            d.rect(x, y - _BAR / 2, width, _BAR, COLOURS.get(part, "#6B6B6B"), PAPER, 0.6, title=hover)
        x += width
    d.text(x + 8, y, say_seconds(sum(laps.values())), 12, bold=True)


def _legend(d: Drawing, parts: Sequence[str], y: float) -> float:
    words = [sans_width(part, 12) + 34 for part in parts]
    for part, (line, x) in zip(parts, flow(words, WIDTH - 32)):
        top = y + 22 * line - 7
        if part == BETWEEN:
            d.rect(16 + x, top, 14, 14, PAPER, SOFT_INK, dashed=True)
        else:
            d.rect(16 + x, top, 14, 14, COLOURS.get(part, "#6B6B6B"))
        d.text(16 + x + 20, top + 7, part, 12, fill=SOFT_INK)
    return y + 22 * (flow(words, WIDTH - 32)[-1][0] + 1)


def _describe(title: str, laps: Mapping[str, Mapping[str, float]], parts: Sequence[str]) -> str:
    told = [
        f"{name}: {say_seconds(sum(each.values()))} from one step to the next, of which "
        + ", ".join(f"{part} {say_seconds(each[part])}" for part in parts if part in each)
        + "."
        for name, each in laps.items()
    ]
    return f"{title}. " + " ".join(told)
