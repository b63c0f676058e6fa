"""Judges 11.2, `SharedBlockPool`: how users are counted, and where a block stands in the free queue."""

from collections import Counter
from random import Random

from lessons_lib.checks.exercise import Mistake, call, short
from lessons_lib.checks.lesson_03.books import queue_of, refused, used_of
from lessons_lib.viz.words import marked


def check_shared_pool(attempt) -> None:
    _check_touch_used(attempt)
    _check_free(attempt)
    _check_touch_free(attempt)
    _check_free_shared(attempt)
    _check_order(attempt)
    _check_free_refused(attempt)
    _check_random_run(attempt)


def expect(pool, ref_count: dict[int, int], queue: list[int], case: str, idea: str = "", queue_idea: str = "") -> None:
    """The pool's counts, its free queue and its used blocks are these."""
    counted = dict(pool.ref_count)
    if counted != ref_count:
        raise Mistake(
            f"`ref_count` should be {ref_count}; yours is {short(counted)}.",
            case=case,
            idea=_count_idea(counted, ref_count, idea),
        )
    found = queue_of(pool)
    if sorted(found) != sorted(queue):
        raise Mistake(
            f"the free queue should contain {queue}; yours contains {short(found)}.",
            case=case,
            idea=_queue_idea(found, idea),
        )
    if found != queue:
        raise Mistake(
            f"the free queue should be {queue}, in this order; yours is {marked(queue, found)}.",
            case=case,
            idea=queue_idea or idea,
        )
    if used_of(pool) != set(ref_count):
        idea = (
            "`used` contains every block that a sequence uses, no matter how it left the free queue: through "
            "`allocate` or through `touch`, with `self.used.update(blocks)`. Lesson 03's `free` "
            "refuses blocks that are not in it."
        )
        if used_of(pool) > set(ref_count):
            idea = (
                "A block that no sequence uses anymore leaves `used` when it joins the free queue. `super().free` does "
                "both."
            )
        raise Mistake(
            f"`used` should be {short(set(ref_count))}; yours is {short(used_of(pool))}.", case=case, idea=idea
        )


def _count_idea(counted: dict, wanted: dict, idea: str) -> str:
    zeros = [block for block, count in counted.items() if count == 0]
    if any(block in wanted for block in zeros):
        return (
            "A block that a sequence uses counts at least 1. One without an entry had no user before: what is its "
            "count after a `touch`?"
        )
    if zeros:
        return "A block that no sequence uses has no entry in `ref_count`: delete the entry when the count drops to 0."
    return idea


def _queue_idea(found: list, idea: str) -> str:
    if len(set(found)) < len(found):
        return "A block is in the queue twice. Two sequences would get it, and each would overwrite the other's keys."
    return idea


def touch(pool, blocks: list[int], case: str) -> None:
    try:
        call(pool.touch, list(blocks), case=case)
    except (ValueError, LookupError) as error:
        if isinstance(error, IndexError) and blocks:
            raise
        idea = (
            "Any block of the pool may be touched. One that is in use has an entry in `ref_count` and isn't in the "
            "free queue. A free one is in the queue and has no entry."
        )
        if not blocks:
            raise Mistake(
                f"`touch([])` should change nothing; yours raised {type(error).__name__}: {str(error)[:100]}.",
                case=case,
                idea="A sequence for which nothing is found touches an empty list.",
            ) from None
        raise Mistake(
            f"`touch` raised {type(error).__name__}: {str(error)[:100]}. It should touch these blocks.",
            case=case,
            idea=idea,
        ) from None
    if not hasattr(pool.free_queue, "popleft"):
        raise Mistake(
            f"`free_queue` should still be a queue; yours is a {type(pool.free_queue).__name__}.",
            case=case,
            idea="`allocate` needs its `popleft`. Take the blocks out of the queue that is there: "
            "`self.free_queue.pop(block, None)`.",
        )


def free_all(pool, blocks: list[int], case: str) -> None:
    try:
        call(pool.free, list(blocks), case=case)
    except (ValueError, KeyError) as error:
        idea = (
            "Refuse a block that is not in use and a block that appears twice in the list, nothing else. Each of "
            "the sequences that use a block may free it once."
        )
        raise Mistake(
            f"these blocks are in use, but `free` raised {type(error).__name__}: {str(error)[:100]}",
            case=case,
            idea=idea,
        ) from None


def _used(attempt, num_blocks: int, count: int):
    """A pool whose first `count` blocks one sequence uses."""
    pool = attempt(num_blocks, 16)
    call(pool.allocate, count, case=f"a new pool of {num_blocks} blocks; `allocate({count})`.")
    return pool


