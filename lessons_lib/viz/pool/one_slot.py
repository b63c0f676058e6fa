"""One position of a request, through its block table to a cache slot."""

from collections.abc import Sequence

from lessons_lib.viz.drawing.palette import EDGE, INK, PAPER, SOFT_INK, color_of, tint
from lessons_lib.viz.drawing.picture import Picture
from lessons_lib.viz.drawing.svg import Drawing, number

_LEFT, _CELL, _HEIGHT, _GAP = 16, 32, 28, 10  # the gap is between blocks
_POSITIONS, _TABLE, _POOL = 70, 170, 290  # upper edges of the three rows


def draw_one_slot(name: str, blocks: Sequence[int], block_size: int, position: int, num_blocks: int) -> Picture:
    """From `position` of a request with these blocks, all full, to its slot in a pool of so many blocks."""
    entry, offset = divmod(position, block_size)
    block, color = blocks[entry], color_of(name)
    slot = block * block_size + offset
    group = block_size * _CELL + _GAP
    d = Drawing()
    d.text(_LEFT, 20, f"Where is {name}'s token at position {position}?", 15, bold=True)
    d.text(_LEFT, _POSITIONS - 16, f"{name}'s tokens, by position", 12, fill=SOFT_INK)
    d.text(_LEFT, _TABLE - 16, f"{name}'s block table", 12, fill=SOFT_INK)
    words = f"the pool: {num_blocks} blocks of {block_size} slots, numbered throughout"
    d.text(_LEFT, _POOL - 16, words, 12, fill=SOFT_INK)
    for each in range(len(blocks) * block_size):
        x = _LEFT + each // block_size * group + each % block_size * _CELL
        d.cell(x, _POSITIONS, _CELL - 2, _HEIGHT, color if each == position else tint(color), str(each))
    for index, each in enumerate(blocks):
        x = _LEFT + index * group
        d.cell(x, _TABLE, group - _GAP - 2, _HEIGHT, color if index == entry else tint(color), f"block {each}")
    for each in range(num_blocks * block_size):
        x = _LEFT + each // block_size * group + each % block_size * _CELL
        is_held = each // block_size in blocks
        if each % block_size == 0:
            d.text(x, _POOL + _HEIGHT + 12, f"block {each // block_size}", 12, bold=is_held)
        fill = (color if each == slot else tint(color)) if is_held else PAPER
        d.rect(x, _POOL, _CELL - 2, _HEIGHT, fill, EDGE)
        d.text(x + _CELL / 2 - 1, _POOL + _HEIGHT / 2, str(each), 12, "middle", bold=each == slot, on=fill)
    start, end = _LEFT + entry * group + offset * _CELL + _CELL / 2, _LEFT + block * group + offset * _CELL + _CELL / 2
    told = [f"{position} // {block_size} = {entry}: entry {entry} of the table is block {block}"]
    told.append(f"{position} % {block_size} = {offset}: offset {offset} in the block")
    d.lines(f"M{number(start)} {_POSITIONS + _HEIGHT + 2}V{_TABLE - 4}", INK, arrow=True)
    bend = _TABLE + _HEIGHT + 24
    d.lines(f"M{number(start)} {_TABLE + _HEIGHT + 2}V{bend}H{number(end)}V{_POOL - 4}", INK, arrow=True)
    x = _LEFT + len(blocks) * group + 12
    d.text(x, _POSITIONS + _HEIGHT / 2, told[0], 13, bold=True)
    d.text(x, _POSITIONS + _HEIGHT / 2 + 22, told[1], 13, bold=True)
    total = f"slot {block} × {block_size} + {offset} = {slot}"
    d.text(x, _POSITIONS + _HEIGHT / 2 + 44, total, 13, bold=True)
    d.height = _POOL + _HEIGHT + 28
    return d.picture(f"Position {position} of {name}: {'; '.join(told)}; {total}.")
