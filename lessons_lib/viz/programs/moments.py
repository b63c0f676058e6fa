"""One program of a kernel, one load or store after another: its code, what it has read, what its variables hold."""

import ast
import textwrap
from collections.abc import Sequence

import numpy as np

from lessons_lib.recording.kernel_accesses import KernelRecording, ProgramRun
from lessons_lib.recording.kernel_moments import Moment, Variable
from lessons_lib.recording.words import count, listed
from lessons_lib.viz.drawing.palette import EDGE, INK, PAPER, SERIES, SOFT_INK, outline
from lessons_lib.viz.drawing.picture import Picture
from lessons_lib.viz.drawing.svg import WIDTH, Drawing, flow, mono_width, number
from lessons_lib.viz.programs.cells import LOADED, PALE
from lessons_lib.viz.programs.touched_cells import Touched, touched
from lessons_lib.viz.programs.words import ids_text, program_name, sentences
from lessons_lib.viz.stepper import Stepper

NOW = SERIES[0]  # as strong as LOADED is pale
_LEFT, _MIDDLE, _TOP = 16, 440, 62  # x of the code and of the memory; y of both
_CODE, _LINE, _MOST_LINES = 10.5, 14.5, 25
_LABEL, _ROW = 92, 20  # width of a tensor's name; height of its strip
_MOST_CELLS, _MOST_BLOCKS, _MOST_ARROWS = 64, 96, 8
_MOST_PROGRAMS = 32
Point = tuple[float, float]


def watch(recording: KernelRecording, names: Sequence[str] | None = None) -> Stepper:
    """Step through the loads and stores of the program in `record_kernel(..., moments_of=...)`, else ValueError.

    names: what each axis of the grid counts, such as ["sequence", "query head"].
    """
    program = next((run for run in recording.programs if any(access.moment for access in run.accesses)), None)
    if program is None:
        raise ValueError(
            f"the recording of {recording.kernel} has no moments. Record it with `moments_of=`, the ids of a program."
        )
    accesses = program.accesses
    return Stepper(
        lambda t: draw_moment(recording, program, t, names),
        count=len(accesses),
        label="access",
        name=lambda t: f"{t + 1} of {len(accesses)}: {accesses[t].kind} {accesses[t].tensor}",
        still=len(accesses) // 2,
    )


def draw_moment(recording: KernelRecording, program: ProgramRun, t: int, names: Sequence[str] | None = None) -> Picture:
    """A program at its access number `t`, counted from 0: just before the line is done."""
    access = program.accesses[t]
    d = Drawing()
    ids = ids_text(program, names)
    d.text(_LEFT, 20, f"{recording.kernel}, {program_name(program)}" + (f": {ids}" if ids else ""), 15, bold=True)
    of = touched(recording, ProgramRun(program.ids, (access,)), access.tensor)
    sentence = "; ".join(sentences(of, [access.tensor])) + "."
    d.text(_LEFT, 42, sentence[0].upper() + sentence[1:], 13)
    _code(d, access.moment)
    memory = _memory(d, recording, program, t)
    _variables(d, access.moment, _before(program, t), memory)
    below = [memory + _height_of(other.moment) for other in program.accesses]
    longest = max(len(_rows_of(other.moment)[0]) for other in program.accesses)
    y = max([*below, _TOP + 18 + min(longest, _MOST_LINES) * _LINE]) + 6
    d.height = _costs(d, recording, program, t, y)
    told = [f"{recording.kernel}, {program_name(program)}, access {t + 1} of {len(program.accesses)}: it {sentence}"]
    if access.moment:
        lines, current = _lines_of(access.moment)
        short, bars = _sorted(access.moment)
        told.append(f"The line of {access.moment.function}: {lines[current].strip()}")
        told.append(f"Variables: {listed([*map(_words, short, short.values()), *bars])}.")
    return d.picture(" ".join(told))


def _before(program: ProgramRun, t: int) -> Moment | None:
    """The last moment in the same function."""
    function = program.accesses[t].moment.function if program.accesses[t].moment else ""
    earlier = [access.moment for access in program.accesses[:t] if access.moment]
    return next((moment for moment in reversed(earlier) if moment.function == function), None)


