"""03.1, `BlockTable`: a new block only at a boundary, and all or nothing."""

from collections.abc import Iterator
from functools import partial
from random import Random
from typing import Any

from lessons_lib.checks.diagnosis import Task, Watch, mistakes
from lessons_lib.checks.exercise import Exercise
from lessons_lib.checks.lesson_03.books import block_ids, counted
from lessons_lib.kv_cache.block_pool import BlockPool, OutOfBlocks

Op = tuple[str, int | str | None]  # a table, and how many tokens it appends; "": no argument; None: it is released
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


MISTAKES = """
The table grows too late: it must grow when the next position *starts* a block. `blocks_for` rounds up.
- needed = blocks_for
+ needed = (self.num_tokens + count) // self.pool.block_size
or
- needed = blocks_for
+ needed = max(blocks_for(self.num_tokens + count - 1, self.pool.block_size), min(1, self.num_tokens + count))
All blocks are exactly full, and every token has a slot. Grow when the next token comes, not before.
- needed = blocks_for
+ needed = (self.num_tokens + count) // self.pool.block_size + 1
or
- needed = blocks_for
+ needed = (self.num_tokens + count) // self.pool.block_size + 1 if self.num_tokens + count else 0
Your `append` changes nothing: allocate the missing blocks, and add `count` to `num_tokens`.
- if count < 0 ... self.num_tokens += count
A table only grows, until it is released: refuse a negative `count` with ValueError, before anything changes.
~ if count < 0 => if False
or
- if count < 0 ... raise ValueError
+ if count < 0: return
or
- if count < 0 ... raise ValueError
+ count = max(count, 0)
or
- if count < 0 ... raise ValueError
+ if count < 0: self.num_tokens += count; return
or
~ if count < 0 => if False
- self.num_tokens += count
+ ...
+ if count < 0: raise ValueError
`append(0)` is allowed, and changes nothing: refuse only a negative `count`.
~ if count < 0 => if count <= 0
Without tokens there is nothing to store, so no block is needed: an empty table has none.
- needed = blocks_for
+ needed = max(1, blocks_for(self.num_tokens + count, self.pool.block_size))
A request holds whole blocks, and `/` gives a fraction: `blocks_for` rounds up.
= needed = (self.num_tokens + count) / self.pool.block_size
The two arguments of `blocks_for` are swapped: first the tokens, then the block size.
- needed = blocks_for
+ needed = blocks_for(self.pool.block_size, self.num_tokens + count)
`count` tokens can fill the last block and need more: don't allocate only when the last one is full.
- self.blocks += self.pool
+ if self.num_tokens % self.pool.block_size == 0: self.blocks += self.pool.allocate(needed - len(self.blocks))
The last block has room left. Fill it first: allocate only what all tokens need, minus the blocks that are there.
~ needed - len(self.blocks) => blocks_for(count, self.pool.block_size)
Do you count on room in a last block that is exactly full, or that isn't there yet?
- self.blocks += self.pool
+ room = self.pool.block_size - self.num_tokens % self.pool.block_size
+ self.blocks += self.pool.allocate(blocks_for(max(0, count - room), self.pool.block_size))
Only the *missing* blocks are allocated: those that all tokens need, minus those that the table has.
~ needed - len(self.blocks) => needed
You grow by one block at most. A long prompt needs several at once.
~ needed - len(self.blocks) => min(1, needed - len(self.blocks))
You allocate one block too many, whenever one is due.
- needed = blocks_for
+ needed = blocks_for(self.num_tokens + count, self.pool.block_size) + 1
The block size is in `self.pool.block_size`: it isn't always 16, and the table has none of its own.
~ self.pool.block_size) => 16)
or
~ self.pool.block_size) => self.block_size)
`allocate` returns a list. `self.blocks.append(...)` would nest that list; `+=` or `extend` adds its elements.
- self.blocks += self.pool
+ if needed > len(self.blocks): self.blocks.append(self.pool.allocate(needed - len(self.blocks)))
Keep the existing blocks, and add the new ones after them: yours replace them.
~ self.blocks += self.pool => self.blocks = self.pool
or
- self.blocks += self.pool
+ if needed > len(self.blocks): self.blocks = self.pool.allocate(needed - len(self.blocks))
or
- self.blocks += self.pool
+ self.pool.free(self.blocks)
+ self.blocks = self.pool.allocate(needed)
The new blocks come after the existing ones, not before them: the order is that of the tokens.
- self.blocks += self.pool
+ self.blocks = self.pool.allocate(needed - len(self.blocks)) + self.blocks
All or nothing: change `num_tokens` only after `allocate`, which may refuse.
- self.blocks += self.pool
+ self.num_tokens = self.num_tokens + count
+ ...
- self.num_tokens += count
All or nothing: allocate all missing blocks in one call. One at a time, some are gone when the pool refuses.
- self.blocks += self.pool
+ while len(self.blocks) < needed: self.blocks += self.pool.allocate(1)
All or nothing, in one call. Token by token, the first ones are stored already when the pool refuses a later one.
- self.blocks += self.pool
+ for self.num_tokens in range(self.num_tokens + 1, self.num_tokens + count + 1):
+     try:
+         self.blocks += self.pool.allocate(blocks_for(self.num_tokens, self.pool.block_size) - len(self.blocks))
+     except OutOfBlocks:
+         self.num_tokens -= 1
+         raise
- self.num_tokens += count
OutOfBlocks must reach the caller, which decides what to do then: let `allocate` raise it, and don't catch it.
- self.blocks += self.pool
+ try: self.blocks += self.pool.allocate(needed - len(self.blocks))
+ except OutOfBlocks: return
or
- self.blocks += self.pool
+ try: self.blocks += self.pool.allocate(needed - len(self.blocks))
+ except OutOfBlocks: pass
You take fewer blocks if there aren't enough. All or nothing: let `allocate` refuse.
~ needed - len(self.blocks) => min(needed - len(self.blocks), len(self.pool.free_queue))
It's fine to take the last free block.
- self.blocks += self.pool
+ if 0 < len(self.pool.free_queue) == needed - len(self.blocks): raise OutOfBlocks
+ ...
Only the *missing* blocks have to be free, not all that the table needs.
- self.blocks += self.pool
+ if needed > len(self.pool.free_queue): raise OutOfBlocks
+ ...
Change the pool only through `allocate` and `free`, which keep `free_queue` and `used` consistent.
- self.blocks += self.pool
+ if needed - len(self.blocks) > len(self.pool.free_queue): raise OutOfBlocks
+ while len(self.blocks) < needed: self.blocks.append(self.pool.free_queue.popleft())
`num_tokens` counts all tokens stored so far: add `count` to it. Yours is that of the last call.
- self.num_tokens += count
+ self.num_tokens = count
`num_tokens` counts all tokens stored so far, and yours never changes.
- self.num_tokens += count
`num_tokens` counts tokens, not the slots of the blocks.
- self.num_tokens += count
+ self.num_tokens = needed * self.pool.block_size
`num_tokens` grew by 1. `append(count)` stores `count` tokens.
- self.num_tokens += count
+ self.num_tokens += 1
`append()` without an argument appends one token: give `count` the default 1.
~ count: int = 1 => count: int
"""

TASK = Task(
    reference="lessons_lib.kv_cache.block_table:BlockTable",
    cases=cases,
    run=run,
    tell=tell,
    smaller=smaller,
    refusals=("OutOfBlocks", "ValueError"),
    known=mistakes(MISTAKES, OutOfBlocks=OutOfBlocks),
    about={
        "raised OutOfBlocks": "Only the missing blocks have to be free: those that all tokens need, minus those that "
        "the table has.",
        "raised ValueError": "Refuse a negative `count`, nothing else.",
        "should raise OutOfBlocks": "Allocate all missing blocks in one call, before anything else changes.",
        "pool.free_queue": "All or nothing: allocate all missing blocks in one call of `pool.allocate`.",
        "pool.used": "Change the pool only through `pool.allocate` and `pool.free`.",
    },
)

EXERCISE = Exercise(
    id="03.1",
    title="the block table",
    reference=TASK.reference,
    test=TASK,
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
