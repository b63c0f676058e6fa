"""20.3, `receive_blocks`: a prompt's blocks from another engine."""

from collections.abc import Iterator
from typing import Any, NamedTuple

from lessons_lib.checks.diagnosis import Task, Watch, mistakes
from lessons_lib.checks.exercise import Exercise
from lessons_lib.checks.lesson_20.letters import Letters, hashes, host_floor


class Case(NamedTuple):
    """A prompt, a letter for each block; letters that the host has, and its slots; what comes, and what is damaged."""

    prompt: str
    host: str
    slots: int
    comes: str
    damaged: str


# The fields of a case, - for none
CASES = """
a - 2 a -
a - 2 - -
a - 2 - a
a a 2 - -
ab - 4 ab -
ab - 4 a -
ab - 4 b a
abc - 4 ac b
abc b 4 ac -
abc b 4 abc -
abc ac 3 b -
abcd - 2 abcd -
abcd xyz 4 abcd -
abcd xyz 4 ab c
abcd - 8 abd -
abc xac 4 b -
abcd d 3 abc -
abcdef xya 4 bcdef -
"""


def cases() -> Iterator[Case]:
    for line in CASES.strip().split("\n"):
        prompt, host, slots, comes, damaged = line.replace("-", "").split(" ")
        yield Case(prompt, host, int(slots), comes, damaged)


def run(attempt: Any, case: Case, watch: Watch) -> None:
    mover = Letters(0, case.slots)
    floor = host_floor(case.host, mover)
    asked: list[str] = []

    def receive(block_hash: bytes, row: list[str]) -> bool:
        asked.append(block_hash.decode())
        if asked[-1] in case.comes + case.damaged:
            row[0] = asked[-1] if asked[-1] in case.comes else "#"
        return asked[-1] in case.comes

    def look() -> dict[str, Any]:
        slots = [slot for slot in floor.free_queue if slot in floor.block_to_hash]
        return {
            "what can be found, and what it holds": {h.decode(): mover.host.rows[s][0] for h, s in
                                                     sorted(floor.hash_to_block.items())},
            "slots in use": sorted(floor.used),
            "blocks that were asked for": asked,
            "the order in which blocks leave": [floor.block_to_hash[slot].decode() for slot in slots],
            "depths": {floor.block_to_hash[slot].decode(): floor.depths[slot] for slot in sorted(slots)},
        }  # fmt: skip

    watch("`receive_blocks(floor, hashes, receive)`", attempt, floor, hashes(case.prompt), receive, look=look)


def tell(case: Case) -> str:
    states = {"on the host": case.host, "come": case.comes, "come damaged": case.damaged}
    told = "; ".join(f"{name}: {' '.join(letters)}" for name, letters in states.items() if letters)
    return f"the prompt's blocks are {' '.join(case.prompt)}; {case.slots} slots. {told or 'None comes'}."


MISTAKES = """
`receive` returned False: the row may hold anything, and under this hash it would give wrong tokens. Don't register it.
- if not receive
+ if not receive(block_hash, floor.row(slot)) and False:
or
- if not receive ... floor.fill
+ floor.fill(slot, block_hash, depth)
+ if not receive(block_hash, floor.row(slot)):
+     floor.release([slot])
+     break
A block behind one that is missing is of no use: keys and values depend on all tokens before. Stop there.
- break
+ break
- floor.release([slot])
- break
+ floor.release([slot])
+ continue
The slot of a block that didn't come must be released, or it's lost.
- floor.release([slot])
All slots must be released in the end: a slot in use can't be lent nor leave.
- floor.release(slots)
If each slot is released at once, a long prompt pushes out its own first blocks. Keep all in use to the end.
- floor.fill
+ ...
+ floor.release([slot])
+ slots.append(slot)
+ continue
- floor.touch
+ floor.renew(block_hash)
+ slots.append(slot)
+ continue
- floor.release(slots)
or
- slots.append
+ ...
+ floor.release([slot])
- floor.release(slots)
A block that is here already needn't come again.
~ if (slot := floor.hash_to_block.get(block_hash)) is not None => if False
A block that is here is free, so the next one that comes may take its slot. Touch it.
- floor.touch
+ pass
- floor.release(slots)
+ floor.release([slot for slot in slots if slot in floor.used])
If all slots are in use, no more blocks have room: stop.
- elif not floor.free_queue
- break
+ elif False:
+     pass
A block's depth is its place in the prompt.
~ block_hash, depth) => block_hash, 0)
or
~ block_hash, depth) => block_hash, depth + 1)
Return how many of the first blocks are here, whether they came now or were here before.
= return len(block_hashes)
or
- slots: list
+ came = 0
+ ...
- floor.fill
+ ...
+ came += 1
= return came
or
= return slots
The last block of a prompt should leave first. `release` sees to that if it gets all slots in the order of the prompt.
- floor.release(slots)
+ floor.release(slots[::-1])
or
- floor.release(slots)
+ for slot in slots: floor.release([slot])
A block that has come isn't found before `fill` registers it.
- floor.fill
"""

TASK = Task(
    reference="lessons_lib.floors.receiving:receive_blocks",
    cases=cases,
    run=run,
    tell=tell,
    known=mistakes(MISTAKES),
    about={
        "returned": "Return how many of the first blocks are here, up to the first that isn't.",
        "what can be found, and what it holds": "`floor.fill` a slot once `receive` has returned True for it.",
        "slots in use": "Release every slot that you took or touched.",
        "blocks that were asked for": "Ask for each block that isn't here, in order, until one doesn't come.",
        "the order in which blocks leave": "`floor.release(slots)` once, with all slots in the order of the prompt.",
    },
)

EXERCISE = Exercise(
    id="20.3",
    title="blocks from another engine",
    reference=TASK.reference,
    test=TASK,
    hints=(
        "Three things may be true of a block: it is here, it comes, or it doesn't. What follows for those behind it?",
        "Go through the hashes. One that is here: touch its slot. Else take a slot, let `receive` write to its row, "
        "and register it if that returned True; if not, release the slot and stop. Release all others at the end.",
        "`slot = floor.hash_to_block.get(block_hash)`; `floor.touch([slot])`; `if not floor.free_queue: break`; `slot "
        "= floor.take()`; `if not receive(block_hash, floor.row(slot)): floor.release([slot]); break`; "
        "`floor.fill(slot, block_hash, depth)`; at the end `floor.release(slots)`.",
    ),
)
