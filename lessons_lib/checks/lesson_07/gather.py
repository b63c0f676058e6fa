"""Judges 07.3, `gather_kernel`: the row to copy comes from an index."""

from random import Random

import torch

from lessons_lib.checks.exercise import Mistake
from lessons_lib.checks.kernels import compiled_too, refuse_wrong_tensors, run, touched, values_text
from lessons_lib.checks.lesson_07.rows import misplaced_row

UNTOUCHED = -7.0


def check_gather_kernel(attempt) -> None:
    rows, index = torch.zeros(2, 3), torch.zeros(2, dtype=torch.int32)
    compiled_too(lambda: _check_results(attempt), attempt, ((rows, index, rows, 3, 3, 3), dict(COLUMNS=4)))


def _check_results(attempt) -> None:
    _check_case(attempt, rows=3, columns=4, index=[0])
    _check_case(attempt, rows=3, columns=4, index=[2])
    _check_case(attempt, rows=3, columns=4, index=[1, 0])
    _check_case(attempt, rows=3, columns=4, index=[2, 0, 1])
    _check_case(attempt, rows=1, columns=3, index=[0])
    _check_case(attempt, rows=4, columns=3, index=[3, 3, 0])
    _check_case(attempt, rows=4, columns=3, index=[2, 1], gap_source=2, gap_out=1)
    _check_case(attempt, rows=4, columns=3, index=[2, 0, 1], gap_source=1, gap_out=3)
    rng = Random(3)
    for _ in range(4):
        rows = rng.randint(1, 9)
        index = [rng.randrange(rows) for _ in range(rng.randint(1, 6))]
        _check_case(attempt, rows, rng.randint(1, 20), index, rng.choice((0, 4)), rng.choice((0, 1)))


def _check_case(attempt, rows: int, columns: int, index: list[int], gap_source: int = 0, gap_out: int = 0) -> None:
    size = 1 << (columns - 1).bit_length()
    source = torch.full((rows, columns + gap_source), float("nan"))[:, :columns]
    source.copy_(100.0 * torch.arange(rows)[:, None] + torch.arange(columns))  # each value says where it comes from
    out = torch.full((len(index), columns + gap_out), UNTOUCHED)[:, :columns]
    strides = source.stride(0), out.stride(0)
    case = (
        f"source with {rows} row{'s' if rows > 1 else ''} of {columns}, index {index}, COLUMNS = {size}, "
        f"stride_source = {strides[0]}, stride_out = {strides[1]}."
    )
    arguments = (source, torch.tensor(index, dtype=torch.int32), out, columns, *strides)
    explain = lambda error: _out_of_bounds(error, columns, size, index, strides)  # noqa: E731
    recording = run(attempt, (len(index),), *arguments, COLUMNS=size, case=case, explain=explain)
    refuse_wrong_tensors(recording, "out", case)
    for row, program in enumerate(recording.programs):
        stored = touched(recording, program, "store", "out")
        want = [row * strides[1] + column for column in range(columns)]
        if stored != want:
            raise _wrong_offsets(recording, row, want, stored, strides, columns, index, case)
    for row, source_row in enumerate(index):
        if not torch.equal(out[row], source[source_row]):
            raise _wrong_row(recording, out[row], source, row, index, strides, case)


def _out_of_bounds(error, columns: int, size: int, index: list[int], strides: tuple[int, int]) -> str:
    if error.tensor == "index":
        return (
            "index has one entry per row of out, and each is looked up once: `tl.load(index + row)`, a scalar. Its "
            "value is a row of source."
        )
    row = error.ids[0]
    wanted = row if error.tensor == "out" else index[row]
    own, other = strides if error.tensor == "source" else strides[::-1]
    if own != other and 0 <= error.number - wanted * other < size:
        return (
            f"You used the stride of {'source' if error.tensor == 'out' else 'out'}. The rows of {error.tensor} are "
            f"`stride_{error.tensor}` apart."
        )
    if row == 0 and columns <= error.number - wanted * own < size:  # a missing mask fails in the first program already
        return (
            f"The tile has {size} elements, but the row has {columns}. Give `tl.{error.kind}` the mask "
            "`column < columns`."
        )
    if error.tensor == "out" and 0 <= error.number - index[row] * own < size:
        return (
            "You copied row i of source to row index[i] of out: that's a scatter. A gather reads at the index and "
            "writes in order."
        )
    if error.tensor == "out":
        return (
            "Program i stores row i of out: `out + row * stride_out + column`. The index says where to read, not where "
            "to write."
        )
    return (
        f"The index holds rows of source, here up to {max(index)}. Row r starts r × stride_source elements after the "
        "first."
    )


def _wrong_offsets(recording, row: int, want, stored, strides, columns: int, index: list[int], case: str) -> Mistake:
    what, idea = misplaced_row(recording, row, want, stored)
    if idea:
        return Mistake(what, case=case, idea=idea)
    idea = "`out + row * stride_out + column`, with the mask `column < columns`."
    if stored == [index[row] * strides[1] + column for column in range(columns)]:
        idea = (
            "You copied row i of source to row index[i] of out: that's a scatter. A gather reads at the index and "
            "writes in order."
        )
    elif stored == [row * strides[0] + column for column in range(columns)]:
        idea = "You used the stride of source. The rows of out are `stride_out` apart."
    elif set(stored) < set(want):
        idea = "Part of the row is missing. The mask is `column < columns`, for the load and for the store."
    elif stored == [row * columns + column for column in range(columns)]:
        idea = "The rows of out are `stride_out` apart, not `columns`."
    return Mistake(what, case=case, idea=idea)


def _wrong_row(recording, got, source, row: int, index: list[int], strides, case: str) -> Mistake:
    wanted = index[row]
    what = (
        f"row {row} of out should be row {wanted} of source, {values_text(source[wanted])}; yours is "
        f"{values_text(got)}."
    )
    columns = len(got)
    loaded = touched(recording, recording.programs[row], "load", "source")
    looked_up = touched(recording, recording.programs[row], "load", "index")
    idea = "Load the row index, then load that row: `source + source_row * stride_source + column`."
    if not loaded or bool((got == wanted).all()):
        idea = "You stored the index itself. Use it to load a row of source, and store that row."
    elif not looked_up:
        idea = (
            f"The index was not read. Program {row} copies row index[{row}] = {wanted}: `tl.load(index + row)` gets it."
        )
    elif torch.equal(got, source[index[0]]) and looked_up == [0]:
        idea = f"You looked up entry 0 of the index. Program {row} needs entry {row}: `tl.load(index + row)`."
    elif looked_up == [0] and row:
        idea = (
            f"You looked up entry 0 of the index. Program {row} needs entry {row}: add `row` to the pointer, inside "
            "`tl.load`, not to the value."
        )
    elif row < len(source) and torch.equal(got, source[row]):
        idea = f"You copied row {row} of source. The value loaded from the index, {wanted}, is the row to copy."
    elif loaded == [wanted * strides[1] + column for column in range(columns)]:
        idea = "You used the stride of out. The rows of source are `stride_source` apart."
    elif loaded == [wanted * columns + column for column in range(columns)]:
        idea = "The rows of source are `stride_source` apart, not `columns`."
    elif loaded and loaded[0] == wanted:
        idea = f"You started at element {wanted} of source. The index holds rows: multiply by `stride_source`."
    elif len(looked_up) > 1:
        idea = "You looked up one index entry per column. The whole row comes from one source row: load a scalar."
    return Mistake(what, case=case, idea=idea)
