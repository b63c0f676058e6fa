"""The grid of a pool, with the cells that a packed row writes and reads."""

from lessons_lib.recording.paged_steps import PagedStep
from lessons_lib.viz.drawing.palette import EDGE, INK, PAPER, SOFT_INK, color_of, mix, outline, text_on
from lessons_lib.viz.drawing.svg import Drawing, number
from lessons_lib.viz.pool.access_words import access_block_title, access_cell_title, pool_after
from lessons_lib.viz.pool.bays import NUMBER_CELL, draw_cells, draw_empty_cells, draw_owner, place_of
from lessons_lib.viz.pool.lot import GAP, HEAD, Lot, lay_out
from lessons_lib.viz.pool.words import Holding, holdings

READ, HELD = 0.5, 0.86  # how far a request's color is lightened


def draw_access_grid(d: Drawing, step: PagedStep, x: float, y: float) -> float:
    """All blocks of the pool. Returns the height used."""
    lot, held = lay_out(step.num_blocks, step.block_size), holdings(pool_after(step))
    width, height = lot.bay
    for block in range(step.num_blocks):
        row, column = divmod(block, lot.columns)
        holder = held.get(block, [None])[0]
        with d.marked([(holder.request if holder else "free", str(block))]):
            _draw_bay(d, lot, step, block, holder, x + column * (width + GAP), y + row * (height + GAP))
    return lot.height


def _draw_bay(d: Drawing, lot: Lot, step: PagedStep, block: int, held: Holding | None, x: float, y: float) -> None:
    """A block: its id, its owner and which of the owner's blocks it is, and its cells."""
    (width, height), size = lot.bay, step.block_size
    left, top = x + (width - lot.per_line * lot.cell) / 2, y + HEAD
    colour = color_of(held.request) if held else PAPER
    empty, read = mix(colour, PAPER, HELD), mix(colour, PAPER, READ)
    edge, ink = (outline(colour), INK) if held else (EDGE, SOFT_INK)
    d.rect(x, y, width, height, empty if held else PAPER, edge, radius=3, title=access_block_title(block, held, step))
    d.text(x + 5, y + HEAD / 2 + 0.5, str(block), 11, fill=ink, mono=True)
    if held is None:
        draw_empty_cells(d, lot, size, left, top, EDGE)
        return
    draw_owner(d, f"{held.request} {held.start // size + 1}", colour, x + width, y)
    new = {slot % size for slots in step.written.values() for slot in slots if slot // size == block}
    draw_cells(
        d, lot, size, held, left, top,
        lambda offset: colour if offset in new else read if offset < held.tokens else empty,
        lambda offset: access_cell_title(block, offset, held, step, offset in new),
    )  # fmt: skip
    line = min(2.0, lot.cell / 4)
    for offset in sorted(new):
        cell_x, cell_y = place_of(lot, offset, left, top)
        box = lot.cell - 1 - line, lot.cell_height - 1 - line
        d.rect(cell_x + line / 2, cell_y + line / 2, *box, "none", INK, line)
    # Where the cell has a number, the dot is in the corner.
    dot_x, dot_y = (lot.cell - 5.5, 4) if lot.cell >= NUMBER_CELL else ((lot.cell - 1) / 2, (lot.cell_height - 1) / 2)
    for offsets, dot in ((range(held.tokens), INK), (new, text_on(colour))):
        places = [place_of(lot, each, left, top) for each in offsets if (each in new) == (offsets is new)]
        path = "".join(f"M{number(cell_x + dot_x)} {number(cell_y + dot_y)}h.5" for cell_x, cell_y in places)
        if path:
            d.lines(path, dot, max(1.6, min(lot.cell / 4, 4)), dots=lot.cell)
