"""03.2, `slot_mapping`: block id times block size plus offset, for all positions at once."""

from collections.abc import Iterator
from functools import partial
from random import Random
from typing import Any

from lessons_lib.checks.diagnosis import Known, Task, Watch, mistakes
from lessons_lib.checks.diagnosis.probes import instructions
from lessons_lib.checks.diagnosis.telling import Shown
from lessons_lib.checks.exercise import Exercise

Case = tuple[list[int], int, int, int]  # blocks, block size, start, end


def cases() -> Iterator[Case]:
    """Smallest first."""
    for start, end in ((0, 8), (0, 4), (4, 5), (2, 6), (7, 8), (3, 3), (8, 8)):
        yield [5, 2], 4, start, end
    yield [5, 2], 2, 0, 4
    yield [3], 4, 0, 4
    yield [], 4, 0, 0
    yield [7, 1, 4, 9], 16, 0, 62
    yield [7, 1, 4, 9], 16, 62, 63
    yield [6, 0, 2], 1, 0, 3
    yield [20_000, 300], 16, 14, 18  # slots beyond 16 bits
    yield [3_000_000, 7], 16, 14, 18  # and beyond what a float32 can represent
    yield [5, 2], 40_000, 39_998, 40_002  # positions beyond 15 bits
    draw = Random(4)
    for _ in range(30):
        size, blocks = draw.choice((1, 3, 8, 16)), draw.sample(range(50), draw.randint(1, 9))
        start = draw.randint(0, len(blocks) * size)
        yield blocks, size, start, draw.randint(start, len(blocks) * size)
    yield from (([5, 2], 4, start, end) for start, end in ((0, 9), (8, 9), (-1, 3), (3, 2)))
    yield list(range(8)), 160, 0, 1280


def run(attempt: Any, case: Case, watch: Watch) -> None:
    blocks, size, start, end = case
    call = f"`slot_mapping({blocks}, {size}, {start}, {end})`"
    watch(call, attempt, blocks, size, start, end)
    if size == 160:
        watch(call, partial(growth, attempt, blocks), subject="what 10 times as many positions cost", returns=Shown)


class Counting(list):
    """A block table that counts how often an entry is looked up."""

    lookups = 0

    def __getitem__(self, key: Any) -> Any:
        self.lookups += 1
        return super().__getitem__(key)


def growth(attempt: Any, blocks: list[int]) -> str:
    table = Counting(blocks)
    few, many = (instructions(attempt, table, size, 0, 8 * size)[0] for size in (16, 160))
    if table.lookups > 1280:
        return "more look-ups in the table, one for each position"
    return "more instructions of Python, for each position" if many - few > 1000 else "no more instructions of Python"


def tell(case: Case) -> str:
    blocks, size, start, end = case
    positions = f"positions 0 to {len(blocks) * size - 1} have slots"
    return f"`slot_mapping({blocks}, {size}, {start}, {end})`; {positions}, and `end` is excluded."


