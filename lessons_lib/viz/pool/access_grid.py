"""The grid of a pool, with the cells that a packed row writes and reads."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import groupby, pairwise

from lessons_lib.recording.paged_steps import PagedStep
from lessons_lib.viz.drawing.palette import EDGE, INK, NEUTRAL, PAPER, SOFT_INK, color_of, mix, outline, text_on
from lessons_lib.viz.drawing.svg import Drawing, number
from lessons_lib.viz.pool.access_words import access_block_title, access_cells_title, pool_after
from lessons_lib.viz.pool.lot import GAP, HEAD, LOT_WIDTH, Lot, lay_out
from lessons_lib.viz.pool.words import Holding, holdings

READ, NOT_READ, HELD = 0.5, 0.72, 0.86  # how far a request's color is lightened
_HOVER_CELL = 7  # smaller cells share their block's hover text
_NUMBER_CELL = 24  # wider cells show the position of their token
_MOST_HOVERS = 1500  # blocks of a larger pool have no hover texts
_TALLEST = 620  # if the grid would be taller, each block is one square


@dataclass(frozen=True)
class _Block:
    """A block of the pool.

    held     its owner, and the owner's tokens in it; with several owners, the reader
    owners   all of them, by name
    written  the offsets that the row writes
    titles   offsets side by side and their hover text, if cells are large enough
    """

    number: int
    size: int
    held: Holding | None
    owners: tuple[str, ...]
    is_read: bool
    written: frozenset[int]
    title: str
    titles: tuple[tuple[range, str], ...]

    @property
    def tokens(self) -> int:
        return self.held.tokens if self.held else 0

    @property
    def colour(self) -> str:
        return color_of(self.held.request) if self.held else NEUTRAL

    @property
    def shade(self) -> str:
        """Of the cells whose token was cached before."""
        return mix(self.colour, PAPER, READ if self.is_read else NOT_READ)


def drawn_as_squares(step: PagedStep) -> bool:
    """Whether the pool is so large that each block is one square without cells."""
    return lay_out(step.num_blocks, step.block_size).height > _TALLEST


def draw_access_grid(d: Drawing, step: PagedStep, reader: str | None, x: float, y: float) -> float:
    """All blocks of the pool. Returns the height used.

    Args:
        reader: the request that reads; all requests if None.
    """
    lot, squares = lay_out(step.num_blocks, step.block_size), drawn_as_squares(step)
    blocks = _blocks(step, reader, lot if lot.cell >= _HOVER_CELL and not squares else None)
    if squares:
        return _squares(d, blocks, x, y)
    width, height = lot.bay
    for block in blocks:
        row, column = divmod(block.number, lot.columns)
        with d.marked([(name, str(block.number)) for name in block.owners] or [("free", str(block.number))]):
            _bay(d, lot, block, x + column * (width + GAP), y + row * (height + GAP))
    return lot.height


def _blocks(step: PagedStep, reader: str | None, lot: Lot | None) -> list[_Block]:
    owners, size, blocks = holdings(pool_after(step)), step.block_size, []
    written: dict[int, set[int]] = {}
    for slots in step.written.values():
        for slot in slots:
            written.setdefault(slot // size, set()).add(slot % size)
    for block in range(step.num_blocks):
        own, new = owners.get(block, []), frozenset(written.get(block, ()))
        held = next((holder for holder in own if holder.request == reader), own[0] if own else None)
        runs = _alike(lot, size, held.tokens, new) if held and lot else []
        titles = [(run, access_cells_title(block, run, held, step, reader, run.start in new)) for run in runs]
        blocks.append(
            _Block(
                number=block,
                size=size,
                held=held,
                owners=tuple(holder.request for holder in own),
                is_read=held is not None and reader in (None, held.request),
                written=new,
                title=access_block_title(block, held, step, reader) if step.num_blocks <= _MOST_HOVERS else "",
                titles=tuple(titles),
            )
        )
    return blocks


def _alike(lot: Lot, size: int, tokens: int, new: frozenset[int]) -> list[range]:
    """Offsets that share a hover text: where cells are small, a run in one line, since a text for each cell would be
    a thousand elements, more than a player can exchange in a frame.
    """
    starts = [
        n
        for n in range(size)
        if n % lot.per_line == 0 or lot.cell >= _NUMBER_CELL or n == tokens or (n in new) != (n - 1 in new)
    ]
    return [range(start, end) for start, end in pairwise([*starts, size])]


def _squares(d: Drawing, blocks: list[_Block], x: float, y: float) -> float:
    """A square for each block, filled in proportion to its tokens. Returns the height used."""
    size = next(
        (size for size in range(16, 4, -1) if math.ceil(len(blocks) / (LOT_WIDTH // size)) * size <= _TALLEST), 4
    )
    columns, side, edge = LOT_WIDTH // size, size - 1, 2 if size > 8 else 1
    layers: list[dict[str, list[str]]] = [
        {},
        {},
        {},
    ]  # colour -> what is drawn in it: blocks, tokens, blocks that are written
    free, frames = [], []
    dots: dict[str, list[str]] = {}  # color of the dots -> where they are
    for block in blocks:
        left, top = x + block.number % columns * size, y + block.number // columns * size
        if not block.held and not block.written:
            free.append(f"M{number(left + 0.5)} {number(top + 0.5)}h{side - 1}v{side - 1}h{1 - side}z")
            continue
        square, full = f"M{number(left)} {number(top)}h{side}v{side}h{-side}z", side * block.tokens / block.size
        layers[0].setdefault(mix(block.colour, PAPER, HELD), []).append(square)
        layers[1].setdefault(block.shade, []).append(
            f"M{number(left)} {number(top + side)}h{side}v{number(-full)}h{-side}z"
        )
        if block.written:
            layers[2].setdefault(block.colour, []).append(square)
            frames.append(
                f"M{number(left + edge / 2)} {number(top + edge / 2)}h{side - edge}v{side - edge}h{edge - side}z"
            )
        if block.is_read:
            ink = text_on(block.colour) if block.written else INK
            dots.setdefault(ink, []).append(f"M{number(left + side / 2)} {number(top + side / 2)}h.5")
    d.lines("".join(free), EDGE)
    for fill, paths in [item for layer in layers for item in layer.items()]:
        d.lines("".join(paths), "none", fill=fill)
    d.lines("".join(frames), INK, edge)
    for ink, places in dots.items():
        d.lines("".join(places), ink, size / 4, dots=size)
    if len(blocks) <= _MOST_HOVERS:
        d.hover_grid(
            x,
            y,
            size,
            size,
            [[block.title for block in blocks[n : n + columns]] for n in range(0, len(blocks), columns)],
        )
    return math.ceil(len(blocks) / columns) * size


def _bay(d: Drawing, lot: Lot, block: _Block, x: float, y: float) -> None:
    """A block: its id, its owner and which of the owner's blocks it is, and its cells."""
    (width, height), held = lot.bay, block.held
    fill, edge = (mix(block.colour, PAPER, HELD), outline(block.colour)) if held else (PAPER, EDGE)
    d.rect(x, y, width, height, fill, edge, radius=3, title=block.title)
    d.text(x + 5, y + HEAD / 2 + 0.5, str(block.number), 11, fill=INK if held else SOFT_INK, mono=True)
    if held:
        _owner(d, block, x + width, y, width - 7 * len(str(block.number)) - 9)
    left, top = x + (width - lot.per_line * lot.cell) / 2, y + HEAD
    for start in range(0, block.size, lot.per_line):
        _cells(d, lot, block, range(start, min(start + lot.per_line, block.size)), left, top)
        top += lot.cell_height


