"""Judges 07.2, `softmax_kernel`: one row per program, columns masked, the maximum subtracted, strides as given."""

from random import Random

import torch

from lessons_lib.checks.exercise import Mistake
from lessons_lib.checks.kernels import (
    cells,
    close,
    compiled_too,
    ranges,
    refuse_wrong_tensors,
    run,
    touched,
    values_text,
)
from lessons_lib.checks.lesson_07.rows import misplaced_row

UNTOUCHED = -7.0
LOG_2 = 0.6931471805599453


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
    """A view of the first columns of a wider matrix, which is filled with `fill`."""
    return torch.full((rows, columns + gap), fill)[:, :columns]


def _check_case(attempt, scores: list[list[float]], gap_x: int = 0, gap_out: int = 0) -> None:
    rows, columns = len(scores), len(scores[0])
    size = 1 << (columns - 1).bit_length()
    x, out = _matrix(rows, columns, gap_x, float("nan")), _matrix(rows, columns, gap_out, UNTOUCHED)
    x.copy_(torch.tensor(scores))
    shown = f" {scores}," if rows * columns <= 9 else ""
    case = (
        f"{rows} row{'s' if rows > 1 else ''} of {columns},{shown} COLUMNS = {size}, stride_x = {x.stride(0)}, "
        f"stride_out = {out.stride(0)}."
    )
    arguments = (x, out, columns, x.stride(0), out.stride(0))
    explain = lambda error: _out_of_bounds(error, columns, size, x, out)  # noqa: E731
    recording = run(attempt, (rows,), *arguments, COLUMNS=size, case=case, explain=explain)
    refuse_wrong_tensors(recording, "out", case)
    for row, program in enumerate(recording.programs):
        want = [row * out.stride(0) + column for column in range(columns)]
        stored = touched(recording, program, "store", "out")
        if stored != want:
            raise _wrong_offsets(recording, row, want, stored, x, out, columns, case)
        loaded = set(touched(recording, program, "load", "x"))
        wanted = [row * x.stride(0) + column for column in range(columns)]
        if not set(wanted) <= loaded:
            what = (
                f"program {row} should load row {row} of x, elements {ranges(wanted)}; yours loads "
                f"{ranges(sorted(loaded))}."
            )
            idea = "Row i starts i × stride_x elements after the first: `x + row * stride_x + column`."
            if row and loaded == set(touched(recording, recording.programs[0], "load", "x")):
                idea = "Every program loads the same row. `tl.program_id(0)` is the index of its own."
            elif loaded == {row * columns + column for column in range(columns)}:
                idea = (
                    "That would be right if there were no gaps between rows. Here the rows of x are `stride_x` apart, "
                    "not `columns`."
                )
            raise Mistake(what, case=case, idea=idea)
    want = torch.tensor(scores).double().softmax(dim=1)
    for row in range(rows):
        if not close(out[row], want[row]):
            raise _wrong_values(out, want, torch.tensor(scores).double(), row, size, case)


def _out_of_bounds(error, columns: int, size: int, x, out) -> str:
    own, other = (out, x) if error.kind == "store" else (x, out)
    if own.stride(0) != other.stride(0) and 0 <= error.number - error.ids[0] * other.stride(0) < size:
        return (
            f"You used the stride of {'x' if other is x else 'out'}. The rows of {error.tensor} are "
            f"`stride_{error.tensor}` apart."
        )
    if error.ids[0] == 0 and columns <= error.number < size:  # a missing mask fails in the first program already
        return (
            f"The tile has {size} elements, but the row has {columns}. Give `tl.{error.kind}` the mask "
            "`column < columns`."
        )
    row, stride = error.ids[0], own.stride(0)
    return (
        f"Row {row} of {error.tensor} starts at element {row * stride}: {row} × `stride_{error.tensor}`. x and out "
        "have one stride each."
    )


