"""The sign of a series in a chart: a shape and a colour, so that nothing hangs on colour alone."""

from __future__ import annotations

import re

from lessons_lib.viz.drawing.palette import PAPER, SERIES
from lessons_lib.viz.drawing.svg import Drawing, number

# Paths from the middle of the sign: filled areas, then lines.
_AREAS = ("m-6 0a6 6 0 1 0 12 0a6 6 0 1 0 -12 0z", "m-5.5 -5.5h11v11h-11z", "m0 -7l7 12h-14z", "m0 -7l7 7l-7 7l-7 -7z")
_LINES = ("m-5 -5l10 10m0 -10l-10 10", "m-7 0h14", "m-5 0a5 5 0 1 0 10 0a5 5 0 1 0 -10 0z")
RADIUS = 8


def draw_sign(d: Drawing, x: float, y: float, index: int, title: str, size: float = 1) -> None:
    """The sign of series number `index`, its middle at (x, y), `size` times as large as usual; `title` answers the
    mouse.
    """
    colour, kind = SERIES[index % len(SERIES)], index % (len(_AREAS) + len(_LINES))
    path, start = _scaled((*_AREAS, *_LINES)[kind], size), f"M{number(x)} {number(y)}"
    if kind < len(_AREAS):
        d.lines(start + path, PAPER, 1.2, fill=colour)
    else:
        d.lines(start + path, colour, 3)
    radius = RADIUS * size
    d.rect(x - radius, y - radius, 2 * radius, 2 * radius, "transparent", title=title)


def _scaled(path: str, size: float) -> str:
    if size == 1:
        return path
    halves = path.replace(" 0 1 0 ", " 0 0 0 ")  # of half a circle, the flag for the larger arc means nothing
    return re.sub(r"-?[\d.]+", lambda found: number(float(found[0]) * size), halves)
