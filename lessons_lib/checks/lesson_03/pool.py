"""Judges 03.1, `BlockPool`: every block is free or allocated, the order is kept, and a refusal changes nothing."""

from collections import deque
from random import Random

from lessons_lib.checks.exercise import Mistake, call, short
from lessons_lib.checks.lesson_03.books import counted, is_whole, queue_of, refused, used_of
from lessons_lib.checks.lesson_03.cost import check_cost
from lessons_lib.kv_cache.block_pool import OutOfBlocks


def check_block_pool(attempt) -> None:
    _check_allocate(attempt)
    _check_too_many(attempt)
    _check_free(attempt)
    _check_refusals(attempt)
    _check_long_run(attempt)
    check_cost(attempt)


def _allocate(pool, count: int, case: str) -> list[int]:
    """Allocate blocks that are free, and compare with the front of the queue as it was."""
    free, used = queue_of(pool), used_of(pool)
    try:
        got = call(pool.allocate, count, case=case)
    except (OutOfBlocks, ValueError) as error:
        raise Mistake(
            f"`allocate({count})` raised {type(error).__name__}, with {counted(len(free), 'block')} free.",
            case=case,
            idea="Refuse only if `count` exceeds the number of free blocks. The last free block can be allocated too, "
            "and 0 blocks always can.",
        ) from None
    _check_answer(got, count, free, case)
    blocks = [int(block) for block in got]
    if blocks != free[:count]:
        idea = (
            "Take from the front: `popleft()`. Freed blocks go to the end, so the block that has been free longest is "
            "allocated first."
        )
        if sorted(blocks) == sorted(free[:count]):
            idea = "These are the right blocks in another order. Return them in the order of the queue."
            if blocks == sorted(blocks):
                idea += " Do you sort them, or do they come from a set?"
        raise Mistake(
            f"`allocate({count})` should return {free[:count]}, the front of the queue; yours returned "
            f"{short(blocks)}.",
            case=case,
            idea=idea,
        )
    _check_containers(pool, free[count:], used | set(blocks), case)
    return blocks


def _check_answer(got, count: int, free: list[int], case: str) -> None:
    if got is None:
        raise Mistake(
            f"`allocate({count})` should return the list {short(free[:count])}; yours returned None.",
            case=case,
            idea="The caller needs the block ids for its block table.",
        )
    if not isinstance(got, list):
        idea = (
            "A set has no order, and the order of the blocks is the order of the request's tokens."
            if isinstance(got, (set, frozenset))
            else ""
        )
        if isinstance(got, (tuple, deque)):
            idea = "The blocks are right. A block table joins such lists with `+`, which takes only another list."
        raise Mistake(
            f"`allocate({count})` should return a list, {short(free[:count])}; yours returned {type(got).__name__}: "
            f"{short(got)}.",
            case=case,
            idea=idea or "Always return a list, even for one block: `[0]`, not `0`.",
        )
    if len(got) != count:
        raise Mistake(
            f"`allocate({count})` should return {counted(count, 'block')}; yours returned {len(got)}: "
            f"{short(list(got))}.",
            case=case,
        )
    if not all(is_whole(block) for block in got):
        raise Mistake(
            f"`allocate` should return block ids, which are ints; yours returned {short(list(got))}.", case=case
        )


def _check_containers(pool, free: list[int], used: set[int], case: str) -> None:
    """`free_queue` and `used` contain what they should, the queue in its order."""
    queue, in_use = queue_of(pool), used_of(pool)
    if not all(is_whole(block) for block in queue):
        raise Mistake(
            f"the free queue should contain block ids, which are ints; yours is {short(queue)}.",
            case=case,
            idea="`append` puts the list itself into the queue, as one element; `extend` adds its elements.",
        )
    if in_use != used:
        raise Mistake(
            f"`used` should be {short(used)}; yours is {short(in_use)}.",
            case=case,
            idea="`used` contains exactly the blocks that are allocated now: `allocate` adds them, `free` removes "
            "them.",
        )
    if sorted(queue) != sorted(free):
        raise Mistake(
            f"the free queue should contain {short(free)}; yours contains {short(queue)}.",
            case=case,
            idea="A block is either in `free_queue` or in `used`, never in both, never in neither.",
        )
    if queue != free:
        raise Mistake(
            f"the free queue should be {short(free)}, in this order; yours is {short(queue)}.",
            case=case,
            idea="Freed blocks go to the end, and of these the last one listed goes first. Does their order come from "
            "a set? It has none.",
        )


