"""A block pool as a parking lot: one bay per block, the block tables next to it, the free queue below.

A cell has room for one token. A color is a request; a request's unused cells are hatched; free blocks are
empty. A dark frame marks the blocks that have just been allocated or freed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from lessons_lib.recording.pool_states import PoolState
from lessons_lib.viz.drawing.faults import draw_faults
from lessons_lib.viz.drawing.palette import EDGE, INK, NEUTRAL, PAPER, SOFT_INK, color_of, mix, outline, tint
from lessons_lib.viz.drawing.picture import Picture
from lessons_lib.viz.drawing.svg import WIDTH, Drawing, flow, number
from lessons_lib.viz.pool.lot import GAP, HEAD, LOT_WIDTH, Lot, lay_out
from lessons_lib.viz.pool.words import (
    Holding,
    block_title,
    cell_title,
    count,
    describe,
    faults,
    holdings,
    sums,
    table_text,
)

_LEFT, _PANEL = 16, 262  # margin, width of the tables
_HOVER_CELL = 7  # smaller cells share their block's hover text
_NUMBER_CELL = 24  # wider cells show the position of their token
_CHIP = 20
_QUEUE_LINES = 2


def draw_pool(state: PoolState) -> Picture:
    """The pool at one moment. Pools of one size make pictures of one height, unless very many tables are listed."""
    d = Drawing()
    y = _event(d, state.event, 16) if state.event else 12.0
    lot, held = lay_out(state.num_blocks, state.block_size), holdings(state)
    queue_index_of = {block: index for index, block in reversed(list(enumerate(state.free_queue)))}
    d.text(
        _LEFT,
        y + 8,
        f"{count(state.num_blocks, 'block')} of {count(state.block_size, 'slot')}; a slot has room for one token",
        12,
        fill=SOFT_INK,
    )
    width, height = lot.bay
    for block in range(state.num_blocks):
        row, column = divmod(block, lot.columns)
        bay = Bay(block, held.get(block, []), queue_index_of.get(block), block in state.changed)
        left, top = _LEFT + column * (width + GAP), y + 20 + row * (height + GAP)
        with d.marked([(one.request, str(block)) for one in bay.held] or [("free", str(block))]):
            _draw_bay(d, bay, lot, state.block_size, left, top)
    _threads(d, state, lot, y + 20)
    left = _queue(d, state, y + 20 + lot.height + 14)
    right = _tables(d, state, y)
    d.height = _footer(d, state, max(left, right, y + 240))
    return d.picture(describe(state))


def _event(d: Drawing, event: str, y: float) -> float:
    """What has just happened; if long, on two lines in smaller type, so that the grid doesn't move. Returns the y below
    it.
    """
    words = event.split(" ")
    places = flow([7 * len(word) for word in words], WIDTH - 2 * _LEFT, gap=4)
    lines = [" ".join(word for word, (line, _) in zip(words, places) if line == n) for n in range(places[-1][0] + 1)]
    if len(lines) == 1:
        d.text(_LEFT, y + 8, event, 15, bold=True)
    else:
        d.text(_LEFT, y, lines[0], 13, bold=True)
        d.text(_LEFT, y + 17, lines[1] + (" …" if len(lines) > 2 else ""), 13, bold=True)
    return y + 26


@dataclass(frozen=True)
class Bay:
    block: int
    held: list[Holding]
    queue_index: int | None  # in the free queue
    changed: bool


def _draw_bay(d: Drawing, bay: Bay, lot: Lot, block_size: int, x: float, y: float) -> None:
    width, height = lot.bay
    holder = bay.held[0] if bay.held else None
    free = holder is None and bay.queue_index is not None
    fill = PAPER if free else tint(color_of(holder.request)) if holder else NEUTRAL
    edge = EDGE if holder is None else outline(color_of(holder.request))
    d.rect(x, y, width, height, fill, edge, radius=3, title=block_title(bay.block, holder, bay.queue_index, block_size))
    d.text(x + 5, y + HEAD / 2 + 0.5, str(bay.block), 11, fill=SOFT_INK if free else INK, mono=True)
    if holder:
        _owner(d, "+".join(h.request for h in bay.held), color_of(holder.request), x + width, y)
    inner = lot.per_line * lot.cell
    left, top = x + (width - inner) / 2, y + HEAD
    if holder is None:
        _empty_cells(d, lot, block_size, left, top, EDGE if free else mix(EDGE, INK, 0.25))
    elif lot.cell >= _HOVER_CELL:
        _cells(d, bay.block, holder, lot, block_size, left, top)
    else:
        _bars(d, holder, lot, block_size, left, top)
    if bay.changed:
        d.rect(x - 1, y - 1, width + 2, height + 2, "none", INK, 3, radius=4)


def _threads(d: Drawing, state: PoolState, lot: Lot, y: float) -> None:
    """A line through each request's blocks, in the order of its tokens: seen while the request is followed, and where a
    block has just joined or left.
    """
    width, height = lot.bay
    for table in state.tables:
        places = [divmod(block, lot.columns) for block in table.blocks if 0 <= block < state.num_blocks]
        if len(places) < 2:
            continue
        corners = [
            (_LEFT + (column + 0.5) * width + column * GAP, y + (row + 0.5) * height + row * GAP)
            for row, column in places
        ]
        path = "L".join(f"{number(left)} {number(top)}" for left, top in corners)
        is_hidden = set(state.changed).isdisjoint(table.blocks)
        with d.marked([(table.request,)], hidden=is_hidden):
            d.lines(f"M{path}", PAPER, 4.5)
            d.lines(f"M{path}", INK, 1.8, arrow=True)
            d.rect(corners[0][0] - 3.5, corners[0][1] - 3.5, 7, 7, INK, PAPER, radius=3.5)


def _owner(d: Drawing, name: str, colour: str, right: float, y: float) -> None:
    """The name at the upper right corner of a bay, as much of it as fits."""
    name = name if len(name) <= 3 else f"{name[:2]}…"
    width = max(13.0, 7 * len(name) + 5)
    d.rect(right - width - 2.5, y + 2.5, width, 13, colour, radius=2)
    d.text(right - 2.5 - width / 2, y + 9, name, 10.5, "middle", bold=True, on=colour)


def _lines(lot: Lot, block_size: int) -> list[tuple[int, int]]:
    """(first offset, end offset) of each line of cells."""
    starts = range(0, block_size, lot.per_line)
    return [(start, min(start + lot.per_line, block_size)) for start in starts]


def _empty_cells(d: Drawing, lot: Lot, block_size: int, x: float, y: float, edge: str) -> None:
    path = ""
    for line, (start, end) in enumerate(_lines(lot, block_size)):
        top, width, height = y + line * lot.cell_height, (end - start) * lot.cell, lot.cell_height - 1
        path += f"M{number(x)} {number(top)}h{number(width - 1)}v{number(height)}h{number(1 - width)}z"
        if lot.cell >= _HOVER_CELL:
            path += "".join(
                f"M{number(x + n * lot.cell - 0.5)} {number(top)}v{number(height)}" for n in range(1, end - start)
            )
    d.lines(path, edge)


def _cells(d: Drawing, block: int, held: Holding, lot: Lot, block_size: int, x: float, y: float) -> None:
    colour, size = color_of(held.request), lot.cell_height - 1
    for line, (start, end) in enumerate(_lines(lot, block_size)):
        top = y + line * lot.cell_height
        for offset in range(start, end):
            left = x + (offset - start) * lot.cell
            fill = colour if offset < held.tokens else tint(colour)
            d.rect(left, top, lot.cell - 1, size, fill, title=cell_title(block, offset, held, block_size))
            if offset < held.tokens and lot.cell >= _NUMBER_CELL:
                d.text(
                    left + (lot.cell - 1) / 2,
                    top + size / 2,
                    str(held.start + offset),
                    11,
                    "middle",
                    on=colour,
                )
        empty = max(held.tokens, start)
        if empty < end:
            d.hatch(x + (empty - start) * lot.cell, top, (end - empty) * lot.cell - 1, size)


def _bars(d: Drawing, held: Holding, lot: Lot, block_size: int, x: float, y: float) -> None:
    """For cells too small to tell apart: a bar for the stored tokens, a hatched one for the unused rest."""
    for line, (start, end) in enumerate(_lines(lot, block_size)):
        top, full = y + line * lot.cell_height, min(max(held.tokens, start), end)
        if full > start:
            d.rect(x, top, (full - start) * lot.cell, lot.cell_height - 1, color_of(held.request))
        if full < end:
            d.hatch(x + (full - start) * lot.cell, top, (end - full) * lot.cell, lot.cell_height - 1)


def _chip(
    d: Drawing, x: float, y: float, block: int, width: float, fill: str, edge: str | None, changed: bool, title: str
) -> None:
    stroke, line = (INK, 2) if changed else (edge, 1)
    d.rect(x, y, width, _CHIP, fill, stroke, line, radius=3, title=title)
    d.text(x + width / 2, y + _CHIP / 2, str(block), 12, "middle", on=fill, mono=True)


def _chip_width(state: PoolState) -> float:
    return max(24.0, 8.0 * len(str(state.num_blocks - 1)) + 8)


def _tables(d: Drawing, state: PoolState, y: float) -> float:
    """Block tables, one below the other. Returns the y below them."""
    x, width = WIDTH - _LEFT - _PANEL, _chip_width(state)
    d.text(
        x,
        y + 8,
        "block tables, in the order of the tokens" if state.tables else "block tables: none",
        12,
        fill=SOFT_INK,
    )
    y += 20
    for table in state.tables:
        with d.marked([(table.request,)]):
            indent = d.request_chip(x, y, table.request) + 8
        words = table_text(table, state.block_size)
        places = flow([width] * len(table.blocks) + [6 * len(words)], _PANEL - indent)
        for index, (block, (line, left)) in enumerate(zip(table.blocks, places)):
            start = index * state.block_size
            held = Holding(table.request, start, min(max(table.num_tokens - start, 0), state.block_size))
            title = block_title(block, held, None, state.block_size)
            place, changed = (x + indent + left, y + line * 24), block in state.changed
            with d.marked([(table.request, str(block))], moves=f"block {block}"):
                _chip(d, *place, block, width, color_of(table.request), None, changed, title)
        line, left = places[-1]
        d.text(x + indent + left + (4 if left else 0), y + line * 24 + _CHIP / 2, words, 12)
        y += 24 * (line + 1) + 8
    return y


def _queue(d: Drawing, state: PoolState, y: float) -> float:
    """The free queue, starting with the block allocated next. Returns the y below it."""
    queue, width = state.free_queue, _chip_width(state)
    words = (
        f", {count(len(queue), 'block')}: {queue[0]} is allocated next; freed blocks join the end"
        if queue
        else ": empty"
    )
    d.text(_LEFT, y + 8, f"free queue{words}", 12, fill=SOFT_INK)
    y += 20
    a_line = int((LOT_WIDTH + 4) // (width + 4))
    room, more = a_line * _QUEUE_LINES, 96.0
    if len(queue) <= room:
        shown, widths = list(enumerate(queue)), [width] * len(queue)
    else:
        tail = a_line // 2  # the end is shown too: freed blocks appear there
        head = room - tail - math.ceil((more + 4) / (width + 4))
        shown = [*list(enumerate(queue))[:head], None, *list(enumerate(queue))[-tail:]]
        widths = [width if entry else more for entry in shown]
    for entry, chip, (line, x) in zip(shown, widths, flow(widths, LOT_WIDTH)):
        x, top = _LEFT + x, y + line * (_CHIP + 4)
        if entry is None:
            d.text(
                x + chip / 2,
                top + _CHIP / 2,
                f"… and {len(queue) - len(shown) + 1} more …",
                12,
                "middle",
                fill=SOFT_INK,
            )
            continue
        index, block = entry
        title = block_title(block, None, index, state.block_size)
        with d.marked([("free", str(block))], moves=f"block {block}"):
            _chip(d, x, top, block, chip, PAPER, EDGE, block in state.changed, title)
    return y + (_CHIP + 4) * min(_QUEUE_LINES, math.ceil(max(state.num_blocks, 1) / a_line))


def _footer(d: Drawing, state: PoolState, y: float) -> float:
    """Sums, the legend, and what can't be true. Returns the y below it."""
    d.lines(f"M{_LEFT} {number(y + 4)}H{WIDTH - _LEFT}", EDGE)
    y += 20
    d.text(_LEFT, y, sums(state), 13, bold=True)
    y += 22
    x = float(_LEFT)
    for text in ("token stored", "allocated, empty", "free", "just allocated or freed"):
        if text == "token stored":
            d.rect(x, y - 8, 18, 16, color_of("A"))
        elif text == "allocated, empty":
            d.cell(x, y - 8, 18, 16, PAPER, hatched=1.0, pale=tint(color_of("A")))
        else:
            stroke, line = (EDGE, 1) if text == "free" else (INK, 3)
            d.rect(x + line / 2, y - 8 + line / 2, 18 - line, 16 - line, "none", stroke, line, radius=3)
        d.text(x + 25, y, text, 12, fill=SOFT_INK)
        x += 48 + 6.2 * len(text)
    return draw_faults(d, faults(state), _LEFT, y) + 20
