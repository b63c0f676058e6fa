"""A block pool as a parking lot: one bay per block, the block tables next to it, the free queue below.

A cell has room for one token. A color is a request; a request's unused cells are hatched; free blocks are
empty. A dark frame marks the blocks that have just been allocated or freed.
"""

from dataclasses import dataclass

from lessons_lib.recording.pool_states import PoolState
from lessons_lib.viz.drawing.palette import EDGE, INK, NEUTRAL, PAPER, SOFT_INK, color_of, mix, outline, tint
from lessons_lib.viz.drawing.picture import Picture
from lessons_lib.viz.drawing.svg import WIDTH, Drawing, count, flow, number
from lessons_lib.viz.pool.bays import CHIP, chip_width, draw_cells, draw_chip, draw_empty_cells, draw_owner
from lessons_lib.viz.pool.lot import GAP, HEAD, LOT_WIDTH, Lot, lay_out
from lessons_lib.viz.pool.words import Holding, block_title, cell_title, describe, holding, holdings, sums, table_text

_LEFT, _PANEL = 16, 262  # margin, width of the tables


def draw_pool(state: PoolState) -> Picture:
    """The pool at one moment. Pools of one size make pictures of one height, unless very many tables are listed."""
    d = Drawing()
    y = _event(d, state.event, 16) if state.event else 12.0
    lot, held = lay_out(state.num_blocks, state.block_size), holdings(state)
    queue_index_of = {block: index for index, block in reversed(list(enumerate(state.free_queue)))}
    size = f"{count(state.num_blocks, 'block')} of {count(state.block_size, 'slot')}"
    d.text(_LEFT, y + 8, f"{size}; a slot has room for one token", 12, fill=SOFT_INK)
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
        draw_owner(d, "+".join(h.request for h in bay.held), color_of(holder.request), x + width, y)
    inner = lot.per_line * lot.cell
    left, top = x + (width - inner) / 2, y + HEAD
    if holder is None:
        draw_empty_cells(d, lot, block_size, left, top, EDGE if free else mix(EDGE, INK, 0.25))
    else:
        colour = color_of(holder.request)
        draw_cells(
            d, lot, block_size, holder, left, top, lambda offset: colour if offset < holder.tokens else tint(colour),
            lambda offset: cell_title(bay.block, offset, holder, block_size),
        )  # fmt: skip
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


def _tables(d: Drawing, state: PoolState, y: float) -> float:
    """Block tables, one below the other. Returns the y below them."""
    x, width = WIDTH - _LEFT - _PANEL, chip_width(state.num_blocks)
    head = "block tables, in the order of the tokens" if state.tables else "block tables: none"
    d.text(x, y + 8, head, 12, fill=SOFT_INK)
    y += 20
    for table in state.tables:
        with d.marked([(table.request,)]):
            indent = d.request_chip(x, y, table.request) + 8
        words = table_text(table, state.block_size)
        places = flow([width] * len(table.blocks) + [6 * len(words)], _PANEL - indent)
        for index, (block, (line, left)) in enumerate(zip(table.blocks, places)):
            title = block_title(block, holding(table, index, state.block_size), None, state.block_size)
            place, changed = (x + indent + left, y + line * 24), block in state.changed
            with d.marked([(table.request, str(block))], moves=f"block {block}"):
                draw_chip(d, *place, block, width, color_of(table.request), None, changed, title)
        line, left = places[-1]
        d.text(x + indent + left + (4 if left else 0), y + line * 24 + CHIP / 2, words, 12)
        y += 24 * (line + 1) + 8
    return y


def _queue(d: Drawing, state: PoolState, y: float) -> float:
    """The free queue, starting with the block allocated next. Returns the y below it."""
    queue, width = state.free_queue, chip_width(state.num_blocks)
    allocated = f"{queue[0]} is allocated next; freed blocks join the end" if queue else ""
    words = f", {count(len(queue), 'block')}: {allocated}" if queue else ": empty"
    d.text(_LEFT, y + 8, f"free queue{words}", 12, fill=SOFT_INK)
    y += 20
    places = flow([width] * max(state.num_blocks, 1), LOT_WIDTH)  # with room for all blocks, so that nothing moves
    for index, (block, (line, x)) in enumerate(zip(queue, places)):
        title = block_title(block, None, index, state.block_size)
        with d.marked([("free", str(block))], moves=f"block {block}"):
            changed = block in state.changed
            draw_chip(d, _LEFT + x, y + line * (CHIP + 4), block, width, PAPER, EDGE, changed, title)
    return y + (CHIP + 4) * (places[-1][0] + 1)


def _footer(d: Drawing, state: PoolState, y: float) -> float:
    """Sums and the legend. Returns the y below it."""
    d.lines(f"M{_LEFT} {number(y + 4)}H{WIDTH - _LEFT}", EDGE)
    y += 20
    d.text(_LEFT, y, sums(state), 13, bold=True)
    y += 22
    signs = [
        ("token stored", lambda x, y: d.rect(x, y, 18, 16, color_of("A"))),
        ("allocated, empty", lambda x, y: d.cell(x, y, 18, 16, PAPER, hatched=1.0, pale=tint(color_of("A")))),
        ("free", lambda x, y: d.rect(x + 0.5, y + 0.5, 17, 15, "none", EDGE, radius=3)),
        ("just allocated or freed", lambda x, y: d.rect(x + 1.5, y + 1.5, 15, 13, "none", INK, 3, radius=3)),
    ]
    d.legend(_LEFT, y, signs)
    return y + 20
