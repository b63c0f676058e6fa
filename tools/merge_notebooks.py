"""A new release of a lesson and a learner's notebook, merged: three versions, cell by cell.

The three are the release that the learner copied (`base`), the learner's notebook (`mine`) and the new release (`new`),
each as the dict that a notebook's JSON gives. `matched` finds out which released cell is which of the learner's, also
if another program has dropped or renewed the ids. What the learner wrote is never dropped:

    the learner left it alone     -> as in the new release
    only the learner changed it   -> the learner's text
    both changed it               -> the learner's text, and below it the new text to compare with
    the learner added it          -> kept below the cell that it follows
"""

import copy
import hashlib
import re
from collections import Counter
from dataclasses import dataclass, field
from difflib import SequenceMatcher

STUB = "NotImplementedError"  # in every released exercise cell
NOTE = "**A newer release changed this cell.** Your text is above; this is the new one:"
ALIKE = 0.6  # from here on, a cell without an id is a released one that the learner edited


@dataclass
class Merge:
    """The merged notebook, and the keys of the cells by what happened to them."""

    notebook: dict
    kept: list[str] = field(default_factory=list)
    renewed: list[str] = field(default_factory=list)
    conflicts: list[str] = field(default_factory=list)


def merge(base: dict, mine: dict, new: dict) -> Merge:
    """Merge without changing any of the three."""
    base_cells, my_cells, new_cells = keyed(base), matched(mine, base, new), keyed(new)
    merged = Merge({**new, "metadata": _metadata(mine) | _metadata(new)})
    my_texts = {text(cell) for cell in my_cells.values()}
    result: dict[str, list[dict]] = {"": []}  # each cell's key: the cell and what follows it
    for key, cell in new_cells.items():
        result[key] = _merged_cells(key, base_cells.get(key), my_cells.get(key), cell, my_texts, merged)
    anchor, new_texts = "", {text(cell) for cell in new_cells.values()}
    for key, cell in my_cells.items():
        if key in new_cells:
            anchor = key
        elif is_changed(cell, base_cells.get(key)) and text(cell) not in new_texts:
            result[anchor].append(_as_own(cell, new_cells))
            merged.kept.append(key)
    cells = [copy.deepcopy(cell) for group in result.values() for cell in group]
    merged.notebook["cells"] = _with_unique_ids(cells)
    return merged


def keyed(notebook: dict) -> dict[str, dict]:
    """A release's cells by key, in order."""
    cells: dict[str, dict] = {}
    for number, cell in enumerate(notebook.get("cells", [])):
        cells[_unused(grade_id(cell) or cell.get("id") or f"cell {number}", cells)] = cell
    return cells


def matched(mine: dict, base: dict, new: dict) -> dict[str, dict]:
    """The learner's cells by the key of the released cell that each is, in the learner's order.

    Ids may be lost, renewed or doubled, so text counts before ids, and likeness is the last resort. A cell of the
    learner's own gets a key that no release has. A second cell with a released text is a copy, and left out.
    """
    bases, released = keyed(base), keyed(new)
    originals = {**released, **bases}
    texts = {key: {text(cells[key]) for cells in (bases, released) if key in cells} for key in originals}
    known = set().union(*texts.values())
    cells, written = mine["cells"], [text(cell) for cell in mine["cells"]]
    names = Counter(name for cell in cells for name in {grade_id(cell), cell.get("id")})
    found: dict[int, str] = {}  # number of a cell of the learner's -> key

    def pair(keys, score) -> None:
        """Match what scores above 0, the highest first."""
        left, open_keys = set(range(len(cells))) - set(found), set(keys) - set(found.values())
        pairs = [(score(number, key), number, key) for key in keys if key in open_keys for number in sorted(left)]
        for _, number, key in sorted((each for each in pairs if each[0]), key=lambda each: -each[0]):
            if number in left and key in open_keys:
                found[number] = key
                left.remove(number)
                open_keys.remove(key)

    def is_named(number: int, key: str) -> bool:
        return key in (grade_id(cells[number]), cells[number].get("id"))

    def is_named_for_sure(number: int, key: str) -> bool:
        return names[key] == 1 and is_named(number, key)

    def is_released(number: int, key: str) -> int:
        return (written[number] in texts[key]) * (1 + is_named(number, key))

    def is_graded(number: int, key: str) -> int:
        """Before others, because the learner may have copied a stub, and one of the two is the answer."""
        if is_released(number, key) or written[number] in known:
            return is_released(number, key) == 2
        is_answer = is_named(number, key) and _defined(written[number]) & _defined(text(originals[key]))
        return 2 if is_answer else is_named_for_sure(number, key)

    pair([key for key in originals if grade_id(originals[key])], is_graded)
    pair(originals, is_released)
    pair(originals, is_named_for_sure)
    pair(bases or released, lambda number, key: _likeness(cells[number], originals[key]))
    result: dict[str, dict] = {}
    for number, cell in enumerate(cells):
        if number in found:
            result[found[number]] = cell
        elif written[number] not in known or not written[number]:
            result[_unused(cell.get("id") or f"cell {number}", {**result, **originals})] = cell
    return result


