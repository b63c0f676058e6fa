"""07.2, `attend_blocks`: one query over a block table, one block per iteration."""

from collections.abc import Iterator
from typing import Any

import torch

from lessons_lib.checks.diagnosis import Shown, Task, Watch, mistakes
from lessons_lib.checks.diagnosis.kernels import compiles, launch, near, tokens_loaded
from lessons_lib.checks.diagnosis.mistakes import Known, patched
from lessons_lib.checks.exercise import Mistake
from lessons_lib.checks.kernels import run_through
from lessons_lib.checks.paged_sequence import EXTREMES, HEADS_FIRST, INTERLEAVED, SPREAD, PagedSequence, far_block
from lessons_lib.kernels.simple_paged import add_keys, decode_heads_kernel, single_head_kernel
from lessons_lib.measuring.ablations import with_functions

SCALE = 0.3


def run(attempt: Any, case: PagedSequence, watch: Watch) -> None:
    queries, keys, values = case.tensors
    attention, _ = case.attention(0, case.tokens, SCALE)
    table, out = torch.tensor(case.table, dtype=torch.int32), torch.zeros(case.dim)

    def look(recording: Any) -> dict[str, Any]:
        loaded = {
            f"which {name} are loaded": tokens_loaded(
                recording, f"{name[0]}_cache", case.table, case.block_size, once=False
            )
            for name in ("keys", "values")
        }
        result = near(out, attention[0])
        error = ((result - attention[0]).abs() / (1 + attention[0].abs())).max()
        rounded = Shown("nearly that, but with three digits: something is rounded to 16 bits")
        return loaded | {"the attention": rounded if 1e-4 < error < 1e-3 else result}

    launch(
        watch, "`attend_blocks`", attempt, single_head_kernel, (1,), attempt, queries[0], keys, values, table, out,
        case.tokens, SCALE, *keys.stride()[:2], HEAD_DIM=case.dim, BLOCK_SIZE=case.block_size, look=look,
        explain=outside,
    )  # fmt: skip


def outside(error: Any) -> str:
    if error.tensor == "block_table":
        return (
            "The table has one entry per block, and may have none past the blocks in use: position p is in entry p // "
            "BLOCK_SIZE, and `num_tokens` says where the sequence ends."
        )
    return (
        "Element d of slot s of block b is at b × stride_block + s × stride_slot + d. Is the block an entry of the "
        "table, and are the slots without a token masked?"
    )


def tell(case: PagedSequence) -> str:
    strides = case.tensors[1].stride()
    return (
        f"{case.tokens} token{'s' * (case.tokens > 1)}, {case.told} stride_block = {strides[0]}, stride_slot = "
        f"{strides[1]}."
    )


def cases() -> Iterator[PagedSequence]:
    small = dict(block_size=4, dim=8)
    yield PagedSequence(1, **small)
    yield PagedSequence(3, **small)
    yield PagedSequence(4, **small)
    yield PagedSequence(6, **small)
    yield PagedSequence(8, **small)
    yield PagedSequence(9, **small)
    yield PagedSequence(7, **small, layout=SPREAD)
    yield PagedSequence(7, **small, layout=INTERLEAVED)
    yield PagedSequence(11, **small, layout=HEADS_FIRST)
    yield PagedSequence(1, **small, scores=next(iter(EXTREMES)))
    yield PagedSequence(7, **small, dtype=torch.float16)
    yield PagedSequence(17, dim=8, scores=[*EXTREMES][-1])
    yield PagedSequence(150, block_size=32)
    yield PagedSequence(5, block_size=2, dim=16, layout=SPREAD)


