"""Judges 01.1, `pad_left`: prompts on the right of a rectangle, and the mask that tells them from padding."""

import torch

from lessons_lib.batching.static_batching import pad_left
from lessons_lib.checks.exercise import Mistake, call, short
from lessons_lib.checks.lesson_01.words import kind

PAD = 9  # not 0, so that padding with a 0 of one's own is seen

# Smallest first.
PAD_CASES = (
    ([[5]], PAD),
    ([[5], [6, 7]], PAD),
    ([[6, 7], [5]], PAD),
    ([[1, 2, 3], [4], [5, 6]], PAD),
    ([[PAD, 5], [6, 7, 8]], PAD),  # the padding token is also a token of a prompt
    ([[0, 4, 0], [0], [3, 0, 0, 1, 2]], 0),
)


def test_pad_left(attempt) -> None:
    for prompts, pad in PAD_CASES:
        case = f"pad_left({prompts}, pad_token_id={pad})"
        result = call(attempt, [list(ids) for ids in prompts], pad, case=case)
        input_ids, mask = _two_tensors(result, case)
        expected_ids, expected_mask = pad_left(prompts, pad)
        if input_ids.tolist() != expected_ids.tolist() or mask.tolist() != expected_mask.tolist():
            _name_padding_mistake(prompts, pad, input_ids, mask, expected_ids, expected_mask, case)


def _two_tensors(result, case: str) -> tuple[torch.Tensor, torch.Tensor]:
    if not isinstance(result, (tuple, list)) or len(result) != 2:
        raise Mistake(
            f"it should return two things, `(input_ids, attention_mask)`; yours returned {kind(result)}.",
            case=case,
            idea="End with `return input_ids, attention_mask`. The mask tells the model which cells of the rectangle are real.",
        )
    for name, value in zip(("input_ids", "attention_mask"), result):
        _refuse_non_integers(name, value, case)
    return tuple(result)


def _refuse_non_integers(name: str, value, case: str) -> None:
    if not isinstance(value, torch.Tensor):
        raise Mistake(
            f"`{name}` should be a tensor; yours is {kind(value)}.",
            case=case,
            idea="`torch.tensor(...)` makes a tensor of a list of rows of equal length.",
        )
    if value.is_floating_point() or value.dtype == torch.bool:
        raise Mistake(
            f"`{name}` should hold int64 numbers; yours holds {value.dtype}.",
            case=case,
            idea="`torch.tensor` of Python integers is int64 by itself; `torch.zeros` and `torch.ones` make float32 unless told `dtype=torch.int64`. "
            "`.long()` turns true and false into 1 and 0.",
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
            idea="You seem to have a request in every column. A request is a row.",
        )
    if input_ids.dim() != 2 or len(input_ids) != rows:
        raise Mistake(
            f"`input_ids` should have shape [{rows}, {columns}]; yours has {list(input_ids.shape)}.",
            case=case,
            idea="One row a prompt.",
        )
    if input_ids.shape[1] != columns:
        idea = (
            "You seem to cut prompts to a shorter one. No token may be lost: the rectangle is as wide as the longest prompt."
            if input_ids.shape[1] < columns
            else "You seem to pad to some length of your own. Every further column is computed for all rows, for nothing."
        )
        raise Mistake(
            f"the longest prompt has {columns} tokens, so there should be {columns} columns; yours are {input_ids.shape[1]}.",
            case=case,
            idea=idea,
        )
    if got != want:
        _name_wrong_ids(prompts, pad, got, want, case)
    if mask.shape != expected_mask.shape:
        raise Mistake(
            f"`attention_mask` should have the shape of `input_ids`, {list(expected_mask.shape)}; yours has {list(mask.shape)}.",
            case=case,
            idea="One number for each cell of the rectangle.",
        )
    _name_wrong_mask(prompts, pad, mask.tolist(), expected_mask.tolist(), case)


def _name_wrong_ids(prompts, pad, got, want, case: str) -> None:
    columns = len(want[0])
    row = next(r for r in range(len(want)) if got[r] != want[r])
    what = f"row {row} of `input_ids` should be {want[row]}; yours is {got[row]}."
    if got[row] == prompts[row] + [pad] * (columns - len(prompts[row])):
        idea = "You pad on the right. The next token is read off the last column, and there this row has padding. Put the padding on the left."
    elif sorted(map(sorted, got)) == sorted(map(sorted, want)) and got != want and sorted(got) == sorted(want):
        idea = (
            "You seem to sort the prompts. Row i belongs to request i: the caller hands the answers back in that order."
        )
    elif sorted(got[row]) == sorted(want[row]):
        idea = "The right tokens in the wrong order. Only padding is put in front; the prompt itself stays as it was."
    elif got[row][-len(prompts[row]) :] == prompts[row]:
        idea = f"The padding should be `pad_token_id`, here {pad}; the model's vocabulary decides which token that is."
    else:
        idea = "Each row is some padding and then the whole prompt, token by token."
    raise Mistake(what, case=case, idea=idea)


def _name_wrong_mask(prompts, pad, got, want, case: str) -> None:
    row = next(r for r in range(len(want)) if got[r] != want[r])
    what = f"row {row} of `attention_mask` should be {want[row]}; yours is {got[row]}."
    if all(number == 1 for line in got for number in line):
        idea = "Your mask is 1 everywhere, so the model would read the padding as if it were text. It is 0 on padding."
    elif all(g == 1 - w for line, wanted in zip(got, want) for g, w in zip(line, wanted)):
        idea = "Your mask is inverted. 1 means: a token, look at it. 0 means: padding, do not look."
    elif pad in prompts[row] and got[row] == [
        int(token != pad) for token in [pad] * (len(want[row]) - len(prompts[row])) + prompts[row]
    ]:
        idea = (
            f"You seem to compare tokens with `pad_token_id`. This prompt holds token {pad} as text, and it must be seen. "
            "What is padding follows from the lengths, not from the tokens."
        )
    elif got[row] == want[row][::-1]:
        idea = "Your tokens are on the right and your mask says that they are on the left. Build both with the same number of padding cells."
    else:
        idea = "In each row as many 0 as there are padding cells, then as many 1 as the prompt has tokens."
    raise Mistake(what, case=case, idea=idea)
