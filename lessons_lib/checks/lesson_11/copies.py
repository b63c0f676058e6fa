"""11.3, `copy_before_write`: the sequence gets a block of its own, and all others keep what they have."""

from collections.abc import Iterator
from random import Random
from typing import Any, NamedTuple

from lessons_lib.checks.diagnosis import Task, Watch, mistakes
from lessons_lib.checks.diagnosis.telling import Shown
from lessons_lib.checks.exercise import Exercise
from lessons_lib.kv_cache.block_copies import BlockCopy
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
    return Shown(repr(got)) if isinstance(got, BlockCopy) else got


def tell(case: Case) -> str:
    tables = ", ".join(f"{name}'s table is {table}" for name, table in case.tables.items())
    hashed = f"; with a hash: {[*case.hashed, *case.left]}" if case.hashed or case.left else ""
    writes = ", then ".join(f"{name} at index {index}" for name, index in case.writes)
    used = {block for table in case.tables.values() for block in table}
    free = [block for block in range(case.num_blocks) if block not in used]
    return f"{tables}{hashed}; the free queue is {free}. About to write: {writes}."


MISTAKES = """
`source` is the block that is read, and `target` the one that is written: the new block.
~ COPY, source, target => COPY, target, source
This copy stays within the pool: its kind is `COPY`. The swap space is not involved.
~ COPY, source => "swap out", source
or
~ COPY, source => "swap in", source
It is copied from the block that was in the table. Read it before you put the new one there.
~ BlockCopy(COPY, source, target) => BlockCopy(COPY, sequence.blocks[index], target)
`index` is a place in the table, not a block: the block is `sequence.blocks[index]`.
~ source = sequence.blocks[index] => source = index
Return what to copy: a `BlockCopy`.
- return
or
~ return BlockCopy(COPY, source, target) => return source, target
or
~ return BlockCopy(COPY, source, target) => return COPY, source, target
or
~ return BlockCopy(COPY, source, target) => return target
or
~ return BlockCopy(COPY, source, target) => return [BlockCopy(COPY, source, target)]
The sequence no longer uses the old block, so it has to be freed, once.
- pool.free([source])
Allocate the new block before you change anything else: if there is none, the sequence must still have its old one.
~ (target,) = pool.allocate(1) => pass
- pool.free([source])
+ pass
~ sequence.blocks[index] = target => pool.free([source]); (target,) = pool.allocate(1); sequence.blocks[index] = target
or
= source = sequence.blocks.pop(index)
~ sequence.blocks[index] = target => sequence.blocks.insert(index, target)
Free the block that was in the table, and no other.
~ pool.free([source]) => pool.free([source, *(each for each in sequence.blocks if each != target)])
or
~ pool.free([source]) => pool.free([source, *sequence.blocks[index + 1 :]])
or
~ pool.free([source]) => pool.free([target])
`pool.allocate` has counted the new block already.
- pool.free([source])
+ ...
+ pool.touch([target])
The new block takes the place of the old one; the rest of the table stays.
~ sequence.blocks[index] = target => sequence.blocks.append(target)
or
~ sequence.blocks[index] = target => sequence.blocks.insert(index, target)
Only the entry at `index` changes. It isn't always the last one.
~ sequence.blocks[index] => sequence.blocks[-1]
The table still has the old block, to which the sequence may not write. Put the new block in its place.
- sequence.blocks[index] = target
Without its hash, no sequence that comes later finds the block. Don't take it over: it keeps its hash, and the sequence
gets another one.
- source = sequence.blocks[index]
+ ...
+ if pool.ref_count[source] == 1:
+     pool.hash_to_block.pop(pool.block_to_hash.pop(source, None), None)
+     return BlockCopy(COPY, source, source)
or
- source = sequence.blocks[index]
+ ...
+ if pool.ref_count[source] == 1:
+     pool.hash_to_block.pop(pool.block_to_hash.pop(source, None), None)
+     return None
A single user may not write to a block with a hash, either: a sequence that finds it later reads it.
- source = sequence.blocks[index]
+ ...
+ if pool.ref_count[source] == 1: return None
Leave the counting to the pool: `pool.free([block])` lowers the count, and frees the block if no other sequence uses it.
~ pool.free([source]) => pool.ref_count[source] -= 1
`pool.allocate(1)` takes a block from the queue, counts it, and removes its old hash. Taken by hand, it can still be
found by what it held before.
- (target,) = pool.allocate(1)
+ if not pool.free_queue: pool.allocate(1)
+ target = pool.free_queue.popleft()
+ pool.used.add(target)
+ pool.ref_count[target] = 1
or
~ (target,) = pool.allocate(1) => target = pool.free_queue.popleft()
The queue has no `[0]`: its keys are the blocks. `pool.allocate(1)` takes the first one, and counts it.
~ (target,) = pool.allocate(1) => target = pool.free_queue[0]
`pool.allocate(1)` returns a list with one block.
~ (target,) = pool.allocate(1) => target = pool.allocate(1)
The old block keeps its contents and its hash. The copy gets none: the sequence is about to change it.
- pool.free([source])
+ ...
+ if source in pool.block_to_hash:
+     one = pool.block_to_hash.pop(source)
+     pool.block_to_hash[target], pool.hash_to_block[one] = one, target
or
- pool.free([source])
+ ...
+ if source in pool.block_to_hash: del pool.hash_to_block[pool.block_to_hash.pop(source)]
or
- pool.free([source])
+ ...
+ pool.cache_full_block(target, pool.block_to_hash.get(source, bytes(32)))
or
- pool.free([source])
+ ...
+ pool.cache_full_block(target, bytes(32))
The copy holds the same keys and values, so nothing has to be computed again.
- return
+ sequence.num_computed_tokens = index * pool.block_size
+ ...
If no block is free, `pool.allocate(1)` raises OutOfBlocks. Don't catch it, and raise no other error.
- (target,) = pool.allocate(1)
+ if not pool.free_queue: raise RuntimeError("no block is free")
+ ...
or
- (target,) = pool.allocate(1)
+ if not pool.free_queue: return None
+ ...
"""

TASK = Task(
    reference="lessons_lib.scheduling.shared_blocks:copy_before_write",
    cases=cases,
    run=run,
    tell=tell,
    refusals=("OutOfBlocks",),
    known=mistakes(MISTAKES),
    about={
        **{f"{name}.blocks": "Only the writer's table changes, and only at `index`: the new block." for name in "XYZ"},
        "returned": "From the block that was in the table, to the new one that replaces it.",
        "pool.ref_count": "Each block is counted as often as tables contain it: `allocate` has counted the new one, "
        "and the old one has to be freed, once.",
        "pool.free_queue": "The new block leaves the queue. The old one joins its end if no other sequence uses it.",
        "the blocks with a hash": "The old block keeps its hash, and the new one has none.",
        "should raise OutOfBlocks": "`pool.allocate(1)` raises it. Allocate before you change anything.",
    },
)

EXERCISE = Exercise(
    id="11.3",
    title="copy before a write",
    reference=TASK.reference,
    test=TASK,
    hints=(
        "Which of the pool's methods changes the count of a block by one, and which of them may raise? What may "
        "have changed by then? The pool itself knows what becomes of a block that no table contains.",
        "First allocate one block. Then put it into the table in place of the old one. Then free the old one. "
        "The pool's counts need nothing else.",
        "`source = sequence.blocks[index]`; `(target,) = pool.allocate(1)`; `sequence.blocks[index] = target`; "
        "`pool.free([source])`; `return BlockCopy(COPY, source, target)`.",
    ),
)
