"""Checks 01.1, `pad_left`: prompts on the right of a rectangle, and the mask that tells them apart from the padding."""

import torch

from lessons_lib.batching.static_batching import pad_left
from lessons_lib.checks.exercise import Mistake, call, short
from lessons_lib.checks.lesson_01.words import count, kind

PAD = 9  # not 0, so that a hard-coded 0 shows
ONE_LIST = "Is one list repeated, as in `[[0] * n] * rows`? Then what is written to one row is in all of them."

# Smallest first.
PAD_CASES = (
    ([[5]], PAD),
    ([[5], [6, 7]], PAD),
    ([[6, 7], [5]], PAD),
    ([[1, 2, 3], [4], [5, 6]], PAD),
    ([[PAD, 5], [6, 7, 8]], PAD),  # the padding token is also a token of a prompt
    ([[0, 4, 0], [0], [3, 0, 0, 1, 2]], 0),
    ([[5], [5]], PAD),  # equal prompts are two requests
    ([list(range(10, 75))], PAD),  # longer than any limit that a learner may set
)


def test_pad_left(attempt) -> None:
    undecided = None  # what is wrong with a mask shows only where there is padding
    for prompts, pad in PAD_CASES:
        case = f"pad_left({short(prompts)}, pad_token_id={pad})"
        result = _call(attempt, prompts, pad, case)
        input_ids, mask = _two_tensors(result, case)
        expected_ids, expected_mask = pad_left(prompts, pad)
        right_ids = input_ids.tolist() == expected_ids.tolist()
        if right_ids and mask.shape == expected_mask.shape and len(prompts) == 1 and not mask.any():
            undecided = prompts, pad, input_ids, mask, expected_ids, expected_mask, case
        elif not right_ids or mask.tolist() != expected_mask.tolist():
            _refuse_the_greatest(attempt, prompts, input_ids, expected_ids, case)
            _name_padding_mistake(prompts, pad, input_ids, mask, expected_ids, expected_mask, case)
    if undecided:
        _name_padding_mistake(*undecided)


def _call(attempt, prompts, pad: int, case: str):
    try:
        return call(attempt, [list(ids) for ids in prompts], pad, case=case)
    except (ValueError, RuntimeError) as error:
        idea = _width_of_the_greatest(attempt, prompts)
        what = f"your code raised {type(error).__name__}: {str(error)[:200]}"
        if "expected sequence of length" in str(error):
            what = "your code makes a tensor from rows of unequal length."
            idea = idea or (
                "A tensor is a rectangle. Pad every row to the longest prompt before `torch.tensor(...)`. PyTorch "
                f"said: {error}."
            )
        if not idea:
            raise
        raise Mistake(what, case=case, idea=idea) from error


def _width_of_the_greatest(attempt, prompts) -> str:
    """Why the width is wrong, if it is right wherever the longest prompt is also the greatest list; else ""."""

    def width(prompts: list[list[int]]) -> int:
        try:
            return attempt(prompts, PAD)[0].shape[1]
        except Exception:  # noqa: BLE001 - this attempt is known to be wrong
            return 0

    if width([[3, 1, 1], [2]]) != 3 or width([[1, 1, 3], [2]]) == 3:
        return ""
    return (
        "Is your width that of the greatest prompt? `max(prompt_ids)` compares lists element by element: "
        f"{short(max(prompts))} is the greatest here. The longest is `max(prompt_ids, key=len)`."
    )


def _refuse_the_greatest(attempt, prompts, input_ids, expected_ids, case: str) -> None:
    is_narrow = input_ids.dim() == 2 and input_ids.shape[1] < expected_ids.shape[1]
    if is_narrow and (idea := _width_of_the_greatest(attempt, prompts)):
        raise _wrong_width(input_ids, expected_ids, case, idea)


def _wrong_width(input_ids, expected_ids, case: str, idea: str) -> Mistake:
    columns = expected_ids.shape[1]
    return Mistake(
        f"the longest prompt has {count(columns, 'token')}, so there should be {count(columns, 'column')}; yours has "
        f"{input_ids.shape[1]}.",
        case=case,
        idea=idea,
    )


def _two_tensors(result, case: str) -> tuple[torch.Tensor, torch.Tensor]:
    if not isinstance(result, (tuple, list)) or len(result) != 2:
        raise Mistake(
            f"it should return two things, `(input_ids, attention_mask)`; yours returned {kind(result)}.",
            case=case,
            idea="End with `return input_ids, attention_mask`. The mask tells the model which cells of the rectangle "
            "are tokens.",
        )
    for name, value in zip(("input_ids", "attention_mask"), result):
        _refuse_non_integers(name, value, case)
    return tuple(result)


def _refuse_non_integers(name: str, value, case: str) -> None:
    if not isinstance(value, torch.Tensor):
        raise Mistake(
            f"`{name}` should be a tensor; yours is {kind(value)}.",
            case=case,
            idea="`torch.tensor(...)` makes a tensor from a list of rows of equal length.",
        )
    if value.dtype != torch.int64:
        raise Mistake(
            f"`{name}` should have dtype int64; yours has {value.dtype}.",
            case=case,
            idea="`torch.tensor` of Python ints is int64 by default. `torch.zeros` and `torch.ones` are float32 unless "
            "you pass "
            "`dtype=torch.int64`. `.long()` converts; it turns True and False into 1 and 0.",
        )