def _check_allocate(attempt) -> None:
    pool = attempt(3, 16)
    case = "pool = BlockPool(3, 16); `pool.allocate(2)`."
    _allocate(pool, 2, case)
    _allocate(pool, 1, case + " Then `pool.allocate(1)`: the last one.")
    _allocate(pool, 0, case + " Then `pool.allocate(1)`, then `pool.allocate(0)`.")
    _allocate(attempt(3, 16), 3, "pool = BlockPool(3, 16); `pool.allocate(3)`: all of them.")


def _check_too_many(attempt) -> None:
    for first, count in ((2, 3), (4, 1), (0, 5)):
        pool = attempt(4, 16)
        case = f"pool = BlockPool(4, 16); `pool.allocate({first})`, then `pool.allocate({count})`."
        used = set(_allocate(pool, first, case))
        refused(
            OutOfBlocks, pool.allocate, count,
            doing=f"allocating {counted(count, 'block')} with {4 - first} free",
            case=case,
            idea="All or none: a request can do nothing with only some of its blocks, and other requests would lack "
            "them. Compare with `len(self.free_queue)` first.",
            unchanged=lambda pool=pool, used=used, case=case: _check_containers(
                pool, [block for block in range(4) if block not in used], used, case
            ),
        )  # fmt: skip
    pool = attempt(4, 16)
    case = "pool = BlockPool(4, 16); `pool.allocate(-1)`."
    refused(
        ValueError, pool.allocate, -1,
        doing="allocating -1 blocks",
        case=case,
        idea="Python accepts a negative count silently: `range(-1)` is empty, and `[:-1]` is all but the last. The "
        "caller's mistake then shows up somewhere else.",
        unchanged=lambda: _check_containers(pool, [0, 1, 2, 3], set(), case),
    )  # fmt: skip


def _check_free(attempt) -> None:
    pool = attempt(5, 16)
    case = (
        "pool = BlockPool(5, 16); `allocate(3)` returns [0, 1, 2], `allocate(1)` returns [3]; `pool.free([0, 1, 2])`."
    )
    _allocate(pool, 3, case)
    _allocate(pool, 1, case)
    call(pool.free, [0, 1, 2], case=case)
    _name_wrong_order(queue_of(pool), case)
    _check_containers(pool, [4, 2, 1, 0], {3}, case)
    _allocate(pool, 2, case + " Then `allocate(2)`.")
    call(pool.free, [], case=case + " Then `allocate(2)`, then `free([])`, which changes nothing.")
    _check_containers(pool, [1, 0], {2, 3, 4}, case + " Then `allocate(2)`, then `free([])`, which changes nothing.")
    call(pool.free, (3,), case=case + " Then `allocate(2)`, then `free((3,))`: a tuple is fine, too.")
    _check_containers(pool, [1, 0, 3], {2, 4}, case + " Then `allocate(2)`, then `free((3,))`: a tuple is fine, too.")
    pool = attempt(9, 16)
    case = "pool = BlockPool(9, 16); `allocate(9)` returns [0, 1, 2, 3, 4, 5, 6, 7, 8]; `free([2, 8, 1])`."
    _allocate(pool, 9, case)
    call(pool.free, [2, 8, 1], case=case)  # a set of these three isn't sorted
    _name_sorted_blocks(queue_of(pool), [], [2, 8, 1], case)
    _check_containers(pool, [1, 8, 2], {0, 3, 4, 5, 6, 7}, case)


def _name_wrong_order(queue: list[int], case: str) -> None:
    """Recognize the order in which the three blocks were put back."""
    recognised = (
        (
            [4, 0, 1, 2],
            "The blocks are listed in the order of the request's tokens. Put them back last to first, "
            "`reversed(blocks)`, so that the request's tail is reallocated before its beginning.",
        ),
        (
            [2, 1, 0, 4],
            "You put them at the front of the queue. They go to the end, after block 4, which has been free longer.",
        ),
        (
            [0, 1, 2, 4],
            "You put them at the front of the queue, or sorted it. They go to the end, after 4, last block first.",
        ),
    )
    for wrong, idea in recognised:
        if queue == wrong:
            raise Mistake(f"the free queue should be [4, 2, 1, 0]; yours is {queue}.", case=case, idea=idea)


