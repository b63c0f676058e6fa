"""The mask of a forward pass over a packed row, drawn in runs: keys in the cache on the left, keys of the row on the
right.

`mask_grid` draws every cell, with a hover text. A pass has too many cells for that: 4 decodes attend to hundreds of
cached keys.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch

from lessons_lib.attention.masks import Tags, not_in_the_future, same_sequence
from lessons_lib.attention.packing import PackedBatch, key_tags, packed_mask
from lessons_lib.recording.mask_text import ranges, reason
from lessons_lib.recording.words import runs_of
from lessons_lib.viz.drawing.palette import EDGE, INK, PAPER, SOFT_INK, color_of, mix
from lessons_lib.viz.drawing.svg import WIDTH, Drawing, number, share_text

_GAP, _RIGHT, _BAND = 16, 16, 18
_HEAD = 60.0  # the minimum width for the words above the columns
_TALLEST, _MOST_HEIGHT = 16.0, 400.0  # of one query's row, and of all rows
_LINED_ROW, _LABELLED_ROW = 6, 11  # lower rows have no lines between them and no labels of their own
_MOST_QUERIES = 160  # with more, runs are too thin to point at, and there would be thousands
_MOST_NAMED = 3  # sequences that one hover text names


@dataclass(frozen=True)
class _Grid:
    """What is drawn, and where: `cached` narrow columns, a gap, then new ones, in which cells are squares of `size`."""

    packed: PackedBatch
    names: Sequence[str]
    mask: torch.Tensor
    left: float
    top: float
    cached: int
    narrow: float
    size: float

    @property
    def keys(self) -> list[tuple[int, int]]:
        """(sequence id, position) of every column."""
        tags = key_tags(self.packed)
        return list(zip(tags.seq_ids.tolist(), tags.positions.tolist()))

    def span(self, start: int, end: int) -> tuple[float, float]:
        """Left edge and width of columns start to end - 1, all of them cached or all of them new."""
        if start < self.cached:
            return self.left + start * self.narrow, (end - start) * self.narrow
        before = self.cached * self.narrow + (_GAP if self.cached else 0)
        return self.left + before + (start - self.cached) * self.size, (end - start) * self.size

    def y(self, query: int) -> float:
        return self.top + query * self.size

    def sequences(self) -> list[tuple[str, int, int]]:
        """(name, first column, column after the last) of each sequence's cached keys, then of its new keys."""
        bounds = torch.tensor([0, *self.packed.cached_lens, *self.packed.new_lens]).cumsum(0).tolist()
        return [
            (name, start, end)
            for name, (start, end) in zip([*self.names, *self.names], pairwise(bounds))
            if end > start
        ]


def draw_pass_mask(d: Drawing, packed: PackedBatch, names: Sequence[str], left: float, y: float) -> float:
    """Draw the mask on the sheet, with labels left of `left` and square cells of new keys. Returns the y below it."""
    count, cached = len(packed.input_ids), sum(packed.cached_lens)
    if not count:
        d.text(16, y + 10, "The row is empty: no mask.", 12, fill=SOFT_INK)
        return y + 24
    size = min(_TALLEST, _MOST_HEIGHT / count)
    size = float(int(size)) if size >= 2 else size  # fractions leave hairlines between the rows
    room = WIDTH - left - _RIGHT - _GAP - count * size
    narrow = min(max(_TALLEST, _HEAD / cached), room / cached) if cached else 0.0
    grid = _Grid(packed, names, packed_mask(packed), left, y + 40 + _BAND, cached, narrow, size)
    d.text(16, y + 8, _sums(grid.mask, cached), 13, bold=True)
    _heads(d, grid)
    if count <= _MOST_QUERIES:
        _hovers(d, grid)
    _fills(d, grid)
    _lines(d, grid)
    _row_labels(d, grid)
    words = "a row: a new token as query · a column: a key · colored: it may attend"
    d.text(left, grid.y(count) + 14, words, 12, fill=SOFT_INK)
    return grid.y(count) + 20


def describe_pass_mask(packed: PackedBatch) -> str:
    """The mask in words."""
    rule = "Each query attends to the keys of its own sequence up to its own position, and to no other."
    return f"{_sums(packed_mask(packed), sum(packed.cached_lens))}. {rule}" if len(packed.input_ids) else "No mask."


def _sums(mask: torch.Tensor, cached: int) -> str:
    seen, cells, (queries, keys) = int(mask.sum()), mask.numel(), mask.shape
    asking = "1 query" if queries == 1 else f"{queries:,} queries"
    size = f"{asking} × {keys:,} keys, {cached:,} cached and {keys - cached:,} new"
    return f"Mask: {size}; {seen:,} of {cells:,} cells may attend ({share_text(seen, cells)})"


