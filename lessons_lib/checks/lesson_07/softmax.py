"""Judges 07.2, `softmax_kernel`: a row for each program, columns masked, the maximum subtracted, strides as given."""

from random import Random

import torch

from lessons_lib.checks.exercise import Mistake
from lessons_lib.checks.kernels import (
    cells,
    close,
    compiled_too,
    numbers_text,
    places,
    refuse_wrong_tensors,
    run,
    touched,
)
from lessons_lib.checks.lesson_07.rows import misplaced_row

UNTOUCHED = -7.0


def check_softmax_kernel(attempt) -> None:
    rows = torch.zeros(2, 3)
    compiled_too(lambda: _check_results(attempt), attempt, ((rows, rows, 3, 3, 3), dict(COLUMNS=4)))


def _check_results(attempt) -> None:
    _check_case(attempt, [[0.0, 1.0, 2.0, 3.0]])
    _check_case(attempt, [[0.0, 1.0, 2.0, 3.0], [1.0, 0.0, -1.0, 0.5]])
    _check_case(attempt, [[-1.0, -2.0, -3.0]])
    _check_case(attempt, [[-1.0, -2.0, -3.0], [0.5, 1.5, 1.0]])
    _check_case(attempt, [[1000.0, 1001.0, 999.0]])
    _check_case(attempt, [[-1000.0, -1001.0, -999.0]])
    _check_case(attempt, [[0.0, 200.0, 100.0]])
    _check_case(attempt, [[1.0, 2.0, 3.0], [2.0, 0.0, 1.0]], gap_x=3, gap_out=0)
    _check_case(attempt, [[1.0, 2.0, 3.0], [2.0, 0.0, 1.0], [0.0, 0.0, 1.0]], gap_x=1, gap_out=4)
    rng, generator = Random(2), torch.Generator().manual_seed(2)
    for _ in range(4):
        rows = torch.randn(rng.randint(1, 5), rng.randint(1, 33), generator=generator) * 5
        _check_case(attempt, rows.tolist(), rng.choice((0, 2)), rng.choice((0, 3)))


def _matrix(rows: int, columns: int, gap: int, fill: float) -> torch.Tensor:
    """A matrix whose rows lie in the rows of a wider one, which is filled with `fill`."""
    return torch.full((rows, columns + gap), fill)[:, :columns]


def _check_case(attempt, scores: list[list[float]], gap_x: int = 0, gap_out: int = 0) -> None:
    rows, columns = len(scores), len(scores[0])
    size = 1 << (columns - 1).bit_length()
    x, out = _matrix(rows, columns, gap_x, float("nan")), _matrix(rows, columns, gap_out, UNTOUCHED)
    x.copy_(torch.tensor(scores))
    shown = f" {scores}," if rows * columns <= 9 else ""
    case = f"{rows} row{'s' if rows > 1 else ''} of {columns},{shown} COLUMNS = {size}, stride_x = {x.stride(0)}, stride_out = {out.stride(0)}."
    arguments = (x, out, columns, x.stride(0), out.stride(0))
    recording = run(
        attempt, (rows,), *arguments, COLUMNS=size, case=case, wild=lambda error: _wild(error, columns, size, x, out)
    )
    refuse_wrong_tensors(recording, "out", case)
    for row, program in enumerate(recording.programs):
        want = [row * out.stride(0) + column for column in range(columns)]
        stored = touched(recording, program, "store", "out")
        if stored != want:
            raise _wrong_places(recording, row, want, stored, x, out, columns, case)
        loaded = set(touched(recording, program, "load", "x"))
        wanted = [row * x.stride(0) + column for column in range(columns)]
        if not set(wanted) <= loaded:
            what = f"program {row} should load row {row} of x, the numbers {places(wanted)}; yours loads {places(sorted(loaded))}."
            idea = "Row i begins i × stride_x numbers behind the first: `x + row * stride_x + column`."
            if row and loaded == set(touched(recording, recording.programs[0], "load", "x")):
                idea = "Every program loads the same row. `tl.program_id(0)` is the number of its own."
            elif loaded == {row * columns + column for column in range(columns)}:
                idea = "That would be right if the rows lay one behind the other without gaps. Here they do not: what parts two rows is `stride_x`, not `columns`."
            raise Mistake(what, case=case, idea=idea)
    want = torch.tensor(scores).double().softmax(dim=1)
    for row in range(rows):
        if not close(out[row], want[row]):
            raise _wrong_numbers(out, want, torch.tensor(scores).double(), row, size, case)