def _check_touch_used(attempt) -> None:
    pool = _used(attempt, 6, 3)
    case = "one sequence uses blocks 0, 1, 2; `touch([0, 1])`."
    counts = (
        "One more sequence uses each of these blocks: the count is 2 for 0 and 1, and still 1 for 2. None of them was "
        "in the free queue, so the queue stays as it is."
    )
    touch(pool, [0, 1], case)
    expect(pool, {0: 2, 1: 2, 2: 1}, [3, 4, 5], case, counts)
    case += " Then `touch([0])`."
    touch(pool, [0], case)
    more = "Any number of sequences may use a block. Add one to the current count."
    expect(pool, {0: 3, 1: 2, 2: 1}, [3, 4, 5], case, more)
    case = "one sequence uses blocks 0, 1, 2; `touch([])`."
    pool = _used(attempt, 6, 3)
    touch(pool, [], case)
    none = "An empty list changes nothing."
    expect(pool, {0: 1, 1: 1, 2: 1}, [3, 4, 5], case, none, none)


def _freed(attempt, case: str):
    """A pool whose first three of six blocks were used and are free."""
    pool = _used(attempt, 6, 3)
    free_all(pool, [0, 1, 2], case)
    return pool


def _check_free(attempt) -> None:
    case = "one sequence uses blocks 0, 1, 2; `free([0, 1, 2])`."
    _check_books_after_free(_freed(attempt, case), case)
    pool = _used(attempt, 6, 1)
    case = "one sequence uses block 0; `free([0])`, then `free([])`."
    free_all(pool, [0], case)
    free_all(pool, [], case)
    expect(pool, {}, [1, 2, 3, 4, 5, 0], case, "A sequence without blocks frees nothing.")


def _check_books_after_free(pool, case: str) -> None:
    """Blocks 0, 1, 2 of six were freed by the only sequence that used them."""
    lower = (
        "The last sequence that used them is gone: lower the count, delete an entry that drops to 0, and put the block "
        "into the free queue."
    )
    if queue_of(pool)[:3] == [2, 1, 0] or queue_of(pool)[:3] == [0, 1, 2]:
        front = (
            "Freed blocks join the *end* of the queue. At the front they would be allocated next, although they "
            "were used more recently than all others."
        )
        raise Mistake(f"the free queue should be [3, 4, 5, 2, 1, 0]; yours is {queue_of(pool)}.", case=case, idea=front)
    tail = (
        "The last block of the sequence comes first: it is useless without the ones before it, so it should be lost "
        "before them. If you call `super().free`: it reverses the list that it gets. How many lists does it get from "
        "you, and in which order?"
    )
    expect(pool, {}, [3, 4, 5, 2, 1, 0], case, lower, tail)


def _check_touch_free(attempt) -> None:
    before = "blocks 0, 1, 2 were used and freed; the free queue is [3, 4, 5, 2, 1, 0]."
    case = f"{before} `touch([0, 1])`."
    pool = _freed(attempt, case)
    touch(pool, [0, 1], case)
    idea = (
        "A block that is in use again leaves the free queue, wherever it is in it, and no other block does. If it "
        "stays there, it is allocated a second time."
    )
    stays = (
        "The other blocks of the queue keep their order. `self.free_queue.pop(block, None)` takes one block out and "
        "moves no other."
    )
    once = "No sequence used these blocks, and now one does."
    if set(pool.ref_count) - {0, 1}:
        once = "Touch the blocks that are given, 0 and 1. `allocate` takes others, from the front of the queue."
    expect(pool, {0: 1, 1: 1}, [3, 4, 5, 2], case, once if dict(pool.ref_count) != {0: 1, 1: 1} else idea, stays)
    case += " Then `allocate(3)`."
    got = call(pool.allocate, 3, case=case)
    if list(got) != [3, 4, 5]:
        raise Mistake(f"`allocate(3)` should return [3, 4, 5]; yours returned {short(got)}.", case=case, idea=idea)
    pool = _used(attempt, 6, 3)
    free_all(pool, [2], before)
    case = "blocks 0 and 1 are in use, block 2 was used and freed; the free queue is [3, 4, 5, 2]. `touch([1, 2])`."
    touch(pool, [1, 2], case)
    expect(pool, {0: 1, 1: 2, 2: 1}, [3, 4, 5], case, "Some blocks of one call may be free, and others in use.")


def _check_free_shared(attempt) -> None:
    pool = _used(attempt, 6, 3)
    case = "one sequence uses blocks 0, 1, 2, and a second one uses 0 and 1 too; the second one frees [0, 1]."
    touch(pool, [0, 1], case)
    free_all(pool, [0, 1], case)
    other = (
        "The other sequence still uses 0 and 1, and reads from them. Only blocks with a count of 1 go back to the "
        "queue; for the others, just lower the count."
    )
    expect(pool, {0: 1, 1: 1, 2: 1}, [3, 4, 5], case, other)
    pool = _used(attempt, 6, 3)
    case = "one sequence uses blocks 0, 1, 2, and a second one uses 0 and 1 too; the first one frees [0, 1, 2]."
    touch(pool, [0, 1], case)
    free_all(pool, [0, 1, 2], case)
    expect(pool, {0: 1, 1: 1}, [3, 4, 5, 2], case, other)
    case += " Then the second one frees [0, 1]."
    free_all(pool, [0, 1], case)
    expect(pool, {}, [3, 4, 5, 2, 1, 0], case, "Now no sequence uses them anymore.")


