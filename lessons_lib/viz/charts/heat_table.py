"""A table whose cells are colored by value: the darker, the higher."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lessons_lib.viz.charts.figure import new_figure, without_axis
from lessons_lib.viz.drawing.palette import EDGE, HATCH, INK, PAPER, SERIES, mix, text_on

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_LEFT, _WIDEST, _ROW = 2.1, 1.4, 0.42  # inches: names of the rows, widest column, row


@dataclass(frozen=True)
class HeatCell:
    """One cell.

    Attributes:
        text: the value, on one or two lines.
        heat: 0 (pale) to 1 (dark); None: no value, the cell stays empty.
        hatched: nothing useful is done here.
        framed: it stands out.
    """

    text: str
    heat: float | None
    hatched: bool = False
    framed: bool = False


def heat_table(
    columns: Sequence[str],
    rows: Sequence[str],
    cells: Sequence[Sequence[HeatCell]],
    corner: str,
    legend: Sequence[tuple[HeatCell, str]],
) -> Figure:
    """Column names, row names, cells, and a legend below. `corner` says what the names are."""
    fig, ax = new_figure(min(9.4, _LEFT + _WIDEST * len(columns)), 1.6 + _ROW * len(rows))
    for y, line in enumerate(cells):
        for x, cell in enumerate(line):
            _draw_cell(ax, x, y, cell)
    ax.set(xlim=(0, len(columns)), ylim=(len(rows), -0.02))
    ax.set_xticks([x + 0.5 for x in range(len(columns))], columns, weight="bold", color=INK)
    ax.set_yticks([y + 0.5 for y in range(len(rows))], rows, weight="bold", color=INK)
    ax.xaxis.tick_top()
    without_axis(ax, "bottom", "left")
    ax.annotate(corner, (0, 1), (-8, 6), "axes fraction", textcoords="offset points", ha="right", fontsize=9)
    patches = [ax.add_patch(_box(-2, -2, cell)) for cell, _ in legend]  # out of sight
    names = [words for _, words in legend]
    ax.legend(patches, names, loc="upper right", bbox_to_anchor=(1, 0), ncols=len(legend), fontsize=9, columnspacing=1)
    return fig


def _draw_cell(ax: Axes, x: float, y: float, cell: HeatCell) -> None:
    ax.add_patch(_box(x, y, cell))
    ground = _color(cell)
    behind = {"facecolor": PAPER, "edgecolor": "none", "pad": 2} if cell.hatched else None
    ax.text(x + 0.49, y + 0.49, cell.text, ha="center", va="center", fontsize=9, linespacing=1.1,
            color=text_on(ground), weight="bold" if cell.framed else "normal", bbox=behind)  # fmt: skip


def _box(x: float, y: float, cell: HeatCell):
    from matplotlib.patches import Rectangle

    edge, line, order = (INK, 3, 2) if cell.framed else (HATCH if cell.hatched else EDGE, 0.5, 1)
    hatch = "///" if cell.hatched else None
    return Rectangle((x, y), 0.97, 0.95, fc=_color(cell), ec=edge, linewidth=line, hatch=hatch, zorder=order)


def _color(cell: HeatCell) -> str:
    if cell.heat is None or cell.hatched:
        return PAPER
    return mix("#FFFFFF", SERIES[0], 0.08 + 0.92 * min(max(cell.heat, 0.0), 1.0))
