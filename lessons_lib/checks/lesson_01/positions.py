"""Checks 01.2, `positions_from_mask`: each row counts its own real tokens, from 0."""

import torch

from lessons_lib.checks.exercise import Mistake, call
from lessons_lib.checks.lesson_01.words import count, kind

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
                idea="The loop passes the positions to the model, which needs a tensor like the mask.",
            )
        if list(got.shape) != [len(mask), len(mask[0])]:
            raise Mistake(
                f"the positions should have the shape of the mask, {[len(mask), len(mask[0])]}; yours have "
                f"{list(got.shape)}.",
                case=case,
                idea="Every cell of the rectangle gets a position, row by row.",
            )
        if got.dtype != torch.int64:
            raise Mistake(
                f"the positions should be int64; yours are {got.dtype}.",
                case=case,
                idea="A position is an index, and PyTorch's default index type is int64. `.long()` converts.",
            )
        _compare_positions(attempt, mask, got.tolist(), case)


def _compare_positions(attempt, mask, got, case: str) -> None:
    for row, (mask_row, positions) in enumerate(zip(mask, got)):
        padding = mask_row.count(0)
        real, want = positions[padding:], list(range(sum(mask_row)))
        if real != want:
            raise Mistake(
                f"the tokens of row {row} should have positions {want}; yours have {real}.",
                case=case,
                idea=_why_positions(attempt, mask, row, real, want),
            )
        # The padding's results are never used, but the model still looks up its positions, so they must be valid.
        outside = [position for position in positions[:padding] if not 0 <= position < len(mask_row)]
        if outside:
            raise Mistake(
                f"the positions of row {row}'s tokens are right, but its padding has position {outside[0]}.",
                case=case,
                idea="The padding's results are never used, so any valid position will do, such as 0. But the model "
                f"looks the position up in a table, and {outside[0]} isn't in it."
                if outside[0] < 0
                else "The padding's results are never used, so any valid position will do, such as 0. But the model "
                f"looks the position up in a table. A row of {count(len(mask_row), 'cell')} may fill that table, and "
                f"then {len(mask_row) - 1} is its last position.",
            )


def _tokens_of(attempt, mask_row: list[int]) -> list:
    """The positions that an attempt gives to the tokens of one row; empty if they have no rows."""
    got = attempt(torch.tensor([mask_row]))
    return got[0].tolist()[mask_row.count(0) :] if got.dim() == 2 else []


def _why_positions(attempt, mask, row: int, real, want) -> str:
    padding = mask[row].count(0)
    above = sum(map(sum, mask[:row]))
    if mask[row] == [1] and real == [1] and _tokens_of(attempt, [1, 1, 1]) == [1, 1, 2]:
        return (
            "You seem to raise position 0 to 1, so that the first two tokens of a longer row share position 1. "
            "Position 0 is valid, and the first token has it."
        )
    if row == 0 and real == [p + 1 for p in want]:
        return (
            "Your first token has position 1, but positions start at 0. A running count that includes the token itself "
            "is one too high."
        )
    if row == 0 and padding and real == [p + padding for p in want]:
        return (
            "You seem to count the padding too. Counted from its own first token, a prompt has the same positions in "
            "every wave as when served alone."
        )
    if len(want) > 1 and real == want[::-1]:
        return (
            "You seem to count from the end. The first real token has position 0, and positions increase to the right."
        )
    if set(real) == {0} and _tokens_of(attempt, [0, 0, 1, 1]) == [2, 2]:
        return (
            "You seem to count the padding cells before each token. Count the real tokens before it: the 1s of the "
            "mask, not the 0s."
        )
    if len(real) > 1 and len(set(real)) == 1:
        shared = "All your tokens share one position, but each should be one higher than the one before. "
        two_rows = attempt(torch.tensor([[1, 1], [1, 1]])).tolist()
        if two_rows[0] != two_rows[-1]:
            return shared + "Did you sum down the rows, along dimension 0? Sum along dimension 1."
        return shared + "Do you subtract something other than the row's padding, or cap the positions at 0?"
    if above and real == [p + above for p in want]:
        return "You seem to continue counting from the row above. Every row starts at 0 again."
    if len(mask) > 1 and _tokens_of(attempt, mask[row]) == want:
        return (
            "Alone, this row gets the right positions, so another row has an influence here. Is there a sum over the "
            "whole mask, or along dimension 0? Every row counts by itself."
        )
    if row:
        return (
            "Every row counts by itself: a token's position is the number of real tokens before it in its own row. "
            "Does another row have an influence here, for example through a sum along dimension 0?"
        )
    return "The position of a token is the number of real tokens before it in its own row."
