"""What one packed row does in the pool: a few cells are written, many are read, none are moved.

The new tokens of the row are at the top, each above the cache slot that it is written to. In the grid, this row writes
the cells in their request's full color with a dark frame, and reads the cells with a dot.
"""

from lessons_lib.recording.paged_steps import PagedStep, named_slots
from lessons_lib.recording.pool_states import TableState
from lessons_lib.viz.drawing.palette import EDGE, INK, PAPER, SOFT_INK, color_of, mix
from lessons_lib.viz.drawing.picture import Picture
from lessons_lib.viz.drawing.svg import WIDTH, Drawing, count, flow, number
from lessons_lib.viz.pool.access_grid import HELD, READ, draw_access_grid
from lessons_lib.viz.pool.access_words import access_block_title, describe_access, run_title, title
from lessons_lib.viz.pool.bays import CHIP, chip_width, draw_chip
from lessons_lib.viz.pool.words import holding

_LEFT, _PANEL = 16, 262  # margin, width of the list of requests
_ROW_LEFT = 92  # where the row's tokens start
_TOKEN, _WIDEST = 28, 64.0  # height of a token's cell, and its width where the row is short


def draw_pool_access(step: PagedStep) -> Picture:
    """The pool while one row is computed. Pools of one size make pictures of one height, unless many requests are
    listed.

    Args:
        step: one of `RecordedRun.accesses`.
    """
    d = Drawing()
    d.text(_LEFT, 20, title(step), 15, bold=True)
    y = _row(d, step, 40)
    d.lines(f"M{_LEFT} {number(y)}H{WIDTH - _LEFT}", EDGE)
    y += 6
    size = f"{count(step.num_blocks, 'block')} of {count(step.block_size, 'slot')}"
    d.text(_LEFT, y + 8, f"{size}; a slot has room for one token's keys and values", 12, fill=SOFT_INK)
    height = draw_access_grid(d, step, _LEFT, y + 20)
    right = _requests(d, step, y)
    d.height = _footer(d, step, max(y + 28 + height, right, y + 200))
    return d.picture(describe_access(step))


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
    title = run_title(step, name, position, run)
    d.rect(x + 0.75, y, max(size - 1.5, size / 2), _TOKEN, colour, radius=min(3, size / 4), title=title)
    if width >= 5:
        d.lines("".join(f"M{number(x + n * width)} {number(y + _TOKEN - 8)}v8" for n in range(1, len(run))), PAPER)
    last = position + len(run) - 1
    positions = str(position) if len(run) == 1 else f"{position} to {last}"
    middle = y + _TOKEN / 2 - (3 if len(run) > 1 else 0)
    _fitting(d, x + size / 2, middle, (f"{name} {positions}", name), size, colour)
    if size >= 9:
        d.lines(f"M{number(x + size / 2)} {number(y + _TOKEN + 1)}v7", INK, arrow=True)
    slots = str(run[0]) if len(run) == 1 else f"{run[0]} to {run[-1]}"
    _fitting(d, x + size / 2, y + _TOKEN + 17, (slots, slots.replace(" to ", "–"), f"{run[0]}…"), size, PAPER)


def _fitting(d: Drawing, x: float, y: float, texts: tuple[str, ...], room: float, on: str) -> None:
    """The first of the texts that fits, centered at x; nothing if none does."""
    text = next((text for text in texts if 6.7 * len(text) + 3 <= room), None)
    if text:
        d.text(x, y, text, 12, "middle", bold=True, on=on)


def _requests(d: Drawing, step: PagedStep, y: float) -> float:
    """Which slots each request writes, and which blocks it reads in which order. Returns the y below it."""
    x = WIDTH - _LEFT - _PANEL
    head = "blocks in the order read; framed: written to" if step.written else "no request in the row"
    d.text(x, y + 8, head, 12, fill=SOFT_INK)
    y += 20
    for name, slots in step.written.items():
        with d.marked([(name,)]):
            room = _PANEL - 8 - d.request_chip(x, y, name)
        left, wrote = WIDTH - _LEFT - room, f"writes {named_slots(slots)}"
        if 6.4 * len(wrote) > room:
            wrote = f"writes {len(slots):,} slots, the first is {slots[0]}"
        d.text(left, y + CHIP / 2, wrote, 12, bold=True)
        y += 24
        reads = f"reads {count(step.context_lens[name], 'token')} in {count(len(step.tables[name]), 'block')}:"
        d.text(left, y + 4, reads, 12)
        y = _blocks_read(d, step, name, left, y + 14) + 6
    return y


def _blocks_read(d: Drawing, step: PagedStep, name: str, x: float, y: float) -> float:
    """A request's blocks in the order of its tokens; those that the row writes to are framed. Returns the y below
    them.
    """
    blocks, written = step.tables[name], {slot // step.block_size for slot in step.written[name]}
    width = chip_width(step.num_blocks)
    places = flow([width] * len(blocks), WIDTH - _LEFT - x)
    table = TableState(name, blocks, step.context_lens[name])
    for index, (block, (line, left)) in enumerate(zip(blocks, places)):
        fill = color_of(name) if block in written else mix(color_of(name), PAPER, READ)
        title = access_block_title(block, holding(table, index, step.block_size), step)
        with d.marked([(name, str(block))], moves=f"{name} {block}"):
            draw_chip(d, x + left, y + 24 * line, block, width, fill, None, block in written, title)
    return y + 24 * (places[-1][0] + 1 if places else 0)


def _footer(d: Drawing, step: PagedStep, y: float) -> float:
    """The legend. Returns the y below it."""
    d.lines(f"M{_LEFT} {number(y)}H{WIDTH - _LEFT}", EDGE)
    y += 18
    sample = next(iter(step.tables), "A")
    colour = color_of(sample)

    def read(x: float, y: float) -> None:
        d.cell(x, y, 18, 16, mix(colour, PAPER, READ))
        d.lines(f"M{number(x + 9)} {number(y + 8)}h.5", INK, 4, dots=9)

    empty = mix(colour, PAPER, HELD)
    signs = [("written by this row", lambda x, y: d.cell(x, y, 18, 16, colour, framed=True)), ("read", read)]
    signs.append(("allocated, empty", lambda x, y: d.cell(x, y, 18, 16, "none", hatched=1.0, pale=empty)))
    signs.append(("free", lambda x, y: d.rect(x, y, 18, 16, "none", EDGE)))
    x = d.legend(_LEFT, y, signs)
    longest = max(step.tables, key=lambda name: len(step.tables[name]), default=sample)
    which = "2: the second" if len(step.tables.get(longest, ())) > 1 else "1: the first"
    d.text(x, y, f"{longest} {which} block of {longest}", 12, fill=SOFT_INK)
    return y + 20
