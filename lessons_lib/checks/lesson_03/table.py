"""03.3, `BlockTable`: a new block only at a boundary, all or nothing, and everything returned to the pool."""

from collections.abc import Iterator
from functools import partial
from random import Random
from typing import Any, ClassVar

from lessons_lib.checks.diagnosis import Known, Task, Watch, mistakes
from lessons_lib.checks.diagnosis.probes import counting
from lessons_lib.checks.exercise import Exercise
from lessons_lib.checks.lesson_03.books import block_ids, counted
from lessons_lib.kv_cache.block_pool import BlockPool, OutOfBlocks
from lessons_lib.kv_cache.block_table import BlockTable

Op = tuple[str, int | str | None]  # a table, and how many tokens it appends; "": no argument; None: it is released
Case = tuple[int, int, int | None, bool, list[Op]]  # blocks, their size, max_blocks, queue reversed?, what is done


def run(Table: Any, case: Case, watch: Watch) -> None:
    num_blocks, size, limit, is_reversed, ops = case
    pool = counting(BlockPool, "free")(num_blocks, size)
    if is_reversed:
        pool.free_queue.reverse()
    tables: dict[str, Any] = {}
    for name, count in ops:
        if name not in tables:
            tables[name] = Table(pool) if limit is None else Table(pool, limit)
        table = tables[name]
        held, pool.calls["free"] = len(table.blocks), 0
        action = table.release if count is None else table.append if count == "" else partial(table.append, count)
        watch(told(name, count), action, look=partial(seen, tables, pool, count is None and held > 0))


def seen(tables: dict[str, Any], pool: Any, is_release: bool) -> dict[str, Any]:
    """The tables, the pool, and how often a release called `pool.free`; an empty table may leave it out."""
    return {
        **{f"{name}.blocks": block_ids(table.blocks) for name, table in tables.items()},
        **{f"{name}.num_tokens": table.num_tokens for name, table in tables.items()},
        "pool.used": set(pool.used),
        "pool.free_queue": list(pool.free_queue),
        "the number of calls of `pool.free`": pool.calls["free"] if is_release else 0,
    }


def told(name: str, count: int | str | None) -> str:
    return f"`{name}.release()`" if count is None else f"`{name}.append({count})`"


def tell(case: Case) -> str:
    num_blocks, size, limit, is_reversed, ops = case
    pool = f"a pool of {counted(num_blocks, 'block')} of {size}"
    pool += f" with the free queue {list(range(num_blocks))[::-1]}" if is_reversed else ""
    return f"{pool}{'' if limit is None else f'; max_blocks {limit}'}; {', '.join(told(*op) for op in ops)}."