def _lines_of(moment: Moment | None) -> tuple[list[str], int]:
    """The function's code without decorators, docstring and nbgrader's marks, and the index of the current line."""
    if moment is None:
        return [], 0
    text = textwrap.dedent("".join(moment.source))
    first, left_out = 1, range(0)
    try:
        function = ast.parse(text).body[0]
        first = function.lineno
        if isinstance(function, ast.FunctionDef) and ast.get_docstring(function) is not None:
            left_out = range(function.body[0].lineno, function.body[0].end_lineno + 1)
    except (SyntaxError, IndexError):
        pass  # shown as it is
    numbered = [
        (index, line)
        for index, line in enumerate(text.splitlines())
        if index + 1 >= first and index + 1 not in left_out and line.strip() and not line.strip().startswith("###")
    ]
    current = next((place for place, (index, _) in enumerate(numbered) if index == moment.line), 0)
    return [line for _, line in numbered], current


def _rows_of(moment: Moment | None) -> tuple[list[str], range]:
    """The code in rows that fit; a long line goes on in the next row. And the rows of the current line."""
    lines, current = _lines_of(moment)
    most = int((_MIDDLE - _LEFT - 22) / mono_width("x", _CODE))
    rows: list[str] = []
    now = range(0)
    for place, line in enumerate(lines):
        deeper = " " * (len(line) - len(line.lstrip()) + 8)
        wrapped = textwrap.wrap(line, most, subsequent_indent=deeper, break_on_hyphens=False)
        if place == current:
            now = range(len(rows), len(rows) + len(wrapped))
        rows += wrapped
    return rows, now


