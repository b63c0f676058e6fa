"""What one program of a recorded kernel loads and stores, in words."""

from collections.abc import Iterable, Sequence

from lessons_lib.recording.kernel_accesses import KernelRecording, ProgramRun
from lessons_lib.recording.words import runs_of_numbers
from lessons_lib.viz.drawing.svg import count
from lessons_lib.viz.programs.touched_cells import Run, Touched

_MOST_BLOCKS, _MOST_SPANS, _MOST_ROWS = 12, 6, 3


def program_name(program: ProgramRun) -> str:
    return f"program {program.ids if len(program.ids) > 1 else program.ids[0]}"


def ids_text(program: ProgramRun, names: Sequence[str] | None) -> str:
    """What the program ids stand for, if the axes of the grid have names: "sequence 0, query head 1"."""
    return ", ".join(f"{name} {number}" for name, number in zip(names or (), program.ids))


def bytes_text(recording: KernelRecording, program: ProgramRun) -> str:
    loads, stores = (recording.bytes_of(program, kind) for kind in ("load", "store"))
    if not loads and not stores:
        return "It loads nothing and stores nothing."
    return f"It loads {count(loads, 'byte')} and stores {count(stores, 'byte')}."


def sentences(of: Touched, names: Sequence[str]) -> list[str]:
    """What a program does with these tensors, all of which it accesses alike: "loads elements 4 to 7 of x", one per
    kind.
    """
    told = []
    for verb, counts in (("loads", of.loaded), ("stores", of.stored)):
        if counts.any():
            same = "".join(f", the same of {name}" for name in names[1:])
            told.append(f"{verb} {_what(of, names[0], verb)}{_repeats(of) if verb == 'loads' else ''}{same}")
    if of.astray:
        told.append(
            f"touches {count(of.astray, 'element')} between those of {names[0]}, which is a view: look at the strides"
        )
    return told


def spans(values: Iterable[int], most: int = _MOST_SPANS) -> str:
    """Indices in words, neighbors together: "0 to 7 and 9"; after `most` of them "and 5 more"."""
    found = runs_of_numbers(values)
    shown = found if len(found) <= most else found[: most - 1]
    words = [
        word
        for first, last in shown
        for word in ([f"{first} to {last}"] if last > first + 1 else map(str, range(first, last + 1)))
    ]
    if len(shown) < len(found):
        words.append(f"{sum(last - first + 1 for first, last in found[len(shown) :])} more")
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def _what(of: Touched, name: str, verb: str) -> str:
    own = [run for run in of.runs if (run.loaded if verb == "loads" else run.stored)]
    if of.kind == "cache":
        return _cache_words(of, name, own, verb)
    rows: dict[tuple[int, ...], list[int]] = {}
    for run in own:
        rows.setdefault(run.row, []).extend(range(run.start, run.end))
    inner = {(run.first, run.last) for run in own}
    if of.kind == "vector":
        columns = rows[()]
        return f"element{'s' * (len(columns) > 1)} {spans(columns)} of {name}"
    if of.kind == "matrix":
        return _matrix_words(of, name, rows)
    total = sum((run.loaded if verb == "loads" else run.stored) * (run.end - run.start) for run in own)
    first, last = min(inner)
    is_part = len(inner) == 1 and last + 1 - first < of.elements
    return f"{_indexed(name, rows, f', {spans(range(first, last + 1))}' if is_part else '')}, {count(total, 'element')}"


def _indexed(name: str, rows: dict[tuple[int, ...], list[int]], inner: str) -> str:
    """The cells as a learner would index them: "q[6 to 14, 2 and 3]"."""
    alike: dict[tuple[str, ...], list[int]] = {}
    for (*leading, row), columns in rows.items():
        alike.setdefault((*map(str, leading), spans(columns)), []).append(row)
    parts = [
        f"{name}[{', '.join([*leading, spans(own), columns])}{inner}]" for (*leading, columns), own in alike.items()
    ]
    if len(parts) > _MOST_ROWS:
        parts = [*parts[: _MOST_ROWS - 1], f"{len(parts) - _MOST_ROWS + 1} more"]
    return " and ".join([", ".join(parts[:-1]), parts[-1]]) if len(parts) > 1 else parts[0]


def _matrix_words(of: Touched, name: str, rows: dict[tuple[int, ...], list[int]]) -> str:
    by_columns: dict[str, list[int]] = {}
    for (row,), columns in rows.items():
        text = "" if len(columns) == of.shape[1] else f", column{'s' * (len(columns) > 1)} {spans(columns)}"
        by_columns.setdefault(text, []).append(row)
    parts = [
        f"row{'s' * (len(own) > 1)} {spans(own)} of {name}{text}" for text, own in list(by_columns.items())[:_MOST_ROWS]
    ]
    return "; ".join(parts) + (f"; and {len(by_columns) - _MOST_ROWS} more" if len(by_columns) > _MOST_ROWS else "")


def _cache_words(of: Touched, name: str, own: list[Run], verb: str) -> str:
    """Blocks in the order of the iterations, their slots, and the KV heads."""
    slots: dict[int, dict[int, None]] = {}
    heads: dict[int, None] = {}
    for run in own:
        slots.setdefault(run.row[0], {})[run.row[1]] = None
        heads.update(dict.fromkeys(range(run.start, run.end)))
    order = list(of.iterations["load" if verb == "loads" else "store"])
    shown = order if len(order) <= _MOST_BLOCKS else order[: _MOST_BLOCKS - 2]
    more = f" and {len(order) - len(shown)} more" if len(order) > len(shown) else ""
    words = (
        f"{'into ' if verb == 'stores' else ''}{count(len(order), 'block')} of {name}: "
        f"{', '.join(map(str, shown))}{more}"
    )
    words += f" ({_slot_words([slots[block] for block in order])})"
    if of.shape[2] > 1:
        words += f", KV head{'s' * (len(heads) > 1)} {spans(sorted(heads))}"
    counts = {run.loaded if verb == "loads" else run.stored for run in own}
    if counts != {of.elements}:
        words += (
            f", {min(counts)} of {of.elements} elements"
            if len(counts) == 1
            else f", not all {of.elements} elements of each"
        )
    return words


def _slot_words(slots: list[Iterable[int]]) -> str:
    """The slots of each block if there are few; else those of all but the last if they are the same, as when a sequence
    is read.
    """
    *firsts, last = [spans(own) for own in slots]
    noun = f"slot{'s' * (sum(len(list(own)) for own in slots) > 1)}"
    if len(slots) > 3 and len(set(firsts)) == 1:
        return f"{noun} {last} of each" if last == firsts[0] else f"{noun} {firsts[0]} of each, but {last} of the last"
    shown = [*firsts, last][:6]
    return f"{noun} {', '.join(shown)}{', …' if len(slots) > len(shown) else ''}"


def _repeats(of: Touched) -> str:
    times = set(of.times[of.loaded > 0].tolist())
    if times == {1}:
        return ""
    if of.loaded.sum() == 1:
        return f", {_times(times.pop())}"
    return f", each {_times(times.pop())}" if len(times) == 1 else f", some of them {_times(max(times))}"


def _times(number: int) -> str:
    return "twice" if number == 2 else f"{number} times"
