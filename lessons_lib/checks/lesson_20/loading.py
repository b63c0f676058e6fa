"""20.1, `load_prefix`: the first blocks of a prompt, from all floors."""

from collections.abc import Iterator
from random import Random
from typing import Any, NamedTuple

from lessons_lib.checks.diagnosis import Task, Watch, mistakes
from lessons_lib.checks.lesson_20.letters import Disk, Letters, fields, hashes, host_floor
from lessons_lib.floors.floored_pool import FlooredPrefixCache


class Case(NamedTuple):
    """A prompt; letters in free blocks of the pool, and in blocks of another sequence; the number of further free
    blocks; letters on the host, its slots, letters on the disk; the first block's depth; whether copies fail."""

    prompt: str
    cached: str
    used: str
    empty: int
    host: str
    slots: int
    disk: str
    depth: int = 0
    fails: int = 0


CASES = """
a a - 1 - 2 -
a - - 1 a 2 -
a - - 1 a 2 - 0 1
ab - - 1 ab 4 -
ab - x 0 ab 4 -
ab a - 2 b 2 -
ab b - 2 a 2 -
ab - ab 2 ab 4 -
abc a - 3 bc 4 - 0 1
abc - - 4 abc 6 - 5
abcd - - 4 abcd 4 -
abcd bd - 1 ac 4 -
abcd ab xy 1 cd 4 -
"""


def cases() -> Iterator[Case]:
    for prompt, cached, used, empty, host, slots, disk, *rest in fields(CASES):
        yield Case(prompt, cached, used, int(empty), host, int(slots), disk, *map(int, rest))
    draw = Random(20)
    for _ in range(20):
        places: dict[str, str] = dict.fromkeys(["cached", "used", "host", "disk", "nowhere"], "")
        prompt = "abcdefgh"[: draw.randint(1, 8)]
        for letter in prompt:
            places[draw.choices([*places], [3, 1, 4, 3, 0.5])[0]] += letter
        del places["nowhere"]
        yield Case(prompt, empty=draw.randint(1, 6), slots=draw.randint(8, 12), depth=draw.randint(0, 3), **places)


def run(attempt: Any, case: Case, watch: Watch) -> None:
    num_blocks = len(case.cached + case.used) + case.empty
    pool, mover = FlooredPrefixCache(num_blocks, 4), Letters(num_blocks, case.slots, case.fails == 1)
    pool.below = host_floor(case.host, mover, Disk(zip(hashes(case.disk), case.disk.encode())))
    filled = pool.allocate(len(case.used + case.cached))
    for block, letter in zip(filled, case.used + case.cached):
        mover.cells[block] = letter
        pool.cache_full_block(block, letter.encode())
        pool.depths[block] = case.depth + case.prompt.find(letter)
    pool.free(filled[len(case.used) :][::-1])
    asked, lend = hashes(case.prompt), pool.below.lend
    lent: dict[str, int] = {}

    def recorded(block_hashes: list[bytes], depth: int) -> list[int]:
        slots = lend(block_hashes, depth)
        lent.update((name.decode(), depth + index) for index, (name, _) in enumerate(zip(block_hashes, slots)))
        return slots

    pool.below.lend = recorded  # type: ignore[method-assign]

    def contents(blocks: Any) -> list[str] | None:
        return None if blocks is None else [mover.cells[block] for block in blocks]

    def look() -> dict[str, Any]:
        return {
            "the users of blocks": dict(sorted((mover.cells[block], n) for block, n in pool.ref_count.items())),
            "number of free blocks": len(pool.free_queue),
            "slots of the host in use": sorted(pool.below.used),
            "what `pool.match_prefix` finds": contents(pool.match_prefix(asked)),
            "the depths that `lend` got": {} if case.fails else dict(sorted(lent.items())),
        }

    watch(f"`load_prefix(pool, hashes, {case.depth})`", attempt, pool, asked, case.depth, look=look, returns=contents,
          subject="what the returned blocks hold")  # fmt: skip


def tell(case: Case) -> str:
    places = {"free in the pool": case.cached, "in use in the pool": case.used, "on the host": case.host,
              "on the disk": case.disk}  # fmt: skip
    told = "; ".join(f"{name}: {' '.join(letters)}" for name, letters in places.items() if letters)
    return (
        f"the prompt's blocks are {' '.join(case.prompt)} (each holds its letter). {told or 'None is anywhere'}. "
        f"Further free blocks: {case.empty}; slots on the host: {case.slots}; `depth` = {case.depth}."
        f"{' Copies fail.' * case.fails}"
    )


