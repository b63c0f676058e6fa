"""One program of a recorded kernel: what it loads and stores in each tensor, and where it is in the grid."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence

from lessons_lib.recording.kernel_accesses import KernelRecording, ProgramRun
from lessons_lib.viz.drawing.palette import EDGE, INK, SOFT_INK
from lessons_lib.viz.drawing.picture import Picture
from lessons_lib.viz.drawing.svg import WIDTH, Drawing, number
from lessons_lib.viz.pool.words import count
from lessons_lib.viz.programs.cells import PALE, draw_cache, draw_cell, draw_rows, draw_vector
from lessons_lib.viz.programs.touched_cells import Run, Touched, touched
from lessons_lib.viz.programs.words import bytes_text, ids_text, program_name, sentences

_LEFT, _RIGHT = 146, 16
_ROOM = WIDTH - _LEFT - _RIGHT
_MOST_PROGRAMS = 1024  # more aren't drawn one by one
_GRID_WIDTH, _GRID_HEIGHT = 250.0, 66.0


def draw_program(recording: KernelRecording, i: int, names: Sequence[str] | None = None) -> Picture:
    """Program i of a recording: all tensors that the kernel touches, coloured where this program loads and stores.

    Tensors that no program touches are named at the end. Caches of which the program touches the same cells, such as
    keys and
    values, are drawn once. A tensor counts as a cache if its parameter's name contains "cache" and it has the shape
    [blocks, slots, KV heads, elements] or [blocks, slots, elements].

    Args:
        recording: from `record_kernel`.
        i: which program, in the order of `recording.programs`.
        names: what each axis of the grid counts, e.g. ["sequence", "query head"].

    Raises:
        IndexError: there is no program i.
        ValueError: there is not one name for each axis.
    """
    if not 0 <= i < len(recording.programs):
        raise IndexError(
            f"i is {i}; {recording.kernel} ran {count(len(recording.programs), 'program')}, counted from 0."
        )
    if names is not None and len(names) != len(recording.grid):
        raise ValueError(
            f"names has {count(len(names), 'name')}; the grid has {len(recording.grid)} "
            f"{'axis' if len(recording.grid) == 1 else 'axes'}."
        )
    program = recording.programs[i]
    used = {access.tensor for other in recording.programs for access in other.accesses}
    groups = _groups({name: touched(recording, program, name) for name in recording.tensors if name in used})
    untouched = [name for name in recording.tensors if name not in used]
    d = Drawing()
    title = f"{recording.kernel}, {program_name(program)}"
    ids = ids_text(program, names)
    d.text(16, 20, title, 15, bold=True)
    y = 42.0
    for text in filter(None, (ids, bytes_text(recording, program))):
        d.text(16, y, text, 13)
        y += 20
    y = max(_programs(d, recording, i, names), y - 4)
    for tensors, of in groups:
        y = _tensor(d, recording, program, tensors, of, y)
    if untouched:
        d.lines(f"M16 {number(y)}H{WIDTH - 16}", EDGE)
        d.text(16, y + 14, f"touched by no program: {', '.join(untouched)}", 12, fill=SOFT_INK)
        y += 28
    d.height = _legend(d, [of for _, of in groups], y)
    return d.picture(_describe(recording, program, ids, groups, untouched))


def _groups(found: dict[str, Touched]) -> list[tuple[list[str], Touched]]:
    """Tensors in the order of the parameters; adjacent caches that the program accesses alike are merged."""
    groups: list[tuple[list[str], Touched]] = []
    for name, of in found.items():
        if groups and of.kind == "cache" and groups[-1][1].same_as(of):
            groups[-1][0].append(name)
        else:
            groups.append(([name], of))
    return groups


def _tensor(
    d: Drawing, recording: KernelRecording, program: ProgramRun, names: list[str], of: Touched, y: float
) -> float:
    """A tensor: its name, what the program does with it in words, and its cells. Returns the y below it."""
    layout = recording.tensors[names[0]]
    d.lines(f"M16 {number(y)}H{WIDTH - 16}", EDGE)
    y += 13
    told = _lines(of, names)
    lines = told or ["not touched by this program"]
    if of.kind == "cache":
        # As many lines as the busiest program needs, so that all programs' pictures have the same height.
        busiest = max(
            recording.programs, key=lambda other: sum(len(a.offsets) for a in other.accesses if a.tensor == names[0])
        )
        most = of if busiest is program else touched(recording, busiest, names[0])
        lines += [""] * (len(_lines(most, names)) - len(lines))
    for index, line in enumerate(lines):
        d.text(_LEFT, y + 16 * index, line, 12.5, bold=bool(told), fill=INK if told else SOFT_INK)
    label = y
    for name in names:
        d.text(16, label, name, 13 if len(name) <= 14 else 11, bold=True, mono=True)
        label += 16
    for words in [str(list(layout.shape)), *_shape_words(of)]:
        d.text(16, label, words, 11, fill=SOFT_INK)
        label += 14
    draw = {"vector": draw_vector, "cache": draw_cache}.get(of.kind, draw_rows)
    y = draw(d, of, " and ".join(names), _LEFT, y + 16 * len(lines) - 4, _ROOM)
    return max(y + 8, label)


def _lines(of: Touched, names: list[str]) -> list[str]:
    return textwrap.wrap("; ".join(sentences(of, names)), 112)


def _shape_words(of: Touched) -> list[str]:
    if of.kind == "cache":
        blocks, slots, heads = of.shape
        return [f"{count(blocks, 'block')} of {count(slots, 'slot')}"] + [f"with {heads} KV heads each"] * (heads > 1)
    return [f"a cell: {count(of.elements, 'element')}"] if of.kind == "rows" else []


def _programs(d: Drawing, recording: KernelRecording, i: int, names: Sequence[str] | None) -> float:
    """All programs as a small grid in the upper right corner, this one dark. Returns the y below it."""
    total, grid = len(recording.programs), recording.grid
    d.text(WIDTH - 16, 20, f"{count(total, 'program')}, this one marked", 12, "end", fill=SOFT_INK)
    lines, columns = (1, total) if len(grid) == 1 else (grid[0], total // max(grid[0], 1))
    if len(grid) == 1 and total > 32:
        columns = math.ceil(total / math.ceil(total / 32))
        lines = math.ceil(total / columns)
    group = grid[2] if len(grid) == 3 else columns
    gap = 4.0 if len(grid) == 3 else 0.0
    gaps = gap * (columns // max(group, 1) - 1)
    cell = min(14.0, (_GRID_WIDTH - gaps) / columns, _GRID_HEIGHT / lines)
    if total > _MOST_PROGRAMS or cell < 3:
        d.rect(WIDTH - 16 - _GRID_WIDTH, 32, _GRID_WIDTH, 12, PALE)
        d.rect(WIDTH - 16 - _GRID_WIDTH + i / total * (_GRID_WIDTH - 3), 29, 3, 18, INK)
        return 60.0
    left = WIDTH - 16 - columns * cell - gaps
    pale = ""
    for index in range(total):
        line, column = divmod(index, columns)
        x, y = left + column * cell + column // group * gap, 32 + line * cell
        pale += (
            f"M{number(x)} {number(y)}h{number(cell - 1)}v{number(cell - 1)}h{number(1 - cell)}z" if index != i else ""
        )
        if index == i:
            d.rect(x, y, cell - 1, cell - 1, INK, title=program_name(recording.programs[i]))
    d.lines(pale, "none", fill=PALE)
    y = 32 + lines * cell
    if len(grid) > 1:
        axes = names or [f"axis {axis}" for axis in range(len(grid))]
        inside = f", inside it {axes[2]}" if len(grid) == 3 else ""
        d.text(WIDTH - 16, y + 9, f"↓ {axes[0]}, → {axes[1]}{inside}", 11, "end", fill=SOFT_INK)
        y += 18
    return y + 8


def _legend(d: Drawing, of: list[Touched], y: float) -> float:
    """The legend. Returns the y below it."""
    d.lines(f"M16 {number(y)}H{WIDTH - 16}", EDGE)
    x, y = 16.0, y + 16
    signs = [("loaded", Run((), 0, 1, 1, 0, 1)), ("stored", Run((), 0, 1, 0, 1, 0))]
    if any((one.times > 1).any() for one in of):
        signs.append(("loaded more than once", Run((), 0, 1, 1, 0, 2)))
    for word, run in signs:
        draw_cell(d, x, y - 7, 18, 14, run)
        d.text(x + 24, y, word, 12, fill=SOFT_INK)
        x += 46 + 6.2 * len(word)
    d.rect(x, y - 7, 18, 14, PALE)
    d.text(x + 24, y, "not touched", 12, fill=SOFT_INK)
    caches = [one for one in of if one.kind == "cache"]
    if caches:
        x += 108
        d.rect(x, y - 6.5, 14, 13, INK, radius=6.5)
        d.text(x + 7, y, "1", 10, "middle", bold=True, fill="#FFFFFF")
        heads = "; in a slot KV head 0 on top" if caches[0].shape[2] > 1 else ""
        d.text(x + 20, y, f"iteration in which a block is loaded{heads}", 12, fill=SOFT_INK)
    return y + 18


def _describe(
    recording: KernelRecording,
    program: ProgramRun,
    ids: str,
    groups: list[tuple[list[str], Touched]],
    untouched: list[str],
) -> str:
    grid = " × ".join(map(str, recording.grid))
    kernel_and_program = f"{recording.kernel}, grid of {grid}, {program_name(program)}" + (f": {ids}" if ids else "")
    told = [f"{kernel_and_program}. {bytes_text(recording, program)}"]
    for names, of in groups:
        told += [f"{program_name(program).capitalize()}: {sentence}." for sentence in sentences(of, names)]
    idle = [name for names, of in groups if not len(of.index) for name in names]
    if idle:
        told.append(f"It touches nothing of {', '.join(idle)}.")
    if untouched:
        told.append(f"No program touches any of {', '.join(untouched)}.")
    return " ".join(told)
