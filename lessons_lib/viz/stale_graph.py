"""What a CUDA graph reads after a tensor of its step has moved: whatever is at the old address."""

from lessons_lib.viz.drawing.palette import EDGE, INK, NEUTRAL, PAPER, SERIES, SOFT_INK, tint
from lessons_lib.viz.drawing.picture import Picture
from lessons_lib.viz.drawing.svg import WIDTH, Drawing, number

# What happens; what is at each address, from the first on; which of them the engine reads.
MOMENTS = (
    ("1. The graph is captured", ("weight", "free"), 0),
    ("2. The weight moves", ("free", "weight"), 1),
    ("3. A cache is allocated", ("cache", "weight"), 1),
)
ADDRESSES = ("0x10", "0x20")
_CELL, _HEIGHT, _TOP, _STEP = 76, 34, 72, 62
_FILL = {"weight": tint(SERIES[0]), "cache": tint(SERIES[4]), "free": PAPER}


def draw_stale_graph() -> Picture:
    """A weight moves, its old memory is given to a cache, and the graph reads that."""
    d = Drawing(height=_TOP + 2 * _STEP + 30)
    d.text(16, 18, "A graph holds an address, not a tensor", 15, bold=True)
    width = (WIDTH - 32) / len(MOMENTS)
    told = []
    for column, (title, memory, read) in enumerate(MOMENTS):
        left = 16 + column * width
        cells = left + width - _CELL - 20
        d.text(left, 48, title, 13, bold=True)
        for row, (address, content) in enumerate(zip(ADDRESSES, memory)):
            y = _TOP + row * _STEP
            d.rect(cells, y, _CELL, _HEIGHT, _FILL[content], EDGE, dashed=content == "free")
            d.text(cells + _CELL / 2, y + _HEIGHT / 2, content, 12, "middle")
            d.text(cells + _CELL / 2, y + _HEIGHT + 11, address, 11, "middle", fill=SOFT_INK)
        for row, (reader, target) in enumerate((("graph", 0), ("engine", read))):
            y = _TOP + row * _STEP
            d.rect(left, y, 60, _HEIGHT, NEUTRAL, EDGE)
            d.text(left + 30, y + _HEIGHT / 2, reader, 12, "middle", on=NEUTRAL)
            end = _TOP + target * _STEP + _HEIGHT / 2 + (6 if row > target else 0)
            way = f"M{number(left + 62)} {number(y + _HEIGHT / 2)}L{number(cells - 6)} {number(end)}"
            d.lines(way, INK, 1.5, arrow=True)
        told.append(f"{title}: the graph reads 0x10, {memory[0]}; the engine reads {ADDRESSES[read]}, {memory[read]}")
    d.text(16, d.height - 14, "A replay never fails: it computes with what is at 0x10.", 12, fill=SOFT_INK)
    return d.picture(". ".join(told) + ".")
