"""A small table that works in a notebook, in print and in a screen reader."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from lessons_lib.viz.words import marks_as_html

_NUMBER = re.compile(r"^[-+−]?[\d.]")
_NOTHING = ("", "-", "–", "—")


@dataclass(frozen=True)
class Table:
    """Rows under named columns.

    columns  the names
    rows     one sequence of cells per row, one cell per column; the first cell names the row.
             Integers are written with thousands separators, floats with three significant digits, None as "–".
    caption  what the table is about

    Columns of numbers (or of text that starts with a digit, such as "33 %") are right-aligned. What `marked` has marked
    in a cell is shown in color.
    """

    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]
    caption: str = ""

    def __post_init__(self) -> None:
        for n, row in enumerate(self.rows):
            if len(row) != len(self.columns):
                names = ", ".join(self.columns)
                raise ValueError(f"row {n} has {len(row)} cells; the table has {len(self.columns)} columns: {names}.")

    def __str__(self) -> str:
        texts = self._texts()
        widths = [max(len(line[c]) for line in [tuple(self.columns), *texts]) for c in range(len(self.columns))]
        right = self._flush_right()

        def line(cells: Sequence[str]) -> str:
            padded = (cell.rjust(w) if r else cell.ljust(w) for cell, w, r in zip(cells, widths, right))
            return "  ".join(padded).rstrip()

        head = [self.caption] if self.caption else []
        return "\n".join([*head, line(self.columns), line(["-" * w for w in widths]), *map(line, texts)])

    def _repr_mimebundle_(self, include=None, exclude=None) -> dict[str, str]:
        return {"text/plain": str(self), "text/html": self._html()}

    def _html(self) -> str:
        aligns = ['style="text-align:right"' if right else 'style="text-align:left"' for right in self._flush_right()]
        caption = f'<caption style="text-align:left">{escape(self.caption)}</caption>' if self.caption else ""
        head = "".join(f'<th scope="col" {align}>{escape(name)}</th>' for name, align in zip(self.columns, aligns))
        body = ""
        for cells in self._texts():
            first = f'<th scope="row" {aligns[0]}>{marks_as_html(escape(cells[0]))}</th>' if cells else ""
            rest = "".join(
                f"<td {align}>{marks_as_html(escape(cell))}</td>" for cell, align in zip(cells[1:], aligns[1:])
            )
            body += f"<tr>{first}{rest}</tr>"
        return f"<table>{caption}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"

    def _texts(self) -> list[tuple[str, ...]]:
        return [tuple(_text(cell) for cell in row) for row in self.rows]

    def _flush_right(self) -> list[bool]:
        columns = zip(*self._texts()) if self.rows else [()] * len(self.columns)
        return [_is_numeric([cell for cell in column if cell not in _NOTHING]) for column in columns]


def _is_numeric(cells: Sequence[str]) -> bool:
    return bool(cells) and all(_NUMBER.match(cell) for cell in cells)


def _text(cell: Any) -> str:
    if cell is None:
        return "–"
    if isinstance(cell, bool) or not isinstance(cell, (int, float)):
        return str(cell)
    if isinstance(cell, int):
        return f"{cell:,}"
    return f"{cell:,.0f}" if abs(cell) >= 1000 else f"{cell:.3g}"
