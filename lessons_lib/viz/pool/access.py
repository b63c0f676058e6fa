"""What one packed row does in the pool: a few cells are written, many are read, none are moved.

The new tokens of the row are at the top, each above the cache slot that it is written to. In the grid, this row writes
the cells in their request's full color with a dark frame, and reads the cells with a dot.
"""

from lessons_lib.recording.pool_states import PagedStep, TableState
from lessons_lib.recording.words import count, numbered, span
from lessons_lib.viz.drawing.palette import EDGE, INK, PAPER, SOFT_INK, color_of, mix, outline, text_on
from lessons_lib.viz.drawing.picture import Picture
from lessons_lib.viz.drawing.svg import WIDTH, Drawing, number
from lessons_lib.viz.pool import bays
from lessons_lib.viz.pool.bays import LEFT, Bay, Lot
from lessons_lib.viz.pool.words import Holding, block_title, cell_title, holding

_READ, _HELD = 0.5, 0.86  # how far a request's color is lightened
_ROW_LEFT = 92  # where the row's tokens start
_TOKEN, _WIDEST = 28, 64.0  # height of a token's cell, and its width where the row is short


def draw_pool_access(step: PagedStep) -> Picture:
    """The pool while one row, of `RecordedRun.accesses`, is computed. Pools of one size make pictures of one height."""
    d = Drawing()
    d.text(LEFT, 20, _title(step), 15, bold=True)
    y = _row(d, step, 40)
    d.rule(y)
    y += 6
    size = f"{count(step.num_blocks, 'block')} of {count(step.block_size, 'slot')}"
    d.text(LEFT, y + 8, f"{size}; a slot has room for one token's keys and values", 12, fill=SOFT_INK)
    written = {slot for slots in step.written.values() for slot in slots}
    lot = bays.draw_bays(d, step.pool, y + 20, lambda block, owners: _bay(step, written, block, owners))
    _marks(d, step, lot, y + 20)
    right = _requests(d, step, y)
    d.height = _footer(d, step, max(y + 28 + lot.height, right, y + 200))
    return d.picture(_describe(step))


def _title(step: PagedStep) -> str:
    """What the row does, in a sentence or two."""
    written, held = sum(map(len, step.written.values())), sum(step.context_lens.values())
    if not step.written:
        return "The row is empty: nothing is written, nothing is read."
    is_written, is_read = ("is" if n == 1 else "are" for n in (written, held))
    told = f"{count(written, 'slot')} {is_written} written and {held:,} {is_read} read."
    if held == written:
        return f"{told} Nothing was there before."
    if held - written == 1:
        return f"{told} The one cached before stays where it is."
    return f"{told} The {held - written:,} cached before stay where they are."


