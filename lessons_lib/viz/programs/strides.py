"""Where the slots of a cache lie in memory: what its strides count."""

from collections.abc import Mapping
from typing import Any

from lessons_lib.viz.drawing.palette import NEUTRAL, PAPER, SERIES, SOFT_INK
from lessons_lib.viz.drawing.picture import Picture
from lessons_lib.viz.drawing.svg import Drawing

LEFT, CELL, ROW = 190, 34, 118


def draw_strides(caches: Mapping[str, Any]) -> Picture:
    """One row of memory for each cache, [num_blocks, block_size, D] tensors or views: a cell is a slot's D elements."""
    drawing, told = Drawing(height=16 + ROW * len(caches)), []
    for row, (name, cache) in enumerate(caches.items()):
        (blocks, slots, size), (by_block, by_slot, _) = cache.shape, cache.stride()
        y = 40 + ROW * row
        drawing.text(16, y + CELL / 2, name)
        of = {(b * by_block + s * by_slot) // size: (b, s) for b in range(blocks) for s in range(slots)}
        for place in range(blocks * by_block // size):
            block = of.get(place)
            x = LEFT + place * CELL
            fill = SERIES[3 * (block[0] % 2)] if block else PAPER
            drawing.rect(x, y, CELL, CELL, fill, None if block else NEUTRAL, title=f"element {place * size}")
            if block:
                drawing.text(x + CELL / 2, y + CELL / 2, str(block[1]), 12, "middle", on=fill)
        for stride, label, above in ((by_slot, "stride_slot", True), (by_block, "stride_block", False)):
            line = y - 10 if above else y + CELL + 14
            end = LEFT + stride // size * CELL
            drawing.lines(f"M{LEFT} {line}H{end}", SOFT_INK, arrow=True)
            drawing.text(end + 8, line, f"{label} = {stride}", 12, fill=SOFT_INK)
        told.append(f"{name}: slots are {by_slot} elements apart, blocks {by_block}")
    return drawing.picture(". ".join(told) + ".")