def _name_padding_mistake(prompts, pad, input_ids, mask, expected_ids, expected_mask, case: str) -> None:
    rows, columns = expected_ids.shape
    got, want = input_ids.tolist(), expected_ids.tolist()
    if got == expected_mask.tolist() and mask.tolist() == want:
        raise Mistake(
            "the mask came first and the tokens second; the order is `(input_ids, attention_mask)`.",
            case=case,
            idea="Swap them in the `return` line.",
        )
    if got != want and input_ids.dim() == 2 and input_ids.T.tolist() == want:
        raise Mistake(
            f"`input_ids` should be {short(want)}; yours is {short(got)}.",
            case=case,
            idea="You seem to put each request into a column. A request is a row.",
        )
    if input_ids.dim() != 2 or len(input_ids) != rows:
        raise Mistake(
            f"`input_ids` should have shape [{rows}, {columns}]; yours has {list(input_ids.shape)}.",
            case=case,
            idea="You seem to merge equal prompts. Each is a request of its own, and its answer comes from its own row."
            if input_ids.dim() == 2 and len(input_ids) == len(set(map(tuple, prompts))) < rows
            else "Each prompt is one row.",
        )
    if input_ids.shape[1] != columns:
        idea = (
            "You seem to truncate prompts. No token may be lost: the rectangle is as wide as the longest prompt."
            if input_ids.shape[1] < columns
            else "Every extra column is computed for all rows and wasted. Is there a `+ 1` or a fixed length? The "
            "rectangle is as wide as the longest prompt."
        )
        raise _wrong_width(input_ids, expected_ids, case, idea)
    if got != want:
        _name_wrong_ids(prompts, pad, got, want, case)
    if mask.shape != expected_mask.shape:
        raise Mistake(
            f"`attention_mask` should have the shape of `input_ids`, {list(expected_mask.shape)}; yours has "
            f"{list(mask.shape)}.",
            case=case,
            idea="The mask has one element per cell of the rectangle.",
        )
    _name_wrong_mask(prompts, pad, mask.tolist(), expected_mask.tolist(), case)


def _name_wrong_ids(prompts, pad, got, want, case: str) -> None:
    columns = len(want[0])
    row = next(r for r in range(len(want)) if got[r] != want[r])
    what = f"row {row} of `input_ids` should be {want[row]}; yours is {got[row]}."
    if got[row] == prompts[row] + [pad] * (columns - len(prompts[row])):
        idea = (
            "You pad on the right. The next token is read from the last column, where this row has padding. Put the "
            "padding on the left."
        )
    elif sorted(map(sorted, got)) == sorted(map(sorted, want)) and got != want and sorted(got) == sorted(want):
        idea = (
            "You seem to sort the prompts. Row i belongs to request i, and the caller returns the answers in that "
            "order."
        )
    elif sorted(got[row]) == sorted(want[row]):
        idea = (
            "These are the right tokens in the wrong order. The padding goes in front, and the prompt keeps its order."
        )
    elif len(got) > 1 and all(got_row == want[-1] for got_row in got):
        idea = (
            "All your rows are equal to the last one. Is one list repeated, as in `[[...]] * n`? Then each row is the "
            "same list, and the last prompt overwrites the others."
        )
    elif got[row][-len(prompts[row]) :] == prompts[row]:
        idea = f"The padding should be `pad_token_id`, here {pad}, and not a fixed token id."
    else:
        idea = "Each row is some padding, then the whole prompt, token by token."
    raise Mistake(what, case=case, idea=idea)


def _name_wrong_mask(prompts, pad, got, want, case: str) -> None:
    row = next(r for r in range(len(want)) if got[r] != want[r])
    what = f"row {row} of `attention_mask` should be {want[row]}; yours is {got[row]}."
    if all(value == 1 for mask_row in got for value in mask_row):
        idea = (
            "Your mask is 1 everywhere, so the model would read the padding as text. It should be 0 on padding. "
            f"{ONE_LIST}"
        )
    elif not any(value for mask_row in got for value in mask_row):
        idea = "Your mask is 0 everywhere, so the model would see no token. It should be 1 on tokens."
    elif all(g == 1 - w for got_row, want_row in zip(got, want) for g, w in zip(got_row, want_row)):
        idea = (
            "Your mask is inverted. 1 means a token, which attention may look at; 0 means padding, which it must not."
        )
    elif pad in prompts[row] and got[row] == [
        int(token != pad) for token in [pad] * (len(want[row]) - len(prompts[row])) + prompts[row]
    ]:
        idea = (
            f"You seem to compare tokens with `pad_token_id`. This prompt contains token {pad} as text, which must "
            "stay visible. "
            "Derive the mask from the lengths of the prompts, not from the tokens."
        )
    elif len(got) > 1 and all(got_row == got[0] for got_row in got):
        idea = (
            f"All rows of your mask are equal, and the prompts have different lengths. {ONE_LIST} Or do the ones of "
            "this row begin too late?"
        )
    elif got[row] == [0, *want[row][:-1]] or got[row] == [0] * (want[row].count(0) + 1) + [1] * (sum(want[row]) - 1):
        idea = "The ones begin one column too late, so the first token of this prompt is hidden."
    elif got[row] == want[row][::-1]:
        idea = (
            "Your tokens are on the right, but your mask says that they are on the left. Put the zeros in front, like "
            "the padding."
        )
    else:
        idea = "Each row has a 0 for every padding cell, then a 1 for every token of the prompt."
    raise Mistake(what, case=case, idea=idea)