def _heads(d: Drawing, grid: _Grid) -> None:
    """Above the columns: cached or new, and of which sequence."""
    y = grid.top - _BAND
    if grid.cached:
        _, width = grid.span(0, grid.cached)
        d.text(grid.left, y - 10, "keys in the cache" if width > 110 else "cached", 12, fill=SOFT_INK)
    x, width = grid.span(grid.cached, grid.mask.shape[1])
    fits = x + _HEAD < WIDTH - _RIGHT
    d.text(x if fits else x + width, y - 10, "new keys", 12, "start" if fits else "end", fill=SOFT_INK)
    keys = grid.keys
    for name, start, end in grid.sequences():
        x, width = grid.span(start, end)
        fill, words = color_of(name), ranges(keys[start:end], grid.names)
        with d.marked([(name,)]):
            d.rect(x, y, width, _BAND - 3, fill, title=words)
        label = next((text for text, edge in ((words, 4), (name, 2)) if 6.6 * len(text) + edge < width), "")
        d.text(x + width / 2, y + _BAND / 2 - 1.5, label, 11, "middle", bold=True, on=fill)


def _row_labels(d: Drawing, grid: _Grid) -> None:
    """The tag of each query; where rows are thin, only those of a sequence's first and last."""
    owners, positions = grid.packed.seq_ids.tolist(), grid.packed.positions.tolist()
    ends = {index for start, end in pairwise(grid.packed.cu_seqlens_q.tolist()) for index in (start, end - 1)}
    size = min(11.0, max(9.0, grid.size))
    free = 0.0
    for index in range(len(owners)) if grid.size >= _LABELLED_ROW else sorted(ends):
        middle = grid.y(index) + grid.size / 2
        if middle - size / 2 >= free:
            d.text(grid.left - 8, middle, f"{grid.names[owners[index]]} {positions[index]}", size, "end", fill=SOFT_INK)
            free = middle + size / 2


def _hovers(d: Drawing, grid: _Grid) -> None:
    """Invisible hover areas, one for each row; one for each run of cells would be too many for a player."""
    packed, keys = grid.packed, grid.keys
    own = same_sequence(Tags(packed.seq_ids, packed.positions), key_tags(packed))
    x, width = grid.span(len(keys) - 1, len(keys))
    for query, kinds in enumerate((grid.mask.int() * 2 + own.int()).tolist()):
        told = [
            _say(kind // 2, kind % 2, [key for key, its in zip(keys, kinds) if its == kind], grid.names)
            for kind in sorted({*kinds}, reverse=True)
        ]
        title = f"{grid.names[packed.seq_ids[query]]}, position {int(packed.positions[query])}, {'; '.join(told)}."
        d.rect(grid.left, grid.y(query), x + width - grid.left, grid.size, PAPER, title=title)


def _say(may: int, is_own: int, keys: list[tuple[int, int]], names: Sequence[str]) -> str:
    """What a query may or may not do with keys of one kind, and why."""
    count = len({seq_id for seq_id, _ in keys})
    targets = ranges(sorted(keys), names) if count <= _MOST_NAMED else f"{len(keys)} keys of {count} other sequences"
    if may:
        return f"may attend to {targets}: {reason(same_sequence)[0]}, {reason(not_in_the_future)[0]}"
    return f"not to {targets}: {reason(not_in_the_future if is_own else same_sequence)[1]}"


def _fills(d: Drawing, grid: _Grid) -> None:
    """The allowed cells, one shape per sequence, with an edge at the end of every run."""
    cells = grid.mask.tolist()
    for name, (first, last) in zip(grid.names, pairwise(grid.packed.cu_seqlens_q.tolist())):
        shape, edges, high = "", "", number(grid.size)
        for query in range(first, last):
            for part in (range(grid.cached), range(grid.cached, len(cells[query]))):
                for may, start, size in runs_of([cells[query][key] for key in part]):
                    if may:
                        x, width = grid.span(part.start + start, part.start + start + size)
                        top = number(grid.y(query))
                        shape += f"M{number(x)} {top}h{number(width)}v{high}h{number(-width)}z"
                        edges += f"M{number(x + width)} {top}v{high}"
        with d.marked([(name,)]):
            d.lines(shape, "none", fill=color_of(name))
        if grid.size >= 2:
            d.lines(edges, mix(color_of(name), INK, 0.5))


def _lines(d: Drawing, grid: _Grid) -> None:
    """A frame around both parts, lines between sequences, and thin lines between rows that are high enough."""
    bounds = grid.packed.cu_seqlens_q.tolist()
    height = grid.y(bounds[-1]) - grid.top
    rows, between = [], []
    for start, end in ((0, grid.cached), (grid.cached, grid.mask.shape[1])):
        x, width = grid.span(start, end)
        if width:
            across = f"h{number(width)}"
            rows += [f"M{number(x)} {number(grid.y(query))}{across}" for query in range(bounds[-1])]
            between += [f"M{number(x)} {number(grid.y(query))}{across}" for query in bounds]
    for _, start, end in grid.sequences():
        x, width = grid.span(start, end)
        between += [f"M{number(edge)} {number(grid.top)}v{number(height)}" for edge in (x, x + width)]
    if grid.size >= _LINED_ROW:
        d.lines("".join(rows), EDGE, 0.5)
    d.lines("".join(between), EDGE)
