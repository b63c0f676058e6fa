"""What one program of a recorded kernel loads and stores, in words."""

from collections.abc import Iterable, Sequence

from lessons_lib.recording.kernel_accesses import KernelRecording, ProgramRun
from lessons_lib.recording.words import count, listed, run_words, runs_of_numbers
from lessons_lib.viz.programs.touched_cells import Run, Touched


def program_name(program: ProgramRun) -> str:
    return f"program {program.ids if len(program.ids) > 1 else program.ids[0]}"


def ids_text(program: ProgramRun, names: Sequence[str] | None) -> str:
    """What the program ids stand for, if the axes of the grid have names: "sequence 0, query head 1"."""
    return ", ".join(f"{name} {number}" for name, number in zip(names or (), program.ids))


def bytes_text(recording: KernelRecording, program: ProgramRun) -> str:
    loads, stores = (recording.bytes_of(program, kind) for kind in ("load", "store"))
    return f"It loads {count(loads, 'byte')} and stores {count(stores, 'byte')}."


def sentences(of: Touched, names: Sequence[str]) -> list[str]:
    """What a program does with tensors that it accesses alike, one sentence per kind: "loads elements 4 to 7 of x"."""
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


def spans(values: Iterable[int]) -> str:
    """Indices in words: "0 to 7, 9"."""
    return listed(run_words(values), 6)


def _what(of: Touched, name: str, verb: str) -> str:
    own = [run for run in of.runs if (run.loaded if verb == "loads" else run.stored)]
    if of.kind == "cache":
        return _cache_words(of, name, own, verb)
    rows: dict[tuple[int, ...], list[int]] = {}
    for run in own:
        rows.setdefault(run.row, []).extend(range(run.start, run.end))
    if of.kind == "vector":
        return f"element{'s' * (len(rows[()]) > 1)} {spans(rows[()])} of {name}"
    inner = {(run.first, run.last) for run in own}
    first, last = min(inner)
    part = [_along(range(first, last + 1))] if len(inner) == 1 and last + 1 - first < of.elements else []
    # As a learner would index them: "q[6 to 14, 2, 3]", and whole rows "x[0 to 6]".
    alike: dict[tuple[str, ...], list[int]] = {}
    for (*leading, row), columns in rows.items():
        is_whole = not part and len(set(columns)) == of.shape[-1]
        alike.setdefault((*map(str, leading), "" if is_whole else _along(columns)), []).append(row)
    parts = [
        f"{name}[{', '.join(filter(None, [*leading, _along(rows), last, *part]))}]"
        for (*leading, last), rows in alike.items()
    ]
    total = sum((run.loaded if verb == "loads" else run.stored) * (run.end - run.start) for run in own)
    return f"{listed(parts, 3)}, {count(total, 'element')}"


def _along(numbers: Iterable[int]) -> str:
    """Indices of one axis, without the comma that would begin the next: "0 to 1 and 4"."""
    words = [f"{first} to {last}" if last > first else str(first) for first, last in runs_of_numbers(numbers)]
    return " and ".join(words[:6] + [f"{len(words) - 6} more"] * (len(words) > 6))


def _cache_words(of: Touched, name: str, own: list[Run], verb: str) -> str:
    """Blocks in the order of the iterations, how many of their slots, and the KV heads."""
    slots, heads = {run.row for run in own}, {head for run in own for head in range(run.start, run.end)}
    blocks = listed(list(map(str, of.iterations["load" if verb == "loads" else "store"])))
    words = f"{count(len(slots), 'slot')} of {name}, in block{'s' * (len({row[0] for row in slots}) > 1)} {blocks}"
    return words + (f", KV head{'s' * (len(heads) > 1)} {spans(sorted(heads))}" if of.shape[2] > 1 else "")


def _repeats(of: Touched) -> str:
    times = set(of.times[of.loaded > 0].tolist())
    return "" if times == {1} else f", {'each' if len(times) == 1 else 'some of them'} {max(times)} times"
