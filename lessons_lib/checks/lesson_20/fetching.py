"""20.3, `fetch_block`: a block from the disk, or from another engine."""

from collections.abc import Iterator
from typing import Any, NamedTuple

from torch import Tensor

from lessons_lib.checks.diagnosis import Task, Watch, mistakes
from lessons_lib.checks.lesson_20.letters import Letters, fields, host_floor


class Case(NamedTuple):
    """Letters that the host has, its slots, how many are in use; whether block z comes whole; its depth."""

    host: str
    slots: int
    used: int
    comes: bool
    depth: int


CASES = """
- 2 0 1 0
- 2 0 0 0
a 1 0 1 2
a 1 1 1 1
ab 3 1 0 1
abc 3 1 1 4
"""


def cases() -> Iterator[Case]:
    for host, slots, used, comes, depth in fields(CASES):
        yield Case(host, int(slots), int(used), comes == "1", int(depth))


def run(attempt: Any, case: Case, watch: Watch) -> None:
    mover = Letters(0, case.slots)
    floor = host_floor(case.host, mover)
    floor.touch(list(floor.free_queue)[-case.used :] if case.used else [])
    asked: list[str] = []
    left: list[str] = []
    floor.leave = lambda slot, name: left.append(name.decode())  # type: ignore[method-assign]

    def read(block_hash: bytes, row: Tensor) -> bool:
        asked.append(block_hash.decode())
        row[0] = ord("z" if case.comes else "#")
        return case.comes

    def look() -> dict[str, Any]:
        found = sorted(floor.hash_to_block.items())
        return {
            "what can be found, and what it holds": {name.decode(): chr(mover.host.rows[slot]) for name, slot in found},
            "slots in use, and their users": dict(floor.ref_count),
            "what moved to the disk": left,
            "blocks that were asked for": asked,
            "depths": {name.decode(): floor.depths[slot] for name, slot in found},
            "the order in which slots are taken": list(floor.free_queue),
        }

    watch(f"`fetch_block(floor, z, {case.depth}, read)`", attempt, floor, b"z", case.depth, read, look=look)


def tell(case: Case) -> str:
    ending = "comes" if case.comes else "is damaged: `read` returns False"
    blocks = " ".join(case.host) or "none"
    return f"slots of the host: {case.slots}, in use: {case.used}; its blocks: {blocks}. Block z {ending}."


MISTAKES = """
`read` returned False: the row may hold anything, and under this hash it would give wrong tokens. Don't register it.
~ if read(block_hash, floor.row(slot)) => if read(block_hash, floor.row(slot)) or True
or - if read ... floor.fill
+ floor.fill(slot, block_hash, depth)
+ if read(block_hash, floor.row(slot)):
The slot of a block that didn't come must be released, or it's lost.
- floor.release
The slot is returned in use: until the caller has copied it, nothing else may take it.
> floor.fill => floor.release([slot])
or < floor.fill => floor.release([slot])
If all slots are in use, there is no room: return None.
- if not floor.free_queue
- return None
A block that has come isn't found before `fill` registers it.
- floor.fill => pass
Slot 0 is a slot, too: only None means that there is none.
> slot: int => if not slot: return None
Take the slot with `take`: it lets the block that is there move down, and takes an empty one first.
~ floor.take() => next(iter(floor.free_queue))
"""

TASK = Task(
    reference="lessons_lib.floors.fetching:fetch_block",
    cases=cases,
    run=run,
    tell=tell,
    known=mistakes(MISTAKES),
    about={
        "returned": "Return the slot if the block came; None if it didn't, or if no slot is free.",
        "what can be found, and what it holds": "Register the block once `read` has written it to your slot's row.",
        "slots in use, and their users": "The slot has one user if the block came; if not, it's released.",
        "depths": "`depth` is the number of blocks in front of this one: pass it on.",
        "blocks that were asked for": "`read` is called once, if there is a slot.",
        "the order in which slots are taken": "`floor.release` an empty slot: then it is the next to be taken.",
    },
)

EXERCISE = TASK.exercise(
    id="20.3",
    title="a block from elsewhere",
    hints=(
        "Two things can go wrong: there is no slot, or the block doesn't come. What must be undone in each case?",
        "Take a slot, let `read` write to its row, and register it only if that returned True. If not, release it.",
        "`if not floor.free_queue`; `slot = floor.take()`; `if read(block_hash, floor.row(slot))`; "
        "`floor.fill(slot, block_hash, depth)`; `floor.release([slot])`.",
    ),
)
