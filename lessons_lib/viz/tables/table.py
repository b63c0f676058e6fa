"""A small table that works in a notebook, in print and in a screen reader."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from lessons_lib.viz.words import code_as_html, marks_as_html

_NUMBER = re.compile(r"^([-+−]?[\d.]|nan$)")
_ONLY_A_NUMBER = re.compile(r"^[-+−]?[\d.,]+( ?%)?$")
_NOTHING = ("", "-", "–", "—")
_LONG_TEXT = 30  # characters; a shorter text needs no room of its own
_SHORT_NAME = 16  # characters; names of rows that are no longer stay in one line
_SHORT_ITEM = 12  # characters; in a list of items that are no longer, such as "A 17, B 5", a line ends between two
# Where a wide table scrolls, its caption stays in sight, in as many lines as the window needs.
_CAPTION_STYLE = "text-align:left;position:sticky;left:0;max-width:calc(100vw - 4em)"
_CAPTION_EM = 26  # a narrow table leaves a long caption so much room, a short one half a letter's height per letter
_LONG_NAME = re.compile(r"[\w./]{21,}")  # a path or a name of code that makes a column wider than its words need


@dataclass(frozen=True)
class Table:
    """Rows under named columns.

    columns  the names
    rows     one sequence of cells per row, one cell per column; the first cell names the row.
             Integers are written with thousands separators, floats with three significant digits, None as "–".
    caption  what the table is about; text in `backticks` is shown as code
    verdict  what follows from the rows, in a sentence below them

    Columns of numbers (or of short text that starts with a digit, such as "33 s") are right-aligned; the names of the
    rows only if they are nothing but numbers. Long texts keep a width that can be read in a narrow window, where the
    table scrolls, and long paths and names take several lines. What `marked` has marked in a cell is shown in color.
    """

    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]
    caption: str = ""
    verdict: str = ""

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
        foot = [self.verdict] if self.verdict else []
        return "\n".join([*head, line(self.columns), line(["-" * w for w in widths]), *map(line, texts), *foot])

    def _repr_mimebundle_(self, include=None, exclude=None) -> dict[str, str]:
        return {"text/plain": str(self), "text/html": self._html()}

    def _html(self) -> str:
        caption = self._caption() if self.caption else ""
        aligns = ["text-align:right" if right else "text-align:left" for right in self._flush_right()]
        head = "".join(f'<th scope="col" style="{align}">{escape(n)}</th>' for n, align in zip(self.columns, aligns))
        styles = [align + room for align, room in zip(aligns, self._rooms())]
        body = ""
        for cells in self._texts():
            first = f'<th scope="row" style="{styles[0]}">{_cell_as_html(cells[0])}</th>' if cells else ""
            rest = "".join(f'<td style="{style}">{_cell_as_html(c)}</td>' for c, style in zip(cells[1:], styles[1:]))
            body += f"<tr>{first}{rest}</tr>"
        verdict = f"<p><strong>{code_as_html(self.verdict)}</strong></p>" if self.verdict else ""
        return f"<table>{caption}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{verdict}"

    def _caption(self) -> str:
        least = min(len(self.caption) // 2 + 1, _CAPTION_EM)
        style = f"{_CAPTION_STYLE};min-width:min({least}em,calc(100vw - 4em))"
        return f'<caption style="{style}">{code_as_html(self.caption)}</caption>'

    def _rooms(self) -> list[str]:
        """How the cells of each column take their lines; the column's name may always take several."""
        longest = [max(map(len, column), default=0) for column in self._columns()]
        flush_right = self._flush_right()
        return [_room(index == 0, right, length) for index, (right, length) in enumerate(zip(flush_right, longest))]

    def _texts(self) -> list[tuple[str, ...]]:
        return [tuple(_text(cell) for cell in row) for row in self.rows]

    def _columns(self) -> list[tuple[str, ...]]:
        return list(zip(*self._texts())) if self.rows else [()] * len(self.columns)

    def _flush_right(self) -> list[bool]:
        said = [[cell for cell in column if cell not in _NOTHING] for column in self._columns()]
        return [
            _is_numeric(cells, _NUMBER if index else _ONLY_A_NUMBER) and max(map(len, cells)) < _LONG_TEXT
            for index, cells in enumerate(said)
        ]


def _room(is_first: bool, is_flush_right: bool, longest: int) -> str:
    """The style of a column's cells; `longest`: characters of the longest."""
    if is_flush_right or (is_first and longest <= _SHORT_NAME):
        return ";white-space:nowrap"  # a number stays beside its unit, and a short name is read at once
    if longest >= _LONG_TEXT:
        return ";min-width:12em"
    return ";min-width:9em" if is_first else ""  # a name of two lines, not of a word a line


def _cell_as_html(text: str) -> str:
    """A long path or name may go on in the next line after each `/` and `_`, a list of short items between two."""
    items = text.split(", ")
    if len(items) > 1 and max(map(len, items)) <= _SHORT_ITEM:
        text = ", ".join(item.replace(" ", "\N{NO-BREAK SPACE}") for item in items)
    breakable = _LONG_NAME.sub(lambda name: re.sub(r"([/_])(?=\w)", r"\1<wbr/>", name[0]), escape(text))
    return marks_as_html(breakable)


def _is_numeric(cells: Sequence[str], pattern: re.Pattern[str]) -> bool:
    return bool(cells) and all(pattern.match(cell) for cell in cells)


def _text(cell: Any) -> str:
    if cell is None:
        return "–"
    if isinstance(cell, bool) or not isinstance(cell, (int, float)):
        return str(cell)
    if isinstance(cell, int):
        return f"{cell:,}"
    return f"{cell:,.0f}" if abs(cell) >= 1000 else f"{cell:.3g}"
