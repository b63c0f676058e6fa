"""What one packed row does in the pool: a few cells are written, many are read, none are moved.

The new tokens of the row are at the top, each above the cache slot that it is written to. In the grid, this row writes
the cells in their request's full color with a dark frame, and reads the cells with a dot.
"""

from __future__ import annotations

from lessons_lib.recording.paged_steps import PagedStep, named_slots
from lessons_lib.viz.drawing.faults import draw_faults
from lessons_lib.viz.drawing.palette import EDGE, INK, PAPER, SOFT_INK, color_of, mix
from lessons_lib.viz.drawing.picture import Picture
from lessons_lib.viz.drawing.svg import WIDTH, Drawing, flow, number
from lessons_lib.viz.pool.access_grid import HELD, NOT_READ, READ, draw_access_grid, drawn_as_squares
from lessons_lib.viz.pool.access_words import access_block_title, access_faults, describe_access, run_title, title
from lessons_lib.viz.pool.words import Holding, count

_LEFT, _PANEL = 16, 262  # margin, width of the list of requests
_ROW_LEFT = 92  # where the row's tokens start
_TOKEN, _WIDEST = 28, 64.0  # height of a token's cell, and its width where the row is short
_MOST_IN_FULL = 6  # with more requests, their blocks are only counted
_MOST_LISTED = 24
_CHIP, _CHIP_LINES = 20, 4


def draw_pool_access(step: PagedStep, reader: str | None = None) -> Picture:
    """The pool while one row is computed. Pools of one size make pictures of one height, unless many requests are
    listed.

    Args:
        step: one of `RecordedRun.accesses`.
        reader: show only what this request reads; if None, what all requests read.

    Raises:
        ValueError: the row has no such request.
    """
    if reader is not None and reader not in step.tables:
        raise ValueError(
            f"no request {reader!r} in this row; there are {', '.join(step.tables) or 'none'}. Give one of them, or "
            "None for all."
        )
    d = Drawing()
    d.text(_LEFT, 20, title(step, reader), 15, bold=True)
    y = _row(d, step, 40)
    d.lines(f"M{_LEFT} {number(y)}H{WIDTH - _LEFT}", EDGE)
    y += 6
    sign = "a square is a block" if drawn_as_squares(step) else "a slot has room for one token's keys and values"
    d.text(
        _LEFT,
        y + 8,
        f"{count(step.num_blocks, 'block')} of {count(step.block_size, 'slot')}; {sign}",
        12,
        fill=SOFT_INK,
    )
    height = draw_access_grid(d, step, reader, _LEFT, y + 20)
    right = _requests(d, step, reader, y)
    d.height = _footer(d, step, reader, max(y + 28 + height, right, y + 200))
    return d.picture(describe_access(step, reader))


