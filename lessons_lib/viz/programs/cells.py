"""Tensors as a kernel sees them: a strip of elements, a grid of rows, or the blocks of a cache. What a program touches
is colored.

Every function draws one tensor starting at x, at most `room` wide, and returns the y below it.
"""

from __future__ import annotations

import math

import numpy as np

from lessons_lib.viz.drawing.palette import EDGE, INK, PAPER, SERIES, SOFT_INK, mix
from lessons_lib.viz.drawing.svg import Drawing, number
from lessons_lib.viz.programs.touched_cells import Run, Touched
from lessons_lib.viz.programs.words import cell_title, done

LOADED, STORED, PALE = mix(SERIES[3], PAPER, 0.4), SERIES[4], mix(EDGE, PAPER, 0.82)
_CELL = 26.0  # the widest cell
_LABEL = 17.0  # narrower cells have no index in them
_HEIGHT = 18.0
_MOST_LINES = 4  # of a vector; a longer one is one bar
_MOST_ROWS = 24  # of a matrix; in a larger one, only the rows that the program touches are drawn
_MOST_CACHE = 300.0  # pixels; in a larger cache, only the blocks that the program touches are drawn
_MOST_HOVERS = 2500
_HEAD, _GAP = 17.0, 5.0  # of a block: above its slots, and between two blocks


def draw_cell(d: Drawing, x: float, y: float, width: float, height: float, run: Run, elements: int = 1) -> None:
    """A cell, or neighbors drawn as one: loaded, stored, or both, side by side. In a partly touched cell, only that
    part is colored.
    """
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