def _wrong_offsets(recording, row: int, want, stored, x, out, columns: int, case: str) -> Mistake:
    what, idea = misplaced_row(recording, row, want, stored)
    if idea:
        return Mistake(what, case=case, idea=idea)
    idea = "`out + row * stride_out + column`, with the mask `column < columns`."
    if stored == [row * x.stride(0) + column for column in range(columns)]:
        idea = "You used the stride of x for out. The rows of out are `stride_out` apart."
    elif stored == [row * columns + column for column in range(columns)]:
        idea = (
            "That would be right if there were no gaps between rows. The rows of out are `stride_out` apart, not "
            "`columns`."
        )
    elif len(stored) == 1:
        idea = "A row has one result per column: store the whole tile, not a scalar."
    elif {index[0] for index in cells(recording, recording.programs[row], "store", "out", 1)} != {row}:
        idea = "Neighbors in a row are 1 apart; rows are `stride_out` apart."
    return Mistake(what, case=case, idea=idea)


def _wrong_values(out, want, scores, row: int, size: int, case: str) -> Mistake:
    got, own = out[row].double(), scores[row]
    what = f"row {row} of out should be {values_text(want[row])}; yours is {values_text(got)}."
    padded = torch.cat([own, torch.zeros(size - len(own))])
    weights = (own - own.max()).exp()
    ideas = (
        (
            padded.softmax(dim=0)[: len(own)],
            "The elements past the end of the row counted as scores of 0. `other=` sets what a masked element is: for "
            "a softmax, use minus infinity, whose exponential is 0.",
        ),
        (
            own.exp() / (own.exp().sum() + size - len(own)),
            "The elements past the end of the row counted as scores of 0. `other=` sets what a masked element is: for "
            "a softmax, use minus infinity, whose exponential is 0.",
        ),
        (
            weights / own.sum(),
            "You divided by the sum of the scores. Divide by the sum of the weights, `tl.sum(weights, axis=0)`.",
        ),
        (
            weights / (own - own.max()).sum(),
            "You divided by the sum of the scores. Divide by the sum of the weights, `tl.sum(weights, axis=0)`.",
        ),
        (
            weights / len(own),
            "You divided by the number of columns. Divide by the sum of the weights, `tl.sum(weights, axis=0)`.",
        ),
        (weights / size, "You divided by COLUMNS. Divide by the sum of the weights, `tl.sum(weights, axis=0)`."),
        (weights, "The weights do not sum to 1. Divide by their sum, `tl.sum(weights, axis=0)`."),
        (own.exp(), "These are the exponentials. Subtract the largest score first, and divide by the sum afterwards."),
        ((own * LOG_2).softmax(dim=0), "These are powers of 2. A softmax takes powers of e: `tl.exp`, not `tl.exp2`."),
        (
            (own / own.max()).softmax(dim=0),
            "You divided by the largest score. Subtract it: that changes no weight relative to another.",
        ),
        (own.log_softmax(dim=0), "This is the logarithm of the softmax."),
        (own - own.max(), "The exponential is missing: `tl.exp(...)`."),
        (own / own.sum(), "The exponential is missing: `tl.exp(...)`."),
        (scores.softmax(dim=0)[row], "This is the softmax of each column, not of each row."),
    )
    for formed, idea in ideas:
        if close(got, formed, 1e-5):
            return Mistake(what, case=case, idea=idea)
    idea = "For each row: subtract the largest score, take the exponential, divide by the sum."
    if bool(got.isnan().any()):
        idea = (
            "NaN comes from infinity / infinity, from infinity − infinity, or from masked elements: without "
            "`other=`, they may be anything, and with minus infinity the smallest element of the tile is one of them."
        )
        if own.abs().max() >= 500:
            idea = (
                "exp(1000) is infinity, and infinity / infinity is NaN; exp(−1000) is 0, and 0 / 0 is NaN too. "
                "Subtract the row's largest score first."
            )
        elif own.max() - own.min() >= 100:
            idea = (
                "exp(200) is infinity, and infinity / infinity is NaN. Subtract the largest score, so that no exponent "
                "is above 0."
            )
    elif got.sum().item() < 0.999 and size > len(own):
        idea = (
            "The row sums to less than 1: elements past the end of the row are in the sum. With "
            '`other=float("-inf")` their weight is 0.'
        )
    return Mistake(what, case=case, idea=idea)