def _code(d: Drawing, moment: Moment | None) -> None:
    """The code; the current line dark. A long function is shown around that line."""
    rows, now = _rows_of(moment)
    start = max(0, min(now.start - _MOST_LINES // 2, len(rows) - _MOST_LINES))
    d.text(_LEFT, _TOP + 4, "its code; the marked line is next", 12, fill=SOFT_INK)
    for place, text in enumerate(rows[start : start + _MOST_LINES]):
        y = _TOP + 24 + place * _LINE
        if start + place in now:
            d.rect(_LEFT, y - _LINE / 2, _MIDDLE - _LEFT - 14, _LINE, INK, stroke="none", radius=2)
            d.text(_LEFT + 4, y, text, _CODE, mono=True, on=INK)
        else:
            d.text(_LEFT + 4, y, text, _CODE, mono=True)


def _memory(d: Drawing, recording: KernelRecording, program: ProgramRun, t: int) -> float:
    """What the program has touched so far, and touches now. Returns the y below it."""
    d.text(_MIDDLE, _TOP + 4, "memory: pale, what it has touched; strong, what this line touches", 12, fill=SOFT_INK)
    y, centers = _TOP + 16.0, {}
    for name in _tensors(program):
        earlier = _cells_of(recording, program, name, 0, t)
        now = _cells_of(recording, program, name, t, t + 1)
        of = touched(recording, program, name)
        draw = _blocks if of.kind == "cache" else _strip
        y, centers[name] = draw(d, name, of, earlier, now, y)
    _arrows(d, recording, program, t, centers)
    return y + 4


def _tensors(program: ProgramRun) -> list[str]:
    """Those that the program touches, tables above the caches that they point to."""
    found = list(dict.fromkeys(access.tensor for access in program.accesses))
    return sorted(found, key=lambda name: "cache" in name)


def _cells_of(recording: KernelRecording, program: ProgramRun, name: str, start: int, end: int) -> set[tuple]:
    """The cells that some accesses touch; of a cache, (block, slot)."""
    of = touched(recording, ProgramRun(program.ids, program.accesses[start:end]), name)
    width = 2 if of.kind == "cache" else of.index.shape[1]
    return set(map(tuple, of.index[:, :width].tolist()))


def _strip(
    d: Drawing, name: str, of: Touched, earlier: set[tuple], now: set[tuple], y: float
) -> tuple[float, dict[int, Point]]:
    """A small tensor as a line of cells, a gap after each row. Returns the y below it, and where its cells are."""
    d.text(_MIDDLE, y + 8, name, 11, bold=bool(now), mono=True)
    cells = list(np.ndindex(*of.shape))
    if len(cells) > _MOST_CELLS:
        words = f"{count(len(cells), 'cell')}, {count(len(earlier | now), 'cell')} touched so far"
        d.text(_MIDDLE + _LABEL, y + 8, words, 11, fill=SOFT_INK)
        return y + _ROW, {}
    rows = max(len(cells) // max(of.shape[-1], 1), 1)
    width = min(16.0, (WIDTH - 16 - _MIDDLE - _LABEL - 5 * (rows - 1)) / max(len(cells), 1))
    lefts = [_MIDDLE + _LABEL + place * width + 5 * (place // of.shape[-1]) for place in range(len(cells))]
    d.boxes([(x, y + 1) for x in lefts], width - 1, 13, PALE)
    for x, cell in zip(lefts, cells):
        if cell in now or cell in earlier:
            d.rect(x, y + 1, width - 1, 13, NOW if cell in now else LOADED)
    centers = {place: (x + width / 2, y + 14) for place, x in enumerate(lefts)}
    return y + _ROW, centers


def _blocks(
    d: Drawing, name: str, of: Touched, earlier: set[tuple], now: set[tuple], y: float
) -> tuple[float, dict[int, Point]]:
    """A cache, block after block, a cell for each slot. Returns the y below it, and where each block begins."""
    blocks, slots = of.shape[:2]
    d.text(_MIDDLE, y + 8, name, 11, bold=bool(now), mono=True)
    if blocks > _MOST_BLOCKS:
        d.text(_MIDDLE + _LABEL, y + 8, f"{count(blocks, 'block')}, too many to draw", 11, fill=SOFT_INK)
        return y + _ROW, {}
    room = WIDTH - 16 - _MIDDLE
    sizes = [(lines, size) for lines in (1, 2) for size in (6, 5, 4, 3)]  # one line of small ones before two
    cell = next((size for lines, size in sizes if -(-blocks // int((room + 4) // (slots * size + 8) or 1)) <= lines), 3)
    width = slots * cell + 4
    a_line = max(int((room + 4) // (width + 4)), 1)
    centers, top = {}, y + 17
    for block in range(blocks):
        x, line = _MIDDLE + block % a_line * (width + 4), top + block // a_line * 30
        d.rect(x, line, width, 26, PAPER, EDGE, radius=2)
        d.text(x + 3, line + 7, str(block), 9, fill=SOFT_INK, mono=True)
        cells = {(block, slot) for slot in range(slots)}
        for fill, own in ((PALE, cells - now - earlier), (LOADED, cells & earlier - now), (NOW, cells & now)):
            d.boxes([(x + 2 + slot * cell, line + 13) for _, slot in sorted(own)], cell - 1, 10, fill)
        centers[block] = (x + width / 2, line)
    return top + -(-blocks // a_line) * 30 + 2, centers


def _arrows(
    d: Drawing, recording: KernelRecording, program: ProgramRun, t: int, centers: dict[str, dict[int, Point]]
) -> None:
    """From the table entries read last to the blocks that are touched now."""
    access = program.accesses[t]
    read = next((one for one in reversed(program.accesses[:t]) if "table" in one.tensor), None)
    if "cache" not in access.tensor or read is None:
        return
    blocks = list(dict.fromkeys(block for (block,) in recording.indices(access, 1)))
    if len(blocks) > _MOST_ARROWS:
        return
    for entry, block in zip(dict.fromkeys(read.offsets), blocks):
        start, end = centers[read.tensor].get(entry), centers[access.tensor].get(block)
        if start and end:
            middle = (start[1] + end[1]) / 2
            curve = f"{number(start[0])} {number(middle)} {number(end[0])} {number(middle)}"
            path = f"M{number(start[0])} {number(start[1])}C{curve} {number(end[0])} {number(end[1] - 1)}"
            d.lines(path, INK, 1.5, arrow=True)


def _sorted(moment: Moment | None) -> tuple[dict[str, Variable], dict[str, Variable]]:
    """Variables that take a word or two, and those that are drawn as bars."""
    everything = moment.variables if moment else {}
    bars = {name: value for name, value in everything.items() if value.numbers and len(value.shape) == 1}
    return {name: value for name, value in everything.items() if name not in bars}, bars


def _words(name: str, value: Variable) -> str:
    if value.shape:
        return f"{name} [{', '.join(map(str, value.shape))}]"
    return f"{name} {value.numbers[0]:.4g}" if value.numbers else name


def _places(short: dict[str, Variable]) -> list[tuple[int, float]]:
    return flow([mono_width(_words(*item), 11) + 14 for item in short.items()], WIDTH - 16 - _MIDDLE, gap=0)


def _height_of(moment: Moment | None) -> float:
    short, bars = _sorted(moment)
    places = _places(short)
    return 24 + (places[-1][0] + 1 if places else 0) * 17 + 26 * len(bars)


def _variables(d: Drawing, moment: Moment | None, before: Moment | None, y: float) -> None:
    """What the function's variables hold; bold, what has changed since its last access."""
    d.text(_MIDDLE, y + 8, "its variables, in registers; bold: changed since the access before", 12, fill=SOFT_INK)
    y += 24
    short, bars = _sorted(moment)
    places = _places(short)
    known = before.variables if before else {}
    for (name, value), (line, x) in zip(short.items(), places):
        d.text(_MIDDLE + x, y + line * 17, _words(name, value), 11, bold=known.get(name) != value, mono=True)
    y += (places[-1][0] + 1) * 17 if places else 0
    for name, value in bars.items():
        d.text(_MIDDLE, y + 6, name, 11, bold=known.get(name) != value, mono=True)
        _bars(d, value.numbers, _MIDDLE + _LABEL, y - 4, WIDTH - 16 - _MIDDLE - _LABEL - 90)
        finite = [one for one in value.numbers if np.isfinite(one)]
        limits = f"{min(finite):.2g} to {max(finite):.2g}" if finite else "none finite"
        d.text(WIDTH - 16, y + 6, limits, 11, "end", fill=SOFT_INK)
        y += 26


def _bars(d: Drawing, numbers: Sequence[float], x: float, y: float, room: float) -> None:
    """One bar for each number, up or down from a line in the middle."""
    width = min(14.0, room / len(numbers))
    finite = [one if np.isfinite(one) else 0.0 for one in numbers]
    scale, bar = 10 / (max(map(abs, finite)) or 1), max(width - 1, 0.8)
    path = "".join(
        f"M{number(x + place * width)} {number(y + 10)}h{number(bar)}v{number(-one * scale)}h{number(-bar)}z"
        for place, one in enumerate(finite)
        if one
    )
    d.lines(path, outline(SERIES[3]), 0.5, fill=SERIES[3])
    d.lines(f"M{number(x)} {number(y + 10)}h{number(width * len(numbers))}", EDGE)


def _costs(d: Drawing, recording: KernelRecording, program: ProgramRun, t: int, y: float) -> float:
    """What it has loaded, all that is loaded, and what would be enough. Returns the y below it."""
    d.rule(y)
    so_far = recording.bytes_of(ProgramRun(program.ids, program.accesses[: t + 1]), "load")
    own = recording.bytes_of(program, "load")
    total, once = 0, {}
    for run in recording.programs:
        total += recording.bytes_of(run, "load")
        for access in run.accesses:
            if access.kind == "load":
                once.setdefault(access.tensor, set()).update(access.offsets)
    least = sum(len(offsets) * recording.tensors[name].itemsize for name, offsets in once.items())
    words = (
        ("after this line", so_far, own),
        ("this program", own, total),
        (f"all {count(len(recording.programs), 'program')}", total, total),
        ("each number once", least, total),
    )
    bar, left = 250.0, _LEFT + 128
    if len(recording.programs) == 1:
        words = words[:2]
    for place, (label, part, whole) in enumerate(words):
        top = y + 14 + 19 * place
        d.text(left - 10, top, label, 12, "end")
        length = bar * part / max(total, 1)
        d.rect(left, top - 6, length, 12, LOADED if place else NOW)
        d.text(left + length + 6, top, f"{part:,} bytes" + (f" of {whole:,}" if not place else ""), 11)
    _programs(d, recording, program, y + 8)
    return y + 14 + 19 * len(words)


def _programs(d: Drawing, recording: KernelRecording, program: ProgramRun, y: float) -> None:
    """Small multiples: each program's blocks of the first cache, this one framed."""
    cache = next((name for name in _tensors(program) if "cache" in name), None)
    if cache is None or not 1 < len(recording.programs) <= _MOST_PROGRAMS:
        return
    blocks = recording.tensors[cache].shape[0]
    columns = recording.grid[-1] if len(recording.grid) > 1 else len(recording.programs)
    lines = -(-len(recording.programs) // columns)
    cell = min(5.0, (WIDTH - 16 - _MIDDLE - 40) / columns / (blocks + 2), 400.0)
    if cell < 1 or lines > 6:
        return
    words = f"the blocks of {cache} that each program loads; framed: this program"
    d.text(_MIDDLE + 40, y + 6, words, 11, fill=SOFT_INK)
    height = min(14.0, 58 / lines)
    for place, run in enumerate(recording.programs):
        row, column = divmod(place, columns)
        x, top = _MIDDLE + 40 + column * (blocks + 2) * cell, y + 18 + row * height
        own = {block for a in run.accesses if a.tensor == cache for (block,) in recording.indices(a, 1)}
        for fill, wanted in ((PALE, False), (LOADED, True)):
            corners = [(x + block * cell, top) for block in range(blocks) if (block in own) == wanted]
            d.boxes(corners, cell - 0.6, height - 4, fill)
        if run is program:
            d.rect(x - 1.5, top - 1.5, blocks * cell + 2, height - 1, "none", INK, 1.5)