def draw_vector(d: Drawing, of: Touched, name: str, x: float, y: float, room: float) -> float:
    length = of.shape[0]
    columns = max(1, min(length, int(room // _LABEL)))
    if room / max(length, 1) >= 11:
        columns = length
    lines = math.ceil(length / columns) if length else 1
    if not length:
        d.text(x, y + _HEIGHT / 2, "no numbers", 12, fill=SOFT_INK)
        return y + _HEIGHT
    if lines > _MOST_LINES:
        return _bar(d, of, name, x, y, room)
    width = min(_CELL, room / columns)
    by_cell = {cell: run for run in of.runs for cell in range(run.start, run.end)}
    for line in range(lines):
        cells_touched = range(line * columns, min((line + 1) * columns, length))
        top = y + line * (_HEIGHT + 3)
        _pale_row(d, x, top, width, len(cells_touched), _HEIGHT)
        for cell in cells_touched:
            left, run = x + (cell - cells_touched.start) * width, by_cell.get(cell)
            if run:
                draw_cell(d, left, top, width - 1, _HEIGHT, run)
            if width >= _LABEL:
                _cell_index(d, str(cell), left + (width - 1) / 2, top, width, run)
        d.hover_grid(
            x, top, width, _HEIGHT, [[cell_title(of, name, (cell,), by_cell.get(cell)) for cell in cells_touched]]
        )
    y += lines * (_HEIGHT + 3) - 3
    return y if width >= _LABEL else _ticks(d, length, width, x, y)


def draw_rows(d: Drawing, of: Touched, name: str, x: float, y: float, room: float) -> float:
    """A matrix, one line per row. With more axes, a cell holds the whole last axis, and lines run over all axes but the
    last two.
    """
    columns = of.shape[-1]
    lines = int(np.prod(of.shape[:-1], dtype=np.int64))
    if not lines or not columns:
        d.text(x, y + _HEIGHT / 2, "no numbers", 12, fill=SOFT_INK)
        return y + _HEIGHT
    own: dict[int, list[Run]] = {}
    for run in of.runs:
        own.setdefault(int(np.ravel_multi_index(run.row, of.shape[:-1])), []).append(run)
    shown = list(range(lines)) if lines <= _MOST_ROWS else list(own)[:_MOST_ROWS]
    labels = {line: ", ".join(str(int(part)) for part in np.unravel_index(line, of.shape[:-1])) for line in shown}
    left = x + 8 + 6 * max((len(label) for label in labels.values()), default=0)
    width = min(44.0 if of.kind == "rows" else _CELL, (room - (left - x)) / columns)
    height = 16.0 if len(shown) <= 8 else 11.0 if len(shown) <= 16 else 8.0
    if width >= _LABEL:
        for column in range(columns):
            d.text(left + (column + 0.5) * width, y + 5, str(column), 10, "middle", fill=SOFT_INK)
        y += 12
    hovers = len(shown) * columns <= _MOST_HOVERS
    for line in shown:
        row = tuple(int(part) for part in np.unravel_index(line, of.shape[:-1]))
        if height >= 11 or line in own:
            d.text(
                left - 5,
                y + height / 2,
                labels[line],
                10 if height >= 11 else 9,
                "end",
                fill=INK if line in own else SOFT_INK,
            )
        _pale_row(d, left, y, width, columns, height)
        by_cell: dict[int, Run] = {}
        for run in own.get(line, []):
            cells = range(run.start, run.end) if width >= 4 else (run.start,)
            size = width - 1 if width >= 4 else width * (run.end - run.start)
            for column in cells:
                draw_cell(d, left + column * width, y, size, height, run, of.elements)
            by_cell.update(dict.fromkeys(range(run.start, run.end), run))
        if hovers:
            d.hover_grid(
                left,
                y,
                width,
                height,
                [[cell_title(of, name, (*row, column), by_cell.get(column)) for column in range(columns)]],
            )
        y += height + 2
    if len(shown) < lines:
        what = (
            "no row is"
            if not shown
            else f"only {'those rows' if len(shown) == len(own) else f'the first {len(shown)} rows'} are"
        )
        d.text(left, y + 7, f"{lines:,} rows; {what} drawn that this program touches", 11, fill=SOFT_INK)
        y += 16
    return y


def draw_cache(d: Drawing, of: Touched, name: str, x: float, y: float, room: float) -> float:
    """A bay for each block with its slots, a mark in each slot for each KV head, and the iterations that load the
    block.
    """
    blocks, slots, heads = of.shape
    touched = list(dict.fromkeys(of.index[:, 0].tolist()))
    shown, cut = list(range(blocks)), False
    mark = 8.0 if heads <= 2 else 5.0 if heads <= 4 else 3.0
    cell = _slot_width(blocks, slots, heads * mark, room)
    if not cell:
        shown, cut = touched, True
        cell = max(_slot_width(len(shown), slots, heads * mark, room), 4.0)
    per_line = min(slots, int((room - 8) / cell)) or 1
    slot_lines = math.ceil(slots / per_line)
    width, line_height = max(per_line * cell + 7, 40.0), heads * mark + 3
    height = _HEAD + slot_lines * line_height + 3
    columns = max(1, int((room + _GAP) // (width + _GAP)))
    own: dict[int, list[Run]] = {}
    for run in of.runs:
        own.setdefault(run.row[0], []).append(run)
    inset = (width - per_line * cell + 1) / 2
    corners = [(inset + slot % per_line * cell, _HEAD + slot // per_line * line_height) for slot in range(slots)]
    pale = _boxes(
        [(corner_x, corner_y + head * mark) for corner_x, corner_y in corners for head in range(heads)],
        cell - 1,
        mark - 1,
    )
    hovers = len(shown) * slots * heads <= _MOST_HOVERS and cell >= 5
    for index, block in enumerate(shown):
        left, top = x + index % columns * (width + _GAP), y + index // columns * (height + _GAP)
        is_touched = block in own
        d.rect(left, top, width, height, PAPER, EDGE, radius=3, title=_block_title(of, name, block))
        d.text(
            left + 5,
            top + _HEAD / 2 + 0.5,
            str(block),
            11,
            fill=INK if is_touched else SOFT_INK,
            mono=True,
            bold=is_touched,
        )
        _iteration_chip(d, of.iterations["load"].get(block, []), left + width, top)
        d.lines(f"M{number(left)} {number(top)}{pale}", "none", fill=PALE)
        marks = {(run.row[1], head): run for run in own.get(block, []) for head in range(run.start, run.end)}
        for (slot, head), run in marks.items():
            draw_cell(
                d, left + corners[slot][0], top + corners[slot][1] + head * mark, cell - 1, mark - 1, run, of.elements
            )
        for line in range(slot_lines if hovers else 0):
            own_slots = range(line * per_line, min((line + 1) * per_line, slots))
            titles = [
                [_mark_title(of, name, block, slot, head, marks.get((slot, head))) for slot in own_slots]
                for head in range(heads)
            ]
            d.hover_grid(left + inset, top + _HEAD + line * line_height, cell, mark, titles)
    y += math.ceil(len(shown) / columns) * (height + _GAP) - (_GAP if shown else 0)
    if cut:
        d.text(
            x,
            y + 10,
            f"{blocks:,} blocks; {'only those are' if shown else 'none is'} drawn that this program touches",
            11,
            fill=SOFT_INK,
        )
        y += 18
    return y


def _boxes(corners: list[tuple[float, float]], width: float, height: float) -> str:
    """A path of boxes, each relative to the end of the previous one, so that it can be drawn anywhere."""
    path, last = "", (0.0, 0.0)
    for x, y in corners:
        path += f"m{number(x - last[0])} {number(y - last[1])}h{number(width)}v{number(height)}h{number(-width)}z"
        last = (x, y)
    return path


def _slot_width(blocks: int, slots: int, slot_height: float, room: float) -> float:
    """The widest slot with which all blocks fit; 0 if there is none."""
    for cell in (16.0, 14.0, 12.0, 10.0, 8.0, 7.0, 6.0, 5.0, 4.0):
        per_line = min(slots, int((room - 8) / cell)) or 1
        height = _HEAD + math.ceil(slots / per_line) * (slot_height + 3) + 3 + _GAP
        columns = max(1, int((room + _GAP) // (max(per_line * cell + 7, 40.0) + _GAP)))
        lines = math.ceil(blocks / columns)
        # Use smaller slots only where that avoids too many lines.
        if lines * height <= (_MOST_CACHE / 2 if cell > 8 else _MOST_CACHE):
            return cell
    return 0.0


def _iteration_chip(d: Drawing, iterations: list[int], right: float, y: float) -> None:
    """The iterations in which a block is loaded, at the right end of its head."""
    if not iterations:
        return
    text = (
        str(iterations[0])
        if len(iterations) == 1
        else f"{iterations[0]}, {iterations[1]}"
        if len(iterations) == 2
        else f"{iterations[0]} … {iterations[-1]}"
    )
    width = max(14.0, 6.2 * len(text) + 6)
    d.rect(right - width - 2, y + 2, width, 13, INK, radius=6.5)
    d.text(right - 2 - width / 2, y + 8.5, text, 10, "middle", bold=True, fill=PAPER)


def _iterations_text(iterations: list[int]) -> str:
    return f"loaded in iteration{'s' * (len(iterations) > 1)} {', '.join(map(str, iterations))}" if iterations else ""


def _block_title(of: Touched, name: str, block: int) -> str:
    told = [_iterations_text(of.iterations["load"].get(block, [])), "stored" if block in of.iterations["store"] else ""]
    return f"{name}: block {block}, {', '.join(filter(None, told)) or 'not touched'}"


def _mark_title(of: Touched, name: str, block: int, slot: int, head: int, run: Run | None) -> str:
    iterations = of.iterations["load"].get(block, [])
    in_iteration = f", in iteration {iterations[0]}" if run and run.loaded and len(iterations) == 1 else ""
    return cell_title(of, name, (block, slot, head), run) + in_iteration


def _pale_row(d: Drawing, x: float, y: float, width: float, count: int, height: float) -> None:
    """A row of untouched cells, with gaps between them where they are wide enough."""
    if width < 4:
        d.rect(x, y, width * count, height, PALE)
        return
    path = "".join(
        f"M{number(x + index * width)} {number(y)}h{number(width - 1)}v{number(height)}h{number(1 - width)}z"
        for index in range(count)
    )
    d.lines(path, "none", fill=PALE)


def _cell_index(d: Drawing, text: str, x: float, y: float, width: float, run: Run | None) -> None:
    ground = rim = None
    if run:
        ground = STORED if run.stored and not run.loaded else LOADED
        rim = LOADED if run.stored and run.loaded else None  # the text lies on both halves of the cell
        text = f"{text} ×{run.times}" if run.times > 1 and 6.2 * len(f"{text} ×{run.times}") < width - 4 else text
    size = 10.5 if 6.2 * len(text) < width else 8
    d.text(x, y + _HEIGHT / 2 - 0.5, text, size, "middle", bold=bool(run), fill=SOFT_INK, on=ground, halo=rim)


def _bar(d: Drawing, of: Touched, name: str, x: float, y: float, room: float) -> float:
    """A vector too long for cells."""
    width = room / of.shape[0]
    d.rect(x, y, room, _HEIGHT, PALE, title=f"{name}: {of.shape[0]:,} elements")
    for run in of.runs[:_MOST_HOVERS]:
        size = max(width * (run.end - run.start), 1.5)
        draw_cell(d, x + run.start * width, y, size, _HEIGHT, run)
        where = f"{run.start}" if run.end == run.start + 1 else f"{run.start} to {run.end - 1}"
        d.rect(x + run.start * width, y, size, _HEIGHT, PAPER + "00", title=f"{name}[{where}]: {done(of, run)}")
    return _ticks(d, of.shape[0], width, x, y + _HEIGHT)


def _ticks(d: Drawing, count: int, width: float, x: float, y: float) -> float:
    """Indices below a line of cells that are too narrow to contain them."""
    step = 1
    while step * width < 9 * len(str(count)) + 14:
        step *= 2
    for index in range(0, count, step):
        d.lines(f"M{number(x + (index + 0.5) * width)} {number(y + 1)}v3", EDGE)
        d.text(x + (index + 0.5) * width, y + 10, str(index), 10, "middle", fill=SOFT_INK)
    return y + 15
