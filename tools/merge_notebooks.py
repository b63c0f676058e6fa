"""A new release of a lesson and a learner's notebook, merged: three versions, cell by cell.

The three are the release that the learner copied (`base`), the learner's notebook (`mine`) and the new release (`new`),
each as the dict that a notebook's JSON gives. A cell is known by nbgrader's grade_id, or else by its cell id. What the
learner wrote is never dropped:

    the learner left it alone     -> as in the new release
    only the learner changed it   -> the learner's text
    both changed it               -> the learner's text, and below it the new text to compare with
    the learner added it          -> kept below the cell that it follows
"""

import copy
import hashlib
from dataclasses import dataclass, field

STUB = "NotImplementedError"  # in every released exercise cell


@dataclass
class Merge:
    """The merged notebook, and the keys of the cells by what happened to them."""

    notebook: dict
    kept: list[str] = field(default_factory=list)
    renewed: list[str] = field(default_factory=list)
    conflicts: list[str] = field(default_factory=list)


def merge(base: dict, mine: dict, new: dict) -> Merge:
    """Merge without changing any of the three."""
    base_cells, my_cells, new_cells = keyed(base), keyed(mine), keyed(new)
    merged = Merge({**new, "metadata": {**mine.get("metadata", {}), **new.get("metadata", {})}})
    my_texts = {text(cell) for cell in my_cells.values()}
    result: dict[str, list[dict]] = {"": []}  # each cell's key: the cell and what follows it
    for key, cell in new_cells.items():
        result[key] = _merged_cells(key, base_cells.get(key), my_cells.get(key), cell, my_texts, merged)
    anchor = ""
    for key, cell in my_cells.items():
        if key in new_cells:
            anchor = key
        elif is_changed(cell, base_cells.get(key)):
            result[anchor].append(_without_grade(cell))
            merged.kept.append(key)
    cells = [copy.deepcopy(cell) for group in result.values() for cell in group]
    merged.notebook["cells"] = _with_unique_ids(cells)
    return merged


def keyed(notebook: dict) -> dict[str, dict]:
    """The cells by key, in order. The second cell with a key, a copy, counts as one that was added."""
    cells: dict[str, dict] = {}
    for number, cell in enumerate(notebook.get("cells", [])):
        key = grade_id(cell) or cell.get("id") or f"cell {number}"
        while key in cells:
            key += " (copy)"
        cells[key] = cell
    return cells


def grade_id(cell: dict) -> str:
    return cell.get("metadata", {}).get("nbgrader", {}).get("grade_id", "")


def text(cell: dict) -> str:
    source = cell.get("source", "")
    return source if isinstance(source, str) else "".join(source)


def is_changed(cell: dict, base: dict | None) -> bool:
    """Did the learner write something in this cell? An exercise without its stub holds an answer, whatever the base
    says: it may have been copied from a notebook that was solved already."""
    if base is None or text(cell) != text(base):
        return True
    return base.get("metadata", {}).get("nbgrader", {}).get("solution", False) and STUB not in text(cell)


def _merged_cells(key: str, base, mine, new: dict, my_texts: set[str], merged: Merge) -> list[dict]:
    if mine is None:
        return [new]
    if text(mine) == text(new):
        return [{**mine, "metadata": {**mine.get("metadata", {}), **new.get("metadata", {})}}]
    if not is_changed(mine, base):
        merged.renewed.append(key)
        return [new]
    own = {**mine, "metadata": {**mine.get("metadata", {}), **new.get("metadata", {})}}
    if base is not None and text(base) == text(new):
        merged.kept.append(key)
        return [own]
    merged.conflicts.append(key)
    note = _note(key, text(new))
    return [own] if text(note) in my_texts else [own, note]


def _note(key: str, source: str) -> dict:
    fence = "`" * (3 + source.count("```"))
    words = (
        f"**A newer release changed this cell.** Your text is above; this is the new one:\n\n{fence}python\n{source}"
    )
    id = "new-" + hashlib.sha256(f"{key}\n{source}".encode()).hexdigest()[:12]
    return {"cell_type": "markdown", "id": id, "metadata": {}, "source": f"{words}\n\n{fence}python\n{source}\n{fence}"}


def _without_grade(cell: dict) -> dict:
    """A learner's own cell is none of nbgrader's: two cells with one grade_id stop its validation."""
    return {**cell, "metadata": {name: value for name, value in cell.get("metadata", {}).items() if name != "nbgrader"}}


def _with_unique_ids(cells: list[dict]) -> list[dict]:
    seen: set[str] = set()
    for number, cell in enumerate(cells):
        while cell.get("id", "") in seen or not cell.get("id"):
            cell["id"] = hashlib.sha256(f"{number} {cell.get('id')}".encode()).hexdigest()[:12]
        seen.add(cell["id"])
    return cells
