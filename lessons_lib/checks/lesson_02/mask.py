"""Judges 02.3, `cache_mask`: a token sees its own position and the ones before it, in its own row."""

import re

import torch

from lessons_lib.batching.slot_cache import cache_mask
from lessons_lib.checks.exercise import Mistake, call

# (positions, num_keys), smallest first. `positions` has one list per row: the positions of its new tokens.
MASK_CASES = (
    ([[2]], 5),
    ([[0]], 1),
    ([[2], [0], [3]], 5),
    ([[0, 1, 2]], 4),
    ([[3, 4]], 5),
    ([[3, 4]], 7),
    ([[4, 5, 6], [0, 1, 2]], 9),
    ([[40], [7], [0], [25]], 41),
    ([[2], [6]], 3),  # the prefilling row of a decode pass is further than the pass reads
    ([[64]], 65),
    ([[200], [199]], 201),
)


def check_cache_mask(attempt) -> None:
    for positions, num_keys in MASK_CASES:
        case = f"positions {positions}, num_keys {num_keys}."
        want = cache_mask(torch.tensor(positions), num_keys)
        got = _mask_of(attempt, torch.tensor(positions), num_keys, case)
        _check_mask_kind(attempt, got, want, case)
        if not torch.equal(got.cpu(), want):
            raise _name_wrong_mask(attempt, got.cpu(), torch.tensor(positions), num_keys, case)
    _check_second_call(attempt)


def _check_second_call(attempt) -> None:
    """Equal shapes, other positions: as in two decode passes, one after the other."""
    earlier = None
    for positions, case in (
        ([[2], [0]], "positions [[2], [0]], num_keys 5."),
        ([[1], [3]], "positions [[1], [3]], num_keys 5, after a call with positions [[2], [0]], num_keys 5."),
    ):
        want = cache_mask(torch.tensor(positions), 5)
        got = _mask_of(attempt, torch.tensor(positions), 5, case)
        _check_mask_kind(attempt, got, want, case)
        if earlier is not None and torch.equal(got.cpu(), earlier):
            raise Mistake(
                "your mask is the one of the call before, whose positions were others.",
                case=case,
                idea="The positions move with every step. Do you keep masks between calls? Compute the mask anew in "
                "each.",
            )
        if not torch.equal(got.cpu(), want):
            raise _name_wrong_mask(attempt, got.cpu(), torch.tensor(positions), 5, case)
        earlier = got.cpu().clone()


def _mask_of(attempt, positions, num_keys: int, case: str):
    """Call the attempt; shapes that don't broadcast are a mistake of their own."""
    try:
        return call(attempt, positions, num_keys, case=case)
    except (RuntimeError, LookupError) as error:
        if int(positions.max()) >= num_keys:
            raise Mistake(
                f"your code raised {type(error).__name__}: {str(error).rstrip('.')}.",
                case=case,
                idea="A position may lie beyond the columns that the pass reads: a decode pass covers prefilling rows, "
                "too. Such a token sees all `num_keys` columns.",
            ) from None
        if "must match" not in str(error):
            raise
        raise Mistake(f"two of your tensors don't broadcast: {error}", case=case, idea=_LAST_AXIS) from None


