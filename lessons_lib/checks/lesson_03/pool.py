"""03.5, `BlockPool`: every block is free or allocated, the order is kept, a refusal changes nothing, and no method gets
slower in a larger pool."""

from collections import deque
from collections.abc import Iterator
from functools import partial
from random import Random
from typing import Any

from lessons_lib.checks.diagnosis import Shown, Task, Watch, mistakes
from lessons_lib.checks.diagnosis.probes import Compared, grows, work
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


def about_result(mine: dict, want: dict) -> str:
    if isinstance(want["case"], str):
        return COSTS["free" in want["case"].split("`")[1]]
    return "Take the blocks from the front, `popleft()`, and list them in the order in which they leave the queue."


def about_queue(mine: dict, want: dict) -> str:
    if "raised" in want:
        return ALL_OR_NONE
    if set(map(str, mine["pool.free_queue"])) != set(map(str, want["pool.free_queue"])):
        return (
            "A block is either in `free_queue` or in `used`: `allocate` takes it out of the queue, and `free` puts it "
            "back with `extend` (`append` would add the list itself)."
        )
    return (
        "Freed blocks go to the end of the queue, the last one listed first, so that a request's tail is reallocated "
        "before its beginning: `extend(reversed(blocks))`. Don't sort: the order is that of the request's tokens."
    )


ALL_OR_NONE = "All or none: a refused call changes nothing. Check everything before you change anything."
COSTS = (
    "`popleft()` takes the first block without looking at the rest, and `len(self.free_queue)` counts them: don't "
    "copy, slice or search.",
    "`in self.used` finds a block without a search, and `extend` and `difference_update` change what is there: don't "
    "search the queue, and don't make another queue, list or set.",
)

TASK = Task(
    reference="lessons_lib.kv_cache.block_pool:BlockPool",
    cases=cases,
    run=run,
    tell=tell,
    smaller=smaller,
    refusals=("OutOfBlocks", "ValueError"),
    known=mistakes("""
        A block that is listed twice would be in the queue twice. Both times it is still in `used`, so also check that
        the blocks differ: `len(set(blocks)) == len(blocks)`.
        ~ if len(set(blocks)) < len(blocks) => if False
        A block of another pool, or of none, isn't in this pool's queue either. Check whether it is in `used`.
        ~ if block not in self.used => if block in set(self.free_queue)
        """),
    clear=0.8,
    about={
        "raised OutOfBlocks": "Refuse only if *more* blocks are asked for than are free: the last one can go, too.",
        "raised ValueError": "`allocate` refuses a negative count, not 0, and `free` a block that isn't in `used` or "
        "is listed twice; nothing else.",
        "raised TypeError": "A set's `add` takes one element, and `update` several. `free` takes a list or a tuple.",
        "raised AttributeError": "Keep the two containers from the given `__init__`: `free_queue` and `used`.",
        "should raise OutOfBlocks": "All or none: if `count` is more than `len(self.free_queue)`, raise OutOfBlocks, "
        "before you take any.",
        "should raise ValueError": "Refuse it with ValueError, before you change anything: a negative `count`, or a "
        "block that isn't in `used`. Two requests would get the same block, and overwrite each other's keys.",
        "pool.used": "`used` contains exactly the blocks that are allocated now: `allocate` adds them, and `free` "
        "removes them. A refused call changes nothing: check everything first.",
        "pool.free_queue": about_queue,
        "returned": about_result,
    },
)

EXERCISE = TASK.exercise(
    id="03.5",
    title="the block pool (optional)",
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
