"""The parts of a pool's picture: a bay's owner and cells, and chips of blocks."""

from collections.abc import Callable

from lessons_lib.viz.drawing.palette import INK
from lessons_lib.viz.drawing.svg import Drawing, number
from lessons_lib.viz.pool.lot import Lot
from lessons_lib.viz.pool.words import Holding

NUMBER_CELL = 24  # wider cells show the position of their token
CHIP = 20  # height


def draw_owner(d: Drawing, name: str, colour: str, right: float, y: float) -> None:
    """The name at the upper right corner of a bay, as much of it as fits."""
    name = name if len(name) <= 4 else f"{name[:3]}…"
    width = max(13.0, 6.4 * len(name) + 5)
    d.rect(right - width - 2.5, y + 2.5, width, 13, colour, radius=2)
    d.text(right - 2.5 - width / 2, y + 9, name, 10.5, "middle", bold=True, on=colour)


def place_of(lot: Lot, offset: int, x: float, y: float) -> tuple[float, float]:
    """The upper left corner of a cell; (x, y) is that of the first one."""
    line, column = divmod(offset, lot.per_line)
    return x + column * lot.cell, y + line * lot.cell_height


def draw_empty_cells(d: Drawing, lot: Lot, block_size: int, x: float, y: float, edge: str) -> None:
    box = f"h{lot.cell - 1}v{lot.cell_height - 1}h{1 - lot.cell}z"
    corners = (place_of(lot, offset, x, y) for offset in range(block_size))
    d.lines("".join(f"M{number(left)} {number(top)}{box}" for left, top in corners), edge)


def draw_cells(
    d: Drawing, lot: Lot, block_size: int, held: Holding, x: float, y: float,
    fill_of: Callable[[int], str], title_of: Callable[[int], str],
) -> None:  # fmt: skip
    """The cells of a block in use, by their offsets; those without a token are hatched."""
    size = lot.cell_height - 1
    for offset in range(block_size):
        (left, top), fill = place_of(lot, offset, x, y), fill_of(offset)
        d.rect(left, top, lot.cell - 1, size, fill, title=title_of(offset))
        if offset >= held.tokens:
            d.hatch(left, top, lot.cell - 1, size)
        elif lot.cell >= NUMBER_CELL:
            d.text(left + (lot.cell - 1) / 2, top + size / 2, str(held.start + offset), 11, "middle", on=fill)


def chip_width(num_blocks: int) -> float:
    return max(24.0, 8.0 * len(str(num_blocks - 1)) + 8)


def draw_chip(
    d: Drawing, x: float, y: float, block: int, width: float, fill: str, edge: str | None, framed: bool, title: str
) -> None:
    """A block's id in a box."""
    stroke, line = (INK, 2) if framed else (edge, 1)
    d.rect(x, y, width, CHIP, fill, stroke, line, radius=3, title=title)
    d.text(x + width / 2, y + CHIP / 2, str(block), 12, "middle", on=fill, mono=True)