_LAST_AXIS = (
    "Compare every position with every column. The columns, [num_keys], take the last axis, so the positions need a "
    "last axis of size 1: `positions[:, :, None]`, of shape [rows, new tokens, 1]."
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
            idea="The model's attention takes a tensor.",
        )
    if got.shape != want.shape:
        rows, _, new, _ = want.shape
        idea = f"The shape is [rows, 1, new tokens, num_keys]; here rows is {rows}, and new tokens is {new}."
        if got.shape == want[:, 0].shape:
            idea = "The axis for the heads is missing. Insert an axis of size 1 after the rows: `mask[:, None]`."
            if _breaks_on_a_chunk(attempt):
                idea = (
                    f"Two things. {_LAST_AXIS} (With one new token per row it works by accident; with two it breaks.) "
                    "Then insert the axis for the heads: `mask[:, None]`."
                )
        raise Mistake(f"the shape should be {list(want.shape)}; yours is {list(got.shape)}.", case=case, idea=idea)
    if got.dtype != torch.bool:
        idea = (
            "In a bool mask, True means that the token may attend. Other dtypes mean something else: a float mask, for "
            "example, is added to the attention scores."
        )
        if got.is_floating_point() and bool((got == 0).any()) and bool((got < -1e3).any()):
            idea = (
                "Yours is an additive mask, with 0 where a token may attend. The exercise asks for the bool mask: the "
                "result of the comparison, True where it may attend."
            )
        raise Mistake(
            f"the mask should have dtype bool; yours has {str(got.dtype).removeprefix('torch.')}.", case=case, idea=idea
        )


_ENDS_AT_THE_LAST_COLUMN = (
    "the last token sees the last column, whatever its position",
    "The pass may read more columns than this row has tokens. Only `positions` says where a token is.",
)


def _name_wrong_mask(attempt, got, positions, num_keys: int, case: str) -> Mistake:
    """Recognise a wrong mask by what it equals."""
    columns = torch.arange(num_keys)
    own = positions[:, :, None]
    new = positions.shape[1]
    recognised = (
        (
            columns < own,
            "no token sees itself",
            "A token's own key is in the column of its own position, and it reads that one too: `<=`, not `<`, with "
            "the columns numbered from 0.",
        ),
        (~(columns <= own), "True and False are swapped", "True means that the token may attend."),
        (
            torch.ones_like(columns <= own),
            "every token sees every column",
            "Columns beyond a row's own tokens hold keys of an earlier request, or nothing yet. Compare the column "
            "with the position.",
        ),
        (
            (columns <= positions.amax(dim=1)[:, None, None]).expand(len(positions), new, num_keys),
            "the first token of a chunk sees the tokens after it",
            "Within a chunk every token stops at its own position, not at the end of the chunk.",
        ),
        (
            (columns <= positions.max()).expand(len(positions), new, num_keys),
            "all rows see as much as the longest one",
            "Every row has its own length. Compare the columns with the positions of that row.",
        ),
        (
            (columns <= positions.amin(dim=0)[:, None]).expand(len(positions), new, num_keys),
            "all rows see only as much as the shortest one",
            "Every row has its own length. Compare the columns with the positions of that row.",
        ),
        (
            (columns <= torch.arange(new)[:, None]).expand(len(positions), new, num_keys),
            "the tokens of this chunk see only as much as if the sequence started with them",
            "A later chunk starts at a later position. Compare with `positions`, which count from the start of the "
            "sequence.",
        ),
        (
            (columns <= torch.arange(new)[:, None] + num_keys - new).expand(len(positions), new, num_keys),
            *_ENDS_AT_THE_LAST_COLUMN,
        ),
        (
            (columns <= positions[0][:, None]).expand(len(positions), new, num_keys),
            "all rows have the mask of row 0",
            "Keep the axis of the rows: `positions[:, :, None]` has one entry for each token of each row.",
        ),
        (
            (columns <= positions[:, :1, None]).expand(len(positions), new, num_keys),
            "all tokens of a chunk see only as much as its first token",
            "Every token of a chunk has a position of its own: compare the columns with all of `positions`.",
        ),
        (
            (columns >= num_keys - 1 - own),
            "the tokens seen are the last columns",
            "There is no padding on the left here: the token at position p is in column p, so the tokens before it are "
            "in the columns before p.",
        ),
        (
            (columns == own),
            "a token sees only itself",
            "It must see all the tokens before it as well.",
        ),
        (
            columns <= own + 1,
            "a token sees one column too many",
            "The token at position p sees columns 0 to p: p + 1 columns, the last of them its own.",
        ),
    )
    for wrong, what, idea in recognised:
        if torch.equal(got[:, 0], wrong):
            break
    else:
        what, idea = _tokens_mixed_up(got[:, 0], columns <= own) or (
            "some entries are wrong",
            "An entry is True if column <= position, with the position of that token. Nothing else limits it: a token "
            "sees column 0, too, however far it is.",
        )
    what, idea = _in_a_chunk(attempt, what, idea)
    if what == "some entries are wrong" and int(positions.max()) >= num_keys:
        idea = (
            "A position may lie beyond the columns that the pass reads: a decode pass covers prefilling rows, too. "
            "Such a token sees all `num_keys` columns."
        )
    if what == "no token sees itself":
        what, idea = _who_sees_itself(attempt, what, idea)
    row, token = next((r, t) for r, t in torch.cartesian_prod(torch.arange(len(positions)), torch.arange(new)).tolist()
                      if not torch.equal(got[r, 0, t], columns <= own[r, t]))  # fmt: skip
    return Mistake(
        f"in your mask, {what}. Row {row}, token at position {int(positions[row, token])}: "
        + _compared(columns <= own[row, token], got[row, 0, token]),
        case=case,
        idea=idea,
    )


