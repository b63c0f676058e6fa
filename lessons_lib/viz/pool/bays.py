"""The parts of a pool's picture: a grid of bays, one for each block, with its cells; and chips of blocks."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from lessons_lib.recording.pool_states import PoolState
from lessons_lib.viz.drawing.palette import EDGE, INK, PAPER
from lessons_lib.viz.drawing.svg import Drawing, flow, number
from lessons_lib.viz.pool.words import Holding, holdings

LEFT, PANEL = 16, 262  # margin; width of the tables, right of the grid
NUMBER_CELL = 24  # wider cells show the position of their token
CHIP, CHIP_LINE = 20, 24  # heights
LOT_WIDTH = 588  # of the grid
GAP = 5  # between bays
HEAD = 18  # of a bay, above its cells
_FOOT, _SIDES, _NARROWEST = 4, 5, 44
_TALLEST = 350  # of the grid, if the smallest cells allow
_LARGEST, _SMALLEST = 32, 7  # of a cell; smaller ones can't be told apart
_SQUAREST = 15  # wider cells stay this high


@dataclass(frozen=True)
class Lot:
    """How the grid is laid out: `columns` bays per row and, in a bay, `per_line` cells per line."""

    columns: int
    rows: int
    per_line: int
    lines: int
    cell: int

    @property
    def cell_height(self) -> int:
        return min(self.cell, _SQUAREST)

    @property
    def bay(self) -> tuple[int, int]:
        """Width and height of a bay."""
        return max(self.per_line * self.cell + _SIDES, _NARROWEST), HEAD + self.lines * self.cell_height + _FOOT

    @property
    def width(self) -> int:
        return self.columns * (self.bay[0] + GAP) - GAP

    @property
    def height(self) -> int:
        return self.rows * (self.bay[1] + GAP) - GAP


def lay_out(num_blocks: int, block_size: int) -> Lot:
    """The largest cells with which the grid fits the picture; if none do, the smallest."""
    lots: list[Lot] = []
    for cell in range(_LARGEST, _SMALLEST - 1, -1):
        lots = [_lot(num_blocks, block_size, lines, cell) for lines in (1, 2, 4, 8) if lines * lines <= block_size]
        for lot in lots:
            if lot.width <= LOT_WIDTH and lot.height <= _TALLEST:
                return lot
    return min(lots, key=lambda lot: (lot.width > LOT_WIDTH, lot.height))


def _lot(num_blocks: int, block_size: int, lines: int, cell: int) -> Lot:
    """As many bays per row as fit, or slightly fewer if that makes all rows full."""
    per_line = math.ceil(block_size / lines)
    width = Lot(1, 1, per_line, lines, cell).width
    fitting = max(1, int((LOT_WIDTH + GAP) // (width + GAP)))
    full = (n for n in range(min(fitting, num_blocks), fitting // 2, -1) if num_blocks % n == 0)
    columns = next(full, fitting)
    return Lot(columns, math.ceil(num_blocks / columns), per_line, lines, cell)


@dataclass(frozen=True)
class Bay:
    """How a block is drawn.

    Attributes:
        title: its hover text.
        owner: at the upper right corner, on `color`.
        held: its tokens; None if it is in no table.
        cell: offset -> fill and hover text of a cell, if it is held.
        cell_edge: of the cells, if it isn't.
        is_framed: it has just changed.
    """

    title: str
    fill: str = PAPER
    edge: str = EDGE
    ink: str = INK
    owner: str = ""
    color: str = PAPER
    held: Holding | None = None
    cell: Callable[[int], tuple[str, str]] | None = None
    cell_edge: str = EDGE
    is_framed: bool = False


def draw_bays(d: Drawing, state: PoolState, y: float, bay_of: Callable[[int, list[Holding]], Bay]) -> Lot:
    """All blocks of the pool, in a grid whose upper edge is at y."""
    lot, held = lay_out(state.num_blocks, state.block_size), holdings(state)
    for block in range(state.num_blocks):
        owners = held.get(block, [])
        with d.marked([(one.request, str(block)) for one in owners] or [("free", str(block))]):
            _draw_bay(d, bay_of(block, owners), block, lot, state.block_size, *bay_corner(lot, block, y))
    return lot


def bay_corner(lot: Lot, block: int, y: float) -> tuple[float, float]:
    """The upper left corner of a bay, in a grid whose upper edge is at y."""
    row, column = divmod(block, lot.columns)
    return LEFT + column * (lot.bay[0] + GAP), y + row * (lot.bay[1] + GAP)


def cell_corner(lot: Lot, offset: int, x: float, y: float) -> tuple[float, float]:
    """The upper left corner of a cell in the bay at (x, y)."""
    line, column = divmod(offset, lot.per_line)
    left = x + (lot.bay[0] - lot.per_line * lot.cell) / 2
    return left + column * lot.cell, y + HEAD + line * lot.cell_height


def _draw_bay(d: Drawing, bay: Bay, block: int, lot: Lot, block_size: int, x: float, y: float) -> None:
    width, height = lot.bay
    d.rect(x, y, width, height, bay.fill, bay.edge, radius=3, title=bay.title)
    d.text(x + 5, y + HEAD / 2 + 0.5, str(block), 11, fill=bay.ink, mono=True)
    if bay.owner:
        _draw_owner(d, bay.owner, bay.color, x + width, y)
    corners = [cell_corner(lot, offset, x, y) for offset in range(block_size)]
    size = lot.cell - 1, lot.cell_height - 1
    if bay.held is None or bay.cell is None:
        d.boxes(corners, *size, stroke=bay.cell_edge)
    else:
        for offset, (left, top) in enumerate(corners):
            fill, title = bay.cell(offset)
            d.rect(left, top, *size, fill, title=title)
            if offset >= bay.held.tokens:
                d.hatch(left, top, *size)
            elif lot.cell >= NUMBER_CELL:
                position = str(bay.held.start + offset)
                d.text(left + size[0] / 2, top + size[1] / 2, position, 11, "middle", on=fill)
    if bay.is_framed:
        d.rect(x - 1, y - 1, width + 2, height + 2, "none", INK, 3, radius=4)


def _draw_owner(d: Drawing, name: str, color: str, right: float, y: float) -> None:
    """The name at the upper right corner of a bay, as much of it as fits."""
    name = name if len(name) <= 4 else f"{name[:3]}…"
    width = max(13.0, 6.4 * len(name) + 5)
    d.rect(right - width - 2.5, y + 2.5, width, 13, color, radius=2)
    d.text(right - 2.5 - width / 2, y + 9, name, 10.5, "middle", bold=True, on=color)


def chip_width(num_blocks: int) -> float:
    return max(24.0, 8.0 * len(str(num_blocks - 1)) + 8)


def draw_chips(
    d: Drawing, owner: str, blocks: Sequence[int], x: float, y: float, room: float, width: float,
    look: Callable[[int, int], tuple[str, bool, str]], tail: float = 0,
) -> tuple[float, float]:  # fmt: skip
    """Blocks' ids in boxes, as many in a line as fit, and room for a tail. Returns where the tail goes.

    Args:
        look: (index, block) -> fill, whether it is framed, hover text.
    """
    *places, end = flow([width] * len(blocks) + [tail], room)
    for index, (block, (line, left)) in enumerate(zip(blocks, places)):
        fill, is_framed, title = look(index, block)
        stroke = INK if is_framed else EDGE if fill == PAPER else None
        with d.marked([(owner, str(block))], moves=f"block {block}"):
            d.rect(x + left, y + line * CHIP_LINE, width, CHIP, fill, stroke, 1 + is_framed, radius=3, title=title)
            middle = y + line * CHIP_LINE + CHIP / 2
            d.text(x + left + width / 2, middle, str(block), 12, "middle", on=fill, mono=True)
    return x + end[1], y + end[0] * CHIP_LINE


def draw_path(d: Drawing, corners: Sequence[tuple[float, float]]) -> None:
    """A line from corner to corner, with a dot where it begins."""
    path = "M" + "L".join(f"{number(left)} {number(top)}" for left, top in corners)
    d.lines(path, PAPER, 4.5)
    d.lines(path, INK, 1.8, arrow=True)
    d.rect(corners[0][0] - 3.5, corners[0][1] - 3.5, 7, 7, INK, PAPER, radius=3.5)