def _row(d: Drawing, step: PagedStep, y: float) -> float:
    """The new tokens of the row in one line, and below them the cache slots they go to. Returns the y below it."""
    tokens = sum(map(len, step.written.values()))
    d.text(_ROW_LEFT - 10, y + 7, "new tokens,", 12, "end", fill=SOFT_INK)
    d.text(_ROW_LEFT - 10, y + 21, "positions", 12, "end", fill=SOFT_INK)
    d.text(_ROW_LEFT - 10, y + _TOKEN + 17, "go to slots", 12, "end", fill=SOFT_INK)
    width = min(_WIDEST, (WIDTH - LEFT - _ROW_LEFT) / max(tokens, 1))
    x = float(_ROW_LEFT)
    for name, slots in step.written.items():
        position = step.context_lens[name] - len(slots)
        for run in _runs(slots, step.block_size):
            with d.marked([(name, str(run[0] // step.block_size))]):
                _token_run(d, step, name, position, run, x, y, width)
            x, position = x + len(run) * width, position + len(run)
    return y + _TOKEN + 34


def _runs(slots: tuple[int, ...], block_size: int) -> list[range]:
    """Slots, split where the next one isn't adjacent in the same block."""
    runs: list[range] = []
    for slot in slots:
        if runs and slot == runs[-1].stop and slot % block_size:
            runs[-1] = range(runs[-1].start, slot + 1)
        else:
            runs.append(range(slot, slot + 1))
    return runs


def _token_run(
    d: Drawing, step: PagedStep, name: str, position: int, run: range, x: float, y: float, width: float
) -> None:
    """New tokens that go side by side into one block."""
    colour, size, length = color_of(name), len(run) * width, len(run)
    block, offset = divmod(run[0], step.block_size)
    where = f"{numbered('slot', run)}, block {block}, {span('offset', offset, length)}"
    title = f"{name}, {span('position', position, length)}: written to {where}"
    d.rect(x + 0.75, y, max(size - 1.5, size / 2), _TOKEN, colour, radius=min(3, size / 4), title=title)
    if width >= 5:
        d.lines("".join(f"M{number(x + n * width)} {number(y + _TOKEN - 8)}v8" for n in range(1, length)), PAPER)
    positions = str(position) if length == 1 else f"{position} to {position + length - 1}"
    middle = y + _TOKEN / 2 - (3 if length > 1 else 0)
    _fitting(d, x + size / 2, middle, (f"{name} {positions}", name), size, colour)
    if size >= 9:
        d.lines(f"M{number(x + size / 2)} {number(y + _TOKEN + 1)}v7", INK, arrow=True)
    slots = str(run[0]) if length == 1 else f"{run[0]} to {run[-1]}"
    _fitting(d, x + size / 2, y + _TOKEN + 17, (slots, slots.replace(" to ", "–"), f"{run[0]}…"), size, PAPER)


def _fitting(d: Drawing, x: float, y: float, texts: tuple[str, ...], room: float, on: str) -> None:
    """The first of the texts that fits, centered at x; nothing if none does."""
    text = next((text for text in texts if 6.7 * len(text) + 3 <= room), None)
    if text:
        d.text(x, y, text, 12, "middle", bold=True, on=on)


def _bay(step: PagedStep, written: set[int], block: int, owners: list[Holding]) -> Bay:
    if not owners:
        return Bay(block_title(block, None, step.block_size, "free, in no table of this row"), ink=SOFT_INK)
    held, size = owners[0], step.block_size
    colour = color_of(held.request)
    empty, read = mix(colour, PAPER, _HELD), mix(colour, PAPER, _READ)

    def cell(offset: int) -> tuple[str, str]:
        is_new = block * size + offset in written
        fill = colour if is_new else read if offset < held.tokens else empty
        return fill, cell_title(block, offset, held, size, f", {'written by this row and ' * is_new}read")

    owner = f"{held.request} {held.start // size + 1}"
    return Bay(block_title(block, held, size), empty, outline(colour), INK, owner, colour, held, cell)


def _marks(d: Drawing, step: PagedStep, lot: Lot, y: float) -> None:
    """A frame around each cell that is written, and a dot in each that is read."""
    line, size = min(2.0, lot.cell / 4), step.block_size
    # Where the cell has a number, the dot is in the corner.
    dot_x, dot_y = (
        (lot.cell - 5.5, 4) if lot.cell >= bays.NUMBER_CELL else ((lot.cell - 1) / 2, (lot.cell_height - 1) / 2)
    )
    for table in step.pool.tables:
        written = set(step.written[table.request])
        for index, block in enumerate(table.blocks):
            dots = {INK: "", text_on(color_of(table.request)): ""}
            with d.marked([(table.request, str(block))]):
                for offset in range(holding(table, index, size).tokens):
                    x, top = bays.cell_corner(lot, offset, *bays.bay_corner(lot, block, y))
                    is_new = block * size + offset in written
                    dots[text_on(color_of(table.request)) if is_new else INK] += (
                        f"M{number(x + dot_x)} {number(top + dot_y)}h.5"
                    )
                    if is_new:
                        box = lot.cell - 1 - line, lot.cell_height - 1 - line
                        d.rect(x + line / 2, top + line / 2, *box, "none", INK, line)
                for ink, path in dots.items():
                    if path:
                        d.lines(path, ink, max(1.6, min(lot.cell / 4, 4)), dots=lot.cell)


def _requests(d: Drawing, step: PagedStep, y: float) -> float:
    """Which slots each request writes, and which blocks it reads in which order. Returns the y below it."""
    x, width = WIDTH - LEFT - bays.PANEL, bays.chip_width(step.num_blocks)
    head = "blocks in the order read; framed: written to" if step.written else "no request in the row"
    d.text(x, y + 8, head, 12, fill=SOFT_INK)
    y += 20
    for table in step.pool.tables:
        name, slots = table.request, step.written[table.request]
        with d.marked([(name,)]):
            room = bays.PANEL - 8 - d.request_chip(x, y, name)
        left, wrote = WIDTH - LEFT - room, f"writes {numbered('slot', slots)}"
        if 6.4 * len(wrote) > room:
            wrote = f"writes {len(slots):,} slots, the first is {slots[0]}"
        d.text(left, y + bays.CHIP / 2, wrote, 12, bold=True)
        reads = f"reads {count(table.num_tokens, 'token')} in {count(len(table.blocks), 'block')}:"
        d.text(left, y + 28, reads, 12)

        def look(index: int, block: int, table: TableState = table) -> tuple[str, bool, str]:
            colour = color_of(table.request)
            is_written = block in {slot // step.block_size for slot in step.written[table.request]}
            title = block_title(block, holding(table, index, step.block_size), step.block_size)
            return colour if is_written else mix(colour, PAPER, _READ), is_written, title

        _, y = bays.draw_chips(d, name, table.blocks, left, y + 38, room, width, look)
        y += bays.CHIP_LINE + 6
    return y


def _footer(d: Drawing, step: PagedStep, y: float) -> float:
    """The legend. Returns the y below it."""
    d.rule(y)
    y += 18
    sample = next(iter(step.tables), "A")
    colour = color_of(sample)

    def read(x: float, y: float) -> None:
        d.cell(x, y, 18, 16, mix(colour, PAPER, _READ))
        d.lines(f"M{number(x + 9)} {number(y + 8)}h.5", INK, 4, dots=9)

    empty = mix(colour, PAPER, _HELD)
    signs = [
        ("written by this row", lambda x, y: d.cell(x, y, 18, 16, colour, framed=True)),
        ("read", read),
        ("allocated, empty", lambda x, y: d.cell(x, y, 18, 16, "none", hatched=1.0, pale=empty)),
        ("free", lambda x, y: d.rect(x, y, 18, 16, "none", EDGE)),
    ]
    x = d.legend(LEFT, y, signs)
    longest = max(step.tables, key=lambda name: len(step.tables[name]), default=sample)
    which = "2: the second" if len(step.tables.get(longest, ())) > 1 else "1: the first"
    d.text(x, y, f"{longest} {which} block of {longest}", 12, fill=SOFT_INK)
    return y + 20


def _describe(step: PagedStep) -> str:
    """The whole picture in words."""
    told = [_title(step), f"Pool of {count(step.num_blocks, 'block')} with {count(step.block_size, 'slot')} each."]
    for table in step.pool.tables:
        slots, tokens = step.written[table.request], table.num_tokens
        where = f"{span('position', tokens - len(slots), len(slots))} to {numbered('slot', slots)}"
        told.append(
            f"{table.request} writes {where}, and reads {count(tokens, 'token')} in {numbered('block', table.blocks)}."
        )
    return " ".join(told)