def _tokens_mixed_up(got, want) -> tuple[str, str] | None:
    """What the mistake is, if these are the right masks of the tokens, but not each in its place."""
    if sorted(got.flatten(0, 1).tolist()) != sorted(want.flatten(0, 1).tolist()):
        return None
    return (
        "some tokens have the mask of another token",
        "Is there a transpose, a reshape or a sort in your code that changes the order of the tokens? "
        "`positions[:, :, None]` keeps it: [rows, new tokens, 1].",
    )


def _who_sees_itself(attempt, what: str, idea: str) -> tuple[str, str]:
    """What the mistake is, if tokens at other positions see their own column."""
    try:
        seeing = [p for p in range(4) if bool(attempt(torch.tensor([[p]]), 5).reshape(5)[p])]
    except Exception:
        return what, idea
    if not seeing:
        return what, idea
    if seeing == [1, 2, 3]:
        return (
            "the token at position 0 sees nothing",
            "It should see column 0, which is its own. Tokens at positions 1, 2 and 3 do see their own columns: what "
            "does your code do differently at 0?",
        )
    return (
        "this token doesn't see itself",
        "A token's own key is in the column of its own position, and it reads that one too. In yours, a token alone at "
        f"position {' or '.join(map(str, seeing))} does: what is different here?",
    )


def _in_a_chunk(attempt, what: str, idea: str) -> tuple[str, str]:
    """What the mistake is, if a chunk shows it more clearly than one token does."""
    try:
        drawn = [_drawn(row) for row in attempt(torch.tensor([[3, 4]]), 7)[0, 0]]
    except Exception:
        return what, idea
    if what == "every token sees every column" and drawn == ["######.", "#######"]:
        return _ENDS_AT_THE_LAST_COLUMN
    if what == "a token sees only itself" and drawn == ["...#...", "...##.."]:
        return "a token sees only its own chunk", "It must see the earlier tokens of its request too: columns 0 to p."
    return what, idea


def _drawn(row) -> str:
    return "".join("#" if may else "." for may in row.tolist())


def _compared(want, got) -> str:
    """The right row and the learner's: drawn, or in words if it is long."""
    if len(want) <= 48:
        return f"it should be `{_drawn(want)}`; yours is `{_drawn(got)}` (# may attend, . may not)."
    return f"it should see {_seen_columns(want)}; yours sees {_seen_columns(got)}."


def _seen_columns(row) -> str:
    runs = [run.span() for run in re.finditer("#+", _drawn(row))]
    named = [f"{begin} to {end - 1}" if end - begin > 1 else str(begin) for begin, end in runs]
    if len(named) > 3:
        named = [*named[:2], f"{len(named) - 2} more parts"]
    if not named:
        return "none"
    noun = "column" if len(named) == 1 and "to" not in named[0] else "columns"
    return f"{noun} " + (", ".join(named[:-1]) + " and " + named[-1] if len(named) > 1 else named[0])
