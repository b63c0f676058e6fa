"""03.2, `slot_mapping`: block id times block size plus offset, for all positions at once."""

from collections.abc import Iterator
from functools import partial
from random import Random
from typing import Any

from lessons_lib.checks.diagnosis import Shown, Task, Watch, is_tensor, mistakes
from lessons_lib.checks.diagnosis.probes import instructions

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


def about(mine: dict, want: dict) -> str:
    blocks, size, start, end = want["case"]
    got, right = mine["returned"], want["returned"]
    if isinstance(got, Shown):
        return "Make one tensor of the positions, and index the table with it: one look-up for all."
    if not is_tensor(got) or got.dtype != right.dtype or got.dim() != 1:
        return ""
    if len(got) != len(right):
        return f"One slot for each of the positions `start` to `end - 1`: {end - start} of them. `end` is excluded."
    position = start + (got != right).nonzero()[0].item()
    entry, offset = divmod(position, size)
    slot = blocks[entry] * size + offset
    if size != 16 and got[position - start] == blocks[position // 16 % len(blocks)] * 16 + position % 16:
        return "That is right for blocks of 16. Use `block_size`."
    rounded = " Compute in int64: smaller integers overflow, and floats round." if max(slot, position) >= 2**15 else ""
    return (
        f"Position {position} is in entry {position} // {size} = {entry} of the table, block {blocks[entry]}, offset "
        f"{position} % {size} = {offset}: its slot is {blocks[entry]} × {size} + {offset} = {slot}.{rounded}"
    )


TASK = Task(
    reference="lessons_lib.kv_cache.cache_slots:slot_mapping",
    cases=cases,
    run=run,
    tell=tell,
    known=mistakes("""
        `//` and `%` are swapped: `//` gives the index of the block in the table, `%` the offset in the block.
        = return table[positions % block_size] * block_size + positions // block_size
        """),
    refusals=("IndexError",),
    clear=0.8,
    about={
        "raised IndexError": "These positions have slots: `end` is excluded, so it may be the number of slots, and a "
        "range may be empty. `//` gives the index of the block in the table, `%` the offset; `/` gives floats.",
        "raised TypeError": "A list can't be indexed with a tensor: make a tensor of `blocks` first.",
        "should raise IndexError": "Test `start` and `end` before you compute anything: a negative index counts from "
        "the end of the table, and a slice drops what isn't there. The table has `len(blocks) * block_size` slots.",
        "returned": about,
    },
)

EXERCISE = TASK.exercise(
    id="03.2",
    title="the slot mapping",
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
