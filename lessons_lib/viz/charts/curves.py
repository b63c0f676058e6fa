"""Curves over one x, and bars in groups."""

from collections.abc import Mapping, Sequence

from lessons_lib.viz.charts.figure import DASHES, log_scale, look, new_figure, styled
from lessons_lib.viz.drawing.palette import SERIES, color_of
from lessons_lib.viz.drawing.picture import Picture

_SIZE = (6.75, 3.2)  # inches: 648 x 307 pixels in the page


@styled
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
    _check_lengths(series, len(x), "x")
    fig, ax = new_figure(*_SIZE)
    for n, (name, values) in enumerate(series.items()):
        style = look(n) | {"linestyle": DASHES[n % len(DASHES)], "markevery": max(1, len(x) // 12)}
        if len(name) == 1 and "A" <= name <= "Z":  # a request
            style["color"] = color_of(name)
        ax.plot(x, values, label=name, **style)
    if "x" in log:
        ax.set_xscale("log", base=2)
        ax.xaxis.set_major_formatter("{x:g}")
    if "y" in log:
        log_scale(ax)
    else:
        ax.set_ylim(bottom=min(0, ax.get_ylim()[0]))
    if len(series) > 1:
        fig.legend(loc="outside upper left", ncols=len(series))
    ax.set(xlabel=xlabel, ylabel=ylabel)
    ax.set_title(title, pad=10)
    return Picture.from_figure(fig, alt)


@styled
def bar_chart(
    groups: Sequence[str],
    series: Mapping[str, Sequence[float]],
    *,
    ylabel: str,
    alt: str,
    title: str = "",
    xlabel: str = "",
    value_format: str = "{:,.4g}",
) -> Picture:
    """Bars in groups; `series`: name -> one value per group, on top of its bar."""
    _check_lengths(series, len(groups), "groups")
    fig, ax = new_figure(*_SIZE)
    width = 0.8 / max(len(series), 1)
    for n, (name, values) in enumerate(series.items()):
        positions = [group + (n - (len(series) - 1) / 2) * width for group in range(len(groups))]
        bars = ax.bar(positions, values, width * 0.94, label=name, color=SERIES[n % len(SERIES)], linewidth=0)
        ax.bar_label(bars, [value_format.format(value) for value in values], padding=2, fontsize=9)
    ax.set_xticks(range(len(groups)), groups)
    ax.grid(False, axis="x")
    ax.tick_params(axis="x", length=0)
    ax.margins(y=0.12)
    if len(series) > 1:
        fig.legend(loc="outside upper left", ncols=len(series))
    ax.set(xlabel=xlabel, ylabel=ylabel)
    ax.set_title(title, pad=10)
    return Picture.from_figure(fig, alt)


def _check_lengths(series: Mapping[str, Sequence[float]], length: int, what: str) -> None:
    for name, values in series.items():
        if len(values) != length:
            raise ValueError(f"series {name!r} has {len(values)} values; {what} has {length}. They must match.")