def facts(case: Case) -> dict[str, Any]:
    blocks, size, start, _ = case
    return {"slots": len(blocks) * size, "start": start, "aligned": start - start % size, "entry": start // size}


def without_the_last_entry(blocks: list[int], block_size: int, start: int, end: int) -> Any:
    import torch

    table = torch.tensor(blocks[start // block_size : end // block_size], dtype=torch.int64)
    all_slots = (table[:, None] * block_size + torch.arange(block_size)).flatten()
    return all_slots[start % block_size :][: end - start]


def from_the_start_of_the_block(blocks: list[int], block_size: int, start: int, end: int) -> Any:
    import torch

    table = torch.tensor(blocks, dtype=torch.int64)[start // block_size :]
    return (table[:, None] * block_size + torch.arange(block_size)).flatten()[: end - start]


MISTAKES = """
Raise IndexError unless 0 ≤ `start` ≤ `end` ≤ {slots}, before you compute anything: a negative index silently counts
from the end of the table, and a slice drops what isn't there.
~ if not 0 <= start => if False and not 0 <= start
or
- if not 0 <= ... raise IndexError
or
~ 0 <= start <= end => start <= end
or
- if not 0 <= ... raise IndexError
+ return (torch.tensor(blocks, dtype=torch.int64)[:, None] * block_size + torch.arange(block_size)).flatten()[start:end]
or
- if not 0 <= ... raise IndexError
+ end = min(end, len(blocks) * block_size)
An `end` below `start` is refused, too: raise IndexError.
~ start <= end <= => start and end <=
or
- if not 0 <= ... raise IndexError
+ if start < 0 or end > len(blocks) * block_size: raise IndexError
+ end = max(start, end)
An empty range needs no slot, so `start` may be `end`: don't refuse it.
~ start <= end => start < end
`end` is excluded, so it may be {slots}, the number of slots.
~ end <= len => end < len
or
~ start <= end <= len(blocks) * block_size => start <= end < max(1, len(blocks) * block_size)
`end` counts positions, and `len(blocks)` blocks: compare it with `len(blocks) * block_size`.
~ <= len(blocks) * block_size => <= len(blocks)
Those are the positions. Look up each block in the table: position // block size is the *index in the table*.
= return positions
A block id is not a slot: each block before it has `block_size` slots. Multiply.
= return table[positions // block_size] + positions % block_size
That is the first slot of each block. Add the offset in the block, position % block size.
= return table[positions // block_size] * block_size
The offset starts at 0 again in every block: it is position % block size.
= return table[positions // block_size] * block_size + positions
The offset follows from the position in the sequence: position % block size, not (position - `start`) % block size.
= return table[positions // block_size] * block_size + (positions - start) % block_size
`//` and `%` are swapped: `//` gives the index of the block in the table, `%` the offset in the block.
= return table[positions % block_size] * block_size + positions // block_size
You start at the table's first block. Position {start} may be in a later one.
= return table[(positions - start) // block_size] * block_size + (positions - start) % block_size
or
- positions = torch.arange
+ positions = torch.arange(end - start)
`end` is a position, not how many there are.
= positions = torch.arange(start, start + end)
A list can't be indexed with a tensor: make a tensor of `blocks` first.
~ table[positions // block_size] => blocks[positions // block_size]
You take the block of `start` for all positions: look up the block of each.
= return blocks[start // block_size] * block_size + positions % block_size
Yours are neighbors, one after the other. The next block of the table may be anywhere: look up the block of every
position.
= return (table[start // block_size] * block_size - start + start % block_size if start < end else 0) + positions
Those are the block ids. Which slot in the block? Block id × block size + offset.
= return table[positions // block_size]
That is right for blocks of 16. Use `block_size`.
= return table[positions // block_size] * 16 + positions % 16
or
= return table[positions // 16] * 16 + positions % 16
Yours are in another order. The order in the table is the order of the request's tokens: don't sort or reverse it.
= table = torch.tensor(blocks[::-1], dtype=torch.int64)
or
= return table.sort().values[positions // block_size] * block_size + positions % block_size
You take one block after the other, position by position. A block holds `block_size` positions in a row.
= return (table[None] * block_size + torch.arange(block_size)[:, None]).flatten()[start:end]
or
= return table[positions % max(1, len(blocks))] * block_size + positions % block_size
Is there a list or a loop over the positions? Make one tensor of the positions, and index the table with it: one look-up
for all positions.
- return
+ slots = [blocks[p // block_size] * block_size + p % block_size for p in range(start, end)]
+ return torch.tensor(slots, dtype=torch.int64)
or
- return
+ slots = [block * block_size + offset for block in list(blocks) for offset in range(block_size)]
+ return torch.tensor(slots[start:end], dtype=torch.int64)
or
- return
+ slots = torch.empty_like(positions)
+ for i, p in enumerate(range(start, end)): slots[i] = table[p // block_size] * block_size + p % block_size
+ return slots
Slots are integers, int64. `/` gives floats, `//` integers; a tensor made from an empty list has a float dtype, too.
= return (table[positions // block_size] * block_size + positions % block_size).float()
or
= return table[positions // block_size] * block_size + positions.float() % block_size
An index must be an integer: `/` gives floats, `//` integers.
= return table[positions / block_size] * block_size + positions % block_size
A tensor made from an empty list has a float dtype, unless you pass `dtype=torch.int64`.
~ torch.tensor(blocks, dtype=torch.int64) => torch.tensor(blocks)
Slots are int64, and so is all that they are computed from: smaller integers overflow, and floats round.
= return (table[positions // block_size] * block_size + positions % block_size).short()
or
= return (table[positions // block_size] * block_size + positions % block_size).int()
or
- positions = torch.arange
- table =
+ positions = torch.arange(start, end).int()
+ table = torch.tensor(blocks).int()
or
- return
+ positions = positions.short()
+ return table[(positions // block_size).long()] * block_size + positions % block_size
or
= return (table.float()[positions // block_size] * block_size + positions % block_size).long()
The shape is [end - start], one slot per position.
= return (table[positions // block_size] * block_size + positions % block_size)[:, None]
The slots are used to index the cache, so they must be a tensor.
= return (table[positions // block_size] * block_size + positions % block_size).tolist()
`end` is excluded, as in `range(start, end)`.
- positions = torch.arange
+ positions, blocks = torch.arange(start, end + 1), [*blocks, 0]
or
= positions = torch.arange(start, end + 1)
Return only the slots of positions `start` to `end - 1`.
= positions = torch.arange(len(blocks) * block_size)
or
= positions = torch.arange(start, len(blocks) * block_size)
or
= positions = torch.arange(end)
The range may be empty, and the result is an empty tensor. There may be no block at `start`, and `min` and `max` need
at least one element.
- return
+ blocks[start // block_size]
+ ...
or
- return
+ torch.arange(start, end).min()
+ ...
"""

TASK = Task(
    reference="lessons_lib.kv_cache.cache_slots:slot_mapping",
    cases=cases,
    run=run,
    tell=tell,
    known=[
        *mistakes(MISTAKES),
        Known(
            "All these positions are in the same entry of the table, or end in the middle of one. Do you take the "
            "entries `start // block_size` to `end // block_size`, without the last one?",
            answer=without_the_last_entry,
        ),
        Known(
            "You start at a block's first slot. Position {start} may be in the middle of a block.",
            answer=from_the_start_of_the_block,
        ),
    ],
    facts=facts,
    refusals=("IndexError",),
    about={
        "raised IndexError": "These positions have slots. `//` gives the index of the block in the table, `%` the "
        "offset in the block.",
        "should raise IndexError": "Test `start` and `end` before you compute anything.",
        "returned": "position // block size is the index in the table, position % block size the offset in the block.",
    },
)

EXERCISE = Exercise(
    id="03.2",
    title="the slot mapping",
    reference=TASK.reference,
    test=TASK,
    hints=(
        "What would you write for one position, a plain int? Each operation of that formula also works on a whole "
        "tensor of positions, elementwise. The last one to think of: you can index one tensor with another.",
        "Refuse an impossible range. Make two tensors: the positions, "
        "with `torch.arange`, and the table, from `blocks`. Index the table with position // block size, multiply "
        "by the block size, add the offsets.",
        "`table = torch.tensor(blocks, dtype=torch.int64)` and `positions = torch.arange(start, end)`; "
        "`table[positions // block_size] * block_size + positions % block_size`.",
    ),
)
