"""Where the bays and cells of a pool's grid go: the largest cells that fit."""

import math
from dataclasses import dataclass

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
