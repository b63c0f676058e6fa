"""An engine's last steps as lanes, as in lesson 02's timeline, and its pool, as in lesson 03's picture."""

import math
from collections.abc import Sequence
from itertools import groupby

from lessons_lib.recording.engine_lanes import PREFILL, STALLED, Lane, PoolUse
from lessons_lib.viz.drawing.palette import EDGE, INK, PAPER, SOFT_INK, color_of, tint
from lessons_lib.viz.drawing.svg import Drawing, number
from lessons_lib.viz.pressure.grid import draw_cached

_TALLEST_LANE, _MOST_LANES, _GAP = 24.0, 16, 3
_LARGEST, _SMALLEST = 32, 4  # of a block's square


def color_of_sequence(name: str) -> str:
    """Of its request: the completions of one request are called "A/0" and "A/1"."""
    return color_of(name.split("/")[0])


def draw_lanes(
    d: Drawing,
    steps: Sequence[tuple[Lane | None, ...]],
    most_steps: int,
    x: float,
    y: float,
    width: float,
    height: float,
) -> None:
    """One row for each batch slot, one column for each step, the newest step last. Few steps get wider columns."""
    count = max((len(step) for step in steps), default=0)
    title = f"batch slots in the last {len(steps)} steps" if len(steps) > 1 else "batch slots"
    d.text(x, y, title, 12, bold=True)
    if not count:
        d.text(x + width / 2, y + 20 + height / 2, "no steps yet", 12, "middle", fill=SOFT_INK)
        return
    shown = min(count, _MOST_LANES)
    if count > shown:
        d.text(x + width, y, f"{count - shown} more slots", 11, "end", fill=SOFT_INK)
    row = min(_TALLEST_LANE, height / shown)
    rooms = (most_steps // 4, most_steps // 2, most_steps)
    cell = width / next((room for room in rooms if room >= len(steps)), len(steps))
    for lane in range(shown):
        top = y + 16 + lane * row
        d.lines(f"M{number(x)} {number(top + row - 1.5)}H{number(x + len(steps) * cell)}", EDGE, 0.5)
        column = 0
        for state, group in groupby(step[lane] if lane < len(step) else None for step in steps):
            size = len(list(group))
            if state:
                _stay(d, state, x + column * cell, top, size * cell, row - 3)
            column += size


def _stay(d: Drawing, state: Lane, x: float, y: float, width: float, height: float) -> None:
    colour, name = color_of_sequence(state.name), state.name
    is_prefill, is_stalled = state.work == PREFILL, state.work == STALLED
    room = 8 * len(name) + 4
    label = name if width >= room and height >= 12 and not is_prefill else ""
    title = f"{name}: {state.work}"
    d.cell(x, y, width, height, tint(colour) if is_stalled else colour, label, title, framed=is_prefill, size=11)


def draw_pool_use(d: Drawing, use: PoolUse, x: float, y: float, width: float, height: float) -> None:
    """A square for each block in the color of its sequence; dots: free, and still to be found by its hash."""
    used = len(use.owners)
    d.text(x, y, f"blocks: {used:,} in use, {len(use.cached):,} free but cached, of {use.num_blocks:,}", 12, bold=True)
    size = next(
        (size for size in range(_LARGEST, _SMALLEST, -1) if _fits(use.num_blocks, size, width, height)), _SMALLEST
    )
    columns = max(int(width // size), 1)
    rows = min(math.ceil(use.num_blocks / columns), int(height // size))
    for block in range(min(use.num_blocks, rows * columns)):
        row, column = divmod(block, columns)
        left, top, side = x + column * size, y + 16 + row * size, size - 2
        owners = use.owners.get(block, ())
        if block in use.cached:
            draw_cached(d, left, top, side, side)
        elif not owners:
            d.rect(left, top, side, side, PAPER, EDGE)
        for place, owner in enumerate(owners):
            each, label = side / len(owners), owner if len(owners) == 1 and 8 * len(owner) <= side - 4 else ""
            title = f"block {block}: {', '.join(owners)}"
            d.cell(left + place * each, top, each, side, color_of_sequence(owner), label, title, size=min(11, side - 3))
    if rows * columns < use.num_blocks:
        d.text(x + width, y + 8, f"the first {rows * columns:,} are drawn", 11, "end", fill=INK)


def _fits(blocks: int, size: int, width: float, height: float) -> bool:
    return math.ceil(blocks / max(width // size, 1)) * size <= height