def smaller(case: Case) -> Iterator[Case]:
    num_blocks, size, limit, is_reversed, ops = case
    for index in range(len(ops))[::-1]:
        yield num_blocks, size, limit, is_reversed, ops[:index] + ops[index + 1 :]
    for index, (name, count) in enumerate(ops):
        if isinstance(count, int) and abs(count) > 1:
            for less in (1 if count > 0 else -1, count // 2, count - 1 if count > 0 else count + 1):
                if abs(less) < abs(count):
                    yield num_blocks, size, limit, is_reversed, [*ops[:index], (name, less), *ops[index + 1 :]]


def cases() -> Iterator[Case]:
    yield 20, 16, None, False, [("table", 1), ("table", 1), ("table", 0)]
    yield 20, 16, None, False, [("table", 16), ("table", ""), ("table", 0)]
    yield 20, 16, None, False, [("table", 16), ("table", 0)]
    yield 20, 16, None, False, [("table", 0)]
    yield 20, 16, None, False, [("table", 128), ("table", 1), ("table", 15), ("table", 1)]
    yield 20, 4, None, False, [("table", 1)] * 13
    yield 20, 16, None, False, [("table", 62), ("table", 2), ("table", 40)]
    for blocks, stored, count in ((1, 0, 17), (8, 0, 129), (2, 20, 20), (4, 20, 45), (2, 32, 1)):
        yield blocks, 16, None, False, [("table", stored), ("table", count), ("table", 1)]
    yield 9, 16, 2, False, [("table", 32), ("table", 0), ("table", 1)]
    yield 9, 16, 2, False, [("table", 20), ("table", 12), ("table", 1)]
    yield 9, 16, 2, False, [("table", 33)]
    yield 9, 16, 0, False, [("table", 1)]
    yield 4, 16, None, False, [("table", 20), ("table", -5), ("table", -1)]
    yield 5, 16, None, False, [("table", 40), ("table", None), ("table", 17), ("table", None), ("table", None)]
    yield 5, 16, None, True, [("table", 40), ("table", None)]
    yield 9, 16, 2, False, [("table", 32), ("table", None), ("table", 33), ("table", 32)]
    yield 1, 16, 2, False, [("table", 40)]
    draw = Random(7)
    for _ in range(40):
        ops = [(draw.choice("AAB"), draw.choice((1, 1, 1, 3, 4, 9, 0, -1, None))) for _ in range(draw.randint(2, 9))]
        yield draw.choice((3, 10)), 4, draw.choice((None, None, 2)), draw.random() < 0.3, ops


class SharesItsList(BlockTable):
    common: ClassVar[list[int]] = []

    def __init__(self, pool: BlockPool, max_blocks: int | None = None):
        super().__init__(pool, max_blocks)
        self.common.clear()
        self.blocks = self.common


MISTAKES = """
The table grows too late: it must grow when the next position *starts* a block. `blocks_for` rounds up.
- needed = blocks_for
+ needed = num_tokens // self.pool.block_size
or
- needed = blocks_for
+ needed = max(blocks_for(num_tokens - 1, self.pool.block_size), 1 if num_tokens else 0)
All blocks are exactly full, and every token has a slot. Grow when the next token comes, not before.
- needed = blocks_for
+ needed = num_tokens // self.pool.block_size + 1
or
- needed = blocks_for
+ needed = num_tokens // self.pool.block_size + 1 if num_tokens else 0
0 tokens need no block, even if the last block is full. The next one is due when a token comes.
- needed = blocks_for
+ needed = blocks_for(num_tokens + (1 if self.blocks and not count else 0), self.pool.block_size)
Without tokens there is nothing to store, so no block is needed: an empty table has none.
- needed = blocks_for
+ needed = max(1, blocks_for(num_tokens, self.pool.block_size))
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
- self.blocks += self.pool
+ if needed > len(self.blocks): self.blocks += self.pool.allocate(needed - len(self.blocks) + 1)
or
- needed = blocks_for
+ needed = blocks_for(num_tokens, self.pool.block_size) + 1
That is right for blocks of 16. The block size is in `self.pool.block_size`.
~ self.pool.block_size) => 16)
`allocate` returns a list. `self.blocks.append(...)` would nest that list; `+=` or `extend` adds its elements.
- self.blocks += self.pool
+ if needed > len(self.blocks): self.blocks.append(self.pool.allocate(needed - len(self.blocks)))
Keep the existing blocks, and add the new ones after them: yours replace them.
~ self.blocks += self.pool => self.blocks = self.pool
or
- self.blocks += self.pool
+ if needed > len(self.blocks): self.blocks = self.pool.allocate(needed - len(self.blocks))
The new blocks come after the existing ones, not before them: the order is that of the tokens.
- self.blocks += self.pool
+ self.blocks = self.pool.allocate(needed - len(self.blocks)) + self.blocks
All or nothing: change `num_tokens` only after `allocate`, which may refuse.
- self.blocks += self.pool
+ self.num_tokens = num_tokens
+ ...
All or nothing: allocate all missing blocks in one call. One at a time, some are gone when the pool refuses.
- self.blocks += self.pool
+ while len(self.blocks) < needed: self.blocks += self.pool.allocate(1)
All or nothing, in one call. Token by token, the first ones are stored already when the pool refuses a later one.
- self.blocks += self.pool
+ for self.num_tokens in range(self.num_tokens + 1, num_tokens + 1):
+     try:
+         self.blocks += self.pool.allocate(blocks_for(self.num_tokens, self.pool.block_size) - len(self.blocks))
+     except OutOfBlocks:
+         self.num_tokens -= 1
+         raise
All or nothing: blocks that are taken and freed again come back in another order. Allocate in one call.
- self.blocks += self.pool
+ new = []
+ try:
+     while len(self.blocks) + len(new) < needed: new += self.pool.allocate(1)
+ except OutOfBlocks:
+     self.pool.free(new)
+     raise
+ self.blocks += new
`pool.allocate` did raise OutOfBlocks, but your code caught it. Don't: the caller decides what to do without a block.
- self.blocks += self.pool
+ try: self.blocks += self.pool.allocate(needed - len(self.blocks))
+ except OutOfBlocks: return
or
- self.blocks += self.pool
+ try: self.blocks += self.pool.allocate(needed - len(self.blocks))
+ except OutOfBlocks: return False
or
- self.blocks += self.pool
+ try: self.blocks += self.pool.allocate(needed - len(self.blocks))
+ except OutOfBlocks: pass
Don't catch OutOfBlocks to raise TableFull: the table has room, and the pool hasn't.
- self.blocks += self.pool
+ try: self.blocks += self.pool.allocate(needed - len(self.blocks))
+ except OutOfBlocks: raise TableFull from None
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
- self.num_tokens = num_tokens
+ self.num_tokens = count
`num_tokens` counts all tokens stored so far, and yours never changes.
- self.num_tokens = num_tokens
`num_tokens` counts tokens, not the slots of the blocks.
- self.num_tokens = num_tokens
+ self.num_tokens = needed * self.pool.block_size
`num_tokens` grew by 1. `append(count)` stores `count` tokens.
- self.num_tokens = num_tokens
+ self.num_tokens += 1
A table may hold `max_blocks` blocks: refuse only if *more* are needed.
~ needed > self.max_blocks => needed >= self.max_blocks
The limit never refuses: compare the blocks *needed* with `self.max_blocks` before you allocate.
~ needed > self.max_blocks => len(self.blocks) > self.max_blocks
or
~ if self.max_blocks is not None and => if False and
0 is a limit too, although it counts as False in Python: use `is not None`.
~ self.max_blocks is not None and => self.max_blocks and
Do you compare only this call's new blocks? Those that the table holds already count as well.
~ needed > self.max_blocks => needed - len(self.blocks) > self.max_blocks
or
~ needed > self.max_blocks => blocks_for(count, self.pool.block_size) > self.max_blocks
A full table still takes tokens while its last block has room. Compare the blocks *needed* with the limit.
~ needed > self.max_blocks => len(self.blocks) >= self.max_blocks
You compare what the table holds *before* the call with the limit: compare what will be needed.
~ needed > self.max_blocks => len(self.blocks) >= self.max_blocks and needed > len(self.blocks)
Check the limit before you allocate: the blocks are gone when the call is refused.
- if self.max_blocks is not None and
+ self.blocks += self.pool.allocate(needed - len(self.blocks))
+ ...
`max_blocks` counts blocks, not tokens.
~ needed > self.max_blocks => num_tokens > self.max_blocks
The limit has an exception of its own: raise TableFull.
~ raise TableFull => raise OutOfBlocks
or
~ raise TableFull => raise ValueError
A table that is full raises TableFull. If it just returns, the caller takes the tokens for stored.
~ raise TableFull => return str
You fill the table up to its limit. All or nothing: raise TableFull instead.
- if self.max_blocks is not None and
+ if self.max_blocks is not None: needed = min(needed, self.max_blocks)
+ if False:
A table only grows, until it is released: refuse every negative `count`, even if the last block stays in use.
~ if count < 0 => if False
or
- if count < 0
+ if count < 0: self.num_tokens += count; return
+ ...
or
~ if count < 0 => if blocks_for(self.num_tokens + count, self.pool.block_size) < len(self.blocks)
`append(0)` is allowed, and changes nothing: refuse only negative counts.
~ if count < 0 => if count <= 0
A negative `count` is a mistake of the caller: raise ValueError, don't ignore it.
~ raise ValueError => return str
`append()` without an argument appends one token: give `count` the default 1.
~ count: int = 1 => count: int
Return all blocks with `self.pool.free(...)`: they stay allocated, and no other request can ever use them.
- self.pool.free(self.blocks)
You empty the list before you free it, so `pool.free` gets an empty one. Return the blocks before you empty the list.
- self.pool.free(self.blocks)
- self.blocks = []
+ self.blocks = []
+ self.pool.free(self.blocks)
`pool.free` takes the blocks in the order of the tokens and reverses them itself. You reversed them a second time.
~ free(self.blocks) => free(self.blocks[::-1])
You freed the blocks one at a time, so there was nothing to reverse: pass the whole list.
- self.pool.free(self.blocks)
+ for block in self.blocks: self.pool.free([block])
Call `pool.free` once: it takes the whole list, and checks it before it frees anything.
- self.pool.free(self.blocks)
+ for block in reversed(self.blocks): self.pool.free([block])
Are the blocks sorted, or put into a set, on their way to `pool.free`? It takes `self.blocks` as it is.
~ free(self.blocks) => free(sorted(self.blocks))
Another request gets these blocks. A table that still lists them would read and overwrite that request's keys.
- self.blocks = []
- self.num_tokens = 0
+ self.num_tokens = 0
Without its blocks the table has no tokens: set `num_tokens` to 0, or the next `append` starts from the old count.
- self.blocks = []
- self.num_tokens = 0
+ self.blocks = []
Only the pool should change `free_queue` and `used`: call `pool.free` once, with the whole list.
- self.pool.free(self.blocks)
+ self.pool.free_queue.extend(reversed(self.blocks))
+ self.pool.used.difference_update(self.blocks)
The pool's `used` must forget the blocks, too: call `pool.free`.
- self.pool.free(self.blocks)
+ self.pool.free_queue.extend(reversed(self.blocks))
You return only the last block: a released table returns all of them.
~ free(self.blocks) => free(self.blocks[-1:])
Releasing an empty table should do nothing.
- self.pool.free(self.blocks)
+ if not self.blocks: raise ValueError("empty")
+ ...
`release` empties the table, but its limit stays what it was.
- self.pool.free(self.blocks)
+ ...
+ self.max_blocks = None
or
- self.pool.free(self.blocks)
+ if self.max_blocks is not None: self.max_blocks -= len(self.blocks)
+ ...
"""

TASK = Task(
    reference="lessons_lib.kv_cache.block_table:BlockTable",
    cases=cases,
    run=run,
    tell=tell,
    smaller=smaller,
    refusals=("OutOfBlocks", "TableFull", "ValueError"),
    known=[
        *mistakes(MISTAKES, OutOfBlocks=OutOfBlocks),
        Known(
            "Do the tables share an object, such as the list of blocks? Each table needs its own.", answer=SharesItsList
        ),
    ],
    about={
        "raised TableFull": "Refuse only if more than `max_blocks` blocks are needed; None means no limit.",
        "raised OutOfBlocks": "Only the missing blocks have to be free: those that all tokens need, minus those that "
        "the table has.",
        "raised ValueError": "Refuse a negative `count`, nothing else.",
        "should raise TableFull": "Compare the blocks needed with `max_blocks` before you allocate.",
        "should raise OutOfBlocks": "Allocate all missing blocks in one call, before anything else changes.",
        "should raise ValueError": "A table only grows, until it is released.",
        "pool.free_queue": "All or nothing, through `pool.allocate` and `pool.free`, with one call for all blocks.",
        "pool.used": "Change the pool only through `pool.allocate` and `pool.free`.",
    },
)

EXERCISE = Exercise(
    id="03.3",
    title="the block table",
    reference=TASK.reference,
    test=TASK,
    hints=(
        "Don't think about when a block gets full. Compute how many blocks *all* the tokens need, the stored ones "
        "and the new ones, and allocate what is missing.",
        "Refuse a negative count. Compute the new number of tokens and, with `blocks_for`, the blocks "
        "needed. Raise `TableFull` if there is a limit and they exceed it. Allocate the missing blocks from the "
        "pool in one call; only then change `num_tokens`.",
        "`needed = blocks_for(num_tokens, self.pool.block_size)`; `self.blocks += self.pool.allocate(needed - "
        "len(self.blocks))`; `self.num_tokens = num_tokens`. `allocate` itself raises `OutOfBlocks`, before "
        "anything has changed. The limit: `if self.max_blocks is not None and needed > self.max_blocks`.",
    ),
)
