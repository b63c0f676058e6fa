"""11.3, `copy_before_write`: the sequence gets a block of its own, and all others keep what they have."""

from collections.abc import Iterator
from random import Random
from typing import Any, NamedTuple

from lessons_lib.checks.diagnosis import Shown, Task, Watch, mistakes
from lessons_lib.kv_cache.prefix_cache import PrefixCache
from lessons_lib.scheduling.sequence import Sequence


class Case(NamedTuple):
    """Block tables, and who is about to write.

    Attributes:
        tables: name -> its blocks.
        hashed: the blocks in use that have a hash.
        left: the free blocks that still have one.
        writes: (name, index in its table).
    """

    num_blocks: int
    tables: dict[str, list[int]]
    hashed: list[int]
    left: list[int]
    writes: list[tuple[str, int]]


def cases() -> Iterator[Case]:
    """Smallest first."""
    yield Case(4, {"X": [0, 1], "Y": [0, 1]}, [], [], [("Y", 1)])
    yield Case(4, {"X": [0, 1]}, [0, 1], [], [("X", 1)])
    yield Case(3, {"X": [0, 1], "Y": [0, 1]}, [], [2], [("Y", 1)])
    yield Case(4, {"X": [0, 1], "Y": [0, 1]}, [0], [], [("X", 0)])
    for index in (0, 1):
        yield Case(6, {"X": [2, 0, 1], "Y": [2, 0, 1]}, [], [], [("Y", index)])
    yield Case(5, {"X": [0], "Y": [0], "Z": [0]}, [], [], [("Y", 0), ("Z", 0)])
    for tables in ({"X": [0]}, {"X": [0], "Y": [0]}):
        yield Case(1, tables, [0], [], [("X", 0)])
    yield Case(3, {"X": [2, 1, 0], "Y": [2, 1]}, [], [], [("Y", 0)])
    draw = Random(11)
    for _ in range(12):
        table = draw.sample(range(5), draw.randint(1, 4))
        users = "XYZ"[: draw.randint(2, 3)]
        hashed = sorted(draw.sample(table, draw.randint(0, len(table))))
        left = [block for block in range(5) if block not in table and draw.random() < 0.5]
        yield Case(7, dict.fromkeys(users, table), hashed, left, [(draw.choice(users), draw.randrange(len(table)))])


def run(attempt: Any, case: Case, watch: Watch) -> None:
    pool = PrefixCache(case.num_blocks, 4)
    used = {block for table in case.tables.values() for block in table}
    pool.allocate(case.num_blocks)
    for block in (*case.hashed, *case.left):
        pool.cache_full_block(block, bytes([block + 1]) * 32)
    pool.free([block for block in range(case.num_blocks)[::-1] if block not in used])
    for table in [*case.tables.values()][1:]:
        pool.touch(table)
    sequences = {
        name: Sequence(
            name, list(range(4 * len(table) - 2)), 5, blocks=table[:], num_computed_tokens=4 * len(table) - 2
        )
        for name, table in case.tables.items()
    }

    def look() -> dict[str, Any]:
        return (
            {f"{name}.blocks": sequence.blocks for name, sequence in sequences.items()}
            | {f"{name}.num_computed_tokens": each.num_computed_tokens for name, each in sequences.items()}
            | {
                "pool.ref_count": dict(sorted(pool.ref_count.items())),
                "pool.free_queue": list(pool.free_queue),
                "the blocks with a hash": sorted(pool.block_to_hash),
                "the blocks found by a hash": sorted(pool.hash_to_block.values()),
            }
        )

    for name, index in case.writes:
        call = f"`copy_before_write(pool, {name.lower()}, {index})`"
        watch(call, attempt, pool, sequences[name], index, look=look, returns=copy_of, subject="what it returns")


def copy_of(got: Any) -> Any:
    return Shown(text) if "BlockCopy" in (text := repr(got)) else got


def tell(case: Case) -> str:
    tables = ", ".join(f"{name}'s table is {table}" for name, table in case.tables.items())
    hashed = f"; with a hash: {[*case.hashed, *case.left]}" if case.hashed or case.left else ""
    writes = ", then ".join(f"{name} at index {index}" for name, index in case.writes)
    used = {block for table in case.tables.values() for block in table}
    free = [block for block in range(case.num_blocks) if block not in used]
    return f"{tables}{hashed}; the free queue is {free}. About to write: {writes}."


TABLE = "Only the writer's table changes, and only at `index`: the new block, a number, takes the place of the old one."
HASHES = "The old block keeps its hash, and the new one has none: `pool.allocate(1)` removes what it had."

