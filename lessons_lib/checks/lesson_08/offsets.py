"""08.1, `tile_offsets`: each position of a tile finds its own block in the table, and its offset in 64 bits."""

import lessons_lib.kernels.triton_setup  # noqa: F401 - before Triton: decides whether kernels are compiled

# isort: split
from collections.abc import Iterator
from typing import Any

import torch
import triton
import triton.language as tl

from lessons_lib.checks.diagnosis import Task, Watch, mistakes
from lessons_lib.checks.diagnosis.kernels import compiles, launch, refuse_other_tiles
from lessons_lib.checks.lesson_08.key_range import launched_with
from lessons_lib.kernels.group_decode import attend_keys, decode_groups_kernel
from lessons_lib.measuring.ablations import with_functions

Case = tuple[
    list[int], list[int], int, int, int, int
]  # table, positions, context, block size, strides of block and slot
NOWHERE = -(10**6)  # entries past the blocks in use


@triton.jit
def offsets_kernel(
    OFFSETS: tl.constexpr, table, positions, out, context, stride_block, stride_slot,
    BLOCK_SIZE: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    key = tl.arange(0, BLOCK_N)
    position = tl.load(positions + key)
    result = OFFSETS(table, position, position < context, stride_block, stride_slot, BLOCK_SIZE)
    refuse_other_tiles(result, offsets=list(position.shape))
    tl.store(out + key, result)


def run(attempt: Any, case: Case, watch: Watch) -> None:
    table, positions, context, block_size, *strides = case
    in_use = -(-context // block_size)
    entries = torch.tensor(table[:in_use] + [NOWHERE] * (len(table) - in_use), dtype=torch.int32)
    out = torch.full((len(positions),), -1)
    launch(
        watch, "`tile_offsets`", attempt, offsets_kernel, (1,), attempt, entries, torch.tensor(positions), out, context,
        *strides, BLOCK_SIZE=block_size, BLOCK_N=len(positions), look=lambda _: seen(out, case), explain=outside,
    )  # fmt: skip


def seen(out: torch.Tensor, case: Case) -> dict[str, Any]:
    return {"the offsets of the keys": [at for position, at in zip(case[1], out.tolist()) if position < case[2]]}


def outside(error: Any) -> str:
    if error.kind == "store":
        return "Your function stores nothing: it returns the offsets, a tile."
    return (
        "Entry p // BLOCK_SIZE of the table is the block of position p. A tile may reach past the last token, where "
        "the table has no entry: `mask=is_key`."
    )


def called(attempt: Any) -> Any:
    return with_functions(decode_groups_kernel, attend_keys=with_functions(attend_keys, tile_offsets=attempt))


def tell(case: Case) -> str:
    table, positions, context, block_size, stride_block, stride_slot = case
    return (
        f"positions {positions} of a sequence of {context} tokens; block table {table}, BLOCK_SIZE = {block_size}, "
        f"stride_block = {stride_block:,}, stride_slot = {stride_slot}."
    )


def cases() -> Iterator[Case]:
    yield [0], [0, 1], 2, 4, 8, 2
    yield [3, 1], [0, 1, 2, 3], 4, 4, 8, 2
    yield [3, 1], [4, 5, 6, 7], 8, 4, 8, 2
    yield [3, 1], [2, 3, 4, 5], 8, 4, 8, 2
    yield [3, 1], [2, 3, 4, 5], 5, 4, 8, 2
    yield [3], [2, 3, 4, 5], 4, 4, 8, 2
    yield [3, 0], [0, 1, 2, 3], 3, 2, 4, 2
    yield [3, 7, 2], [4, 5, 6, 7], 8, 3, 30, 8
    yield [2, 5, 4, 1], [7, 0, 9, 12], 13, 4, 50, 10
    yield [2, 5, 4, 1], [0, 1, 2, 3, 4, 5, 6, 7], 7, 2, 7, 3
    yield [6, 2], [16, 17], 18, 16, 64, 32
    yield [1, 70_000], [15, 16, 17, 18], 32, 16, 65_537, 1025


MISTAKES = """
Position p isn't in block p // BLOCK_SIZE of the pool, but in the block that this entry of the table names: load it.
= blocks = position // BLOCK_SIZE
The blocks of a sequence needn't be neighbors in the pool: each of them has its own entry in the table.
= blocks = tl.load(table) + position // BLOCK_SIZE
The table has one entry for a block, not for a token: position p looks up entry p // BLOCK_SIZE.
~ position // BLOCK_SIZE, => position,
Each position of a tile looks up its own block: a tile may begin in one block and end in another.
~ position // BLOCK_SIZE, mask=is_key => tl.min(position, axis=0) // BLOCK_SIZE + 0 * position, mask=is_key
or - blocks
+ blocks = tl.load(table + tl.min(position, axis=0) // BLOCK_SIZE)
+ slot = tl.min(position, axis=0) % BLOCK_SIZE + tl.arange(0, position.shape[0])
+ return blocks.to(tl.int64) * stride_block + slot * stride_slot
Use `position`, which needn't begin at a multiple of the block size, nor be in order.
~ position % BLOCK_SIZE => tl.arange(0, position.shape[0]) % BLOCK_SIZE
or ~ position % BLOCK_SIZE => tl.arange(0, position.shape[0])
The slot counts from the beginning of its block: position % BLOCK_SIZE.
~ position % BLOCK_SIZE => position
`*` and `%` go from left to right: multiply by the stride after `position % BLOCK_SIZE`, or use parentheses.
~ position % BLOCK_SIZE * stride_slot => stride_slot * position % BLOCK_SIZE
BLOCK_SIZE may be any number, not only 16 or another power of two.
~ position % BLOCK_SIZE => (position & BLOCK_SIZE - 1)
or ~ position // BLOCK_SIZE, => position // 16,
or ~ position % BLOCK_SIZE => position % 16
or ~ position // BLOCK_SIZE, => position // 16,
~ position % BLOCK_SIZE => position % 16
Round down: positions 0 to BLOCK_SIZE − 1 are in the first block of the table, so p // BLOCK_SIZE is the entry.
~ position // BLOCK_SIZE, => tl.cdiv(position, BLOCK_SIZE),
`mask` says what to load, and that's the keys: `is_key`, not its opposite.
~ mask=is_key => mask=~is_key
The block's part is missing: block × stride_block.
= return position % BLOCK_SIZE * stride_slot
or = return (position * stride_slot).to(tl.int64)
The slot's part is missing: (position % BLOCK_SIZE) × stride_slot.
= return blocks.to(tl.int64) * stride_block
Slots are `stride_slot` elements apart: multiply position % BLOCK_SIZE by it.
~ % BLOCK_SIZE * stride_slot => % BLOCK_SIZE
or = return (blocks.to(tl.int64) + position % BLOCK_SIZE) * stride_block
A block begins at block × stride_block, whatever BLOCK_SIZE is: in a view, blocks needn't be adjacent.
~ * stride_block => * BLOCK_SIZE * stride_slot
or ~ * stride_block => * BLOCK_SIZE * stride_block
That is the number of the slot in the pool. In memory, blocks are `stride_block` apart and slots `stride_slot`.
= return blocks.to(tl.int64) * BLOCK_SIZE + position % BLOCK_SIZE
The strides are swapped: block × stride_block, slot × stride_slot.
= return blocks.to(tl.int64) * stride_slot + position % BLOCK_SIZE * stride_block
Blocks are `stride_block` apart: multiply the block by it.
= return blocks.to(tl.int64) + position % BLOCK_SIZE * stride_slot
A block's offset is larger than a 32-bit integer can be, and both factors have 32 bits: convert the block to 64 bits,
`.to(tl.int64)`, before you multiply, and return 64.
= return blocks * stride_block + position % BLOCK_SIZE * stride_slot
or ~ blocks.to(tl.int64) * stride_block => (blocks * stride_block).to(tl.int64)
`//` and `%` are the wrong way round: p // BLOCK_SIZE is the entry of the table, p % BLOCK_SIZE the slot.
= blocks = tl.load(table + position % BLOCK_SIZE, mask=is_key, other=0)
= return blocks.to(tl.int64) * stride_block + position // BLOCK_SIZE * stride_slot
A tile may reach past the last token, where the table has no entry: `mask=is_key`. (An `if` takes one boolean, not a
tile of them.)
~ BLOCK_SIZE, mask=is_key, other=0) => BLOCK_SIZE)
A float32 has 24 bits for its digits, so large offsets are rounded: stay with integers, of 64 bits.
~ .to(tl.int64) => .to(tl.float32)
The offset is wanted, not the block. The slot's part is added to block × stride_block.
= return blocks
`/` gives a float. The entry of the table is p // BLOCK_SIZE.
~ position // BLOCK_SIZE => position / BLOCK_SIZE
"""

TASK = Task(
    reference="lessons_lib.kernels.group_decode:tile_offsets",
    cases=cases,
    run=run,
    tell=tell,
    known=mistakes(MISTAKES),
    about={
        "the offsets of the keys": "block × stride_block + slot × stride_slot, with the block of the table's entry."
    },
    probes=(compiles(launched_with(torch.float32), kernel=called),),
)

EXERCISE = TASK.exercise(
    id="08.1",
    title="where the keys of a tile are",
    time_limit=10.0,
    hints=(
        "Lesson 07 looked up one block per iteration. Here `position` is a tile, and so is everything that follows "
        "from it. Which entry of the table does position p need, and which slot of that block?",
        "Load the entries: `table + position // BLOCK_SIZE` is a tile of addresses, so `tl.load` returns a tile of "
        "blocks. Mask the positions that are no keys. A block begins at block × stride_block, and slot p % BLOCK_SIZE "
        "is that many `stride_slot` further.",
        "`blocks = tl.load(table + position // BLOCK_SIZE, mask=is_key, other=0)`; then "
        "`blocks.to(tl.int64) * stride_block + position % BLOCK_SIZE * stride_slot`.",
    ),
)
