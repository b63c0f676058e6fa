"""Curves and bars in the style of the course.

A curve or bar of a request has the request's color. Others have the series colors, and also differ in dashes and
markers or in lightness and order, so that color is never the only cue. Hatching means waste, as everywhere.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from lessons_lib.viz.drawing.palette import HATCH, INK, NEUTRAL, PAPER, SERIES, SOFT_INK, color_of
from lessons_lib.viz.drawing.picture import Picture

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

STYLE = {
    "font.family": "sans-serif",
    "font.sans-serif": [
        "DejaVu Sans",
        "Verdana",
        "sans-serif",
    ],  # comes with matplotlib: the same layout on every machine
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
    "grid.color": "#E6E6E6",
    "text.color": INK,
    "xtick.color": SOFT_INK,
    "ytick.color": SOFT_INK,
    "legend.frameon": False,
    "lines.linewidth": 2,
    "lines.markersize": 5,
    "hatch.linewidth": 1.2,
}
SIZE = (6.75, 3.2)  # inches: 648 x 307 pixels in the page
_DASHES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)), (0, (1, 1)))
_MARKERS = ("o", "s", "^", "D", "v", "P")


def new_figure(size: tuple[float, float] = SIZE) -> tuple[Figure, Axes]:
    """An empty figure with one pair of axes in the style of the course. End with `Picture.from_figure(fig, alt)`."""
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(STYLE):
        fig = Figure(figsize=size, layout="constrained")
        return fig, fig.add_subplot()


def line_chart(
    x: Sequence[float],
    series: Mapping[str, Sequence[float]],
    *,
    xlabel: str,
    ylabel: str,
    alt: str,
    title: str = "",
    log: str = "",
) -> Picture:
    """Curves over the same x, each labeled with its name.

    series  name -> as many values as x has
    log     axes with a logarithmic scale: "", "x", "y" or "xy"
    """
    import matplotlib

    _check_lengths(series, len(x), "x")
    fig, ax = new_figure()
    with matplotlib.rc_context(STYLE):
        marker_step = max(1, len(x) // 12)
        for n, (name, values) in enumerate(series.items()):
            ax.plot(
                x,
                values,
                label=name,
                color=_series_colour(name, n),
                linestyle=_DASHES[n % len(_DASHES)],
                marker=_MARKERS[n % len(_MARKERS)],
                markevery=marker_step,
            )
        if "x" in log:
            ax.set_xscale("log", base=2)
            ax.xaxis.set_major_formatter("{x:g}")
        if "y" in log:
            _log_y(ax)
        else:
            ax.set_ylim(bottom=min(0, ax.get_ylim()[0]))
        if len(series) > 1:
            fig.legend(loc="outside upper left", ncols=len(series))
        _label(ax, xlabel, ylabel, title)
    return Picture.from_figure(fig, alt)


def bar_chart(
    groups: Sequence[str],
    series: Mapping[str, Sequence[float]],
    *,
    ylabel: str,
    alt: str,
    title: str = "",
    xlabel: str = "",
    value_format: str = "{:,.4g}",
    waste: Sequence[str] = (),
) -> Picture:
    """Bars side by side: a group for each name in `groups`, with one bar per series and its value on top.

    series  name -> one value per group
    waste   names of the series that count waste: their bars are hatched
    """
    import matplotlib

    _check_lengths(series, len(groups), "groups")
    fig, ax = new_figure()
    with matplotlib.rc_context(STYLE):
        alone = len(series) == 1  # then a bar may stand for a request
        width = 0.8 / max(len(series), 1)
        for n, (name, values) in enumerate(series.items()):
            positions = [g + (n - (len(series) - 1) / 2) * width for g in range(len(groups))]
            bars = ax.bar(
                positions,
                values,
                width * 0.94,
                label=name,
                color=NEUTRAL if name in waste else _bar_colours(name, n, groups if alone else ()),
                hatch="///" if name in waste else None,
                edgecolor=HATCH,
                linewidth=0,
            )
            ax.bar_label(bars, [value_format.format(value) for value in values], padding=2, fontsize=9)
        ax.set_xticks(range(len(groups)), groups)
        ax.grid(False, axis="x")
        ax.tick_params(axis="x", length=0)
        ax.margins(y=0.12)
        if len(series) > 1:
            fig.legend(loc="outside upper left", ncols=len(series))
        _label(ax, xlabel, ylabel, title)
    return Picture.from_figure(fig, alt)


def _log_y(ax: Axes) -> None:
    """A logarithmic scale with plain numbers: 50, 100, 200, not 2 × 10²."""
    from matplotlib.ticker import LogLocator, NullFormatter

    ax.set_yscale("log")
    low, high = ax.get_ylim()
    ax.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if high < 1000 * low else (1,)))
    ax.yaxis.set_major_formatter("{x:,.10g}")
    ax.yaxis.set_minor_formatter(NullFormatter())


def _label(ax: Axes, xlabel: str, ylabel: str, title: str) -> None:
    ax.set_xlabel(xlabel)
    ax.set_ylabel(ylabel)
    if title:
        ax.set_title(title, pad=10)


def _series_colour(name: str, n: int) -> str:
    if len(name) == 1 and "A" <= name <= "Z":
        return color_of(name)
    return SERIES[n % len(SERIES)]


def _bar_colours(name: str, n: int, groups: Sequence[str]) -> list[str] | str:
    return [_series_colour(group, 0) for group in groups] or _series_colour(name, n)


def _check_lengths(series: Mapping[str, Sequence[float]], length: int, what: str) -> None:
    for name, values in series.items():
        if len(values) != length:
            raise ValueError(f"series {name!r} has {len(values)} values; {what} has {length}. They must match.")
