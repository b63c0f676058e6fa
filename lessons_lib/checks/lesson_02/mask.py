"""02.1, `cache_mask`: a token sees its own position and the ones before it, in its own row."""

from collections.abc import Iterator
from typing import Any

import torch

from lessons_lib.checks.diagnosis import Task, Watch, mistakes
from lessons_lib.checks.exercise import Exercise

Case = tuple[list[list[int]], int]  # of each row, the positions of its new tokens; and num_keys


def cases() -> Iterator[Case]:
    yield [[2]], 5
    yield [[0]], 1
    yield [[2], [0], [3]], 5
    yield [[1], [3], [0]], 5  # the shape of the one before, other positions
    yield [[0, 1, 2]], 4
    yield [[3, 4]], 5
    yield [[3, 4]], 7
    yield [[4, 5, 6], [0, 1, 2]], 9
    yield [[40], [7], [0], [25]], 41
    yield [[64]], 65
    yield [[300], [299]], 302


def run(attempt: Any, case: Case, watch: Watch) -> None:
    positions, num_keys = case
    watch(tell(case)[:-1], attempt, torch.tensor(positions), num_keys, subject="the mask")


def tell(case: Case) -> str:
    return f"`cache_mask(torch.tensor({case[0]}), {case[1]})`."


MISTAKES = """
A token sees itself, too: columns 0 to *p*, with *p*.
~ columns <= => columns <
A token at position *p* sees columns 0 to *p*, and yours sees one more: a later token, or what an earlier request left.
~ columns <= positions[:, :, None] => columns <= positions[:, :, None] + 1
The other way around: True means "may attend".
~ columns <= => columns >
or
~ columns <= => columns >=
Every token sees every column: what an earlier request left, too.
~ columns <= positions[:, :, None] => columns <= num_keys + 0 * positions[:, :, None]
One mask for all rows: here every row is treated as the longest one. Each row has a request of its own.
~ positions[:, :, None] => positions.max().expand(*positions.shape, 1)
One mask for all rows: here every row is treated as the shortest one, which then loses text. Each row has its own.
~ positions[:, :, None] => positions.min().expand(*positions.shape, 1)
Every row has the mask of row 0. Compare with the positions of each.
~ positions[:, :, None] => positions[:1].expand(positions.shape)[:, :, None]
All new tokens of a row have the mask of its first one. In a chunk, each token sees one column more than the one before.
~ positions[:, :, None] => positions[:, :1].expand(positions.shape)[:, :, None]
All new tokens of a row have the mask of its last one, so the first ones see tokens that come after them.
~ positions[:, :, None] => positions[:, -1:].expand(positions.shape)[:, :, None]
That is right for a chunk that begins the prompt. A later chunk, and a decoding token, also see everything before them:
compare with the positions, not with the token's place in the chunk.
~ positions[:, :, None] => torch.arange(positions.shape[1]).expand(positions.shape)[:, :, None]
The axis for the heads is missing: insert one of size 1 behind the rows, such as `mask[:, None]`.
= return columns <= positions[:, :, None]
The axis for the heads comes right behind the rows: [rows, 1, new tokens, num_keys].
= return (columns <= positions[:, :, None])[:, :, None]
or
= return (columns <= positions[:, :, None])[None]
or
= return (columns <= positions[:, :, None])[..., None]
The mask has `num_keys` columns, as many as the pass reads, not only as many as the longest row needs.
= columns = torch.arange(positions.max() + 1)
That is an additive mask, with 0 where a token may attend. Return the comparison itself, True where it may.
= return torch.zeros(*positions.shape, num_keys).masked_fill(columns > positions[:, :, None], -torch.inf)[:, None]
A bool tensor is asked for: other dtypes mean something else. A float mask, for one, is added to the scores.
= return (columns <= positions[:, :, None])[:, None].long()
or
= return (columns <= positions[:, :, None])[:, None].float()
Compare every position with every column. The columns take the last axis, so the positions need a last axis of size 1:
`positions[:, :, None]`, of shape [rows, new tokens, 1].
~ positions[:, :, None] => positions
or
~ positions[:, :, None] => positions[:, None]
or
= return (columns[None, None] <= positions[:, None])[:, None]
Earlier tokens never drop out of sight, however far back they are.
~ (columns <= positions[:, :, None]) => ((columns <= positions[:, :, None]) & (columns > positions[:, :, None] - 64))
or
~ (columns <= positions[:, :, None]) => ((columns <= positions[:, :, None]) & (columns > positions[:, :, None] - 128))
or
~ (columns <= positions[:, :, None]) => ((columns <= positions[:, :, None]) & (columns > positions[:, :, None] - 32))
A row may have more than 256 columns: `torch.arange(num_keys)` itself counts them in int64.
~ torch.arange(num_keys, device=positions.device) => torch.arange(num_keys).to(torch.uint8)
or
~ torch.arange(num_keys, device=positions.device) => torch.arange(num_keys).to(torch.int8)
Each token sees only itself. It needs everything before it, too.
~ columns <= => columns ==
Position 0 is a position like any other: its token sees itself.
= return ((columns <= positions[:, :, None]) & (positions[:, :, None] > 0))[:, None]
Rows and new tokens are swapped.
= return (columns <= positions.T[:, :, None])[:, None]
"""

TASK = Task(
    reference="lessons_lib.batching.slot_cache:cache_mask",
    cases=cases,
    run=run,
    tell=tell,
    known=mistakes(MISTAKES),
    about={"returned": "True where the column is at most the token's position, in each row by itself."},
)

EXERCISE = Exercise(
    id="02.1",
    title="a mask for every row",
    reference=TASK.reference,
    test=TASK,
    hints=(
        "Which columns may a token at position 3 see? Write it as a comparison between two numbers. Then do it for "
        "all tokens and columns at once.",
        "`torch.arange(num_keys)` has the columns, shape [num_keys]. Give the positions an axis of size 1 at the end, "
        "so that comparing the two gives [rows, new tokens, num_keys]. The axis for the heads is still missing.",
        "`(torch.arange(num_keys, device=positions.device) <= positions[:, :, None])[:, None]`.",
    ),
)