def _row(d: Drawing, step: PagedStep, y: float) -> float:
    """The new tokens of the row in one line, and below them the cache slots they go to. Returns the y below it."""
    tokens = sum(map(len, step.written.values()))
    d.text(_ROW_LEFT - 10, y + 7, "new tokens,", 12, "end", fill=SOFT_INK)
    d.text(_ROW_LEFT - 10, y + 21, "positions", 12, "end", fill=SOFT_INK)
    d.text(_ROW_LEFT - 10, y + _TOKEN + 17, "go to slots", 12, "end", fill=SOFT_INK)
    width = min(_WIDEST, (WIDTH - _LEFT - _ROW_LEFT) / max(tokens, 1))
    x = float(_ROW_LEFT)
    for name, slots in step.written.items():
        position = step.context_lens[name] - len(slots)
        for run in _runs(slots, step.block_size):
            with d.marked([(name, str(run[0] // step.block_size))]):
                _token_run(d, step, name, position, run, x, y, width)
            x, position = x + len(run) * width, position + len(run)
    return y + _TOKEN + 34


def _runs(slots: tuple[int, ...], block_size: int) -> list[tuple[int, ...]]:
    """Slots, split where the next one isn't adjacent in the same block."""
    runs: list[list[int]] = []
    for slot in slots:
        if runs and slot == runs[-1][-1] + 1 and slot % block_size:
            runs[-1].append(slot)
        else:
            runs.append([slot])
    return [tuple(run) for run in runs]


def _token_run(
    d: Drawing, step: PagedStep, name: str, position: int, run: tuple[int, ...], x: float, y: float, width: float
) -> None:
    colour, size = color_of(name), len(run) * width
    d.rect(
        x + 0.75,
        y,
        max(size - 1.5, size / 2),
        _TOKEN,
        colour,
        radius=min(3, size / 4),
        title=run_title(step, name, position, run),
    )
    if width >= 5:
        d.lines("".join(f"M{number(x + n * width)} {number(y + _TOKEN - 8)}v8" for n in range(1, len(run))), PAPER)
    last = position + len(run) - 1
    positions = str(position) if len(run) == 1 else f"{position} to {last}"
    _fitting(
        d,
        x + size / 2,
        y + _TOKEN / 2 - (3 if len(run) > 1 else 0),
        (f"{name} {positions}", name),
        size,
        colour,
    )
    if size >= 9:
        d.lines(f"M{number(x + size / 2)} {number(y + _TOKEN + 1)}v7", INK, arrow=True)
    slots = str(run[0]) if len(run) == 1 else f"{run[0]} to {run[-1]}"
    _fitting(d, x + size / 2, y + _TOKEN + 17, (slots, slots.replace(" to ", "–"), f"{run[0]}…"), size, PAPER)


def _fitting(d: Drawing, x: float, y: float, texts: tuple[str, ...], room: float, on: str) -> None:
    """The first of the texts that fits, centered at x; nothing if none does."""
    text = next((text for text in texts if 6.7 * len(text) + 3 <= room), None)
    if text:
        d.text(x, y, text, 12, "middle", bold=True, on=on)


def _requests(d: Drawing, step: PagedStep, reader: str | None, y: float) -> float:
    """Which slots each request writes, and which blocks it reads in which order. Returns the y below it."""
    x, names = WIDTH - _LEFT - _PANEL, list(step.written)
    in_full = names if len(names) <= _MOST_IN_FULL else [reader] * (reader is not None)
    listed = in_full if reader is not None and len(names) > _MOST_LISTED else names[:_MOST_LISTED]
    head = "blocks in the order read; framed: written to" if in_full else "slots written; tokens and blocks read"
    d.text(x, y + 8, head if names else "no request in the row", 12, fill=SOFT_INK)
    y += 20
    for name in listed:
        with d.marked([(name,)]):
            slots, room = step.written[name], _PANEL - 8 - d.request_chip(x, y, name)
        left, tokens, blocks = WIDTH - _LEFT - room, step.context_lens[name], len(step.tables[name])
        if name not in in_full:
            wrote = named_slots(slots) if len(slots) == 1 else f"{len(slots):,} slots"
            d.text(
                left, y + _CHIP / 2, wrote if reader else f"{wrote}; reads {tokens:,} in {count(blocks, 'block')}", 12
            )
            y += 24
            continue
        wrote = f"writes {named_slots(slots)}"
        d.text(
            left,
            y + _CHIP / 2,
            wrote if 6.4 * len(wrote) <= room else f"writes {len(slots):,} slots, the first is {slots[0]}",
            12,
            bold=True,
        )
        y += 24
        if reader in (None, name):
            d.text(left, y + 4, f"reads {count(tokens, 'token')} in {count(blocks, 'block')}:", 12)
            y = _blocks_read(d, step, name, left, y + 14, 3 * _CHIP_LINES if reader else _CHIP_LINES)
        y += 6
    if len(listed) < len(names):
        d.text(x, y + 8, f"and {count(len(names) - len(listed), 'request')} more", 12, fill=SOFT_INK)
        y += 20
    return y


def _blocks_read(d: Drawing, step: PagedStep, name: str, x: float, y: float, most_lines: int) -> float:
    """A request's blocks in the order of its tokens; those that the row writes to are framed. Returns the y below
    them.
    """
    blocks, written = step.tables[name], {slot // step.block_size for slot in step.written[name]}
    width, room = max(24.0, 8.0 * len(str(step.num_blocks - 1)) + 8), WIDTH - _LEFT - x
    a_line = int((room + 4) // (width + 4))
    shown: list[int | None] = list(range(len(blocks)))
    if len(shown) > a_line * most_lines:
        # The end is always shown: the new tokens go there.
        tail = a_line - 2
        shown = [*shown[: a_line * most_lines - tail - 2], None, *shown[-tail:]]
    places = flow([2 * width + 4 if index is None else width for index in shown], room)
    for index, (line, left) in zip(shown, places):
        left, top = x + left, y + 24 * line
        if index is None:
            d.text(
                left + width + 2, top + _CHIP / 2, f"{len(blocks) - len(shown) + 1} more", 11, "middle", fill=SOFT_INK
            )
            continue
        block, start = blocks[index], index * step.block_size
        held = Holding(name, start, min(max(step.context_lens[name] - start, 0), step.block_size))
        fill, stroke = (color_of(name), INK) if block in written else (mix(color_of(name), PAPER, READ), None)
        title = access_block_title(block, held, step, name)
        with d.marked([(name, str(block))], moves=f"{name} {block}"):
            d.rect(left, top, width, _CHIP, fill, stroke, 2, radius=3, title=title)
            d.text(left + width / 2, top + _CHIP / 2, str(block), 12, "middle", on=fill, mono=True)
    return y + 24 * (places[-1][0] + 1 if places else 0)


def _footer(d: Drawing, step: PagedStep, reader: str | None, y: float) -> float:
    """The legend, and what can't be true. Returns the y below it."""
    d.lines(f"M{_LEFT} {number(y)}H{WIDTH - _LEFT}", EDGE)
    y += 18
    x, sample = float(_LEFT), reader or next(iter(step.tables), "A")
    colour, cells = color_of(sample), not drawn_as_squares(step)
    signs = [("written by this row", colour), ("read", mix(colour, PAPER, READ))]
    signs += [("holds a token, not read", mix(colour, PAPER, NOT_READ))] * (reader is not None)
    signs += [("allocated, empty", "none")] * cells + [("free", "none")]
    for text, fill in signs:
        d.cell(
            x,
            y - 8,
            18,
            16,
            fill,
            hatched=float(text == "allocated, empty"),
            pale=mix(colour, PAPER, HELD),
            framed=text.startswith("written"),
        )
        if text == "read":
            d.lines(f"M{number(x + 9)} {number(y)}h.5", INK, 4, dots=9)
        elif text == "free":
            d.rect(x, y - 8, 18, 16, "none", EDGE)
        d.text(x + 25, y, text, 12, fill=SOFT_INK)
        x += 46 + 6.1 * len(text)
    if cells:
        longest = max(step.tables, key=lambda name: len(step.tables[name]), default=sample)
        which = "2: the second" if len(step.tables.get(longest, ())) > 1 else "1: the first"
        d.text(x, y, f"{longest} {which} block of {longest}", 12, fill=SOFT_INK)
    return draw_faults(d, access_faults(step), _LEFT, y) + 20