def _wild(error, columns: int, size: int, x, out) -> str:
    own, other = (out, x) if error.kind == "store" else (x, out)
    if own.stride(0) != other.stride(0) and 0 <= error.number - error.ids[0] * other.stride(0) < size:
        return f"You used the stride of {'x' if other is x else 'out'}. The rows of {error.tensor} lie `stride_{error.tensor}` apart."
    if columns <= error.number - error.ids[0] * own.stride(0) < size:
        return f"The tile has {size} places and the row {columns} columns. Give `tl.{error.kind}` the mask `column < columns`."
    return "Row i begins i × stride numbers behind the first; x and out have a stride each."


def _wrong_places(recording, row: int, want, stored, x, out, columns: int, case: str) -> Mistake:
    what, idea = misplaced_row(recording, row, want, stored)
    if idea:
        return Mistake(what, case=case, idea=idea)
    idea = "`out + row * stride_out + column`, with the mask `column < columns`."
    if stored == [row * x.stride(0) + column for column in range(columns)]:
        idea = "You used the stride of x for out. The rows of out lie `stride_out` apart."
    elif stored == [row * columns + column for column in range(columns)]:
        idea = "That would be right if the rows lay one behind the other without gaps. What parts two rows of out is `stride_out`, not `columns`."
    elif len(stored) == 1:
        idea = "A row has a result for each column: store the whole tile, not one number."
    elif {index[0] for index in cells(recording, recording.programs[row], "store", "out", 1)} != {row}:
        idea = "A row is what lies side by side: neighbours in a row are 1 apart, rows are `stride_out` apart."
    return Mistake(what, case=case, idea=idea)


def _wrong_numbers(out, want, scores, row: int, size: int, case: str) -> Mistake:
    got, line = out[row].double(), scores[row]
    what = f"row {row} of out should be {numbers_text(want[row])}; yours is {numbers_text(got)}."
    padded = torch.cat([line, torch.zeros(size - len(line))])
    weights = (line - line.max()).exp()
    ideas = (
        (
            padded.softmax(dim=0)[: len(line)],
            "The places beyond the row counted as scores of 0. `other=` says what a masked place holds: for a softmax minus infinity, whose exponential is 0.",
        ),
        (
            line.exp() / (line.exp().sum() + size - len(line)),
            "The places beyond the row counted as scores of 0. `other=` says what a masked place holds: for a softmax minus infinity, whose exponential is 0.",
        ),
        (
            weights / line.sum(),
            "You divided by the sum of the scores. Divide by the sum of the weights, `tl.sum(weights, axis=0)`.",
        ),
        (
            weights / (line - line.max()).sum(),
            "You divided by the sum of the scores. Divide by the sum of the weights, `tl.sum(weights, axis=0)`.",
        ),
        (
            weights / len(line),
            "You divided by the number of columns. Divide by the sum of the weights, `tl.sum(weights, axis=0)`.",
        ),
        (weights / size, "You divided by COLUMNS. Divide by the sum of the weights, `tl.sum(weights, axis=0)`."),
        (weights, "The weights do not sum to 1. Divide by their sum, `tl.sum(weights, axis=0)`."),
        (line.exp(), "These are the exponentials. Subtract the largest score first, and divide by the sum afterwards."),
        (line.log_softmax(dim=0), "This is the logarithm of the softmax."),
        (line - line.max(), "The exponential is missing: `tl.exp(...)`."),
        (line / line.sum(), "The exponential is missing: `tl.exp(...)`."),
        (scores.softmax(dim=0)[row], "This is the softmax of each column, not of each row."),
    )
    for formed, idea in ideas:
        if close(got, formed, 1e-5):
            return Mistake(what, case=case, idea=idea)
    idea = "Per row: subtract the largest score, take the exponential, divide by the sum."
    if bool(got.isnan().any()):
        idea = "NaN comes from infinity / infinity, from infinity − infinity, or from what a mask hides: without `other=`, a masked place may hold anything."
        if line.abs().max() >= 500:
            idea = "exp(1000) is infinity, and infinity / infinity is not a number; exp(−1000) is 0, and 0 / 0 is none either. Subtract the row's largest score first."
        elif line.max() - line.min() >= 100:
            idea = "exp(200) is infinity, and infinity / infinity is not a number. Subtract the largest score, so that no exponent is above 0."
    elif got.sum().item() < 0.999 and size > len(line):
        idea = 'The row sums to less than 1: places beyond the row took part in the sum. With `other=float("-inf")` their weight is 0.'
    return Mistake(what, case=case, idea=idea)
