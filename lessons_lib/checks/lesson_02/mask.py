"""Judges 02.3, `cache_mask`: a token sees its own position and the ones before it, in its own row."""

import torch

from lessons_lib.batching.slot_cache import cache_mask
from lessons_lib.checks.exercise import Mistake, call

# (positions, num_keys), smallest first. Row by row: what the row's new tokens are.
MASK_CASES = (
    ([[2]], 4),
    ([[0]], 1),
    ([[2], [0], [3]], 5),
    ([[0, 1, 2]], 4),
    ([[3, 4]], 5),
    ([[3, 4]], 7),
    ([[4, 5, 6], [0, 1, 2]], 9),
    ([[40], [7], [0], [25]], 41),
)


def check_cache_mask(attempt) -> None:
    for positions, num_keys in MASK_CASES:
        case = f"positions {positions}, num_keys {num_keys}."
        want = cache_mask(torch.tensor(positions), num_keys)
        got = _mask_of(attempt, torch.tensor(positions), num_keys, case)
        _check_mask_kind(attempt, got, want, case)
        if not torch.equal(got.cpu(), want):
            raise _name_wrong_mask(got.cpu(), torch.tensor(positions), num_keys, case)


def _mask_of(attempt, positions, num_keys: int, case: str):
    """Call the attempt; sizes that do not fit are a mistake of their own."""
    try:
        return call(attempt, positions, num_keys, case=case)
    except RuntimeError as error:
        if "must match" not in str(error):
            raise
        raise Mistake(f"the sizes of two tensors do not fit: {error}", case=case, idea=_LAST_AXIS) from None


_LAST_AXIS = (
    "Every position must meet every column. The columns, [num_keys], take the last axis, so the positions need a last axis of size 1: "
    "`positions[:, :, None]`, of shape [rows, new tokens, 1]."
)


def _breaks_on_a_chunk(attempt) -> bool:
    try:
        attempt(torch.tensor([[3, 4]]), 7)
    except RuntimeError:
        return True
    return False


def _check_mask_kind(attempt, got, want, case: str) -> None:
    if not isinstance(got, torch.Tensor):
        raise Mistake(
            f"the mask should be a torch tensor; yours is {type(got).__name__}.",
            case=case,
            idea="Attention takes tensors.",
        )
    if got.shape != want.shape:
        idea = "The four sizes are [rows, 1, new tokens, num_keys]."
        if got.shape == want[:, 0].shape:
            idea = "The axis for the heads is missing. Put a 1 behind the rows: `mask[:, None]`."
            if _breaks_on_a_chunk(attempt):
                idea = f"Two things. {_LAST_AXIS} (With one new token a row it goes well by chance; with two it breaks.) Then put in the axis for the heads: `mask[:, None]`."
        raise Mistake(f"the shape should be {list(want.shape)}; yours is {list(got.shape)}.", case=case, idea=idea)
    if got.dtype != torch.bool:
        idea = "With bool, True means may look. Numbers would be added to the attention scores instead, which hides nothing."
        raise Mistake(
            f"the mask should hold bool; yours holds {str(got.dtype).removeprefix('torch.')}.", case=case, idea=idea
        )


def _name_wrong_mask(got, positions, num_keys: int, case: str) -> Mistake:
    """Recognise a wrong mask by what it equals."""
    columns = torch.arange(num_keys)
    own = positions[:, :, None]
    new = positions.shape[1]
    recognised = (
        (~(columns <= own), "it is the right one turned round", "True means that the token may look."),
        (
            columns < own,
            "no token sees itself",
            "A token's own key lies in the column of its own position, and it reads that one too: `<=`, not `<`.",
        ),
        (
            torch.ones_like(columns <= own),
            "every token sees every column",
            "Columns beyond a row's own tokens hold keys of an earlier request, or nothing yet. Compare the column with the position.",
        ),
        (
            (columns <= positions.amax(dim=1)[:, None, None]).expand(len(positions), new, num_keys),
            "the first token of a chunk sees the tokens after it",
            "Within a chunk every token stops at its own position, not at the end of the chunk.",
        ),
        (
            (columns <= positions.max()).expand(len(positions), new, num_keys),
            "all rows see as much as the longest one",
            "Every row has a length of its own. Compare the columns with the positions of that row.",
        ),
        (
            (columns <= torch.arange(new)[:, None]).expand(len(positions), new, num_keys),
            "the tokens of this chunk see as little as if the sequence began with them",
            "A later chunk begins at a later position. Compare with `positions`, which count from the start of the sequence.",
        ),
        (
            (columns <= torch.arange(new)[:, None] + num_keys - new).expand(len(positions), new, num_keys),
            "the last token sees the last column, wherever it stands",
            "The pass may look at more columns than this row has tokens. Where a token stands, only `positions` says.",
        ),
        (
            (columns <= positions[0][:, None]).expand(len(positions), new, num_keys),
            "all rows have the mask of row 0",
            "Keep the axis of the rows: `positions[:, :, None]` has one line for each token of each row.",
        ),
        (
            (columns == own),
            "a token sees only itself",
            "It must read all the tokens before it as well.",
        ),
    )
    for wrong, what, idea in recognised:
        if torch.equal(got[:, 0], wrong):
            break
    else:
        what, idea = "it differs", "True where column <= position, with the position of that token in that row."
    row, token = next((r, t) for r, t in torch.cartesian_prod(torch.arange(len(positions)), torch.arange(new)).tolist()
                      if not torch.equal(got[r, 0, t], columns <= own[r, t]))  # fmt: skip
    return Mistake(
        f"in your mask {what}. Row {row}, token at position {int(positions[row, token])}: it should be "
        f"`{_drawn(columns <= own[row, token])}`; yours is `{_drawn(got[row, 0, token])}` (# may look, . may not).",
        case=case,
        idea=idea,
    )


def _drawn(line) -> str:
    text = "".join("#" if may else "." for may in line.tolist())
    return text if len(text) <= 48 else text[:45] + "..."