def grade_id(cell: dict) -> str:
    return (_metadata(cell).get("nbgrader") or {}).get("grade_id", "")


def text(cell: dict) -> str:
    """What is compared: line ends and blanks before them are no change of a learner's."""
    lines = source_of(cell).replace("\r\n", "\n").replace("\r", "\n").split("\n")
    return "\n".join(line.rstrip() for line in lines).rstrip()


def source_of(cell: dict) -> str:
    source = cell.get("source") or ""
    return source if isinstance(source, str) else "".join(source)


def is_changed(cell: dict, base: dict | None) -> bool:
    """Did the learner write something in this cell? An exercise without its stub holds an answer, whatever the base
    says: it may have been copied from a notebook that was solved already."""
    if base is None or text(cell) != text(base):
        return True
    return (_metadata(base).get("nbgrader") or {}).get("solution", False) and STUB not in text(cell)


def _likeness(cell: dict, original: dict) -> float:
    if cell.get("cell_type") != original.get("cell_type"):
        return 0
    if grade_id(original) and _defined(text(cell)) & _defined(text(original)):
        return 1
    matcher = SequenceMatcher(None, text(original), text(cell), autojunk=False)
    is_close = matcher.real_quick_ratio() >= ALIKE and matcher.quick_ratio() >= ALIKE
    return ratio if is_close and (ratio := matcher.ratio()) >= ALIKE else 0


def _defined(source: str) -> set[str]:
    return set(re.findall(r"^(?:async )?(?:def|class) (\w+)", source, re.MULTILINE))


def _merged_cells(key: str, base, mine, new: dict, my_texts: set[str], merged: Merge) -> list[dict]:
    if mine is None:
        return [new]
    own = {**mine, "metadata": _metadata(mine) | _metadata(new)} | {name: new[name] for name in ("id",) if name in new}
    if text(mine) == text(new):
        return [{**own, "source": new.get("source", "")}]
    if not is_changed(mine, base):
        merged.renewed.append(key)
        return [new]
    if base is not None and text(base) == text(new):
        merged.kept.append(key)
        return [own]
    merged.conflicts.append(key)
    note = _note(key, source_of(new))
    return [own] if text(note) in my_texts else [own, note]


def _note(key: str, source: str) -> dict:
    fence = "`" * (3 + source.count("```"))
    id = "new-" + hashlib.sha256(f"{key}\n{source}".encode()).hexdigest()[:12]
    return {"cell_type": "markdown", "id": id, "metadata": {}, "source": f"{NOTE}\n\n{fence}python\n{source}\n{fence}"}


def _as_own(cell: dict, released: dict[str, dict]) -> dict:
    """A learner's own cell is none of nbgrader's: two cells with one grade_id stop its validation."""
    metadata = {name: value for name, value in _metadata(cell).items() if name != "nbgrader"}
    taken = {each.get("id") for each in released.values()}
    return {**cell, "metadata": metadata, "id": "" if cell.get("id") in taken else cell.get("id", "")}


def _metadata(notebook_or_cell: dict) -> dict:
    return notebook_or_cell.get("metadata") or {}


def _unused(key: str, used) -> str:
    while key in used:
        key += " (copy)"
    return key


def _with_unique_ids(cells: list[dict]) -> list[dict]:
    seen: set[str] = set()
    for number, cell in enumerate(cells):
        while cell.get("id", "") in seen or not cell.get("id"):
            cell["id"] = hashlib.sha256(f"{number} {cell.get('id')}".encode()).hexdigest()[:12]
        seen.add(cell["id"])
    return cells