MISTAKES = """
`source` is the block that is read, and `target` the one that is written: the new block.
~ COPY, source, target => COPY, target, source
It is copied from the block that was in the table. Read it before you put the new one there.
~ BlockCopy(COPY, source, target) => BlockCopy(COPY, sequence.blocks[index], target)
`index` is a place in the table, not a block: the block is `sequence.blocks[index]`.
~ source = sequence.blocks[index] => source = index
or ~ COPY, source => COPY, index
The sequence no longer uses the old block, so it has to be freed, once.
- pool.free([source])
Allocate the new block before you change anything else: if there is none, the sequence must still have its old one.
~ (target,) = pool.allocate(1) => pass
- pool.free([source]) => pass
~ sequence.blocks[index] = target => pool.free([source]); (target,) = pool.allocate(1); sequence.blocks[index] = target
or = source = sequence.blocks.pop(index)
~ sequence.blocks[index] = target => sequence.blocks.insert(index, target)
Free the block that was in the table, and no other.
~ pool.free([source]) => pool.free([source, *(each for each in sequence.blocks if each != target)])
or ~ pool.free([source]) => pool.free([source, *sequence.blocks[index + 1 :]])
or ~ pool.free([source]) => pool.free([target])
`pool.is_writable` has said that it may not write to this block: copy it, and return a `BlockCopy`, in any case.
- source = sequence.blocks[index] => return None
A block with a hash is copied even if the sequence is its only user, and keeps its hash: a sequence that finds it later
reads it.
> source = sequence.blocks[index] => if pool.ref_count[source] == 1: return None
or > source = sequence.blocks[index] => if pool.ref_count[source] == 1: return BlockCopy(COPY, source, source)
or - source = sequence.blocks[index]
+ ...
+ if pool.ref_count[source] == 1:
+     pool.hash_to_block.pop(pool.block_to_hash.pop(source, None), None)
+     return None
The copy holds the same keys and values, so nothing has to be computed again.
< return => sequence.num_computed_tokens = index * pool.block_size
If no block is free, `pool.allocate(1)` raises OutOfBlocks. Let it through.
> source = sequence.blocks[index] => if not pool.free_queue: return None
One free block is enough, even if it is the last one or is cached.
> source = sequence.blocks[index] => if len(pool.free_queue) < 2: pool.allocate(len(pool.free_queue) + 1)
"""

TASK = Task(
    reference="lessons_lib.scheduling.shared_blocks:copy_before_write",
    cases=cases,
    run=run,
    tell=tell,
    refusals=("OutOfBlocks",),
    known=mistakes(MISTAKES),
    about={
        **dict.fromkeys(("X.blocks", "Y.blocks", "Z.blocks"), TABLE),
        "returned": "Return one `BlockCopy(COPY, source, target)`, with two blocks: from the one that was at `index` "
        "to the one that `pool.allocate(1)` has allocated, the first of the free queue.",
        "pool.ref_count": "Each block is counted as often as tables contain it. `pool.allocate(1)` counts the new "
        "block, and `pool.free([source])` takes one off the old one and frees it at 0. Nothing else changes a count.",
        "pool.free_queue": "`pool.allocate(1)` takes the new block out of the queue. The old one joins its end if no "
        "other sequence uses it: `pool.free`.",
        "the blocks with a hash": HASHES,
        "the blocks found by a hash": HASHES,
        "should raise OutOfBlocks": "`pool.allocate(1)` raises it. Don't catch it, and allocate before you change "
        "anything.",
        "raised OutOfBlocks": "One new block is enough: allocate it once, whatever else is free.",
        "raised IndexError": "`index` is a place in `sequence.blocks`; `pool.allocate(1)` returns a list of one block.",
        "raised TypeError": "`BlockCopy` takes the kind (`COPY`), the source and the target; `pool.allocate` takes a "
        "number and returns a list of blocks, and `pool.free` takes a list of blocks.",
        "raised KeyError": "The queue has no `[0]`: its keys are the blocks. `pool.allocate(1)` takes the first "
        "one, and counts it.",
        "raised ValueError": "Free the old block once, while it is in use. The new one goes to the place `index`.",
    },
)

EXERCISE = TASK.exercise(
    id="11.3",
    title="copy before a write",
    hints=(
        "Which of the pool's methods changes the count of a block by one, and which of them may raise? What may "
        "have changed by then? The pool itself knows what becomes of a block that no table contains.",
        "First allocate one block. Then put it into the table in place of the old one. Then free the old one. "
        "The pool's counts need nothing else.",
        "`source = sequence.blocks[index]`; `(target,) = pool.allocate(1)`; `sequence.blocks[index] = target`; "
        "`pool.free([source])`; `return BlockCopy(COPY, source, target)`.",
    ),
)
