"""Matplotlib figures in the style of the course.

A curve or bar of a request has the request's color. Others have the series colors, and also differ in dashes and
markers or in lightness and order, so that color is never the only cue. Hatching means waste, as everywhere.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar

from lessons_lib.viz.drawing.palette import INK, PAPER, SERIES, SOFT_INK
from lessons_lib.viz.drawing.picture import Picture

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Draw = TypeVar("Draw", bound=Callable[..., Picture])

WIDE = 9.4  # inches: 900 pixels, as wide as a drawing
MARKERS = ("o", "s", "^", "D", "v", "P")
DASHES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)), (0, (1, 1)))
STYLE = {
    "font.family": "sans-serif",
    # DejaVu Sans comes with matplotlib: the same layout on every machine.
    "font.sans-serif": ["DejaVu Sans", "Verdana", "sans-serif"],
    "font.size": 10,
    "axes.titlesize": 11.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": SOFT_INK,
    "axes.labelcolor": INK,
    "axes.facecolor": PAPER,
    "axes.grid": True,
    "axes.axisbelow": True,
    "figure.titlesize": 11.5,
    "figure.titleweight": "bold",
    "grid.color": "#E6E6E6",
    "text.color": INK,
    "xtick.color": SOFT_INK,
    "ytick.color": SOFT_INK,
    "legend.frameon": False,
    "lines.linewidth": 2,
    "lines.markersize": 5,
    "hatch.linewidth": 1.2,
}


def styled(draw: Draw) -> Draw:
    """Make a function draw in the style of the course."""

    @wraps(draw)
    def draw_in_style(*args: Any, **kwargs: Any) -> Picture:
        import matplotlib

        with matplotlib.rc_context(STYLE):
            return draw(*args, **kwargs)

    return draw_in_style  # type: ignore[return-value]


def new_figure(width: float, height: float, rows: int = 1, columns: int = 1, **options: Any) -> tuple[Figure, Any]:
    """An empty figure in inches, and its axes, see `Figure.subplots`. End with `Picture.from_figure(fig, alt)`."""
    from matplotlib.figure import Figure

    fig = Figure(figsize=(width, height), layout="constrained")
    return fig, fig.subplots(rows, columns, **options)


def look(index: int) -> dict[str, Any]:
    """Color and marker of a series."""
    return {"color": SERIES[index % len(SERIES)], "marker": MARKERS[index % len(MARKERS)]}


def write_title(fig: Figure, title: str) -> None:
    if title:
        fig.suptitle(title, x=0.01, ha="left")


def write_note(fig: Figure, note: str) -> None:
    """Small print under a figure: where its figures come from."""
    if note:
        lines = textwrap.fill(note, int(14 * fig.get_figwidth()))
        fig.supxlabel(lines, x=0.01, ha="left", fontsize=9, color=SOFT_INK)


def log_scale(ax: Axes) -> None:
    """A logarithmic y axis with plain numbers: 50, 100, 200, not 2 × 10²."""
    from matplotlib.ticker import LogLocator, NullFormatter

    ax.set_yscale("log")
    low, high = ax.yaxis.get_view_interval()
    subs = range(1, 10) if high < 5 * low else (1, 2, 5) if high < 1000 * low else (1,)
    ax.yaxis.set_major_locator(LogLocator(subs=subs))
    ax.yaxis.set_major_formatter("{x:,.10g}")
    ax.yaxis.set_minor_formatter(NullFormatter())


def without_axis(ax: Axes, *sides: str) -> None:
    """Hide the spines, ticks and grid lines of these sides: "left", "bottom"."""
    for side in sides:
        ax.spines[side].set_visible(False)
        ax.tick_params(axis="x" if side == "bottom" else "y", length=0)
    ax.grid(False)


def described(title: str, told: Sequence[str], note: str = "") -> str:
    """An alternative text from its sentences."""
    return " ".join(filter(None, [f"{title}." if title else "", *told, note]))
