"""A table whose cells are colored by value: the darker, the higher."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from lessons_lib.viz.drawing.notes import sans_width
from lessons_lib.viz.drawing.palette import PAPER, SERIES, SOFT_INK, mix
from lessons_lib.viz.drawing.svg import WIDTH, Drawing

_GAP, _ROW, _RIGHT = 3, 40, 16
_WIDEST = 130


@dataclass(frozen=True)
class HeatCell:
    """One cell.

    Attributes:
        text: the value; below: a smaller line below it, or "".
        heat: 0 (pale) to 1 (dark); None: no value, the cell stays empty.
        title: its hover text.
        hatched: nothing useful is done here.
        framed: it stands out.
    """

    text: str
    heat: float | None
    title: str
    below: str = ""
    hatched: bool = False
    framed: bool = False


def heat_colour(heat: float) -> str:
    return mix("#FFFFFF", SERIES[0], 0.08 + 0.92 * min(max(heat, 0.0), 1.0))


def draw_heat_table(
    d: Drawing,
    y: float,
    left: float,
    columns: Sequence[str],
    rows: Sequence[str],
    cells: Sequence[Sequence[HeatCell]],
    corner: str,
) -> float:
    """Column names, row names right of the margin `left`, cells. `corner` says what the names are. Returns the y
    below.
    """
    width = min(_WIDEST, (WIDTH - left - _RIGHT) / max(len(columns), 1))
    d.text(left - 10, y + 8, corner, 12, "end", fill=SOFT_INK)
    is_narrow = any(1.1 * sans_width(name, 12) > width - 10 for name in columns)  # bold letters are a tenth wider
    heads = [re.split("(?<=,) ", name) if is_narrow else [name] for name in columns]  # a line up to each comma
    for index, lines in enumerate(heads):
        for row, line in enumerate(lines):
            d.text(left + (index + 0.5) * width, y + 8 + 15 * row, line, 12, "middle", bold=True)
    y += 7 + 15 * max(map(len, heads), default=1)
    for name, line in zip(rows, cells):
        d.text(left - 10, y + _ROW / 2, name, 12, "end", bold=True)
        for index, cell in enumerate(line):
            draw_heat_cell(d, left + index * width, y, width - _GAP, _ROW - _GAP, cell)
        y += _ROW
    return y


def draw_heat_cell(d: Drawing, x: float, y: float, width: float, height: float, cell: HeatCell) -> None:
    fill = PAPER if cell.heat is None else heat_colour(cell.heat)
    d.rect(x, y, width, height, fill, title=cell.title or None)
    if cell.hatched:
        d.hatch(x, y, width, height)
        if cell.text or cell.below:
            words = max(sans_width(cell.text, 13), sans_width(cell.below, 11)) + 14
            d.rect(x + (width - words) / 2, y, words, height, PAPER)
    if cell.framed:
        d.frame(x, y, width, height, fill, 3)
    ground = PAPER if cell.hatched else fill
    if cell.below:
        d.text(x + width / 2, y + height / 2 - 7, cell.text, 13, "middle", bold=True, on=ground)
        d.text(x + width / 2, y + height / 2 + 9, cell.below, 11, "middle", on=ground)
    elif cell.text:
        d.text(x + width / 2, y + height / 2, cell.text, 13, "middle", bold=cell.framed, on=ground)
