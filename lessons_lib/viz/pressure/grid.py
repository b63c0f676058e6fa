"""The blocks of a pool under pressure: which sequences use each, how full it is, and what is left in the free ones."""

import math
from collections.abc import Sequence

from lessons_lib.kv_cache.block_copies import SWAP_OUT
from lessons_lib.recording.memory_steps import MemoryStep
from lessons_lib.recording.words import count
from lessons_lib.viz.drawing.palette import EDGE, INK, NEUTRAL, PAPER, SOFT_INK, color_of, mix, tint
from lessons_lib.viz.drawing.svg import Drawing, number

GRID_WIDTH = 588
_GAP = 5
_WIDEST, _TALLEST = 96, 420
_HEAD, _HEADED = 15, 34  # height of a bay's head, and how wide a bay must be to have one
_FILL_WIDTH = 62  # a bay this wide says in figures how full it is
_EM, _SMALLEST = 0.66, 7.5  # width of a letter in font sizes, and the smallest font
CACHED = mix(NEUTRAL, PAPER, 0.6)


def bay_size(num_blocks: int) -> tuple[int, int, int]:
    """Columns, width and height of the largest bays that fit, in even rows if that costs little."""
    sizes = []
    for columns in range(1, max(num_blocks, 1) + 1):
        width = max(4, min(_WIDEST, (GRID_WIDTH + _GAP) // columns - _GAP))
        sizes.append((columns, width, width // 2 + (_HEAD if width >= _HEADED else 6)))
    fitting = [size for size in sizes if math.ceil(num_blocks / size[0]) * (size[2] + _GAP) <= _TALLEST] or [
        sizes[min(65, len(sizes)) - 1]
    ]
    best = max(fitting, key=lambda size: (size[1], size[0]))
    even = [size for size in fitting if num_blocks % size[0] == 0 and size[1] >= 0.75 * best[1]]
    return max(even, key=lambda size: (size[1], size[0])) if even else best


def draw_bays(d: Drawing, step: MemoryStep, x: float, y: float) -> float:
    """All blocks of the pool. Returns the height taken."""
    columns, width, height = bay_size(step.num_blocks)
    targets = {move.target for move in step.block_copies if move.kind != SWAP_OUT}
    for block in range(step.num_blocks):
        row, column = divmod(block, columns)
        left, top = x + column * (width + _GAP), y + row * (height + _GAP)
        with d.marked([(owner,) for owner in step.owners.get(block, ())]):
            _bay(d, step, block, left, top, width, height, block in targets)
    return math.ceil(step.num_blocks / columns) * (height + _GAP) - _GAP


def _bay(
    d: Drawing, step: MemoryStep, block: int, x: float, y: float, width: int, height: int, is_target: bool
) -> None:
    owners, is_cached = step.owners.get(block, ()), block in step.cached
    head = _HEAD if width >= _HEADED else 0
    title, edge = block_title(step, block), INK if owners else SOFT_INK if is_cached else EDGE
    d.rect(x, y, width, height, PAPER, edge, dashed=is_cached and not owners, radius=3, title=title)
    if head:
        d.text(x + 4, y + head / 2, str(block), 10.5, fill=INK if owners else SOFT_INK, mono=True)
    if owners and width >= _FILL_WIDTH:
        times = f"{len(owners)}×" if len(owners) > 1 else ""
        words = f"{times}{step.filled.get(block, 0)}/{step.block_size}"
        d.text(x + width - 4, y + head / 2, words, 10.5, "end", fill=SOFT_INK)
    inside = (x + 2, y + max(head, 2), width - 4, height - max(head, 2) - 2)
    if owners:
        _stripes(d, owners, min(step.filled.get(block, 0) / step.block_size, 1), title, *inside)
    elif is_cached:
        draw_cached(d, *inside)
    if is_target:
        d.rect(x - 1, y - 1, width + 2, height + 2, "none", INK, 3, radius=4)


def _stripes(
    d: Drawing, owners: Sequence[str], filled: float, title: str, x: float, y: float, width: float, height: float
) -> None:
    """A stripe for each sequence, with its letter where it fits. Empty slots are hatched, from the bottom upwards."""
    each = width / len(owners)
    for index, owner in enumerate(owners):
        size = min(14, height - 3, (each - 1) / (_EM * len(owner)))
        label = owner if size >= _SMALLEST else ""
        colour = color_of(owner)
        d.cell(x + index * each, y, each, height, colour, label, title, 1 - filled, tint(colour), size=size)
    if len(owners) > 1:
        seams = "".join(f"M{number(x + n * each)} {number(y)}v{number(height)}" for n in range(1, len(owners)))
        d.lines(seams, PAPER, 1 if each < 8 else 2)


def draw_cached(d: Drawing, x: float, y: float, width: float, height: float) -> None:
    """Rows of dots on pale gray: what was here is still here."""
    d.boxes([(x, y)], width, height, CACHED)
    step = 7 if width >= 12 else 4
    rows, columns = max(1, int(height // step)), max(1, int(width // step))
    left, top = x + (width - (columns - 1) * step) / 2, y + (height - (rows - 1) * step) / 2
    line = f"h{number((columns - 1) * step + 0.5)}"
    path = "".join(f"M{number(left)} {number(top + n * step)}{line}" for n in range(rows))
    d.lines(path, SOFT_INK, 2, dots=step)


def draw_swap_space(d: Drawing, step: MemoryStep, x: float, y: float) -> float:
    """The swap space as small cells. Returns the height taken."""
    owner = {block: name for name, blocks in step.swapped.items() for block in blocks}
    targets = {move.target for move in step.block_copies if move.kind == SWAP_OUT}
    width = next(
        (width for width in (38, 26, 16, 10) if math.ceil(step.num_swap_blocks / (GRID_WIDTH // width)) * 24 <= 100), 6
    )
    a_line, height = GRID_WIDTH // width, 20 if width > 10 else 10
    for block in range(step.num_swap_blocks):
        left, top, name = x + block % a_line * width, y + block // a_line * (height + 4), owner.get(block)
        fill = color_of(name) if name else PAPER
        stroke, line = (INK, 2.5) if block in targets else (EDGE, 1)
        with d.marked([(name,)] if name else []):
            title = f"swap block {block}: {f'{name}, swapped out' if name else 'free'}"
            d.rect(left, top, width - 3, height, fill, stroke, line, radius=2, title=title)
        if width == 38:
            d.text(left + 4, top + height / 2, str(block), 9.5, on=fill, mono=True)
        if name and 8 * len(name) + 2 <= (width if width < 38 else 20):
            middle = left + (width - 3) * (0.68 if width == 38 else 0.5)
            d.text(middle, top + height / 2, name, 12, "middle", bold=True, on=fill)
    return math.ceil(step.num_swap_blocks / a_line) * (height + 4) - 4


def block_title(step: MemoryStep, block: int) -> str:
    if owners := step.owners.get(block, ()):
        shared = f", one block for {len(owners)}" if len(owners) > 1 else ""
        filled = f"{step.filled.get(block, 0)} of {count(step.block_size, 'token')}"
        return f"block {block}: {', '.join(owners)}{shared}; {filled}"
    return f"block {block}: free" + (", but its contents can still be found" if block in step.cached else "")
