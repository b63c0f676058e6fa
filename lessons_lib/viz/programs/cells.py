"""Tensors as a kernel sees them: lines of elements, or the blocks of a cache. What a program touches is colored.

Every function draws one tensor starting at x, at most `room` wide, and returns the y below it.
"""

import math

import numpy as np

from lessons_lib.viz.drawing.palette import EDGE, INK, PAPER, SERIES, SOFT_INK, mix
from lessons_lib.viz.drawing.svg import Drawing, number
from lessons_lib.viz.programs.touched_cells import Run, Touched

LOADED, STORED, PALE = mix(SERIES[3], PAPER, 0.4), SERIES[4], mix(EDGE, PAPER, 0.82)
_WIDEST = {"rows": 44.0}  # of a cell
_CELL = 26.0  # the widest cell of others
_MOST_ROWS = 24  # of a matrix; in a larger one, only the rows that the program touches are drawn
_MOST_CACHE = 300.0  # pixels; slots become smaller where blocks would take more
_HEAD, _GAP = 17.0, 5.0  # of a block: above its slots, and between two blocks


def draw_cell(d: Drawing, x: float, y: float, width: float, height: float, run: Run, elements: int = 1) -> None:
    """A cell, or equal neighbors: loaded, stored, or both side by side; if partly touched, colored in part."""
    size = width / 2 if run.loaded and run.stored else width
    begin, size = run.first / elements * size, (run.last + 1 - run.first) / elements * size
    if run.loaded:
        d.rect(x + begin, y, size, height, LOADED)
    if run.stored:
        start = x + begin + (width / 2 if run.loaded else 0)
        d.rect(start, y, size, height, STORED)
        if height >= 5:
            # Stores differ from loads by more than color.
            d.lines(f"M{number(start)} {number(y + height - 2.5)}h{number(size)}", PAPER, 1.5)
    if run.times > 1:
        line = min(2.0, height / 4)
        d.rect(x + line / 2, y + line / 2, width - line, height - line, "none", INK, line)


def draw_lines(d: Drawing, of: Touched, x: float, y: float, room: float) -> float:
    """A line per row; a vector is one. With more than two axes, a cell is the whole last axis."""
    columns, rows = of.shape[-1], list(np.ndindex(*of.shape[:-1]))
    if not rows or not columns:
        d.text(x, y + 9, "no elements", 12, fill=SOFT_INK)
        return y + 18
    own: dict[tuple[int, ...], list[Run]] = {}
    for run in of.runs:
        own.setdefault(run.row, []).append(run)
    shown = rows if len(rows) <= _MOST_ROWS else list(own)[:_MOST_ROWS]
    labels = [", ".join(map(str, row)) for row in shown]
    left = x + (8 + 6 * max(map(len, labels), default=0) if rows != [()] else 0)
    width = min(_WIDEST.get(of.kind, _CELL), (room - (left - x)) / columns)
    height = 16.0 if len(shown) <= 8 else 11.0
    every = next(step for step in (1, 2, 5, 10, 20, 50, 100, 10**9) if step * width >= 7 * len(str(columns)) + 3)
    for column in range(0, columns, every):
        d.text(left + (column + 0.5) * width, y + 5, str(column), 10, "middle", fill=SOFT_INK)
    y += 13
    for row, label in zip(shown, labels):
        d.text(left - 5, y + height / 2, label, 10, "end", fill=INK if row in own else SOFT_INK)
        if width < 4:
            d.rect(left, y, width * columns, height, PALE)
        else:
            d.boxes([(left + index * width, y) for index in range(columns)], width - 1, height, PALE)
        for run in own.get(row, []):
            cells = range(run.start, run.end) if width >= 4 else (run.start,)
            size = width - 1 if width >= 4 else width * (run.end - run.start)
            for column in cells:
                draw_cell(d, left + column * width, y, size, height, run, of.elements)
        y += height + 2
    if len(shown) < len(rows):
        d.text(left, y + 7, f"{len(rows):,} rows, of which {len(shown)} touched ones are drawn", 11, fill=SOFT_INK)
        y += 16
    return y


def draw_cache(d: Drawing, of: Touched, name: str, x: float, y: float, room: float) -> float:
    """A bay for each block, in its slots a mark for each KV head, and the iterations that load the block."""
    blocks, slots, heads = of.shape
    mark = 8.0 if heads <= 2 else 5.0 if heads <= 4 else 3.0
    cell = _slot_width(blocks, slots, heads * mark, room)
    per_line = min(slots, int((room - 8) / cell)) or 1
    width, line_height = max(per_line * cell + 7, 40.0), heads * mark + 3
    height = _HEAD + math.ceil(slots / per_line) * line_height + 3
    columns = max(1, int((room + _GAP) // (width + _GAP)))
    own: dict[int, list[Run]] = {}
    for run in of.runs:
        own.setdefault(run.row[0], []).append(run)
    inset = (width - per_line * cell + 1) / 2
    corners = [(inset + slot % per_line * cell, _HEAD + slot // per_line * line_height) for slot in range(slots)]
    marks = [(corner_x, corner_y + head * mark) for corner_x, corner_y in corners for head in range(heads)]
    for block in range(blocks):
        left, top = x + block % columns * (width + _GAP), y + block // columns * (height + _GAP)
        is_touched = block in own
        loads, stored = of.iterations["load"].get(block, []), ["stored"] * (block in of.iterations["store"])
        loaded = [f"loaded in iteration{'s' * (len(loads) > 1)} {', '.join(map(str, loads))}"] * bool(loads)
        title = f"{name}: block {block}, {', '.join(loaded + stored) or 'not touched'}"
        d.rect(left, top, width, height, PAPER, EDGE, radius=3, title=title)
        ink = INK if is_touched else SOFT_INK
        d.text(left + 5, top + _HEAD / 2 + 0.5, str(block), 11, fill=ink, mono=True, bold=is_touched)
        if loads:
            text = ", ".join(map(str, loads)) if len(loads) <= 2 else f"{loads[0]} … {loads[-1]}"
            chip = max(14.0, 6.2 * len(text) + 6)
            d.rect(left + width - chip - 2, top + 2, chip, 13, INK, radius=6.5)
            d.text(left + width - 2 - chip / 2, top + 8.5, text, 10, "middle", bold=True, fill=PAPER)
        d.boxes([(left + mark_x, top + mark_y) for mark_x, mark_y in marks], cell - 1, mark - 1, PALE)
        for run in own.get(block, []):
            slot_x, slot_y = corners[run.row[1]]
            for head in range(run.start, run.end):
                draw_cell(d, left + slot_x, top + slot_y + head * mark, cell - 1, mark - 1, run, of.elements)
    return y + math.ceil(blocks / columns) * (height + _GAP) - _GAP


def _slot_width(blocks: int, slots: int, slot_height: float, room: float) -> float:
    """The widest slot with which all blocks fit, or the smallest."""
    for cell in (16.0, 14.0, 12.0, 10.0, 8.0, 7.0, 6.0, 5.0):
        per_line = min(slots, int((room - 8) / cell)) or 1
        height = _HEAD + math.ceil(slots / per_line) * (slot_height + 3) + 3 + _GAP
        columns = max(1, int((room + _GAP) // (max(per_line * cell + 7, 40.0) + _GAP)))
        # Use smaller slots only where that avoids too many lines.
        if math.ceil(blocks / columns) * height <= (_MOST_CACHE / 2 if cell > 8 else _MOST_CACHE):
            return cell
    return 4.0
