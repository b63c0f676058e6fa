"""How two notebooks differ, in words: cell sources, metadata, and the outputs of all cells that are not measured."""

import base64
import difflib
import json
import re
import zlib

import nbformat
from nbformat import NotebookNode

from tools.authoring.assemble import is_measured
from tools.authoring.execute import describe

WIDTH, LINES = 160, 40
PACKED = re.compile(r'(?<=<script type=\\"application/zlib\\">)([A-Za-z0-9+/=]+)')
GEOMETRY = re.compile(r'(?<= )(?:[xyr]|[xy][12]|c[xy]|width|height|d|points|transform)=\\+"[^"\\]*')
COORDINATE = re.compile(r"\d+(?:\.\d+)?")


def compare(committed: NotebookNode, rebuilt: NotebookNode) -> list[str]:
    """Every difference except in the outputs of measured cells, in words, with a unified diff."""
    differences = []
    for what in ("metadata", "nbformat", "nbformat_minor"):
        differences += _difference("notebook", what, committed[what], rebuilt[what])
    old_ids, new_ids = [cell.id for cell in committed.cells], [cell.id for cell in rebuilt.cells]
    # Cells are matched by id, which follows their text: one more cell is one difference, not one in each cell below.
    for tag, old_from, old_to, new_from, new_to in difflib.SequenceMatcher(
        None, old_ids, new_ids, autojunk=False
    ).get_opcodes():
        if tag == "equal":
            for old_index, new_index in zip(range(old_from, old_to), range(new_from, new_to)):
                differences += _compare_cells(committed.cells[old_index], rebuilt.cells[new_index], new_index)
            continue
        old_text = "\n\n".join(cell.source for cell in committed.cells[old_from:old_to])
        new_text = "\n\n".join(cell.source for cell in rebuilt.cells[new_from:new_to])
        index, cells = (new_from, rebuilt.cells) if new_to > new_from else (old_from, committed.cells)
        what = {"delete": "only in the committed file", "insert": "only in the rebuilt file", "replace": "source"}[tag]
        differences.append(_told(describe(index, cells[index]), what, old_text, new_text))
    return differences


def _compare_cells(old: NotebookNode, new: NotebookNode, index: int) -> list[str]:
    where = describe(index, new)
    differences = []
    for what in ("cell_type", "source", "metadata"):
        differences += _difference(where, what, old[what], new[what])
    if new.cell_type == old.cell_type == "code" and not is_measured(new):
        differences += _difference(where, "execution_count", old.execution_count, new.execution_count)
        differences += _difference(where, "outputs", old.outputs, new.outputs)
    return differences


def same_code(committed: NotebookNode, rebuilt: NotebookNode) -> bool:
    """True when the two differ in prose and measured outputs only: old measurements then still belong to the code."""
    both = (committed, rebuilt)
    code = [nbformat.from_dict({**nb, "cells": [c for c in nb.cells if c.cell_type == "code"]}) for nb in both]
    return not compare(*code)


def _difference(where: str, what: str, old: object, new: object) -> list[str]:
    if old == new or (texts := (_text(old), _text(new)))[0] == texts[1] or _drawn_the_same(*texts):
        return []
    return [_told(where, what, *texts)]


def _text(value: object) -> str:
    if isinstance(value, str):
        return value
    # Line breaks inside outputs become line breaks of the diff.
    text = json.dumps(value, indent=1, sort_keys=True, ensure_ascii=False).replace("\\n", "\n")
    # Recordings of players: another zlib may have packed the same otherwise.
    return PACKED.sub(lambda found: zlib.decompress(base64.b64decode(found[1])).decode(), text)


def _drawn_the_same(old: str, new: str) -> bool:
    """True if only coordinates differ, by at most their last decimal, which rounding decides."""
    if GEOMETRY.sub("", old) != GEOMETRY.sub("", new):
        return False
    old, new = " ".join(GEOMETRY.findall(old)), " ".join(GEOMETRY.findall(new))
    pairs = zip(COORDINATE.findall(old), COORDINATE.findall(new))
    return COORDINATE.sub("", old) == COORDINATE.sub("", new) and all(
        abs(float(a) - float(b)) < 0.011 for a, b in pairs
    )


def _told(where: str, what: str, old: str, new: str) -> str:
    lines = difflib.unified_diff(old.splitlines(), new.splitlines(), "committed", "rebuilt", lineterm="", n=1)
    lines = [line if len(line) <= WIDTH else line[:WIDTH] + " …" for line in lines]
    lines[LINES:] = [f"… {len(lines) - LINES} more lines"] if len(lines) > LINES else []
    return "\n".join([f"{where}: {what}", *lines])
