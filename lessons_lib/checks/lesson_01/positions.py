"""Judges 01.2, `positions_from_mask`: each row counts its own real tokens, from 0."""

import torch

from lessons_lib.checks.exercise import Mistake, call
from lessons_lib.checks.lesson_01.words import kind

POSITION_CASES = (
    [[1]],
    [[1, 1, 1]],
    [[0, 0, 1]],
    [[0, 0, 1, 1]],
    [[1, 1, 1], [0, 1, 1]],
    [[0, 0, 1, 1, 1], [1, 1, 1, 1, 1], [0, 0, 0, 0, 1]],
)


def test_positions_from_mask(attempt) -> None:
    for mask in POSITION_CASES:
        case = f"attention_mask = {mask}"
        got = call(attempt, torch.tensor(mask), case=case)
        if not isinstance(got, torch.Tensor):
            raise Mistake(
                f"it should return a tensor; yours returned {kind(got)}.",
                case=case,
                idea="Stay with tensor methods, such as `attention_mask.cumsum(dim=1)`.",
            )
        if list(got.shape) != [len(mask), len(mask[0])]:
            raise Mistake(
                f"positions should have the shape of the mask, {[len(mask), len(mask[0])]}; yours have {list(got.shape)}.",
                case=case,
                idea="Every cell of the rectangle gets a position, row by row.",
            )
        if got.is_floating_point() or got.dtype == torch.bool:
            raise Mistake(
                f"positions should be int64; yours are {got.dtype}.",
                case=case,
                idea="A position is an index, so it is a whole number. `.long()` converts.",
            )
        _compare_positions(mask, got.tolist(), case)


def _compare_positions(mask, got, case: str) -> None:
    for row, (line, positions) in enumerate(zip(mask, got)):
        padding = line.count(0)
        real, want = positions[padding:], list(range(sum(line)))
        if real != want:
            raise Mistake(
                f"the tokens of row {row} should have positions {want}; yours have {real}.",
                case=case,
                idea=_why_positions(mask, row, real, want),
            )
        # What padding gets is never read. But a model looks it up all the same, so it must exist.
        outside = [position for position in positions[:padding] if not 0 <= position < len(line)]
        if outside:
            raise Mistake(
                f"the tokens of row {row} are right, but padding got position {outside[0]}.",
                case=case,
                idea="Nobody reads what padding computes, so any valid position will do, such as 0. But the model looks it up in a table, "
                f"and {outside[0]} is not in the table.",
            )


def _why_positions(mask, row: int, real, want) -> str:
    padding = mask[row].count(0)
    above = sum(map(sum, mask[:row]))
    if real == [p + 1 for p in want]:
        return "Your first token has position 1; positions begin at 0. `cumsum` counts the token itself."
    if padding and real == [p + padding for p in want]:
        return "You count the padding too. Counted from its own first token, a prompt has the same positions in every wave and alone."
    if len(want) > 1 and real == want[::-1]:
        return "You count from the end. The first real token has position 0, and positions grow to the right."
    if len(real) > 1 and len(set(real)) == 1:
        return "All your tokens share one position. Each token is one further than the one before."
    if above and real == [p + above for p in want]:
        return "You go on counting from the row above. Every row begins at 0 again."
    if row:
        return "Count along the columns, dimension 1: each row by itself. You may be counting down the rows."
    return "The position of a token is the number of real tokens before it in its own row."
