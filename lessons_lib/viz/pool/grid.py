"""A block pool as a parking lot: one bay per block, the block tables next to it, the free queue below.

A cell has room for one token. A color is a request; a request's unused cells are hatched; free blocks are
empty. A dark frame marks the blocks that have just been allocated or freed.
"""

from lessons_lib.recording.pool_states import PoolState, TableState
from lessons_lib.recording.words import count
from lessons_lib.viz.drawing.palette import EDGE, INK, NEUTRAL, PAPER, SOFT_INK, color_of, mix, outline, tint
from lessons_lib.viz.drawing.picture import Picture
from lessons_lib.viz.drawing.svg import WIDTH, Drawing, flow
from lessons_lib.viz.pool import bays
from lessons_lib.viz.pool.bays import LEFT, Bay, Lot
from lessons_lib.viz.pool.words import Holding, block_title, cell_title, describe, holding, sums, table_text


def draw_pool(state: PoolState) -> Picture:
    """The pool at one moment. Pools of one size make pictures of one height, unless very many tables are listed."""
    d = Drawing()
    y = _event(d, state.event, 16) if state.event else 12.0
    size = f"{count(state.num_blocks, 'block')} of {count(state.block_size, 'slot')}"
    d.text(LEFT, y + 8, f"{size}; a slot has room for one token", 12, fill=SOFT_INK)
    places = {block: f"free, number {index} in the queue" for index, block in enumerate(state.free_queue, 1)}
    lot = bays.draw_bays(d, state, y + 20, lambda block, owners: _bay(state, places, block, owners))
    _threads(d, state, lot, y + 20)
    left = _queue(d, state, places, y + 20 + lot.height + 14)
    right = _tables(d, state, y)
    d.height = _footer(d, state, max(left, right, y + 240))
    return d.picture(describe(state))


def _event(d: Drawing, event: str, y: float) -> float:
    """What has just happened; if long, on two smaller lines, so that nothing moves. Returns the y below it."""
    words = event.split(" ")
    places = flow([7 * len(word) for word in words], WIDTH - 2 * LEFT, gap=4)
    lines = [" ".join(word for word, (line, _) in zip(words, places) if line == n) for n in range(places[-1][0] + 1)]
    if len(lines) == 1:
        d.text(LEFT, y + 8, event, 15, bold=True)
    else:
        d.text(LEFT, y, lines[0], 13, bold=True)
        d.text(LEFT, y + 17, lines[1] + (" …" if len(lines) > 2 else ""), 13, bold=True)
    return y + 26


def _bay(state: PoolState, places: dict[int, str], block: int, owners: list[Holding]) -> Bay:
    """`places`: of free blocks, in the queue."""
    is_framed, size = block in state.changed, state.block_size
    if not owners:
        is_free, title = block in places, block_title(block, None, size, places.get(block, "allocated, in no table"))
        look = (PAPER, EDGE, SOFT_INK) if is_free else (NEUTRAL, EDGE, INK)
        return Bay(title, *look, cell_edge=EDGE if is_free else mix(EDGE, INK, 0.25), is_framed=is_framed)
    held = owners[0]
    color = color_of(held.request)

    def cell(offset: int) -> tuple[str, str]:
        return color if offset < held.tokens else tint(color), cell_title(block, offset, held, size)

    owner = "+".join(one.request for one in owners)
    look = tint(color), outline(color), INK, owner, color
    return Bay(block_title(block, held, size), *look, held, cell, is_framed=is_framed)


def _threads(d: Drawing, state: PoolState, lot: Lot, y: float) -> None:
    """A line through each request's blocks, seen while it is followed and where a block has just joined or left."""
    for table in state.tables:
        corners = [bays.bay_corner(lot, block, y) for block in table.blocks if 0 <= block < state.num_blocks]
        if len(corners) > 1:
            with d.marked([(table.request,)], hidden=set(state.changed).isdisjoint(table.blocks)):
                bays.draw_path(d, [(left + lot.bay[0] / 2, top + lot.bay[1] / 2) for left, top in corners])


def _tables(d: Drawing, state: PoolState, y: float) -> float:
    """Block tables, one below the other. Returns the y below them."""
    x, width = WIDTH - LEFT - bays.PANEL, bays.chip_width(state.num_blocks)
    head = "block tables, in the order of the tokens" if state.tables else "block tables: none"
    d.text(x, y + 8, head, 12, fill=SOFT_INK)
    y += 20
    for table in state.tables:
        with d.marked([(table.request,)]):
            indent = d.request_chip(x, y, table.request) + 8
        words = table_text(table, state.block_size)

        def look(index: int, block: int, table: TableState = table) -> tuple[str, bool, str]:
            title = block_title(block, holding(table, index, state.block_size), state.block_size)
            return color_of(table.request), block in state.changed, title

        room = bays.PANEL - indent
        end, y = bays.draw_chips(d, table.request, table.blocks, x + indent, y, room, width, look, 6 * len(words))
        d.text(end + (4 if end > x + indent else 0), y + bays.CHIP / 2, words, 12)
        y += bays.CHIP_LINE + 8
    return y


def _queue(d: Drawing, state: PoolState, places: dict[int, str], y: float) -> float:
    """The free queue, starting with the block allocated next. Returns the y below it."""
    queue, width = state.free_queue, bays.chip_width(state.num_blocks)
    allocated = f"{queue[0]} is allocated next; freed blocks join the end" if queue else ""
    words = f", {count(len(queue), 'block')}: {allocated}" if queue else ": empty"
    d.text(LEFT, y + 8, f"free queue{words}", 12, fill=SOFT_INK)
    bays.draw_chips(
        d, "free", queue, LEFT, y + 20, bays.LOT_WIDTH, width,
        lambda _, block: (PAPER, block in state.changed, block_title(block, None, state.block_size, places[block])),
    )  # fmt: skip
    lines = flow([width] * max(state.num_blocks, 1), bays.LOT_WIDTH)[-1][0] + 1  # room for all blocks, so nothing moves
    return y + 20 + bays.CHIP_LINE * lines


def _footer(d: Drawing, state: PoolState, y: float) -> float:
    """Sums and the legend. Returns the y below it."""
    d.rule(y + 4)
    y += 20
    d.text(LEFT, y, sums(state), 13, bold=True)
    y += 22
    signs = [
        ("token stored", lambda x, y: d.rect(x, y, 18, 16, color_of("A"))),
        ("allocated, empty", lambda x, y: d.cell(x, y, 18, 16, PAPER, hatched=1.0, pale=tint(color_of("A")))),
        ("free", lambda x, y: d.rect(x + 0.5, y + 0.5, 17, 15, "none", EDGE, radius=3)),
        ("just allocated or freed", lambda x, y: d.rect(x + 1.5, y + 1.5, 15, 13, "none", INK, 3, radius=3)),
    ]
    d.legend(LEFT, y, signs)
    return y + 20
