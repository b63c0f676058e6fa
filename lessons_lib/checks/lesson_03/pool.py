"""03.5, `BlockPool`: every block is free or allocated, the order is kept, a refusal changes nothing, and no method gets
slower in a larger pool."""

from collections import deque
from collections.abc import Iterator
from functools import partial
from random import Random
from typing import Any

from lessons_lib.checks.diagnosis import Task, Watch, mistakes
from lessons_lib.checks.diagnosis.probes import Compared, grows, work
from lessons_lib.checks.diagnosis.telling import Shown
from lessons_lib.checks.exercise import Exercise
from lessons_lib.checks.lesson_03.books import block_ids, counted

Op = tuple[str, Any]  # ("allocate", count) or ("free", blocks)
MANY = 2000


def run(Pool: Any, case: tuple[int, list[Op]] | str, watch: Watch) -> None:
    if isinstance(case, str):
        return watch(case, partial(slower, Pool, case), subject=f"what {case} costs", returns=Shown)
    num_blocks, ops = case
    pool = Pool(num_blocks, 16)
    for name, argument in ops:
        look = partial(seen, pool)
        if name == "allocate":
            watch(f"`pool.allocate({argument})`", pool.allocate, argument, look=look, returns=blocks_of)
        else:
            watch(f"`pool.free({argument})`", pool.free, argument, look=look)
    return None


def seen(pool: Any) -> dict[str, Any]:
    return {"pool.used": set(block_ids(pool.used)), "pool.free_queue": block_ids(pool.free_queue)}


def blocks_of(got: Any) -> Any:
    return block_ids(got) if isinstance(got, list) else got


def slower(Pool: Any, case: str) -> str:
    """Whether a call costs more in a pool with many blocks of a kind than in one with few."""
    method, is_used = case.split("`")[1].split(".")[1][:4], "allocated" in case
    costs = []
    for size in (20, MANY):
        pool = Pool(size + 10, 16)
        if type(pool.free_queue) is not deque or type(pool.used) is not set:
            return "no more"  # an answer may have containers of its own
        pool.free_queue = deque(map(Compared, range(size + 10)))
        held = pool.allocate(size if is_used else 5)
        calls = (
            [partial(pool.allocate, 1)] * 3 if method == "allo" else [partial(pool.free, [each]) for each in held[:3]]
        )
        costs.append(work(*calls))
    return " and ".join(f"more {kind}" for kind in grows(*costs, by=MANY)) or "no more"


def tell(case: tuple[int, list[Op]] | str) -> str:
    if isinstance(case, str):
        return f"a pool of {MANY + 10:,} blocks, compared with one of 30. The time must not depend on the size."
    return f"a pool of {counted(case[0], 'block')}; {', '.join(f'`{name}({argument})`' for name, argument in case[1])}."


def smaller(case: tuple[int, list[Op]] | str) -> Iterator[tuple[int, list[Op]]]:
    if not isinstance(case, str):
        num_blocks, ops = case
        for index in range(len(ops))[::-1]:
            yield num_blocks, ops[:index] + ops[index + 1 :]


def cases() -> Iterator[tuple[int, list[Op]] | str]:
    yield 3, [("allocate", 2), ("allocate", 1), ("allocate", 0)]
    yield 3, [("allocate", 3)]
    for first, count in ((2, 3), (4, 1), (0, 5), (0, -1)):
        yield 4, [("allocate", first), ("allocate", count)]
    begin: list[Op] = [("allocate", 3), ("allocate", 1), ("free", [0, 1, 2])]
    yield 5, [*begin, ("allocate", 2), ("free", []), ("free", (3,))]
    yield 9, [("allocate", 9), ("free", [2, 8, 1])]  # a set of these three isn't sorted
    for blocks in ([4], [0, 4], [4, 0], [1, 1], [0, 1, 0], [0, 0, 1], [0, 1, 1], [2, 9], [-1]):
        yield 5, [("allocate", 3), ("free", blocks)]
    yield 5, [("allocate", 3), ("free", [0, 1, 2]), ("free", [0, 1, 2])]
    yield 5, [("allocate", 3), ("free", [0, 1, 2]), ("allocate", 6)]
    draw = Random(3)
    for _ in range(12):
        held: list[list[int]] = []
        queue, ops = list(range(12)), []
        for _ in range(draw.randint(5, 20)):
            if held and draw.random() < 0.45:
                blocks = held.pop(draw.randrange(len(held)))
                queue += blocks[::-1]
                ops.append(("free", blocks))
            else:
                count = draw.randint(0, min(4, len(queue)))
                held.append(queue[:count])
                queue = queue[count:]
                ops.append(("allocate", count))
        yield 12, ops
    for call in ("`pool.allocate(1)`", "`pool.free([0])`"):
        for blocks in ("free", "allocated"):
            yield f"{call} with {MANY:,} {blocks} blocks instead of 20"


