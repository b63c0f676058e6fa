"""The free queue of a shared pool before and after each event, and the blocks in use: a row for each moment."""

import textwrap
from collections.abc import Sequence
from itertools import pairwise

from lessons_lib.recording.pool_states import QueueState
from lessons_lib.viz.drawing.palette import EDGE, INK, NEUTRAL, PAPER, SOFT_INK
from lessons_lib.viz.drawing.picture import Picture
from lessons_lib.viz.drawing.svg import WIDTH, Drawing, flow
from lessons_lib.viz.pressure.grid import CACHED

_LEFT, _QUEUE, _USED = 16, 250, 620  # x of the three columns
_CHIP, _HEIGHT, _LINE = 42, 24, 17
_EVENT_CHARS = 32


def draw_free_queue(states: Sequence[QueueState]) -> Picture:
    """The states from top to bottom; a dark frame marks blocks that moved or whose count changed."""
    d = Drawing()
    d.text(_QUEUE, 16, "free queue; the leftmost block is allocated next", 12, fill=SOFT_INK)
    d.text(_USED, 16, "in use × number of sequences", 12, fill=SOFT_INK)
    y = 30.0
    for before, state in pairwise([states[0], *states]):
        d.rule(y)
        blocks = {*before.ref_count, *state.ref_count}
        changed = {block for block in blocks if before.ref_count.get(block) != state.ref_count.get(block)}
        y = _row(d, state, changed, y + 8) + 8
    told = []
    for state in states:
        queue = ", ".join(_label(state, block) for block in state.free_queue) or "empty"
        used = ", ".join(f"{_label(state, block)} × {count}" for block, count in state.ref_count.items()) or "none"
        told.append(f"{state.event}: free queue {queue}; in use {used}.")
    d.height = _legend(d, y)
    return d.picture(" ".join(told))


def _row(d: Drawing, state: QueueState, changed: set[int], y: float) -> float:
    """One moment. Returns the y below it."""
    words = textwrap.wrap(state.event, _EVENT_CHARS)
    for index, line in enumerate(words):
        d.text(_LEFT, y + _HEIGHT / 2 + index * _LINE, line, 13)
    queue = [(block, _label(state, block)) for block in state.free_queue]
    used = [(block, f"{_label(state, block)} ×{count}") for block, count in state.ref_count.items()]
    lines = max(
        _chips(d, state, queue, changed, _QUEUE, y, _USED - _QUEUE - 16, _CHIP),
        _chips(d, state, used, changed, _USED, y, WIDTH - _LEFT - _USED, _CHIP + 20),
    )
    return y + max(lines * (_HEIGHT + 4) - 4, _HEIGHT + (len(words) - 1) * _LINE)


def _label(state: QueueState, block: int) -> str:
    return f"{block} {state.hash_names[block]}" if block in state.hash_names else str(block)


def _chips(
    d: Drawing, state: QueueState, chips: list[tuple[int, str]], changed: set[int], left: float, y: float, room: float,
    width: float,
) -> int:  # fmt: skip
    """A chip for each block. Returns the number of lines that they take."""
    places = flow([width] * len(chips), room)
    for (block, label), (line, x) in zip(chips, places):
        top = y + line * (_HEIGHT + 4)
        is_used, is_cached = block in state.ref_count, block in state.hash_names
        fill = NEUTRAL if is_used else CACHED if is_cached else PAPER
        stroke, line = (INK, 3) if block in changed else (SOFT_INK if is_cached else EDGE, 1)
        dashed = is_cached and not is_used and block not in changed
        d.rect(left + x, top, width, _HEIGHT, fill, stroke, line, dashed, radius=3)
        d.text(left + x + width / 2, top + _HEIGHT / 2, label, 12, "middle", mono=True)
    if not chips:
        d.text(left, y + _HEIGHT / 2, "none", 12, fill=SOFT_INK)
    return places[-1][0] + 1 if places else 1


def _legend(d: Drawing, y: float) -> float:
    d.rule(y)
    signs = [
        ("free", lambda x, y: d.rect(x, y, 18, 16, PAPER, EDGE, radius=3)),
        ("free, can be found by its hash", lambda x, y: d.rect(x, y, 18, 16, CACHED, SOFT_INK, dashed=True, radius=3)),
        ("in use", lambda x, y: d.rect(x, y, 18, 16, NEUTRAL, EDGE, radius=3)),
        ("changed since the row above", lambda x, y: d.rect(x + 1.5, y + 1.5, 15, 13, "none", INK, 3, radius=3)),
    ]
    d.legend(_LEFT, y + 18, signs)
    return y + 36
