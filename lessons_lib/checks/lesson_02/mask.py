"""02.1, `cache_mask`: a token sees its own position and the ones before it, in its own row."""

from collections.abc import Iterator
from typing import Any

import torch

from lessons_lib.checks.diagnosis import Task, Watch, mistakes

Case = tuple[list[list[int]], int]  # of each row, the positions of its new tokens; and num_keys


def cases() -> Iterator[Case]:
    yield [[2]], 5
    yield [[2], [0], [3]], 5
    yield [[1], [3], [0]], 5  # the shape of the one before, other positions
    yield [[0, 1, 2]], 4
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
The other way around: True means "may attend".
~ columns <= => columns >
or ~ columns <= => columns >=
One row's positions decide for all of them. Each row has a request of its own.
~ positions[:, :, None] => positions.max().expand(*positions.shape, 1)
or ~ positions[:, :, None] => positions[:1].expand(positions.shape)[:, :, None]
All new tokens of a row have the same mask. In a chunk, each token sees one column more than the one before.
~ positions[:, :, None] => positions[:, :1].expand(positions.shape)[:, :, None]
or ~ positions[:, :, None] => positions[:, -1:].expand(positions.shape)[:, :, None]
or = return (columns <= positions[:, :1])[:, None, None]
That is right for a chunk that begins the prompt. A later chunk, and a decoding token, also see everything before them:
compare with the positions, not with the token's place in the chunk.
~ positions[:, :, None] => torch.arange(positions.shape[1]).expand(positions.shape)[:, :, None]
The axis for the heads is missing: insert one of size 1 behind the rows, such as `mask[:, None]`.
= return columns <= positions[:, :, None]
Compare every position with every column. The columns take the last axis, so the positions need a last axis of size 1:
`positions[:, :, None]`, of shape [rows, new tokens, 1].
~ positions[:, :, None] => positions
or ~ positions[:, :, None] => positions[:, None]
or = return (columns[None, None] <= positions[:, None])[:, None]
"""


def about(mine: dict, want: dict) -> str:
    """The first thing that is wrong with a mask: its axes, its dtype, or one element."""
    mask, right = mine["returned"], want["returned"]
    if mask.shape != right.shape:
        return "The axes are [rows, 1, new tokens, num_keys]: 1 for the heads, and all columns that the pass reads."
    if mask.dtype != right.dtype:
        return "Return the comparison itself, a bool tensor. A mask of floats would be added to the scores."
    row, _, token, column = (mask != right).nonzero()[0].tolist()
    position = want["case"][0][row][token]
    does = f"sees column {column}" if mask[row, 0, token, column] else f"misses column {column}"
    return f"In row {row}, the token at position {position} {does}. It may see exactly the columns up to its own."


TASK = Task(
    reference="lessons_lib.batching.slot_cache:cache_mask",
    cases=cases,
    run=run,
    tell=tell,
    known=mistakes(MISTAKES),
    about={"returned": about},
)

EXERCISE = TASK.exercise(
    id="02.1",
    title="a mask for every row",
    hints=(
        "Which columns may a token at position 3 see? Write it as a comparison between two numbers. Then do it for "
        "all tokens and columns at once.",
        "`torch.arange(num_keys)` has the columns, shape [num_keys]. Give the positions an axis of size 1 at the end, "
        "so that comparing the two gives [rows, new tokens, num_keys]. The axis for the heads is still missing.",
        "`(torch.arange(num_keys, device=positions.device) <= positions[:, :, None])[:, None]`.",
    ),
)