def _check_order(attempt) -> None:
    pool = _used(attempt, 5, 4)
    first = "five blocks; X uses 0 and 1, Y uses 2 and 3. X is freed, then Y."
    free_all(pool, [0, 1], first)
    free_all(pool, [2, 3], first)
    expect(pool, {}, [4, 1, 0, 3, 2], first, "", "Blocks that were freed earlier are closer to the front.")
    case = first + " Then X's blocks are touched and freed again."
    touch(pool, [0, 1], case)
    free_all(pool, [0, 1], case)
    recent = (
        "X's blocks were used last, so Y's are now the least recently used. A freed block joins the end of the "
        "queue, even if it was in the queue before."
    )
    expect(pool, {}, [4, 3, 2, 1, 0], case, "", recent)
    case = "three free blocks; the queue is [2, 1, 0]. A sequence allocates [2, 1], and frees them in this order."
    pool = _used(attempt, 3, 3)
    free_all(pool, [0, 1, 2], case)
    free_all(pool, pool.allocate(2), case)
    given = "The order of the tokens is the order of the list that `free` is given, whatever the ids of the blocks are."
    expect(pool, {}, [0, 1, 2], case, "", given)


def _check_free_refused(attempt) -> None:
    cases = (
        (
            [3],
            "freeing block 3, which is free,",
            (
                "A free block that is freed again would be in the queue twice. `super().free` refuses it, if you pass "
                "it the block before you change anything."
            ),
        ),
        (
            [0, 4],
            "freeing block 0 and, with it, block 4, which is free,",
            (
                "Check all blocks before you change anything. `super().free` checks those that you pass to it, so call "
                "it before you lower a count."
            ),
        ),
        (
            [1, 1],
            "listing block 1 twice, even though two sequences use it,",
            (
                "A sequence uses a block once. Here both references would be gone although a second sequence still "
                "reads the block: compare `len(set(blocks))` with `len(blocks)`."
            ),
        ),
        ([0, 1, 0], "listing block 0 twice", "A sequence uses a block once."),
        (
            [9],
            "freeing block 9, which this pool does not have,",
            "`super().free` refuses it, if you pass it the block.",
        ),
    )
    for blocks, doing, idea in cases:
        pool = _used(attempt, 6, 3)
        case = f"blocks 0, 1, 2 are in use, block 1 by two sequences; `free({blocks})`."
        touch(pool, [1], case)
        refused(
            ValueError, pool.free, blocks, doing=doing, case=case, idea=idea,
            unchanged=lambda pool=pool, case=case: expect(pool, {0: 1, 1: 2, 2: 1}, [3, 4, 5], case),
        )  # fmt: skip


def _check_random_run(attempt) -> None:
    """Sequences arrive, take over the beginning of another one, alive or gone, and end at random."""
    rng, pool = Random(11), attempt(14, 4)
    tables: list[list[int]] = []
    ended: list[list[int]] = []
    queue = list(range(14))
    for step in range(300):
        case = f"step {step} of a long run; sequences use {short(tables)}; the free queue is {short(queue)}; "
        kind = rng.random()
        if tables and kind < 0.45:
            blocks = tables.pop(rng.randrange(len(tables)))
            case += f"`free({blocks})`."
            free_all(pool, blocks, case)
            others = {block for own in tables for block in own}
            queue += [block for block in reversed(blocks) if block not in others]
            ended.append(blocks)
        elif (tables or ended) and kind < 0.75:
            source = rng.choice([*tables, *ended[-3:]])
            blocks = source[: rng.randint(1, len(source))]
            case += f"`touch({blocks})`."
            touch(pool, blocks, case)
            queue = [block for block in queue if block not in blocks]
            tables.append(blocks)
        elif queue:
            count = rng.randint(1, min(4, len(queue)))
            case += f"`allocate({count})`."
            blocks = list(call(pool.allocate, count, case=case))
            if blocks != queue[:count]:
                raise Mistake(f"`allocate({count})` should return {queue[:count]}; yours returned {blocks}.", case=case)
            queue = queue[count:]
            tables.append(blocks)
        every = "Each `touch` and each `free` changes the count of each of its blocks by one, and moves it at 0 or 1."
        expect(pool, dict(Counter(block for own in tables for block in own)), queue, case, every)