MISTAKES = """
Slots without a token have a score of 0, which is a score like any other: it must be minus infinity, `tl.where(is_key,
scores, float("-inf"))`.
- scores = tl.where
A masked score, and the maximum that you start with, must be lower than any score: minus infinity. Here, all scores are
far below zero.
~ scores, float("-inf") => scores, -10000.0
or ~ row_max, row_sum = float("-inf") => row_max, row_sum = 0.0
or ~ row_max, row_sum = float("-inf") => row_max, row_sum = -10000.0
You load slots without a token. They may hold anything: give both loads the mask `is_key[:, None]`.
~ keys + offsets, mask=is_key[:, None], other=0.0 => keys + offsets
or ~ values + offsets, mask=is_key[:, None], other=0.0 => values + offsets
or ~ + offsets, mask=is_key[:, None], other=0.0 => + offsets
Elements that a mask leaves out are undefined, and 0 × NaN is NaN: give the load of the values `other=0.0`.
~ values + offsets, mask=is_key[:, None], other=0.0 => values + offsets, mask=is_key[:, None]
The mask is that of the whole sequence, not of one block: `first + slot < num_tokens`.
~ is_key = first + slot < num_tokens => is_key = slot < num_tokens
or ~ is_key = first + slot < num_tokens => is_key = slot < num_tokens % BLOCK_SIZE
One token too many: `<`, not `<=`.
~ slot < num_tokens => slot <= num_tokens
The newest token is left out: `num_tokens` includes it.
~ slot < num_tokens => slot < num_tokens - 1
or ~ range(0, num_tokens, => range(0, num_tokens - 1,
Use the entry of the table. You use the sequence's own numbers: block 0, 1, 2, …
~ block = tl.load(table + first // BLOCK_SIZE) => block = (tl.load(table) * 0 + first // BLOCK_SIZE)
You read blocks that follow the first one in the pool. Those of a sequence are anywhere: each has its own entry.
~ block = tl.load(table + first // BLOCK_SIZE) => block = (tl.load(table) + first // BLOCK_SIZE)
You read the same entry of the table in each iteration: position p is in entry p // BLOCK_SIZE.
~ table + first // BLOCK_SIZE => table
The table has one entry for a block, not for a token: position p is in entry p // BLOCK_SIZE.
~ table + first // BLOCK_SIZE => table + first
`/` gives a float. The entry is p // BLOCK_SIZE.
~ first // BLOCK_SIZE => first / BLOCK_SIZE
The loop goes from block to block, in steps of BLOCK_SIZE.
~ num_tokens, BLOCK_SIZE): => num_tokens):
The last block is missing, which needn't be full: the loop goes on until `num_tokens`.
~ range(0, num_tokens, => range(0, num_tokens // BLOCK_SIZE * BLOCK_SIZE,
One block too many: a sequence may end with a full block, and no other follows it.
~ range(0, num_tokens, => range(0, num_tokens + BLOCK_SIZE,
or ~ range(0, num_tokens, => range(0, (num_tokens // BLOCK_SIZE + 1) * BLOCK_SIZE,
Only the first block is read. The loop goes on until all `num_tokens` are done. Is the `return` inside it?
~ range(0, num_tokens, => range(0, BLOCK_SIZE,
A block begins at block × stride_block: in a view, that isn't BLOCK_SIZE × stride_slot.
~ block * stride_block => block * BLOCK_SIZE * stride_slot
or ~ block * stride_block => block
The strides are swapped: block × stride_block, slot × stride_slot.
~ block * stride_block + slot[:, None] * stride_slot => block * stride_slot + slot[:, None] * stride_block
Slots are `stride_slot` elements apart, neither 1 nor HEAD_DIM.
~ slot[:, None] * stride_slot => slot[:, None] * HEAD_DIM
or ~ slot[:, None] * stride_slot => slot[:, None]
The slot counts from the beginning of its block, 0 to BLOCK_SIZE − 1. You use the position in the sequence.
~ slot[:, None] * stride_slot => (first + slot)[:, None] * stride_slot
The scores aren't multiplied by `scale`.
~ axis=1) * scale => axis=1)
The scores are multiplied by `scale` twice.
~ axis=1) * scale => axis=1) * scale * scale
You multiplied the result by `scale`. It belongs to the scores.
~ axis=1) * scale => axis=1)
~ acc / row_sum => acc / row_sum * scale
Multiply by `scale`. You divided by it.
~ axis=1) * scale => axis=1) / scale
Use the argument `scale`, which needn't be 1 / sqrt(HEAD_DIM).
~ axis=1) * scale => axis=1) * (HEAD_DIM**-0.5)
Scores need the keys, and `add_keys` gets the values. You have mixed them up.
~ tl.load(values => tl.load(keys
or ~ tl.load(keys => tl.load(values
or ~ tl.load(keys => tl.load(other_values
~ tl.load(values => tl.load(keys
~ other_values => values
Divide by `row_sum`, after the loop.
~ return acc / row_sum => return acc
or ~ acc / row_sum => acc / row_max
Divide once, after the loop. You divide in every iteration.
> row_max, row_sum, acc = add_keys => acc = acc / row_sum
or > row_max, row_sum, acc = add_keys => acc = acc / row_sum
~ return acc / row_sum => return acc
`row_max`, `row_sum` and `acc`, in this order, go into `add_keys`, and come out of it changed. All three go from block
to block: set inside the loop, they forget all blocks but the last.
~ row_max, row_sum, acc = add_keys => row_sum, row_max, acc = add_keys
or ~ block_values, row_max, row_sum, acc => block_values, row_sum, row_max, acc
or
~ add_keys(scores, block_values, row_max, row_sum, acc) => add_keys(scores, block_values, float("-inf"), 0.0, 0.0 * acc)
Compute in float32 throughout, and return float32: you convert something to 16 bits, and it is rounded there.
~ query[None, :] * block_keys => query[None, :].to(block_keys.dtype) * block_keys
or ~ return acc / row_sum => return (acc / row_sum).to(keys.dtype.element_ty)
or ~ return acc / row_sum => return (acc / row_sum).to(tl.float16)
`query` is a tile already, not a pointer: use it as it is.
~ query[None, :] => tl.load(query + dim)[None, :]
A key is a row of its tile: its score is the sum along the row, `axis=1`.
~ block_keys, axis=1) => block_keys, axis=0)
or ~ block_keys, axis=1) => block_keys)
`is_key` has one entry for each slot. As a column, `is_key[:, None]`, it masks whole keys.
~ is_key[:, None] => is_key[None, :]
"""


