"""One program of a recorded kernel: what it loads and stores in each tensor, and where it is in the grid."""

import textwrap
from collections.abc import Sequence

from lessons_lib.recording.kernel_accesses import KernelRecording, ProgramRun
from lessons_lib.recording.words import check_index, count
from lessons_lib.viz.drawing.palette import INK, SOFT_INK
from lessons_lib.viz.drawing.picture import Picture
from lessons_lib.viz.drawing.svg import WIDTH, Drawing
from lessons_lib.viz.programs.cells import PALE, draw_cache, draw_cell, draw_lines
from lessons_lib.viz.programs.touched_cells import Run, Touched, touched
from lessons_lib.viz.programs.words import bytes_text, ids_text, program_name, sentences

_LEFT, _RIGHT = 146, 16
_ROOM = WIDTH - _LEFT - _RIGHT
_GRID_WIDTH, _GRID_HEIGHT = 250.0, 66.0


def draw_program(recording: KernelRecording, i: int, names: Sequence[str] | None = None) -> Picture:
    """Program i of `record_kernel`: all tensors that the kernel touches, coloured where this program loads and stores.

    Caches of which the program touches the same cells, such as keys and values, are drawn once. A tensor is a cache if
    its parameter's name contains "cache" and its shape is [blocks, slots, KV heads, elements] or [blocks, slots,
    elements]. `names`: what each axis of the grid counts, such as ["sequence", "query head"].
    """
    check_index("program", i, len(recording.programs))
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
        d.rule(y)
        d.text(16, y + 14, f"touched by no program: {', '.join(untouched)}", 12, fill=SOFT_INK)
        y += 28
    d.height = _legend(d, [of for _, of in groups], y)
    told = [sentence for names, of in groups for sentence in sentences(of, names)]
    told += [f"touches nothing of {', '.join(names)}" for names, of in groups if not len(of.index)]
    told += [f"no program touches {', '.join(untouched)}"] * bool(untouched)
    return d.picture(f"{title}{f': {ids}' if ids else ''}. {bytes_text(recording, program)} It {'; '.join(told)}.")


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
    d.rule(y)
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
    shape = [str(list(layout.shape))]
    if of.kind == "cache":
        blocks, slots, heads = of.shape
        shape += [f"{count(blocks, 'block')} of {count(slots, 'slot')}", *[f"with {heads} KV heads each"] * (heads > 1)]
    elif of.kind == "rows":
        shape.append(f"a cell: {count(of.elements, 'element')}")
    for words in shape:
        d.text(16, label, words, 11, fill=SOFT_INK)
        label += 14
    y += 16 * len(lines) - 4
    if of.kind == "cache":
        y = draw_cache(d, of, " and ".join(names), _LEFT, y, _ROOM)
    else:
        y = draw_lines(d, of, _LEFT, y, _ROOM)
    return max(y + 8, label)


def _lines(of: Touched, names: list[str]) -> list[str]:
    return textwrap.wrap("; ".join(sentences(of, names)), 112)


def _programs(d: Drawing, recording: KernelRecording, i: int, names: Sequence[str] | None) -> float:
    """All programs as a small grid in the upper right corner, this one dark. Returns the y below it."""
    total, grid = len(recording.programs), recording.grid
    d.text(WIDTH - 16, 20, f"{count(total, 'program')}, this one marked", 12, "end", fill=SOFT_INK)
    lines = grid[0] if len(grid) > 1 else 1
    columns = total // lines
    cell = min(14.0, _GRID_WIDTH / columns, _GRID_HEIGHT / lines)
    size, left = max(cell - 1, 0.5), WIDTH - 16 - columns * cell
    corners = [(left + index % columns * cell, 32 + index // columns * cell) for index in range(total)]
    d.boxes(corners, size, size, PALE)
    d.rect(*corners[i], size, size, INK)
    y = 40 + lines * cell
    if len(grid) > 1:
        axes = names or [f"axis {axis}" for axis in range(len(grid))]
        d.text(WIDTH - 16, y + 1, f"↓ {axes[0]}, → {', '.join(axes[1:])}", 11, "end", fill=SOFT_INK)
        y += 18
    return y


def _legend(d: Drawing, of: list[Touched], y: float) -> float:
    """The legend. Returns the y below it."""
    d.rule(y)
    y += 16
    runs = {"loaded": Run((), 0, 1, 1, 0, 1), "stored": Run((), 0, 1, 0, 1, 0)}
    if any((one.times > 1).any() for one in of):
        runs["loaded more than once"] = Run((), 0, 1, 1, 0, 2)
    signs = [(word, lambda x, y, run=run: draw_cell(d, x, y, 18, 14, run)) for word, run in runs.items()]
    x = d.legend(16, y, [*signs, ("not touched", lambda x, y: d.rect(x, y, 18, 14, PALE))])
    caches = [one for one in of if one.kind == "cache"]
    if caches:
        d.rect(x, y - 6.5, 14, 13, INK, radius=6.5)
        d.text(x + 7, y, "1", 10, "middle", bold=True, fill="#FFFFFF")
        heads = "; in a slot KV head 0 on top" if caches[0].shape[2] > 1 else ""
        d.text(x + 20, y, f"iteration in which a block is loaded{heads}", 12, fill=SOFT_INK)
    return y + 18
