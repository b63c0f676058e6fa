"""Horizontal bars: times of one thing done in several ways, with long names."""

import textwrap
from collections.abc import Mapping, Sequence

from lessons_lib.viz.charts.figure import WIDE, described, new_figure, styled, without_axis, write_note, write_title
from lessons_lib.viz.drawing.palette import EDGE, INK, NEUTRAL, PAPER, SERIES, SOFT_INK
from lessons_lib.viz.drawing.picture import Picture

_NAME = 46  # characters; longer names take several lines, so that bars have room


@styled
def draw_bars(
    values: Mapping[str, float], unit: str, title: str = "", note: str = "", own: Sequence[str] = (),
    limit: tuple[str, float] | None = None, most: float | None = None, hollow: Sequence[str] = (),
) -> Picture:  # fmt: skip
    """One bar per value, in the given order, with its name before it and its value after it.

    Args:
        values: name -> 0 or more.
        unit: of the values, such as "µs".
        note: the source of the figures, written under the picture; for recorded ones, their provenance.
        own: the names whose bars are highlighted.
        limit: (name, value) of a reference line across all bars.
        most: longer bars are cut here, with a mark; their values stay exact.
        hollow: the names whose bars are only outlined: values from another source.
    """
    shown = {name: min(value, most) if most else value for name, value in values.items()}
    fig, ax = new_figure(WIDE, 0.9 + 0.34 * len(values) + 0.3 * bool(note))
    bars = ax.barh(
        range(len(values)),
        list(shown.values()),
        0.72,
        color=[PAPER if name in hollow else SERIES[0] if name in own else NEUTRAL for name in values],
        edgecolor=[SERIES[0] if name in own and name not in hollow else EDGE for name in values],
        linewidth=1.2,
    )
    labels = ax.bar_label(bars, [_text(value, unit) for value in values.values()], padding=6)
    ax.set_yticks(range(len(values)), [textwrap.fill(name, _NAME) for name in values])
    ax.invert_yaxis()
    ax.margins(x=0.12, y=0.02)
    for (name, length), label, tick in zip(shown.items(), labels, ax.get_yticklabels()):
        tick.set_color(INK)
        if name in own:
            label.set_fontweight("bold")
            tick.set_fontweight("bold")
        if length < values[name]:
            ax.annotate("//", (length, tick.get_position()[1]), (-24, 0), textcoords="offset points", va="center")
    if limit:
        ax.axvline(limit[1], color=INK, linestyle=":")
        ax.annotate(f"{limit[0]}: {_text(limit[1], unit)}", (limit[1], 1), (0, 3), ("data", "axes fraction"),
                    textcoords="offset points", color=SOFT_INK)  # fmt: skip
    ax.xaxis.set_visible(False)
    without_axis(ax, "bottom", "left")
    write_title(fig, title)
    write_note(fig, note)
    told = "; ".join(f"{name}: {_text(value, unit)}" for name, value in values.items())
    line = f"{limit[0]}: {_text(limit[1], unit)}." if limit else ""
    return Picture.from_figure(fig, described(title, [f"{told}.", line], note))


def _text(value: float, unit: str) -> str:
    return f"{value:,.0f} {unit}" if value >= 100 else f"{value:.3g} {unit}"