def _name_sorted_blocks(queue: list[int], free: list[int], blocks: list[int], case: str) -> None:
    want = free + blocks[::-1]
    if queue != want and queue in (free + sorted(blocks), free + sorted(blocks, reverse=True)):
        raise Mistake(
            f"the free queue should be {short(want)}; yours is {short(queue)}: the freed blocks are sorted by id.",
            case=case,
            idea="`blocks` is in the order of the request's tokens, whatever the ids. Reverse that order: "
            "`reversed(blocks)`.",
        )


def _check_refusals(attempt) -> None:
    begin = "pool = BlockPool(5, 16); `allocate(3)` returns [0, 1, 2]; "
    lost = "It would be in the queue twice, and two requests would get it: each would overwrite the other's keys."
    lost_all = "They'd be in the queue twice, and two requests could get the same one and overwrite each other's keys."
    both = "Both times it is still in `used`, so also check that the blocks differ: `len(set(blocks)) == len(blocks)`. "
    anywhere = "Compare every block with all others: `len(set(blocks)) == len(blocks)`. "
    cases = (
        ([4], "freeing block 4, which is free,", lost),
        ([0, 4], "freeing block 0 together with block 4, which is free,", lost),
        ([4, 0], "freeing block 0 together with block 4, which is free,", lost),
        ([1, 1], "listing block 1 twice", both + lost),
        ([0, 1, 0], "listing block 0 twice, with another block in between,", "Neighbors differ. " + anywhere + lost),
        ([0, 0, 1], "listing block 0 twice, with another block at the end,", "The ends differ. " + anywhere + lost),
        ([0, 1, 1], "listing block 1 twice, with another block in front,", "The ends differ. " + anywhere + lost),
        (
            [2, 9],
            "freeing block 9, which this pool does not have,",
            "It belongs to another pool, or to none. Check whether it is in `used`.",
        ),
        ([-1], "freeing block -1", "No block has that id. Check whether it is in `used`."),
    )
    for blocks, doing, idea in cases:
        pool = attempt(5, 16)
        case = f"{begin}`free({blocks})`."
        _allocate(pool, 3, case)
        refused(
            ValueError, pool.free, blocks, doing=doing, case=case, idea=idea,
            unchanged=lambda pool=pool, case=case: _check_containers(pool, [3, 4], {0, 1, 2}, case),
        )  # fmt: skip
    pool = attempt(5, 16)
    case = begin + "`free([0, 1, 2])`, and then the same call again."
    _allocate(pool, 3, case)
    call(pool.free, [0, 1, 2], case=case)
    refused(
        ValueError, pool.free, [0, 1, 2], doing="freeing blocks a second time", case=case, idea=lost_all,
        unchanged=lambda: _check_containers(pool, [3, 4, 2, 1, 0], set(), case),
    )  # fmt: skip
    too_many = begin + "`free([0, 1, 2])`, then `allocate(6)`: a refused call keeps the queue's order, too."
    refused(
        OutOfBlocks, pool.allocate, 6, doing="allocating 6 blocks when 5 are free", case=too_many,
        idea="Compare `count` with the number of free blocks before you take any.",
        unchanged=lambda: _check_containers(pool, [3, 4, 2, 1, 0], set(), too_many),
    )  # fmt: skip


def _check_long_run(attempt) -> None:
    rng, pool = Random(3), attempt(12, 4)
    held: list[list[int]] = []
    for index in range(300):
        free = queue_of(pool)
        if held and rng.random() < 0.45:
            blocks = held.pop(rng.randrange(len(held)))
            case = f"call {index} of a long run with 12 blocks; queue {free}; `free({blocks})`."
            call(pool.free, list(blocks), case=case)
            _check_containers(pool, free + blocks[::-1], {block for others in held for block in others}, case)
        else:
            count = rng.randint(0, min(4, len(free)))
            held.append(
                _allocate(pool, count, f"call {index} of a long run with 12 blocks; queue {free}; `allocate({count})`.")
            )
