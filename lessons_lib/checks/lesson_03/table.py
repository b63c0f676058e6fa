"""03.1, `BlockTable`: a new block only at a boundary, and all or nothing."""

from collections.abc import Callable, Iterator
from functools import partial
from random import Random
from typing import Any

from lessons_lib.checks.diagnosis import Task, Watch, mistakes
from lessons_lib.checks.lesson_03.books import block_ids, counted
from lessons_lib.kv_cache.block_pool import BlockPool

Op = tuple[str, int | str | None]  # a table, and how many tokens it appends; "": no argument; None: it is released
NAMES = ("table", "A", "B")
Case = tuple[int, int, list[Op]]  # blocks, their size, what is done


def run(Table: Any, case: Case, watch: Watch) -> None:
    num_blocks, size, ops = case
    pool = BlockPool(num_blocks, size)
    tables: dict[str, Any] = {}
    for name, count in ops:
        if name not in tables:
            tables[name] = Table(pool)
        table = tables[name]
        action = table.release if count is None else table.append if count == "" else partial(table.append, count)
        watch(told(name, count), action, look=partial(seen, tables, pool))


def seen(tables: dict[str, Any], pool: Any) -> dict[str, Any]:
    return {
        **{f"{name}.blocks": block_ids(table.blocks) for name, table in tables.items()},
        **{f"{name}.num_tokens": table.num_tokens for name, table in tables.items()},
        "pool.used": set(pool.used),
        "pool.free_queue": list(pool.free_queue),
    }


def told(name: str, count: int | str | None) -> str:
    return f"`{name}.release()`" if count is None else f"`{name}.append({count})`"


def tell(case: Case) -> str:
    num_blocks, size, ops = case
    return f"a pool of {counted(num_blocks, 'block')} of {size}; {', '.join(told(*op) for op in ops)}."


def smaller(case: Case) -> Iterator[Case]:
    num_blocks, size, ops = case
    for index in range(len(ops))[::-1]:
        yield num_blocks, size, ops[:index] + ops[index + 1 :]
    for index, (name, count) in enumerate(ops):
        if isinstance(count, int) and count > 1:
            for less in (1, count // 2, count - 1):
                yield num_blocks, size, [*ops[:index], (name, less), *ops[index + 1 :]]


def cases() -> Iterator[Case]:
    for counts in ((1, 1, 0), (16, "", 0), (16, 0), (0,), (128, 1, 15, 1), (62, 2, 40)):
        yield 20, 16, [("table", count) for count in counts]
    yield 20, 4, [("table", 1)] * 13
    for blocks, stored, count in ((1, 0, 17), (8, 0, 129), (2, 20, 20), (4, 20, 45), (2, 32, 1)):
        yield blocks, 16, [("table", stored), ("table", count), ("table", 1)]
    for stored, count in ((5, -2), (5, -6), (20, -10), (0, -1)):
        yield 5, 16, [("table", stored), ("table", count)]
    yield 5, 16, [("table", 40), ("table", None), ("table", 17), ("table", None), ("table", None)]
    draw = Random(7)
    for _ in range(40):
        ops = [(draw.choice("AAB"), draw.choice((1, 1, 1, 3, 4, 9, 0, None))) for _ in range(draw.randint(2, 9))]
        yield draw.choice((3, 10)), 4, ops


def about_blocks(name: str) -> Callable[[dict, dict], str]:
    return lambda mine, want: sentence(mine[name], want[name], want[name.replace("blocks", "num_tokens")], want)


def sentence(got: list, right: list[int], tokens: int, want: dict[str, Any]) -> str:
    size = want["case"][1]
    if "raised" in want:
        return ALL_OR_NOTHING
    if any(isinstance(each, list) for each in got):
        return "`allocate` returns a list. `self.blocks.append(...)` nests it; `+=` or `extend` adds its elements."
    if len(got) == -(-tokens // 16) != len(right):
        return "That is right for blocks of 16. The block size is in `self.pool.block_size`."
    if sorted(got) == sorted(right) or got == right[len(right) - len(got) :] != []:
        return "Keep the existing blocks, and add the new ones after them: the order is that of the tokens."
    needed = f"For {counted(tokens, 'token')}, the table needs {counted(len(right), 'block')} of {size}"
    if len(got) > len(right):
        return f"{needed}: fill the last block first, and allocate only the blocks that are missing."
    return f"{needed}: keep those it has, and allocate what is missing, rounded up."


TOKENS = "`num_tokens` counts all tokens stored so far: add `count` last, since a refused call changes nothing."
ALL_OR_NOTHING = (
    "All or nothing: a refused call changes nothing. Refuse a negative `count`, then allocate all missing blocks in "
    "one call, which may refuse, and only then change the table."
)

TASK = Task(
    reference="lessons_lib.kv_cache.block_table:BlockTable",
    cases=cases,
    run=run,
    tell=tell,
    smaller=smaller,
    refusals=("OutOfBlocks", "ValueError"),
    known=mistakes("""
        The two arguments of `blocks_for` are swapped: first the tokens, then the block size.
        - needed = blocks_for => needed = blocks_for(self.pool.block_size, self.num_tokens + count)
        """),
    clear=0.8,
    about={
        **{(name := f"{table}.blocks"): about_blocks(name) for table in NAMES},
        **{f"{name}.num_tokens": TOKENS for name in NAMES},
        "raised OutOfBlocks": "Only the *missing* blocks have to be free: those that all tokens need, minus those that "
        "the table has. It's fine to take the last free one.",
        "raised ValueError": "Refuse only a negative `count`: `append(0)` changes nothing.",
        "raised AttributeError": "The block size is in `self.pool.block_size`: the table has none of its own.",
        "raised TypeError": "`append()` appends one token, the default. `/` gives a fraction; `blocks_for` rounds up.",
        "should raise OutOfBlocks": "Allocate all missing blocks in one call, and don't catch its OutOfBlocks.",
        "should raise ValueError": "A table only grows, until it is released: raise ValueError if `count` is negative.",
        "pool.free_queue": ALL_OR_NOTHING,
        "pool.used": "Change the pool only through `pool.allocate` and `pool.free`.",
    },
)

EXERCISE = TASK.exercise(
    id="03.1",
    title="the block table",
    hints=(
        "Don't think about when a block gets full. How many blocks do *all* the tokens need, the stored ones and the "
        "new ones?",
        "Refuse a negative count. Compute the blocks needed with `blocks_for`. Allocate the missing ones in one call; "
        "only then change `num_tokens`: `allocate` raises `OutOfBlocks` itself, before anything has changed.",
        "`needed = blocks_for(self.num_tokens + count, self.pool.block_size)`; `self.blocks += "
        "self.pool.allocate(needed - len(self.blocks))`; `self.num_tokens += count`.",
    ),
    time_limit=2.0,
)