MISTAKES = """
Take from the front: `popleft()`. Freed blocks go to the end, so the block that has been free longest is allocated
first.
~ self.free_queue.popleft() => self.free_queue.pop()
The caller needs the block ids for its block table: return them.
- return blocks
A list is expected, even for one block: `[0]`, not `0`.
~ return blocks => return blocks[0] if count == 1 else blocks
A set has no order, and the order of the blocks is the order of the request's tokens.
~ return blocks => return set(blocks)
The blocks are right, but a block table joins such lists with `+`, which takes only another list.
~ return blocks => return tuple(blocks)
or
~ return blocks => return deque(blocks)
These are the right blocks in another order: return them as they leave the queue, the first one first.
~ return blocks => return sorted(blocks)
or
~ return blocks => return blocks[::-1]
`add` puts the list itself into the set, as one element; `update` adds its elements.
~ used.update(blocks) => used.add(blocks)
`used` contains exactly the blocks that are allocated now: `allocate` adds them.
- self.used.update(blocks)
or
- self.used.update(blocks)
+ self.used = set(blocks)
A block is either in `free_queue` or in `used`, never in both: take it out of the queue.
~ [self.free_queue.popleft() for _ in range(count)] => list(self.free_queue)[:count]
The last free block can be allocated, too: refuse only if *more* blocks are asked for than are free.
~ if count > len(self.free_queue) => if count >= len(self.free_queue)
All or none: a request can do nothing with only some of its blocks. Refuse if there are too few.
- if count > len(self.free_queue)
+ count = min(count, len(self.free_queue))
+ ...
That is the exception of an empty queue. Compare `count` with `len(self.free_queue)` first, and raise OutOfBlocks.
~ if count > len(self.free_queue) => if False
Too few free blocks have an exception of their own: raise OutOfBlocks.
~ raise OutOfBlocks => raise ValueError
If too few blocks are free, raise OutOfBlocks: nothing that is returned can say it.
~ raise OutOfBlocks => return str
All or none: you take blocks before you refuse. Compare `count` with `len(self.free_queue)` before you take any.
- if count > len(self.free_queue)
+ if count > len(self.free_queue):
+     while self.free_queue: self.used.add(self.free_queue.popleft())
+ ...
Python accepts a negative count silently: `range(-1)` is empty, and `[:-1]` is all but the last. Refuse it with
ValueError.
~ if count < 0 => if False
or
~ raise ValueError(f"can't allocate => return list(f"can't allocate
or
- if count < 0
+ count = max(count, 0)
+ ...
`allocate(0)` is allowed, and returns an empty list: refuse only negative counts.
~ if count < 0 => if count <= 0
A negative count is a mistake of the caller: raise ValueError, not OutOfBlocks.
~ raise ValueError(f"can't allocate => raise OutOfBlocks(f"can't allocate
Each block costs a copy of the queue. `popleft()` takes the first block without looking at the rest: don't copy or
slice.
- blocks = [
+ blocks = list(self.free_queue)[:count]
+ self.free_queue = deque(list(self.free_queue)[count:])
`len(self.free_queue)` is the number of free blocks: don't go over the ids of all blocks to count them.
- if count > len(self.free_queue)
+ if count > sum(block not in self.used for block in range(self.num_blocks)):
The blocks are listed in the order of the request's tokens. Put them back last to first, `reversed(blocks)`, so that the
request's tail is reallocated before its beginning.
~ reversed(blocks) => blocks
You put them at the front of the queue. They go to the end, behind blocks that have been free longer.
~ self.free_queue.extend(reversed(blocks)) => self.free_queue.extendleft(blocks)
Don't sort the queue: freed blocks go to the end, and of these the last one listed goes first.
- self.free_queue.extend
+ self.free_queue = deque(sorted([*self.free_queue, *blocks]))
`blocks` is in the order of the request's tokens, whatever the ids: reverse that order, `reversed(blocks)`, and don't
sort.
~ reversed(blocks) => sorted(blocks, reverse=True)
The caller still uses the list that it passed in. `reversed(blocks)` leaves it as it is; `blocks.reverse()` doesn't.
- self.free_queue.extend
+ if isinstance(blocks, list): blocks.reverse()
+ self.free_queue.extend(blocks)
`append` puts the list itself into the queue, as one element; `extend` adds its elements.
~ self.free_queue.extend(reversed(blocks)) => self.free_queue.append(list(reversed(blocks)))
`used` contains exactly the blocks that are allocated now: `free` removes them.
- self.used.difference_update(blocks)
A block is either in `free_queue` or in `used`, never in neither: put it back into the queue.
- self.free_queue.extend
It is free already, or belongs to another pool: two requests would get the same block, and each would overwrite the
other's keys. Refuse a block that isn't in `used`.
~ if block not in self.used => if False
A block that is listed twice would be in the queue twice. Both times it is still in `used`, so also check that the
blocks differ: `len(set(blocks)) == len(blocks)`.
~ if len(set(blocks)) < len(blocks) => if False
`free` refuses with ValueError, whatever a container raises: test before you remove anything.
- for block in blocks
+ if not set(blocks) <= self.used: raise KeyError
+ ...
or
- for block in blocks
+ for block in reversed(blocks):
+     self.used.remove(block)
+     self.free_queue.append(block)
+ return
+ ...
You free some blocks before you refuse one: check all of them first, and change something only after that.
- for block in blocks
+ for block in blocks:
+     if block in self.used:
+         self.used.remove(block)
+     else: raise ValueError
+ self.free_queue.extend(reversed(blocks))
+ return
+ ...
A block of another pool, or of none, isn't in this pool's queue either. Check whether it is in `used`.
~ if block not in self.used => if block in set(self.free_queue)
To see whether a block is allocated, look in `used`: a set finds it without a search, and a search goes over the whole
queue.
- for block in blocks
+ if any(block in self.free_queue for block in blocks): raise ValueError
+ ...
Don't build another queue: `extend` adds at the end of the existing one.
- self.free_queue.extend
+ self.free_queue = deque([*self.free_queue, *reversed(blocks)])
Don't make a list, a copy, or another set of `used`: `in` finds a block without a search, and `update` and
`difference_update` change the set that is there.
~ if block not in self.used => if block not in list(self.used)
or
- self.used.difference_update(blocks)
+ self.used = self.used - set(blocks)
Keep the two containers from the given `__init__`: `free_queue` and `used`.
- self.free_queue = deque(range(self.num_blocks))
+ self.free = deque(range(self.num_blocks))
"""

