"""Horizontal bars: times of one thing done in several ways, with long names."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence

from lessons_lib.viz.drawing.notes import sans_width, write_note
from lessons_lib.viz.drawing.palette import EDGE, INK, NEUTRAL, PAPER, SERIES, SOFT_INK
from lessons_lib.viz.drawing.picture import Picture
from lessons_lib.viz.drawing.svg import WIDTH, Drawing, number

_BAR, _GAP, _SIZE = 24, 8, 13
_NAMES, _LINE = 325, 15  # pixels: longer names take several lines, so that bars have room


def draw_bars(
    values: Mapping[str, float],
    unit: str,
    title: str = "",
    note: str = "",
    own: Sequence[str] = (),
    limit: tuple[str, float] | None = None,
    most: float | None = None,
    hollow: Sequence[str] = (),
) -> Picture:
    """One bar per value, in the given order, with its name before it and its value after it.

    Args:
        values: name -> 0 or more.
        unit: of the values, such as "µs".
        note: the source of the figures, written under the picture; for recorded ones, their provenance.
        own: the names whose bars are highlighted.
        limit: (name, value) of a reference line across all bars.
        most: longer bars are cut here, with a mark; their values stay exact.
        hollow: the names whose bars are only outlined: values from another source.

    Raises:
        ValueError: there is no value, or one is negative.
    """
    if not values or min(values.values()) < 0:
        raise ValueError(f"values are {dict(values)}; at least one is needed, and each must be 0 or more.")
    scale = max(min(value, most or value) for value in values.values())
    scale = max(scale, limit[1] if limit else 0.0) or 1.0
    lines = {name: _wrapped(name) for name in values}
    left = 28 + max(sans_width(line, _SIZE) for name in values for line in lines[name] or [""])
    right = WIDTH - 30 - max(sans_width(f"{_text(value)} {unit}", _SIZE) for value in values.values())
    d = Drawing()
    if title:
        d.text(16, 20, title, 15, bold=True)
    top = y = (44.0 if title else 16.0) + (20 if limit else 0)
    per = (right - left) / scale
    for name, value in values.items():
        is_cut = most is not None and value > most
        length = per * (most if is_cut else value)
        middle = y + _BAR / 2
        for row, line in enumerate(lines[name]):
            d.text(left - 10, middle + _LINE * (row - (len(lines[name]) - 1) / 2), line, _SIZE, "end", bold=name in own)
        fill, edge = (PAPER, EDGE) if name in hollow else (SERIES[0] if name in own else NEUTRAL, None)
        d.rect(left, y, max(length, 1), _BAR, fill, edge, 1.5, title=_hover(name, value, values, unit, limit))
        if is_cut:  # two slanted lines: the bar is cut
            x = number(left + length - 26)
            d.lines(
                f"M{x} {number(y + _BAR + 2)}l8 -{_BAR + 4}m6 0l-8 {_BAR + 4}",
                *((EDGE, 1.5) if name in hollow else (PAPER, 3)),
            )
        d.text(left + max(length, 1) + 7, middle, f"{_text(value)} {unit}", _SIZE, bold=name in own)
        y += max(_BAR, _LINE * len(lines[name])) + _GAP
    d.lines(f"M{number(left)} {number(top - 4)}V{number(y - _GAP + 4)}", SOFT_INK)
    if limit:
        x, words = left + per * limit[1], f"{limit[0]}: {_text(limit[1])} {unit}"
        d.lines(f"M{number(x)} {number(top - 6)}V{number(y - _GAP + 4)}", INK, 2, dots=5)
        d.text(min(x, WIDTH - 16 - sans_width(words, 12)), top - 15, words, 12, fill=SOFT_INK)
    d.height = write_note(d, y + 2, note) + 8
    return d.picture(_describe(values, unit, title, note, limit))


def _wrapped(name: str) -> list[str]:
    """As few lines as fit, of about equal length."""
    most = int(_NAMES / sans_width("x", _SIZE))
    count = len(textwrap.wrap(name, most))
    least = next(width for width in range(1, most + 1) if len(textwrap.wrap(name, width)) <= count)
    return textwrap.wrap(name, least)


def _text(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _hover(name: str, value: float, values: Mapping[str, float], unit: str, limit: tuple[str, float] | None) -> str:
    words = f"{name}: {_text(value)} {unit}"
    least = min(values.values())
    words += f", {_text(value / least)} times the shortest" if least and value > least else ""
    return words + (f", {_text(value / limit[1])} times the limit" if limit and limit[1] else "")


def _describe(values: Mapping[str, float], unit: str, title: str, note: str, limit: tuple[str, float] | None) -> str:
    told = "; ".join(f"{name}: {_text(value)} {unit}" for name, value in values.items())
    line = f"{limit[0]}: {_text(limit[1])} {unit}." if limit else ""
    return " ".join(filter(None, [f"{title}." if title else "", f"{told}.", line, note]))
