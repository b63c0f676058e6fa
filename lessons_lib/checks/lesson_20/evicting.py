"""20.2, `cheapest_to_lose`: which block leaves a full floor."""

from collections.abc import Iterator
from random import Random
from typing import Any, NamedTuple

from lessons_lib.checks.diagnosis import Task, Watch, mistakes
from lessons_lib.floors.floor import Floor
from lessons_lib.kv_cache.prefix_cache import LruQueue


class Case(NamedTuple):
    """The free slots of a full floor, least recently used first, and of each slot hits and depth."""

    queue: list[int]
    hits: list[int]
    depths: list[int]


CASES = """
0 | 0 | 0
1 | 0 0 | 5 2
0 1 | 0 0 | 0 3
0 1 2 | 1 0 0 | 1000000 0 0
0 1 2 3 | 2 1 0 0 | 3 3 3 3
0 1 2 3 | 0 0 5 5 | 1 4 9 9
3 2 1 0 | 0 1 2 3 | 0 1 2 3
3 1 0 2 | 0 0 0 0 | 2 2 2 2
"""


def cases() -> Iterator[Case]:
    for line in CASES.strip().split("\n"):
        yield Case(*(list(map(int, part.split())) for part in line.split("|")))
    draw = Random(20)
    for _ in range(30):
        count = draw.randint(1, 12)
        slots = draw.sample(range(count + 2), count)
        yield Case(slots, draw.choices(range(3), k=count + 2), draw.choices(range(4), k=count + 2))


def run(attempt: Any, case: Case, watch: Watch) -> None:
    floor = Floor(len(case.hits), 4)
    for slot in range(floor.num_blocks):
        floor.block_to_hash[slot], floor.hash_to_block[bytes([slot])] = bytes([slot]), slot
    floor.free_queue, floor.hits, floor.depths = LruQueue.fromkeys(case.queue), case.hits, case.depths

    def look() -> dict[str, Any]:
        return {"free_queue": list(floor.free_queue), "hits": floor.hits, "depths": floor.depths}

    watch("`cheapest_to_lose(floor)`", attempt, floor, look=look, subject="the slot")


def tell(case: Case) -> str:
    told = [f"slot {slot}: hits {case.hits[slot]}, depth {case.depths[slot]}" for slot in case.queue]
    return f"`free_queue`, least recently used first: {'; '.join(told)}."


MISTAKES = """
That is the least recently used one. Of the older half, it's the one that was asked for least often.
~ min(older, key=lambda slot: (floor.hits[slot], -floor.depths[slot])) => next(older)
Blocks that were used lately may come back any moment: look at the older half only.
~ (len(floor.free_queue) + 1) // 2 => len(floor.free_queue)
The older half is at the *front* of the queue.
~ islice(floor.free_queue, (len(floor.free_queue) + 1) // 2) => list(floor.free_queue)[len(floor.free_queue) // 2 :]
Round up: of one block, the older half is that one; of three, it's two.
~ (len(floor.free_queue) + 1) // 2 => max(1, len(floor.free_queue) // 2)
or ~ (len(floor.free_queue) + 1) // 2 => len(floor.free_queue) // 2
Of the floor's slots, only those in `free_queue` may leave: the others are being copied.
~ islice(floor.free_queue, (len(floor.free_queue) + 1) // 2) => range(floor.num_blocks)
Half of `free_queue`, not of all slots: those in use aren't in it.
~ (len(floor.free_queue) + 1) // 2 => (floor.num_blocks + 1) // 2
`free_queue` is in the order of last use. Keep that order.
~ islice(floor.free_queue => islice(sorted(floor.free_queue)
What was asked for often is likely to be asked for again. It stays.
~ (floor.hits[slot], => (-floor.hits[slot],
The deepest leaves first: the blocks in front of it are of use without it, and it is of none without them.
~ -floor.depths[slot] => floor.depths[slot]
or ~ , -floor.depths[slot]) => ,)
Hits decide first, and depth only between blocks with equally many.
~ (floor.hits[slot], -floor.depths[slot]) => (-floor.depths[slot], floor.hits[slot])
or ~ (floor.hits[slot], -floor.depths[slot]) => floor.hits[slot] - floor.depths[slot]
or ~ (floor.hits[slot], -floor.depths[slot]) => -floor.depths[slot]
If all else is equal, the least recently used leaves, not the slot with the smallest number or the last one.
~ -floor.depths[slot]) => -floor.depths[slot], slot)
or ~ min(older, => min([*older][::-1],
Return the slot, not its place in the queue.
- return
+ slots = list(older)
+ return slots.index(min(slots, key=lambda slot: (floor.hits[slot], -floor.depths[slot])))
`hits` and `depths` are by slot, not by place in the queue.
- return
+ slots = list(older)
+ return slots[min(range(len(slots)), key=lambda place: (floor.hits[place], -floor.depths[place]))]
Only choose. The floor removes the block itself.
- return
+ slot = min(older, key=lambda slot: (floor.hits[slot], -floor.depths[slot]))
+ del floor.free_queue[slot]
+ return slot
"""

TASK = Task(
    reference="lessons_lib.floors.eviction:cheapest_to_lose",
    cases=cases,
    run=run,
    tell=tell,
    known=mistakes(MISTAKES),
    about={"returned": "Of the older half of the queue: fewest hits, then the deepest, then the first."},
)

EXERCISE = TASK.exercise(
    id="20.2",
    title="the cheapest block to lose",
    hints=(
        "First the candidates: which slots are in the older half of the queue? Then an order between two of them.",
        "`list(floor.free_queue)` begins with the least recently used. `min` with a key that is a tuple compares the "
        "first elements, then the second, and of equal ones returns the first it meets.",
        "`older = list(floor.free_queue)[: (len(floor.free_queue) + 1) // 2]`; "
        "`min(older, key=lambda slot: (floor.hits[slot], -floor.depths[slot]))`.",
    ),
)