# In a step that is written out instead of `add_keys`.
BY_HAND = {
    "The maximum is that of all scores so far: `tl.maximum(row_max, ...)`, not this block's alone.": (
        "~ tl.maximum(row_max, tl.max(scores, axis=0)) => tl.max(scores, axis=0)",
    ),
    "Subtract the largest score so far before `tl.exp`: of 300 it is infinite, of −100,000 it is 0.": (
        "~ scores - new_max => scores\n~ tl.exp(row_max - new_max) => 1.0",
    ),
    "What earlier blocks added was computed with an earlier maximum: multiply both `acc` and `row_sum` by "
    "exp(row_max − new maximum), and only then replace `row_max`.": (
        "~ acc * rescale => acc",
        "~ row_sum * rescale => row_sum",
        "~ acc * rescale => acc\n~ row_sum * rescale => row_sum",
    ),
    "From the first block on, you compute 0 / 0 or 0 × infinity. Do you assign what `add_keys` returns? In a step of "
    "your own, old sums are multiplied by exp(row_max − new maximum), which is 0 at first.": (
        "~ row_max - new_max => new_max - row_max",
        "~ return new_max, row_sum * rescale + tl.sum(weights, axis=0), acc => return row_max, row_sum, acc * 0.0",
    ),
    "`row_sum` is the sum of the weights, not of the scores.": ("~ tl.sum(weights, => tl.sum(scores,",),
}
KNOWN = [
    *mistakes(MISTAKES),
    *(
        Known(why, "~ add_keys => step", names={"step": patched(add_keys, each, {})})
        for why, patches in BY_HAND.items()
        for each in patches
    ),
]


def for_the_compiler(dtype: torch.dtype) -> tuple[tuple, dict]:
    q, cache = torch.zeros(2, 2, 8, dtype=dtype), torch.zeros(4, 4, 2, 8, dtype=dtype)
    table, lens = torch.zeros(2, 2, dtype=torch.int32), torch.ones(2, dtype=torch.int32)
    strides = (*q.stride()[:2], *cache.stride()[:3], 2)
    return (q, cache, cache, table, lens, q, SCALE, *strides), dict(GROUP=1, HEAD_DIM=8, BLOCK_SIZE=4)


def large_pool(attempt: Any) -> None:
    if not (far := far_block(16, 8)):
        return
    cache, block = far
    text = f"a cache of {cache.numel():,} elements, float16; the sequence is in block {block:,}, stride_block = 128."
    idea = (
        f"Block × stride_block is {block * 128:,} here, and a 32-bit integer goes up to {2**31 - 1:,}. Convert the "
        "block to 64 bits before you multiply: `.to(tl.int64)`."
    )
    try:
        run_through(
            attempt, single_head_kernel, (1,), attempt, torch.ones(8), cache, cache,
            torch.tensor([block], dtype=torch.int32), torch.zeros(8), 16, SCALE, 128, 8, HEAD_DIM=8, BLOCK_SIZE=16,
            case=text,
        )  # fmt: skip
    except Mistake as mistake:
        raise Mistake(mistake.what, text, idea) from None


TASK = Task(
    reference="lessons_lib.kernels.simple_paged:attend_blocks",
    cases=cases,
    run=run,
    tell=tell,
    known=KNOWN,
    enough=4,
    clear=0.7,
    about={
        "which keys are loaded": "Load each key of the sequence, one block per iteration, and no slot without a token.",
        "which values are loaded": "Load each value of the sequence, where its key was, and no slot without a token.",
        "the attention": "In each iteration: scores = query · keys × scale, minus infinity where there's no key; then "
        "`add_keys`. After the loop, acc / row_sum.",
    },
    probes=(
        compiles(
            for_the_compiler(torch.float32),
            for_the_compiler(torch.float16),
            kernel=lambda attempt: with_functions(decode_heads_kernel, attend_blocks=attempt),
        ),
        large_pool,
    ),
)

EXERCISE = TASK.exercise(
    id="07.2",
    title="attention over a block table",
    time_limit=10.0,
    points=4,
    hints=(
        "Sort the lines of lesson 06's `attention_in_place`. What happens once per block, what before the first block, "
        "and what after the last? Three variables go from block to block.",
        "Before the loop: row_max is minus infinity, row_sum 0.0, acc a tile of zeros. In an iteration: load the "
        "block's index and convert it to 64 bits; compute the offsets of its keys; load keys and values, masked; "
        "scores, minus infinity where there is no key; `add_keys`. After the loop: acc / row_sum.",
        "`for first in range(0, num_tokens, BLOCK_SIZE)`: "
        "`block = tl.load(table + first // BLOCK_SIZE).to(tl.int64)`, `is_key = first + slot < num_tokens`, "
        "`offsets = block * stride_block + slot[:, None] * stride_slot + dim[None, :]`; the scores are "
        "`tl.sum(query[None, :] * block_keys, axis=1) * scale`.",
    ),
)
