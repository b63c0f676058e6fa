"""Where the time of an engine's steps goes: one bar per step, split into parts, with and without the model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from lessons_lib.viz.charts.time_axis import round_ticks, say_seconds, tick_words, unit_of
from lessons_lib.viz.drawing.notes import sans_width
from lessons_lib.viz.drawing.palette import SERIES, SOFT_INK
from lessons_lib.viz.drawing.picture import Picture
from lessons_lib.viz.drawing.svg import WIDTH, Drawing, flow, number

if TYPE_CHECKING:
    from lessons_lib.engine.metrics import EngineStep

# The model is gray, at the bottom of each bar; the engine's own parts are stacked on it.
COLOURS = {"forward": SERIES[2], "schedule": SERIES[0], "move": SERIES[1], "sample": SERIES[3], "update": SERIES[4]}
_OTHER = SERIES[5]
_MODEL = "forward"
_LEFT, _RIGHT, _HEIGHT = 58, 20, 130
_MOST_BARS = 100
_GRID = "#E6E6E6"


def draw_step_parts(steps: Sequence[EngineStep], title: str = "") -> Picture:
    """Stacked bars of the parts of each step; below them, the same without the model on its own scale. Shares are also
    given in words.

    If there are more steps than bars, a bar is the mean of several consecutive steps.
    """
    title = title or "Where the time of a step goes"
    parts = _parts(steps)
    totals = {part: sum(step.seconds.get(part, 0.0) for step in steps) for part in parts}
    d = Drawing()
    d.text(16, 20, title, 15, bold=True)
    if not steps:
        d.text(16, 48, "No steps yet.", fill=SOFT_INK)
        d.height = 66
        return d.picture(f"{title}. No steps yet.")
    y = _legend(d, totals, 46)
    size = -(-len(steps) // _MOST_BARS)
    bars = [_mean(steps[start : start + size], parts) for start in range(0, len(steps), size)]
    y = _panel(d, y, "whole step", bars, parts, size)
    own = [part for part in parts if part != _MODEL]
    if own and _MODEL in parts:
        y = _panel(d, y + 10, "without the model", bars, own, size)
    words = f"{len(steps):,} step{'s' if len(steps) > 1 else ''}{f', each bar the mean of {size}' if size > 1 else ''}"
    d.text((_LEFT + WIDTH - _RIGHT) / 2, y + 6, words, 12, "middle", fill=SOFT_INK)
    d.height = y + 24
    return d.picture(_describe(title, totals, len(steps)))


def _parts(steps: Sequence[EngineStep]) -> list[str]:
    """The parts that occur, the model's first."""
    found = dict.fromkeys(part for step in steps for part in step.seconds)
    return [part for part in COLOURS if part in found] + [part for part in found if part not in COLOURS]


def _mean(steps: Sequence[EngineStep], parts: Sequence[str]) -> dict[str, float]:
    return {part: sum(step.seconds.get(part, 0.0) for step in steps) / len(steps) for part in parts}


def _panel(
    d: Drawing, top: float, name: str, bars: Sequence[dict[str, float]], parts: Sequence[str], size: int
) -> float:
    """Axes and bars of some parts. Returns the y below."""
    d.text(_LEFT, top + 8, name, 12, fill=SOFT_INK)
    top += 22
    bottom = top + _HEIGHT
    longest = max(sum(bar[part] for part in parts) for bar in bars) or 1e-6
    unit, factor = unit_of(longest)
    for tick in round_ticks(longest, 4):
        y = bottom - tick / longest * _HEIGHT
        d.lines(f"M{_LEFT} {number(y)}H{WIDTH - _RIGHT}", _GRID if tick else SOFT_INK)
        d.text(_LEFT - 8, y, f"{tick_words(tick, factor)} {unit}", 11, "end", fill=SOFT_INK)
    width = min((WIDTH - _LEFT - _RIGHT) / len(bars), 60)
    for index, bar in enumerate(bars):
        x, y = _LEFT + index * width, bottom
        for part in parts:
            height = bar[part] / longest * _HEIGHT
            y -= height
            if height > 0:
                d.rect(x + width * 0.06, y, width * 0.88, height, COLOURS.get(part, _OTHER))
        first = index * size + 1
        told = ", ".join(f"{part} {say_seconds(bar[part])}" for part in parts)
        where = f"step {first}" if size == 1 else f"from step {first}"
        d.rect(x, top, width, _HEIGHT, "transparent", title=f"{where}: {told}")
    return bottom + 12


def _legend(d: Drawing, totals: dict[str, float], y: float) -> float:
    """Each part, its share and its time. Returns the y below."""
    words = [_told(part, totals) for part in totals]
    places = flow([32 + sans_width(text, 12.5) for text in words], WIDTH - 32, 12)
    for text, part, (line, x) in zip(words, totals, places):
        d.rect(16 + x, y - 7 + 20 * line, 14, 14, COLOURS.get(part, _OTHER))
        d.text(36 + x, y + 20 * line, text, 12.5)
    return y + 20 * places[-1][0] + 16


def _told(part: str, totals: dict[str, float]) -> str:
    return f"{part} {_share(totals[part], sum(totals.values()))}, {say_seconds(totals[part])}"


def _share(part: float, whole: float) -> str:
    percent = 100 * part / whole if whole else 0.0
    return f"{percent:.1f} %" if percent < 9.95 else f"{percent:.0f} %"


def _describe(title: str, totals: dict[str, float], count: int) -> str:
    whole = sum(totals.values())
    shares = "; ".join(_told(part, totals) for part in sorted(totals, key=totals.get, reverse=True))
    own = f" All but the model: {_share(whole - totals[_MODEL], whole)}." if _MODEL in totals else ""
    return f"{title}. {count:,} step{'s' if count > 1 else ''}, {say_seconds(whole)} in all: {shares}.{own}"
