"""08.2, `attend_keys`: a group of query heads over a range of keys, a tile of several blocks at a time."""

import lessons_lib.kernels.triton_setup  # noqa: F401 - before Triton: decides whether kernels are compiled

# isort: split
import re
from collections.abc import Iterator
from typing import Any

import torch

from lessons_lib.checks.diagnosis import Task, Watch, mistakes
from lessons_lib.checks.diagnosis.kernels import compiles, launch, multiplies_well, near, tokens_loaded
from lessons_lib.checks.exercise import Mistake
from lessons_lib.checks.kernels import run_through
from lessons_lib.checks.lesson_08.key_range import SCALE, Case, counted_softmax, iterations, launched_with, range_kernel
from lessons_lib.checks.paged_sequence import EXTREMES, HEADS_FIRST, INTERLEAVED, far_block
from lessons_lib.kernels.group_decode import decode_groups_kernel
from lessons_lib.kernels.paged_flash import LOG2_E
from lessons_lib.measuring.ablations import with_functions


def run(attempt: Any, case: Case, watch: Watch) -> None:
    queries, keys, values = case.tensors
    attention, log_sum = case.attention(*case.range, SCALE)
    out, lse = torch.zeros(case.rows, case.dim), torch.zeros(case.rows)
    tolerance = 1e-4 if case.dtype == torch.float32 else 1e-3 if case.tokens > 100 else 5e-3

    def look(recording: Any) -> dict[str, Any]:
        loaded = {
            f"which {name} are loaded": tokens_loaded(recording, f"{name[0]}_cache", case.table, case.block_size)
            for name in ("keys", "values")
        }
        log2 = near(lse, log_sum * LOG2_E.value, tolerance)
        loaded["the number of iterations"] = len(iterations) or -(-(case.range[1] - case.range[0]) // case.tile)
        return loaded | {"acc / row_sum": near(out, attention, tolerance), "row_max + log2(row_sum)": log2}

    iterations.clear()
    if hasattr(attempt, "fn"):
        attempt = with_functions(attempt, online_softmax=counted_softmax)
    launch(
        watch, "`attend_keys`", attempt, range_kernel, (1,), attempt, queries, keys, values,
        torch.tensor(case.table, dtype=torch.int32), out, lse, *case.range, SCALE * LOG2_E.value, *keys.stride()[:2],
        GROUP=case.rows, BLOCK_M=case.block_m, HEAD_DIM=case.dim, BLOCK_SIZE=case.block_size, BLOCK_N=case.tile,
        look=look, explain=outside,
    )  # fmt: skip


def outside(error: Any) -> str:
    if error.tensor == "table":
        return "The table has no entry past the last token: `tile_offsets` needs the right `is_key`."
    return (
        "`tile_offsets` says where each key's first element is; its others follow: `offsets[:, None] + dim[None, :]`. "
        "And offsets of masked positions may be anything: mask the loads, too."
    )


def tell(case: Case) -> str:
    start, end = case.range
    queries = "1 query" if case.rows == 1 else f"{case.rows} queries"
    queries += f" in {case.block_m} rows"
    return f"keys {start} to {end - 1} of {case.tokens} tokens, BLOCK_N = {case.tile}, {queries}; {case.told}"


def cases() -> Iterator[Case]:
    half = torch.float16
    low, high, first, large, _ = EXTREMES
    yield Case(1)
    yield Case(2, rows=2)
    yield Case(16, rows=2)
    yield Case(17, rows=2, block_size=8)
    yield Case(20, rows=2, block_size=8, end=10)
    yield Case(40, rows=1, block_size=8, start=32)
    yield Case(24, rows=3, block_size=4, start=5, end=23)
    yield Case(40, rows=1, block_size=32)
    yield Case(20, rows=17)
    yield Case(40, rows=2, block_size=12, tile=32)
    yield Case(20, rows=2, block_size=8, layout=INTERLEAVED)
    yield Case(20, rows=2, block_size=8, layout=HEADS_FIRST)
    yield Case(50, rows=7, start=16, dim=32, dtype=half)
    yield Case(2, scores=low)
    yield Case(32, scores=high, dtype=half)
    yield Case(16, scores=large, dtype=half)
    yield Case(144, block_size=72, scores=first, dtype=half)


MISTAKES = """
Positions past the end have a score, too, and a weight. Their score must be minus infinity: `tl.where(is_key[None, :],
scores, float("-inf"))`.
- scores = tl.where
The mask of the scores is a column, `[:, None]`: it hides rows, which are queries. Keys are along axis 1 of the scores:
`tl.where(is_key[None, :], ...)`.
~ tl.where(is_key[None, :] => tl.where(is_key[:, None]
Elements that a mask leaves out are undefined, and 0 × NaN is NaN: give the load of the values `other=0.0`.
~ values + elements, mask=is_key[:, None], other=0.0 => values + elements, mask=is_key[:, None]
The last tile reaches past `end`: mask the positions that aren't below it.
~ is_key = position < end => is_key = position < end + BLOCK_N
or ~ is_key = position < end => is_key = tl.arange(0, BLOCK_N) < BLOCK_N
The sides are those of `queries`, [rows, D], whatever they are: maximum and sum have a row each, `acc` has both sides.
~ row_sum = tl.zeros([queries.shape[0]] => row_sum = tl.zeros([16]
The scores aren't multiplied by `scale`.
~ ) * scale => )
log2(e) counts twice: `scale` includes it, so the scores are in base 2, as `online_softmax` wants them.
~ ) * scale => ) * scale * 1.4426950408889634
`tile_offsets` takes the strides in this order: `stride_block`, `stride_slot`.
~ stride_block, stride_slot, BLOCK_SIZE) => stride_slot, stride_block, BLOCK_SIZE)
You used the keys as values.
~ tl.load(values => tl.load(keys
You used the values as keys.
~ tl.load(keys => tl.load(values
`acc` starts anew in each iteration, so only the last tile is in it. Add to it: `tl.dot(weights, values, acc)`.
~ tile_values, acc, input => tile_values, input
`acc` is counted twice: `tl.dot(weights, values, acc)` already adds it.
~ acc = tl.dot => acc += tl.dot
Don't divide: the caller does, once, and the split kernel also needs the sum.
~ return row_max, row_sum, acc => return row_max, row_sum, acc / row_sum[:, None]
You divide in every iteration. Nothing is divided here: the caller does it, once.
> acc = tl.dot => acc = acc / row_sum[:, None]
Take all four results of `online_softmax`, in every iteration: weights, maximum, sum and `acc`. In them, the old sum and
`acc` are rescaled.
~ weights, row_max, row_sum, acc = => weights, row_max, row_sum, scaled =
or ~ weights, row_max, row_sum, acc = => weights, row_max, last_sum, acc =
or ~ weights, row_max, row_sum, acc = => weights, last_max, row_sum, acc =
A new maximum changes what was summed before: `online_softmax` rescales the old sum and `acc` to it. You don't.
- weights, row_max
+ row_max = tl.maximum(row_max, tl.max(scores, axis=1))
+ weights = tl.exp2(scores - row_max[:, None])
+ row_sum += tl.sum(weights, axis=1)
What the loop carries starts before it: set in the loop, maximum, sum and `acc` forget all tiles before the last one.
> dim => blank = tl.full([queries.shape[0]], float("-inf"), tl.float32)
~ online_softmax(scores, row_max, row_sum, acc) => online_softmax(scores, blank, 0.0 * row_sum, 0.0 * acc)
`online_softmax` returns weights, maximum, sum and acc, in this order.
~ weights, row_max, row_sum, acc = => weights, row_sum, row_max, acc =
or ~ weights, row_max, row_sum, acc = => row_max, weights, row_sum, acc =
The sum that `online_softmax` returns has these weights in it, and its `acc` is rescaled: do neither again.
< acc = tl.dot => row_sum += tl.sum(weights, axis=1)
or < weights, row_max => before = row_max
< acc = tl.dot => acc *= tl.exp2(before - row_max)[:, None]
First `online_softmax`, which rescales `acc`; then add weights × values: the weights are relative to the new maximum.
- weights, row_max
- acc = tl.dot
+ acc = tl.dot(tl.exp2(scores - row_max[:, None]).to(tile_values.dtype), tile_values, acc, input_precision="ieee")
+ weights, row_max, row_sum, acc = online_softmax(scores, row_max, row_sum, acc)
Return the maximum, the sum, and `acc`, in this order, as `online_softmax` and `tl.dot` leave them.
~ return row_max, row_sum, acc => return row_max, tl.log2(row_sum), acc
or ~ return row_max, row_sum, acc => return row_max + tl.log2(row_sum), row_sum, acc
or ~ return row_max, row_sum, acc => return row_sum, row_max, acc
This is as near as 16 bits are, and everything is float32 here: convert nothing but the weights, to the dtype of the
values, whichever that is, `weights.to(values.dtype)`.
~ tl.dot(queries, tl.trans(tile_keys) => tl.dot(queries.to(tl.float16), tl.trans(tile_keys).to(tl.float16)
or ~ weights.to(tile_values.dtype), tile_values => weights.to(tl.float16), tile_values.to(tl.float16)
Both factors of `tl.dot` need the same dtype. The weights are float32: convert them, `weights.to(values.dtype)`.
~ weights.to(tile_values.dtype) => weights
`tl.dot` multiplies [rows, inner] by [inner, columns]. For the scores these are queries [rows, D] and keys
[D, BLOCK_N], so transpose the tile of keys: `tl.trans`.
~ tl.trans(tile_keys) => tile_keys
The offset of a key is where its first element is; its others follow: `offsets[:, None] + dim[None, :]`.
~ elements = offsets[:, None] + dim[None, :] => elements = offsets
or ~ offsets[:, None] + dim[None, :] => offsets + dim
or ~ offsets[:, None] + dim[None, :] => offsets[:, None]
A row and a column are mixed up: keys are rows of their tile, so their offsets are a column, `offsets[:, None]`, and so
is their mask.
~ offsets[:, None] + dim[None, :] => offsets[None, :] + dim[:, None]
or ~ keys + elements, mask=is_key[:, None] => keys + elements, mask=is_key[None, :]
~ values + elements, mask=is_key[:, None] => values + elements, mask=is_key[None, :]
"""


TILES = (
    "A tile is BLOCK_N positions long, whatever the block size is. So the loop's step is BLOCK_N, and n keys take "
    "`tl.cdiv(n, BLOCK_N)` iterations."
)


def loaded_keys(mine: dict, want: dict) -> str:
    """What a program that loads other keys gets wrong."""
    text, (start, end) = mine["which keys are loaded"], want["case"].range
    runs = re.search(r"positions ((\d+( to \d+)?(, )?)*)", text)
    found = [int(number) for number in re.findall(r"\d+", runs[1])] if runs else []
    if "only a part" in text:
        return "An offset says where a key's first element is; its others follow: `offsets[:, None] + dim[None, :]`."
    if "isn't the sequence's" in text:
        return "You load slots without a token. Give both loads the mask `is_key[:, None]`."
    if found and found[0] < start:
        return "Begin at `start`, not at 0: the keys before it belong to another program."
    if found and found[-1] >= end:
        return "`end` isn't one of your positions: `position < end`."
    if not found or len(found) > 2 or (found[0], found[-1]) != (start, end - 1):
        return (
            "Some keys are missing. The positions of a tile are `first` + 0, 1, 2, ..., counted from the beginning of "
            "the sequence, and each one below `end` is a key's. Is the `return` inside the loop?"
        )
    return TILES


def output(mine: dict, want: dict) -> str:
    """What the smallest case says about a wrong output: the simpler ones are right."""
    if want["case"].dtype == torch.float16:
        return "In 16 bits only what enters a `tl.dot` has 16 bits. Scores, maximum, sum and `acc` stay float32."
    if want["case"].scores == "near −100,000":
        return "Scores may be very low: masked scores and the first maximum must be minus infinity."
    return (
        "In each iteration: scores = queries · keysᵀ × scale, minus infinity past the end; then `online_softmax`; then "
        "acc += weights · values."
    )


def called(attempt: Any) -> Any:
    return with_functions(decode_groups_kernel, attend_keys=attempt)


def large_pool(attempt: Any) -> None:
    """A block so far back in the cache that its offset doesn't fit into 32 bits; only this block is touched."""
    if not (far := far_block(16, 16)):
        return
    cache, block = far
    out, lse, table = torch.zeros(1, 16), torch.zeros(1), torch.tensor([block], dtype=torch.int32)
    text = f"a cache of {cache.numel():,} elements, float16; the sequence is in its last block."
    idea = "Block × stride_block has more than 32 bits here. `tile_offsets` returns 64: keep them."
    try:
        run_through(
            attempt, range_kernel, (1,), attempt, torch.ones(1, 16).half(), cache, cache, table, out, lse, 0, 16, SCALE,
            256, 16, GROUP=1, BLOCK_M=16, HEAD_DIM=16, BLOCK_SIZE=16, BLOCK_N=16, case=text,
        )  # fmt: skip
    except Mistake as mistake:
        raise Mistake(mistake.what, text, idea) from None


TASK = Task(
    reference="lessons_lib.kernels.group_decode:attend_keys",
    cases=cases,
    run=run,
    tell=tell,
    known=mistakes(MISTAKES),
    about={
        "which keys are loaded": loaded_keys,
        "which values are loaded": "Load the values where the keys are, with the same mask `is_key[:, None]`.",
        "the number of iterations": TILES,
        "acc / row_sum": output,
        "row_max + log2(row_sum)": "A score is query · key × `scale`, once; past the end, minus infinity. Return the "
        "maximum and the sum as `online_softmax` returned them in the last iteration.",
        "raised AssertionError": "`tl.dot` multiplies [rows, inner] by [inner, columns]: queries [rows, D] by keys "
        "[D, BLOCK_N], and weights [rows, BLOCK_N] by values [BLOCK_N, D], where D is `queries.shape[1]`.",
    },
    enough=4,
    clear=0.8,
    probes=(
        compiles(launched_with(torch.float32), launched_with(torch.float16), kernel=called),
        multiplies_well(launched_with(torch.float32), launched_with(torch.float16), kernel=called),
        large_pool,
    ),
)

EXERCISE = TASK.exercise(
    id="08.2",
    title="a group of heads, a tile of keys",
    time_limit=20.0,
    points=4,
    hints=(
        "Name the axes of each tile first. Queries: rows and dimensions. Keys and values: positions and dimensions. "
        "Scores and weights: rows and positions. `acc`: rows and dimensions. Maximum and sum: rows. Which of them does "
        "an iteration load, and which does it carry to the next one?",
        "Before the loop, the three tiles of state. In the loop: positions and their mask, offsets by `tile_offsets`, "
        "keys and values [BLOCK_N, D], scores by `tl.dot`, minus infinity where the mask is False, `online_softmax`, "
        "and `acc` by another `tl.dot`. After it, return the state.",
        "`position = first + tl.arange(0, BLOCK_N)`; the elements of a key are at `offsets[:, None] + dim[None, :]`; "
        '`scores = tl.dot(queries, tl.trans(tile_keys), input_precision="ieee") * scale`; `weights, row_max, row_sum, '
        "acc = online_softmax(scores, row_max, row_sum, acc)`; `acc = tl.dot(weights.to(tile_values.dtype), "
        'tile_values, acc, input_precision="ieee")`.',
    ),
)
