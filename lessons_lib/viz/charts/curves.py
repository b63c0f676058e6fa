"""Curves over one x."""

from collections.abc import Mapping, Sequence

from lessons_lib.viz.charts.figure import DASHES, log_scale, look, new_figure, styled
from lessons_lib.viz.drawing.palette import color_of
from lessons_lib.viz.drawing.picture import Picture

_SIZE = (6.75, 3.2)  # inches: 648 x 307 pixels in the page


@styled
def line_chart(
    x: Sequence[float], series: Mapping[str, Sequence[float]], *, xlabel: str, ylabel: str, alt: str, title: str = "",
    log: str = "",
) -> Picture:  # fmt: skip
    """Curves over the same x, each labeled with its name.

    series  name -> as many values as x has
    log     axes with a logarithmic scale: "", "x", "y" or "xy"
    """
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
