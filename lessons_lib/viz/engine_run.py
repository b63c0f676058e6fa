"""An engine at work: its batch slots step by step, the blocks, and the texts as they grow."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from lessons_lib.recording.engine_moments import DECODE, PREFILL, EngineMoment, engine_moments
from lessons_lib.recording.words import listed, runs_of
from lessons_lib.viz.drawing.palette import EDGE, INK, PAPER, SOFT_INK, color_of
from lessons_lib.viz.drawing.picture import Picture
from lessons_lib.viz.drawing.svg import WIDTH, Drawing, number, sans_width
from lessons_lib.viz.pressure import grid
from lessons_lib.viz.stepper import Stepper

if TYPE_CHECKING:
    from lessons_lib.engine.llm_engine import LLMEngine

_LEFT, _TOP = 16, 72  # where slots and blocks begin
_SLOTS, _BLOCKS = 548, 292  # widths of the two
_SHOWN_STEPS, _SLOT, _HEIGHT = 60, 24, 130  # steps that the slots have room for; a slot's height; that of all
_LARGEST, _SMALLEST = 32, 4  # of a block's square
_LINE = 24  # of a text


def watch_engine(engine: LLMEngine, trouble: Mapping[int, Callable[[], str]] | None = None) -> Stepper:
    """Run an engine until no request is left, and play the run, a picture for each step.

    trouble  step, from 1, -> what is done to the engine before it: a function that returns what that was, in words
    """
    moments = engine_moments(engine, trouble or {})
    return Stepper(lambda i: draw_engine(moments, i), len(moments), still=len(moments) // 3 if moments else None)


def draw_engine(moments: Sequence[EngineMoment], index: int) -> Picture:
    """An engine after a step, and the batch slots of the steps before it."""
    moment, steps = moments[index], [each.slots for each in moments[: index + 1]]
    names = list(moments[-1].texts)  # each has its line from the beginning, so that nothing moves
    y = _TOP + _HEIGHT + 36
    d = Drawing(height=y + _LINE * len(names) + 12)
    d.text(_LEFT, 22, f"step {index + 1}: {_event(moment)}", 15, bold=True)
    _draw_slots(d, steps[-_SHOWN_STEPS:])
    _draw_blocks(d, moment)
    d.text(_LEFT, y - 20, "requests, and their texts as they grow", 12, fill=SOFT_INK)
    for name in names:
        _draw_text(d, moment, name, y)
        y += _LINE
    working = [f"{slot.name} {slot.work}" for slot in moment.slots if slot]
    told = [f"{name}: {each.text or 'no token yet'} {each.end}" for name, each in moment.texts.items()]
    return d.picture(
        f"Engine after step {index + 1}: {_event(moment)}. Batch slots: {listed(working)}. "
        f"Waiting: {listed(moment.waiting)}. Blocks in use: {len(moment.owners)} of {moment.num_blocks}. Texts: "
        f"{_on_a_line('; '.join(told))}."
    )


def _event(moment: EngineMoment) -> str:
    """What has happened, or else what the step has computed."""
    work = {what: [slot.name for slot in moment.slots if slot and slot.work == what] for what in (PREFILL, DECODE)}
    told = [f"a token each for {', '.join(work[DECODE])}"] * bool(work[DECODE])
    told += [f"prompt tokens of {', '.join(work[PREFILL])}"] * bool(work[PREFILL])
    return moment.event or "; ".join(told) or "nothing is computed"


def _on_a_line(text: str) -> str:
    return " ".join(text.split())


def _draw_slots(d: Drawing, steps: Sequence[tuple]) -> None:
    """One row for each batch slot, one column for each step, the newest step last. Few steps get wider columns."""
    d.text(_LEFT, _TOP - 18, "batch slots, step by step (framed: prompt tokens are computed)", 12, fill=SOFT_INK)
    row = min(_SLOT, _HEIGHT / max(map(len, steps)))
    room = next(room for room in (_SHOWN_STEPS // 4, _SHOWN_STEPS // 2, _SHOWN_STEPS) if room >= len(steps))
    cell = _SLOTS / room
    for slot in range(max(map(len, steps))):
        top = _TOP + slot * row
        d.lines(f"M{number(_LEFT)} {number(top + row - 1.5)}H{number(_LEFT + len(steps) * cell)}", EDGE, 0.5)
        for state, column, size in runs_of([step[slot] if slot < len(step) else None for step in steps]):
            if not state:
                continue
            color, is_prefill = color_of(state.name), state.work == PREFILL
            fits = size * cell >= 8 * len(state.name) + 4 and row >= 15
            with d.marked([(state.name,)]):
                d.cell(
                    _LEFT + column * cell, top, size * cell, row - 3, color, state.name if fits else "",
                    f"{state.name}: {state.work}", framed=is_prefill, size=11,
                )  # fmt: skip


def _draw_blocks(d: Drawing, moment: EngineMoment) -> None:
    """A square for each block in the color of its sequence; dots: free, and still to be found by its hash."""
    left = WIDTH - _LEFT - _BLOCKS
    words = f"blocks: {len(moment.owners):,} of {moment.num_blocks:,} in use; dots: free, still cached"
    d.text(left, _TOP - 18, words, 12, fill=SOFT_INK)
    sizes = range(_LARGEST, _SMALLEST, -1)
    fitting = (size for size in sizes if math.ceil(moment.num_blocks / (_BLOCKS // size)) * size <= _HEIGHT)
    size = next(fitting, _SMALLEST)
    for block in range(min(moment.num_blocks, (_BLOCKS // size) * (_HEIGHT // size))):
        row, column = divmod(block, _BLOCKS // size)
        x, y, side, owners = left + column * size, _TOP + row * size, size - 2, moment.owners.get(block, ())
        if block in moment.cached:
            grid.draw_cached(d, x, y, side, side)
        elif not owners:
            d.rect(x, y, side, side, PAPER, EDGE)
        for place, owner in enumerate(owners):
            each, label = side / len(owners), owner if len(owners) == 1 and 8 * len(owner) <= side - 4 else ""
            title = f"block {block}: {', '.join(owners)}"
            with d.marked([(owner,)]):
                d.cell(x + place * each, y, each, side, color_of(owner), label, title, size=min(11, side - 3))


def _draw_text(d: Drawing, moment: EngineMoment, name: str, y: float) -> None:
    """The end of a request's text, and why it ended."""
    told = moment.texts.get(name)
    with d.marked([(name,)]):
        x = _LEFT + d.request_chip(_LEFT, y - 10, name) + 8
        if not told:
            return
        end = told.end or ("waits" if name in moment.waiting else "")
        d.text(WIDTH - _LEFT, y, end, 12, "end", bold=bool(told.end), fill=INK if told.end else SOFT_INK)
        room = int((WIDTH - _LEFT - x - sans_width(end, 12) - 16) / sans_width("m", 12))
        text = _on_a_line(told.text)
        d.text(x, y, f"…{text[-room:]}" if len(text) > room else text, 12)