def _owner(d: Drawing, block: _Block, right: float, y: float, room: float) -> None:
    """At the upper right corner of a bay: "B 2", the second block of B; or just B if there is no room."""
    names = "+".join(block.owners)
    name = names if len(names) <= 3 else f"{names[:2]}…"
    label = f"{name} {block.held.start // block.size + 1}"
    label = label if 6 * len(label) + 6 <= room else name
    width = max(13.0, 6 * len(label) + 6)
    fill = block.colour if block.is_read else mix(block.colour, PAPER, NOT_READ)
    d.rect(right - width - 2.5, y + 2.5, width, 13, fill, radius=2)
    d.text(right - 2.5 - width / 2, y + 9, label, 10.5, "middle", bold=True, on=fill)


def _cells(d: Drawing, lot: Lot, block: _Block, offsets: range, x: float, y: float) -> None:
    """One line of a block's cells."""
    start, height = offsets.start, lot.cell_height - 1
    filled = min(max(block.tokens, start), offsets.stop) - start
    _path(d, lot, 0, filled, x, y, block.shade, "none")
    _path(d, lot, filled, len(offsets), x, y, "none", mix(block.colour, PAPER, 0.4) if block.held else EDGE)
    if block.held and filled < len(offsets):
        d.hatch(x + filled * lot.cell, y, (len(offsets) - filled) * lot.cell - 1, height)
    new = sorted(block.written.intersection(offsets))
    edge = min(2.0, lot.cell / 4)
    for offset in new:
        left, width = x + (offset - start) * lot.cell + edge / 2, lot.cell - 1 - edge
        d.rect(left, y + edge / 2, width, height - edge, block.colour, INK, edge)
    middle, numbered = x + (lot.cell - 1) / 2, lot.cell >= _NUMBER_CELL
    if block.is_read and filled:
        # beside the number, in the corner
        first, line = (x + lot.cell - 5.5, y + 4) if numbered else (middle, y + height / 2)
        for is_new, run in groupby(range(filled), lambda n: start + n in block.written):
            cells = list(run)
            d.lines(
                f"M{number(first + cells[0] * lot.cell)} {number(line)}h{number((len(cells) - 1) * lot.cell + 0.5)}",
                text_on(block.colour) if is_new else INK,
                max(1.6, min(lot.cell / 4, 4)),
                dots=lot.cell,
            )
    if numbered:
        for n in range(filled):
            d.text(
                middle + n * lot.cell,
                y + 7.5,
                str(block.held.start + start + n),
                10,
                "middle",
                bold=start + n in new,
                on=block.colour if start + n in new else block.shade,
            )
    for run, title in block.titles:
        if run.start in offsets:
            d.rect(x + (run.start - start) * lot.cell, y, len(run) * lot.cell, height, "transparent", title=title)


def _path(d: Drawing, lot: Lot, first: int, end: int, x: float, y: float, fill: str, edge: str) -> None:
    """Cells side by side; one bar if they are too small to tell apart."""
    if end <= first:
        return
    size, height, left = lot.cell, lot.cell_height - 1, x + first * lot.cell
    if size < _HOVER_CELL:
        path = f"M{number(left)} {number(y)}h{(end - first) * size - 1}v{height}H{number(left)}z"
    else:
        path = "".join(
            f"M{number(left + n * size)} {number(y)}h{size - 1}v{height}h{1 - size}z" for n in range(end - first)
        )
    d.lines(path, edge, fill=fill)
