"""Lesson 20: the floors of a cache as shelves, with the blocks of conversations that move down and up."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lessons_lib.recording.words import count
from lessons_lib.viz.drawing.palette import EDGE, INK, PAPER, SOFT_INK, color_of
from lessons_lib.viz.drawing.picture import Picture
from lessons_lib.viz.drawing.svg import WIDTH, Drawing

_LEFT, _SHELF, _CELL, _PITCH = 16, 110, 32, 36
_COLUMNS = (WIDTH - _SHELF - _LEFT) // _PITCH


@dataclass(frozen=True)
class Shelves:
    """The floors after a request: name -> the block in each place, "A3" for the fourth of A; None if none."""

    event: str
    floors: dict[str, tuple[str | None, ...]]


def shelves_of(pool: Any, names: Mapping[bytes, str], event: str) -> Shelves:
    """Record a FlooredPrefixCache whose host floor may have a disk floor below; `names`: hash -> a block's name."""
    floors = {"pool": pool, "host": pool.below, "disk": pool.below.below}
    return Shelves(event, {
        floor: tuple(names.get(cache.block_to_hash.get(place)) for place in range(cache.num_blocks))
        for floor, cache in floors.items() if cache
    })  # fmt: skip


def draw_shelves(states: list[Shelves], index: int) -> Picture:
    """One of the states; what has changed since the one before is framed."""
    d, state, before = Drawing(), states[index], states[max(0, index - 1)]
    d.text(_LEFT, 20, state.event, 15, bold=True)
    y, told = 48.0, []
    for floor, blocks in state.floors.items():
        used = [block for block in blocks if block]
        d.text(_LEFT, y + _CELL / 2 - 8, floor, 14, bold=True)
        d.text(_LEFT, y + _CELL / 2 + 10, f"{len(used)} of {len(blocks)}", 12, fill=SOFT_INK)
        for place, block in enumerate(blocks):
            row, column = divmod(place, _COLUMNS)
            x, top = _SHELF + column * _PITCH, y + row * _PITCH
            is_new = block != before.floors[floor][place]
            if block is None:
                d.rect(x + 0.5, top + 0.5, _CELL - 1, _CELL - 1, PAPER, INK if is_new else EDGE, dashed=True)
                continue
            with d.marked([(block[0],)]):
                d.cell(x, top, _CELL, _CELL, color_of(block[0]), block, framed=is_new)
        y += ((len(blocks) - 1) // _COLUMNS + 1) * _PITCH
        d.rect(_SHELF - 4, y, _COLUMNS * _PITCH + 4, 4, EDGE, "none")
        y += 22
        owners = sorted({block[0] for block in used})
        parts = [f"{count(sum(block[0] == name for block in used), 'block')} of {name}" for name in owners]
        told.append(f"{floor}: {', '.join(parts) or 'nothing'}.")
    d.legend(_LEFT, y, [
        ("fourth block of A", lambda x, y: d.cell(x, y, 22, 18, color_of("A"), "A3")),
        ("came in this step", lambda x, y: d.cell(x, y, 22, 18, color_of("A"), framed=True)),
        ("empty", lambda x, y: d.rect(x + 0.5, y + 0.5, 21, 17, PAPER, EDGE, dashed=True)),
    ])  # fmt: skip
    d.height = y + 24
    return d.picture(f"{state.event}. {' '.join(told)}")
