"""Lesson 19: a pool of memory for each kind of layer, side by side: what each of them remembers of the sequences."""

import math
from collections.abc import Mapping, Sequence

from lessons_lib.recording.words import count
from lessons_lib.viz.drawing.palette import EDGE, INK, PAPER, SOFT_INK, color_of
from lessons_lib.viz.drawing.picture import Picture
from lessons_lib.viz.drawing.svg import WIDTH, Drawing

_LEFT, _CELL, _PITCH, _ROWS, _GAP = 16, 30, 34, 4, 40

Pools = Mapping[str, Sequence[str | None]]  # heading -> the sequence that has each block or slot, or None


def draw_kinds(lengths: Mapping[str, int], pools: Pools, before: Pools | None = None, index: int = 0) -> Picture:
    """The pools after a step.

    Args:
        lengths: sequence -> its computed tokens.
        pools: at most three. The cells of one are filled by columns.
        before: the pools one step earlier: what has changed since is framed.
        index: of the step.
    """
    d = Drawing()
    title = f"After step {index + 1}"
    d.text(_LEFT, 20, title, 15, bold=True)
    x: float = _LEFT
    for name, tokens in lengths.items():
        with d.marked([(name,)]):
            x += d.request_chip(x, 38, name) + 6
            d.text(x, 48, count(tokens, "token"), 13)
        x += 100
    x, told = _LEFT, []
    room = (WIDTH - 2 * _LEFT - _GAP * (len(pools) - 1)) / len(pools)
    for heading, owners in pools.items():
        d.text(x, 84, heading, 13, bold=True)
        used = sum(owner is not None for owner in owners)
        unit = "slot" if len(owners) <= _ROWS else "block"
        d.text(x, 103, f"{used} of {count(len(owners), unit)}", 13, fill=SOFT_INK)
        earlier = before[heading] if before else owners
        for place, owner in enumerate(owners):
            column, row = divmod(place, _ROWS)
            _draw_cell(d, x + column * _PITCH, 118 + row * _PITCH, owner, place, owner != earlier[place])
        parts = [f"{name} has {sum(owner == name for owner in owners)}" for name in lengths]
        told.append(f"{heading}: {used} of {count(len(owners), unit)} in use, {', '.join(parts)}.")
        x += max(room, _PITCH * math.ceil(len(owners) / _ROWS) + _GAP)
    y = 118 + _ROWS * _PITCH + 14
    d.legend(_LEFT, y, [
        ("just allocated", lambda x, y: d.cell(x, y, 18, 16, color_of("A"), framed=True)),
        ("just freed", lambda x, y: d.rect(x + 1.5, y + 1.5, 15, 13, "none", INK, 3)),
        ("free", lambda x, y: d.rect(x + 0.5, y + 0.5, 17, 15, PAPER, EDGE, dashed=True)),
    ])  # fmt: skip
    d.height = y + 22
    lead = ", ".join(f"{name} has {count(tokens, 'token')}" for name, tokens in lengths.items())
    return d.picture(f"{title}: {lead or 'no sequence'}. {' '.join(told)}")


def _draw_cell(d: Drawing, x: float, y: float, owner: str | None, place: int, is_new: bool) -> None:
    if owner is not None:
        with d.marked([(owner,)]):
            d.cell(x, y, _CELL, _CELL, color_of(owner), owner, framed=is_new)
        return
    d.rect(x + 0.5, y + 0.5, _CELL - 1, _CELL - 1, PAPER, INK if is_new else EDGE, 3 if is_new else 1, not is_new)
    d.text(x + _CELL / 2, y + _CELL / 2, str(place), 11, "middle", fill=SOFT_INK)