TASK = Task(
    reference="lessons_lib.kv_cache.block_pool:BlockPool",
    cases=cases,
    run=run,
    tell=tell,
    smaller=smaller,
    refusals=("OutOfBlocks", "ValueError"),
    known=mistakes(MISTAKES),
    about={
        "raised OutOfBlocks": "Refuse only if `count` exceeds the number of free blocks.",
        "raised ValueError": "`allocate` refuses a negative count, and `free` a block that is free or listed "
        "twice; nothing else.",
        "should raise OutOfBlocks": "All or none: compare `count` with `len(self.free_queue)` before you take any.",
        "should raise ValueError": "Two requests would get the same block, and each would overwrite the other's keys.",
        "pool.used": "`used` contains exactly the blocks that are allocated now. A refused call changes nothing.",
        "pool.free_queue": "Freed blocks go to the end, the last one listed first. A refused call changes nothing.",
    },
)

EXERCISE = Exercise(
    id="03.5",
    title="the block pool (optional)",
    reference=TASK.reference,
    test=TASK,
    hints=(
        "Three rows of the table make `free` raise. Which of them does the test 'is it in `used`?' catch, and "
        "which does it miss?",
        "`allocate`: refuse a negative count, and refuse more than `len(self.free_queue)`. Then take that many "
        "from the front, add them to `used`, and return the list. `free`: refuse a block that is not in `used`, "
        "and refuse a list that contains a block twice. Then remove the blocks from `used` and put them at the end "
        "of the queue, the last one first.",
        "`blocks = [self.free_queue.popleft() for _ in range(count)]`, `self.used.update(blocks)`. The way back: "
        "`self.used.difference_update(blocks)`, `self.free_queue.extend(reversed(blocks))`. A block is listed "
        "twice if `len(set(blocks)) < len(blocks)`.",
    ),
)
