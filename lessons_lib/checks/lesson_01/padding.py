"""01.1, `pad_left`: prompts on the right of a rectangle, and the mask that tells them apart from the padding."""

from collections.abc import Iterator
from typing import Any

from lessons_lib.checks.diagnosis import Shown, Task, Watch, mistakes
from lessons_lib.checks.exercise import short

PAD = 9  # not 0, so that a hard-coded 0 shows
Case = tuple[list[list[int]], int]


def cases() -> Iterator[Case]:
    yield [[5]], PAD
    yield [[5], [6, 7]], PAD
    yield [[6, 7], [5]], PAD
    yield [[1, 2, 3], [4], [5, 6]], PAD
    yield [[PAD, 5], [6, 7, 8]], PAD  # the padding token is also a token of a prompt
    yield [[0, 4, 0], [0], [3, 0, 0, 1, 2]], 0
    yield [[5], [5]], PAD  # equal prompts are two requests
    yield [[4, 1], [6], [2, 3, 7, 8], [5, 5, 1]], PAD
    yield [list(range(10, 310)), [5]], PAD  # longer than any limit that a learner may set


def run(attempt: Any, case: Case, watch: Watch) -> None:
    prompts, pad = case
    got = watch(tell(case), attempt, prompts, pad, returns=pair, subject="the result")
    watch(tell(case), lambda: got[0], subject="`input_ids`")
    watch(tell(case), lambda: got[1], subject="the mask")


def pair(got: Any) -> Any:
    if got is None:
        return None
    size = f"a {type(got).__name__}" + (f" of {len(got)}" if isinstance(got, tuple | list) else "")
    return Shown("two tensors" if size in ("a tuple of 2", "a list of 2") else size)


def tell(case: Case) -> str:
    return f"`pad_left({short(case[0])}, {case[1]})`"


