"""A mask as a grid: one row per query, one column per key, colored where the query may attend to the key.

A cell has the color of the query's sequence. Letters and positions are at the edges, and hovering over a cell describes
it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from lessons_lib.attention.masks import PADDING, RULES, Tags, combine
from lessons_lib.recording.mask_text import cached_keys, count_text, describe_mask, names_for, read_pairs, read_row
from lessons_lib.recording.words import check_index, count, runs_of
from lessons_lib.viz.drawing.palette import INK, NEUTRAL, PAPER, SOFT_INK, color_of, halo_on, mix, text_on
from lessons_lib.viz.drawing.picture import Picture
from lessons_lib.viz.drawing.svg import WIDTH, Drawing, number
from lessons_lib.viz.masks.token_axis import TokenAxis

LARGEST = 100  # queries, and keys; with more, cells would be too small to tell apart
_MARGIN, _RIGHT, _BAND, _TICKS = 32, 16, 20, 26  # pixels; the letters are in the band, the ticks are the positions
_WIDEST, _NARROWEST, _READABLE, _MOST_HEIGHT = 34, 6, 16, 640  # of a cell; and of all rows
_DOT_CELL = 8  # narrower cells have no dot
_GRID = "#DCDCD7"
_BLOCK_EDGE = "#8A8A86"
_PADDED = "#ECECE7"  # blocked, and padding
_PADDING_AT_WORK = mix(NEUTRAL, INK, 0.3)


@dataclass(frozen=True)
class _Sheet:
    """What is drawn, and where: for each query, for each key, whether it may attend, and whether the rules differ."""

    rows: TokenAxis
    columns: TokenAxis
    may: list[list[bool]]
    differs: list[list[bool]]
    cached: list[bool]
    band: int

    @property
    def left(self) -> int:
        return _MARGIN + self.band + _TICKS


def draw_mask(
    mask: torch.Tensor, queries: Tags, keys: Tags, names: Sequence[str] | None = None, row: int | None = None,
    rules=RULES, title: str = "",
) -> Picture:  # fmt: skip
    """The mask as a grid of cells. Cells where the mask differs from the rules are crossed out.

    Args:
        mask: bool [queries, keys], True where the query may attend; 1 to 100 of each, else ValueError.
        queries, keys: Tags of the rows and columns. Keys that are not among the queries are in the cache.
        names: one for each sequence id; A, B, ... if not given.
        row: index of a query whose row is framed, and described below the grid.
        rules: the rules of the mask; they give the reasons in the hover texts.
    """
    _check(mask, queries, keys, row)
    names = names_for(queries, keys) if names is None else names
    sheet = _lay_out(mask, queries, keys, names, rules)
    read = read_row(mask, queries, keys, row, names) if row is not None else ""
    d = Drawing()
    if title:
        d.text(16, 20, title, 15, bold=True)
    y = _column_labels(d, sheet, 44.0 if title else 14.0)
    _row_labels(d, sheet, y)
    _cells(d, sheet, y)
    _lines(d, sheet, y)
    _crosses(d, sheet, y)
    if row is not None:
        top = y + row * sheet.rows.cell
        d.lines(f"M18 {number(top + sheet.rows.cell / 2 - 6)}l10 6l-10 6z", "none", fill=INK)
        d.rect(sheet.left - 1, top, sheet.columns.length + 2, sheet.rows.cell, "none", INK, 2)
    d.hover_grid(sheet.left, y, sheet.columns.cell, sheet.rows.cell, read_pairs(queries, keys, names, rules, mask))
    y += sheet.rows.length + 10
    y = d.paragraph(16, y + 10, read, 115, 14, 20, bold=True) - 10
    d.height = _legend(d, sheet, y)
    told = [f"{title}." if title else "", describe_mask(mask, queries, keys, names, rules), read]
    return d.picture(" ".join(filter(None, told)))


def _check(mask: torch.Tensor, queries: Tags, keys: Tags, row: int | None) -> None:
    shape = [len(queries), len(keys)]
    if list(mask.shape) != shape:
        raise ValueError(
            f"the mask has the shape {list(mask.shape)}; with {shape[0]} queries and {shape[1]} keys it must have "
            f"{shape}."
        )
    if mask.dtype != torch.bool:
        raise ValueError(
            f"the mask is of dtype {mask.dtype}; it must be torch.bool, True where attending is allowed. For an "
            "additive mask, draw `mask == 0`."
        )
    if max(shape) > LARGEST or not min(shape):
        raise ValueError(
            f"{shape[0]} queries and {shape[1]} keys; 1 to {LARGEST} of each can be drawn. Draw a part of the mask."
        )
    if row is not None:
        check_index("row", row, len(queries))


def _lay_out(mask: torch.Tensor, queries: Tags, keys: Tags, names: Sequence[str], rules) -> _Sheet:
    band = min(90, max([_BAND, *(8 * len(name) + 8 for name in names)]))
    tallest = max(_NARROWEST, _MOST_HEIGHT // len(queries))
    width = min(_WIDEST, tallest, (WIDTH - _MARGIN - band - _TICKS - _RIGHT) // len(keys))
    # Squares, unless rows would be too low to read the labels of a few queries.
    columns, rows = TokenAxis.of(keys, names, width), TokenAxis.of(queries, names, max(width, min(_READABLE, tallest)))
    differs = mask != combine(rules, queries, keys)
    return _Sheet(rows, columns, mask.tolist(), differs.tolist(), cached_keys(queries, keys), band)


def _column_labels(d: Drawing, sheet: _Sheet, y: float) -> float:
    """What is cached, letters and positions above the grid. Returns the y of the grid."""
    columns = sheet.columns
    if any(sheet.cached):
        for is_cached, start, size in runs_of(sheet.cached):
            words = "cached" if is_cached else "new"
            if size * columns.cell >= 6.5 * len(words):
                d.text(sheet.left + (start + size / 2) * columns.cell, y + 5, words, 12, "middle", fill=SOFT_INK)
        y += 16
    d.text(sheet.left - 8, y + _BAND / 2, "key →", 12, "end", fill=SOFT_INK)
    for seq_id, start, size in columns.runs():
        d.rect(sheet.left + start * columns.cell + 0.5, y, size * columns.cell - 1, _BAND, columns.colour(seq_id))
    for seq_id, middle, size in columns.letters(upright=False):
        label, ground = columns.label(seq_id), columns.colour(seq_id)
        d.text(sheet.left + middle, y + _BAND / 2, label, size, "middle", bold=True, on=ground)
    for index, position in columns.ticks(upright=False):
        d.text(sheet.left + (index + 0.5) * columns.cell, y + _BAND + 8, position, 11, "middle", fill=SOFT_INK)
    return y + _BAND + 18


def _row_labels(d: Drawing, sheet: _Sheet, y: float) -> None:
    rows = sheet.rows
    d.text(_MARGIN, y - 10, "query ↓", 12, fill=SOFT_INK)
    for seq_id, start, size in rows.runs():
        d.rect(_MARGIN, y + start * rows.cell + 0.5, sheet.band, size * rows.cell - 1, rows.colour(seq_id))
    for seq_id, middle, size in rows.letters(upright=True):
        label, most = rows.label(seq_id), sheet.band // 8
        label = label if len(label) <= most else label[: most - 1] + "…"
        d.text(_MARGIN + sheet.band / 2, y + middle, label, size, "middle", bold=True, on=rows.colour(seq_id))
    for index, position in rows.ticks(upright=True):
        d.text(sheet.left - 6, y + (index + 0.5) * rows.cell, position, 11, "end", fill=SOFT_INK)


def _cells(d: Drawing, sheet: _Sheet, y: float) -> None:
    """Fills, one path per color, and a dot in every allowed cell: color is never the only cue."""
    wide, high = sheet.columns.cell, sheet.rows.cell
    for seq_id, start, size in sheet.columns.runs():
        if seq_id == PADDING:
            d.rect(sheet.left + start * wide, y, size * wide, sheet.rows.length, _PADDED)
    for seq_id, start, size in sheet.rows.runs():
        if seq_id == PADDING:
            d.rect(sheet.left, y + start * high, sheet.columns.length, size * high, _PADDED)
    fills: dict[str, list[str]] = {}
    dots: dict[str, list[str]] = {}
    for index, ((seq_id, _), flags) in enumerate(zip(sheet.rows.tokens, sheet.may)):
        fill, top = _PADDING_AT_WORK if seq_id == PADDING else sheet.rows.colour(seq_id), y + index * high
        for flag, start, size in runs_of(flags):
            if flag:
                x = sheet.left + start * wide
                fills.setdefault(fill, []).append(f"M{x} {number(top)}h{size * wide}v{high}h-{size * wide}z")
                # Slightly past the last dot, so that rounding doesn't drop it.
                dots.setdefault(fill, []).append(
                    f"M{number(x + wide / 2)} {number(top + high / 2)}h{number((size - 1) * wide + 0.5)}"
                )
    for fill, paths in fills.items():
        d.lines("".join(paths), "none", fill=fill)
    for fill, paths in dots.items() if wide >= _DOT_CELL else ():
        _dots(d, "".join(paths), fill, wide / 5, wide)


def _dots(d: Drawing, path: str, fill: str, size: float, gap: float) -> None:
    """Dots on a color, with a rim where they need one in the dark."""
    if rim := halo_on(fill):
        d.lines(path, rim, size + 2, dots=gap)
    d.lines(path, text_on(fill), size, dots=gap)


def _lines(d: Drawing, sheet: _Sheet, y: float) -> None:
    """The grid lines: darker between sequences, darkest between cached and new keys."""

    def lines(rows, columns) -> str:
        across = "".join(
            f"M{sheet.left} {number(y + index * sheet.rows.cell)}h{sheet.columns.length}" for index in rows
        )
        return across + "".join(
            f"M{sheet.left + index * sheet.columns.cell} {number(y)}v{sheet.rows.length}" for index in columns
        )

    def bounds(axis: TokenAxis) -> list[int]:
        return [*(start for _, start, _ in axis.runs()), len(axis)]

    thin = 1 if sheet.columns.cell >= 10 else 0.5
    d.lines(lines(range(1, len(sheet.rows)), range(1, len(sheet.columns))), _GRID, thin)
    d.lines(lines(bounds(sheet.rows), bounds(sheet.columns)), _BLOCK_EDGE)
    top, height = number(y - _BAND - 34), number(sheet.rows.length + _BAND + 34)
    edges = [start for _, start, _ in runs_of(sheet.cached)[1:]]
    if edges:
        d.lines("".join(f"M{sheet.left + index * sheet.columns.cell} {top}v{height}" for index in edges), INK, 2)


def _crosses(d: Drawing, sheet: _Sheet, y: float) -> None:
    wide, high = sheet.columns.cell, sheet.rows.cell
    across, down = number(0.56 * wide), number(0.56 * high)
    path = "".join(
        f"M{number(sheet.left + (column + 0.22) * wide)} {number(y + (row + 0.22) * high)}l{across} "
        f"{down}m0-{down}l-{across} {down}"
        for row, flags in enumerate(sheet.differs)
        for column, flag in enumerate(flags)
        if flag
    )
    if path:
        d.lines(path, PAPER, 3.5)  # a rim: the cells below have any color
        d.lines(path, INK, 1.5)


def _legend(d: Drawing, sheet: _Sheet, y: float) -> float:
    """The legend, and how many cells may attend. Returns the y below it."""
    d.text(16, y + 12, count_text(sheet.may), 13, bold=True)
    y += 26
    x = 16.0
    wrong = sum(map(sum, sheet.differs))
    example = next((sheet.rows.colour(seq_id) for seq_id, _ in sheet.rows.tokens if seq_id != PADDING), color_of("A"))
    signs = [("may attend (color of the query)", example), ("blocked", PAPER)]
    signs += [("padding", _PADDED)] * (PADDING in dict(sheet.rows.tokens + sheet.columns.tokens))
    signs += [(f"not as the rules say: {count(wrong, 'cell')}", PAPER)] * (wrong > 0)
    for words, fill in signs:
        d.rect(x + 0.5, y + 0.5, 17, 17, fill, _BLOCK_EDGE)
        if words.startswith("may"):
            _dots(d, f"M{number(x + 9)} {number(y + 9)}h.5", fill, 3.5, 9)
        if words.startswith("not"):
            d.lines(f"M{number(x + 4)} {number(y + 4)}l10 10m0-10l-10 10", INK, 1.5)
        d.text(x + 25, y + 9, words, 12, fill=SOFT_INK)
        x += 52 + 5.6 * len(words)
    return y + 30
