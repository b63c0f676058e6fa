"""Tables in which the learner's answer stands next to others."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from lessons_lib.viz.tables.table import Table

Scored = tuple[Iterable[Any], str]  # the cells of a row, and what follows from them


def scoreboard(
    columns: Sequence[str], rows: Mapping[str, Iterable[Any] | Callable[[], Scored]], caption: str = ""
) -> Table:
    """Compare answers.

    Args:
        rows: name -> the cells after it; for the learner's answer, a function that scores it, and may raise.
    """
    cells, verdict = [], ""
    for name, row in rows.items():
        if callable(row):
            try:
                row, verdict = row()
            except Exception as error:
                row, verdict = [None] * (len(columns) - 1), f"Yours raised {type(error).__name__}: {error}"
        cells.append([name, *row])
    return Table(columns, cells, caption, verdict)