MISTAKES = """
That pads on the right. Put the padding on the left, so that the newest token of every row is in the last column.
- padding = [
+ padding = [longest - len(ids) for ids in prompt_ids]
+ input_ids = [list(ids) + [pad_token_id] * pad for pad, ids in zip(padding, prompt_ids)]
+ attention_mask = [[1] * len(ids) + [0] * pad for pad, ids in zip(padding, prompt_ids)]
+ return torch.tensor(input_ids), torch.tensor(attention_mask)
or ~ [pad_token_id] * pad + list(ids) => list(ids) + [pad_token_id] * pad
The tokens are on the right, and your mask says that they are on the left.
~ [0] * pad + [1] * len(ids) => [1] * len(ids) + [0] * pad
The mask is inverted: 1 on tokens, 0 on padding.
~ [0] * pad + [1] * len(ids) => [1] * pad + [0] * len(ids)
The mask is 1 everywhere, so the model would read the padding as text.
~ [0] * pad + [1] * len(ids) => [1] * longest
The mask is 0 everywhere. It is 1 where a prompt's token is.
~ [0] * pad + [1] * len(ids) => [0] * longest
A prompt may contain the padding token, and there it is a real token. Build the mask from the lengths, not by comparing.
~ torch.tensor(attention_mask) => (torch.tensor(input_ids) != pad_token_id).long()
The mask has only 0s and 1s: it says where tokens are, not which or how many.
~ torch.tensor(attention_mask) => torch.tensor(attention_mask).cumsum(dim=1)
or ~ torch.tensor(attention_mask) => torch.tensor(attention_mask) * torch.tensor(input_ids)
The ones of the mask begin one column too late.
~ [0] * pad + [1] * len(ids) => [0] * (pad + 1) + [1] * (len(ids) - 1)
The ones of the mask begin one column too early.
~ [0] * pad + [1] * len(ids) => ([0] * (pad - 1) + [1] * (len(ids) + 1))[:longest]
The rectangle is as wide as the longest prompt. Is there a `+ 1`, or a fixed width?
~ longest = max( => longest = 1 + max(
or ~ longest = max(len(ids) for ids in prompt_ids) => longest = 64
`max(prompt_ids)` compares lists element by element. The longest one is `max(prompt_ids, key=len)`.
~ max(len(ids) for ids in prompt_ids) => len(max(prompt_ids))
The width is that of the longest prompt, wherever it stands in the list.
~ max(len(ids) for ids in prompt_ids) => len(prompt_ids[0])
or ~ max(len(ids) for ids in prompt_ids) => len(prompt_ids[-1])
No token may be lost: the rectangle is as wide as the *longest* prompt.
- longest = max
+ longest = min(map(len, prompt_ids))
+ prompt_ids = [ids[-longest:] for ids in prompt_ids]
The padding token is `pad_token_id`. It isn't always the same.
~ [pad_token_id] * pad => [0] * pad
or ~ [pad_token_id] * pad => [9] * pad
A tensor is a rectangle: pad every row to the longest prompt first.
~ torch.tensor(input_ids) => torch.tensor([list(ids) for ids in prompt_ids])
The mask has the shape of `input_ids`: a row for each prompt.
~ torch.tensor(attention_mask) => torch.tensor(attention_mask[0])
All rows are equal to the last one. Is one list repeated, as in `[[0] * n] * rows`? What is written to one is in all.
~ torch.tensor(input_ids) => torch.tensor([input_ids[-1]] * len(prompt_ids))
or ~ torch.tensor(attention_mask) => torch.tensor([attention_mask[-1]] * len(prompt_ids))
int64 is asked for, as `torch.tensor` makes it of ints: the mask is a number for each cell, which is added up later.
~ torch.tensor(attention_mask) => torch.tensor(attention_mask).bool()
or ~ torch.tensor(attention_mask) => torch.tensor(attention_mask).float()
or ~ torch.tensor(attention_mask) => torch.tensor(attention_mask).int()
The tokens first, then the mask: yours are the other way around.
= return torch.tensor(attention_mask), torch.tensor(input_ids)
Return two things, with a comma between them: the tokens and the mask.
= return torch.tensor(input_ids)
or = return {"input_ids": torch.tensor(input_ids), "attention_mask": torch.tensor(attention_mask)}
or = return torch.tensor([input_ids, attention_mask])
Tensors are asked for: `torch.tensor(...)` makes one of a list of rows.
= return input_ids, attention_mask
A request is a row, not a column.
= return torch.tensor(input_ids).T, torch.tensor(attention_mask).T
The rows are in the order of the prompts. Do you sort them?
< longest = max => prompt_ids = sorted(prompt_ids, key=len)
A prompt's tokens keep their order.
~ + list(ids) => + list(ids)[::-1]
"""

TASK = Task(
    reference="lessons_lib.batching.static_batching:pad_left",
    cases=cases,
    run=run,
    tell=tell,
    known=mistakes(MISTAKES),
    about={
        "returned": "A row is padding up to the longest prompt's length, then the whole prompt. Its mask is a 0 for "
        "each token of padding, then a 1 for each of the prompt."
    },
)

EXERCISE = TASK.exercise(
    id="01.1",
    title="pad to a rectangle",
    hints=(
        "Which length do all rows get, and how many cells does a prompt of 3 tokens lack if the longest has 5? Don't "
        "look for padding tokens in the rows: you know where they are when you put them there.",
        "For each prompt, compute how many cells are missing: `longest - len(ids)`. Its row is that many padding "
        "tokens, then the prompt. Its mask is that many zeros, then a 1 for each token.",
        "`longest = max(len(ids) for ids in prompt_ids)`. For each prompt: `pad = longest - len(ids)`, the row "
        "`[pad_token_id] * pad + list(ids)` and the mask `[0] * pad + [1] * len(ids)`. At the end, return "
        "`torch.tensor(rows), torch.tensor(masks)`.",
    ),
)