MISTAKES = """
Found blocks that aren't touched are still free: the next allocation overwrites them.
- pool.touch
You look in the pool alone. Blocks that it has evicted are on the floors below: `pool.below.lend`.
- slots = pool.below.lend => slots = []
You look in the pool first, and never again. Behind a block from the host, the next one may be in the pool.
~ if found := pool.match_prefix(missing) => if not blocks and (found := pool.match_prefix(missing))
`lend` may return fewer slots, and stops at a block that is only in the pool. Go on until there is no more.
> blocks += loaded => break
As many blocks can be loaded as are free: ask for `len(pool.free_queue)`, no more and no fewer.
~ missing[: len(pool.free_queue)] => missing
or ~ missing[: len(pool.free_queue)] => missing[: len(pool.free_queue) - 1]
A slot that was lent stays in use until you release it, and the host fills up.
- pool.below.release
A slot that isn't in use can be overwritten: release it after `load`, not before.
- loaded
- is_loaded
- pool.below.release
+ pool.below.release(slots)
+ loaded = pool.replace(len(slots))
+ is_loaded = pool.below.load(slots, loaded)
Allocate as many blocks as `lend` returned slots, which may be fewer than you asked for.
~ pool.replace(len(slots)) => pool.replace(len(missing[: len(pool.free_queue)]))
`load` wants the slots first: it copies from them, to the blocks.
~ load(slots, loaded) => load(loaded, slots)
The blocks to load are the first of those that are *missing*: ask for their hashes.
~ missing[: len(pool.free_queue)] => block_hashes[: len(pool.free_queue)]
`depth` is that of the first hash. Those behind it are deeper, by the number of blocks in front of them.
~ depth + len(blocks) => depth
or ~ depth + len(blocks) => len(blocks)
The copy failed, so these blocks hold anything. Returned, they would give wrong tokens.
~ if not slots or not is_loaded => if not slots
The copy failed: the blocks for it aren't needed. Free them.
~ pool.free(loaded) => pass
or ~ pool.free(loaded) => pool.free(slots)
What was found before the failure is right. Return it, in use: the caller computes the rest.
- break => return blocks if is_loaded else []
or ~ pool.free(loaded) => pool.free(loaded if is_loaded else blocks + loaded)
Look in the pool first: a block that is there needs no copy.
~ if found := => if not pool.below.renew(missing[0]) and (found :=
~ pool.match_prefix(missing) => pool.match_prefix(missing))
or ~ pool.match_prefix(missing) => []
A copy needs blocks of its own. Those that are found on the way may be free: touch them first.
~ pool.touch(found) => later = [*locals().get("later", []), *found]
- return blocks
+ pool.touch(locals().get("later", []))
+ return blocks
"""

TASK = Task(
    reference="lessons_lib.floors.loading:load_prefix",
    cases=cases,
    run=run,
    tell=tell,
    known=mistakes(MISTAKES),
    about={
        "returned": "Return blocks of the pool in the order of the prompt, up to the first that is on no floor or for "
        "which none is free. Look in the pool, and touch, only what comes next: later blocks may move meanwhile.",
        "the users of blocks": "All returned blocks are in use, once more than before, and no others.",
        "slots of the host in use": "Release each lent slot once.",
        "what `pool.match_prefix` finds": "The scheduler registers the hashes. Don't.",
        "the depths that `lend` got": "`block_hashes[i]` has the depth `depth + i`. Ask for no more blocks than are "
        "free, and replace only as many as were lent: more may evict blocks that you need.",
        "raised OutOfBlocks": "Ask `lend` for at most `len(pool.free_queue)` blocks: none, if none is free.",
    },
)

EXERCISE = TASK.exercise(
    id="20.1",
    title="a prompt's blocks from all floors",
    hints=(
        "At each point there is a next missing block. Where may it be? Look in the pool first. What could happen to a "
        "block that you found there, while you load the next one?",
        "Loop while hashes are missing. If `match_prefix` finds some, touch them and go on behind. Otherwise: lend, "
        "replace, load, release, and go on. Stop if nothing was lent or the copy failed.",
        "`while missing := block_hashes[len(blocks):]:`; `slots = pool.below.lend(missing[: len(pool.free_queue)], "
        "depth + len(blocks))`; `loaded = pool.replace(len(slots))`; `is_loaded = pool.below.load(slots, loaded)`; "
        "`pool.below.release(slots)`.",
    ),
)
