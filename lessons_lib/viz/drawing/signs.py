"""The sign of a series in a chart: a shape and a colour, so that nothing hangs on colour alone."""

from __future__ import annotations

from lessons_lib.viz.drawing.palette import PAPER, SERIES
from lessons_lib.viz.drawing.svg import Drawing, number

# Paths from the middle of the sign: filled areas, then lines.
_AREAS = ("m-6 0a6 6 0 1 0 12 0a6 6 0 1 0 -12 0z", "m-5.5 -5.5h11v11h-11z", "m0 -7l7 12h-14z", "m0 -7l7 7l-7 7l-7 -7z")
_LINES = ("m-5 -5l10 10m0 -10l-10 10", "m-7 0h14", "m-5 0a5 5 0 1 0 10 0a5 5 0 1 0 -10 0z")
RADIUS = 8


def draw_sign(d: Drawing, x: float, y: float, index: int, title: str) -> None:
    """The sign of series number `index`, its middle at (x, y); `title` answers the mouse."""
    colour, kind = SERIES[index % len(SERIES)], index % (len(_AREAS) + len(_LINES))
    start = f"M{number(x)} {number(y)}"
    if kind < len(_AREAS):
        d.lines(start + _AREAS[kind], PAPER, 1.2, fill=colour)
    else:
        d.lines(start + _LINES[kind - len(_AREAS)], colour, 3)
    d.rect(x - RADIUS, y - RADIUS, 2 * RADIUS, 2 * RADIUS, "transparent", title=title)
