"""Judges 11.2, `PrefixCache`: which blocks are found, how references are counted, and what is evicted first."""

from lessons_lib.checks.exercise import Mistake, call, short
from lessons_lib.checks.lesson_03.books import is_whole, queue_of, refused, used_of
from lessons_lib.checks.lesson_11.shared_run import check_random_run

HASHES = [bytes([byte]) * 32 for byte in range(1, 9)]


def check_prefix_cache(attempt) -> None:
    _check_match(attempt)
    _check_touch_used(attempt)
    _check_free(attempt)
    _check_touch_free(attempt)
    _check_touch_refused(attempt)
    _check_free_shared(attempt)
    _check_order(attempt)
    _check_free_refused(attempt)
    check_random_run(attempt)


def _filled(attempt, num_blocks: int, num_full: int):
    """A pool that has allocated blocks 0, 1, ..., all full, with the first hashes."""
    pool = attempt(num_blocks, 16)
    for block, block_hash in zip(pool.allocate(num_full), HASHES):
        pool.cache_full_block(block, block_hash)
    return pool


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
            idea=_queue_idea(found, queue, idea),
        )
    if found != queue:
        raise Mistake(
            f"the free queue should be {queue}, in this order; yours is {short(found)}.",
            case=case,
            idea=queue_idea or idea,
        )
    if used_of(pool) != set(ref_count):
        idea = (
            "`used` contains every block that a sequence uses, including those that left the free queue through "
            "`touch`: `self.used.update(blocks)`. Lesson 03's `free` refuses blocks that are not in it."
        )
        raise Mistake(
            f"`used` should be {short(set(ref_count))}; yours is {short(used_of(pool))}.", case=case, idea=idea
        )


def _count_idea(counted: dict, ref_count: dict, idea: str) -> str:
    if any(count == 0 for count in counted.values()):
        return (
            "A block that no sequence uses has no entry in `ref_count`: delete the entry when the count drops to "
            "0. `touch` checks whether a block has one."
        )
    return idea


def _queue_idea(found: list, queue: list, idea: str) -> str:
    if len(set(found)) < len(found):
        return "A block is in the queue twice. Two sequences would get it, and each would overwrite the other's keys."
    return idea


def _match(pool, hashes: list[bytes], want: list[int], case: str, idea: str) -> None:
    try:
        got = call(pool.match_prefix, list(hashes), case=case)
    except KeyError:
        lookup = (
            "A hash may be unknown: no sequence ever had these tokens, or their block was evicted. Check whether "
            "it is in `self.hash_to_block` first."
        )
        raise Mistake(f"`match_prefix` should return {want}; yours raised KeyError.", case=case, idea=lookup) from None
    if not isinstance(got, (list, tuple)) or not all(is_whole(block) for block in got):
        raise Mistake(
            f"`match_prefix` should return a list of blocks, {want}; yours returned {short(got)}.",
            case=case,
            idea="`self.hash_to_block[block_hash]` is the block with that hash.",
        )
    if [int(block) for block in got] != want:
        raise Mistake(f"`match_prefix` should return {want}; yours returned {short(list(got))}.", case=case, idea=idea)


def _check_match(attempt) -> None:
    pool = _filled(attempt, 6, 3)
    begin = "blocks 0, 1, 2 are in use, with the hashes a, b, c; "
    a, b, c, x, y = HASHES[:5]
    all_found = "Go through the hashes in order, and collect their blocks as long as the hashes are known."
    _match(pool, [a, b, c], [0, 1, 2], begin + "`match_prefix([a, b, c])`.", all_found)
    _match(pool, [a, b], [0, 1], begin + "`match_prefix([a, b])`.", all_found)
    _match(
        pool,
        [a, b, x],
        [0, 1],
        begin + "`match_prefix([a, b, x])`; x is unknown.",
        "The blocks before the first unknown hash are still useful.",
    )
    gap = (
        "Blocks after a gap are useless: a sequence computes all its tokens from the first missing one on, "
        "including those that these blocks hold. Stop at the first unknown hash."
    )
    _match(pool, [a, x, c], [0], begin + "`match_prefix([a, x, c])`; x is unknown.", gap)
    _match(
        pool, [x, y], [], begin + "`match_prefix([x, y])`; both are unknown.", "Nothing is found, so the list is empty."
    )
    _match(pool, [], [], begin + "`match_prefix([])`.", "No hashes, no blocks.")
    expect(
        pool,
        {0: 1, 1: 1, 2: 1},
        [3, 4, 5],
        begin + "after some calls to `match_prefix`.",
        "`match_prefix` only looks blocks up. To use them, the caller calls `touch`.",
    )
    pool = attempt(6, 16)
    pool.allocate(4)
    pool.cache_full_block(3, a)
    pool.cache_full_block(1, b)
    _match(
        pool,
        [a, b],
        [3, 1],
        "block 3 has the hash a, block 1 the hash b; `match_prefix([a, b])`.",
        "Return the blocks in the order of the hashes, which is the order of the tokens.",
    )


def _touch(pool, blocks: list[int], case: str) -> None:
    try:
        call(pool.touch, list(blocks), case=case)
    except ValueError as error:
        idea = (
            "Refuse only a block that no sequence uses *and* that has no hash. A block in use may have no hash "
            "yet, and a free block with a hash may be shared."
        )
        raise Mistake(
            f"these blocks can be shared, but `touch` raised ValueError: {str(error)[:100]}", case=case, idea=idea
        ) from None


def _check_touch_used(attempt) -> None:
    pool = _filled(attempt, 6, 3)
    case = "one sequence uses blocks 0, 1, 2; `touch([0, 1])`."
    counts = "One more sequence uses each of these blocks: the count is 2 for 0 and 1, and still 1 for 2."
    _touch(pool, [0, 1], case)
    expect(pool, {0: 2, 1: 2, 2: 1}, [3, 4, 5], case, counts)
    case += " Then `touch([0])`."
    _touch(pool, [0], case)
    expect(
        pool,
        {0: 3, 1: 2, 2: 1},
        [3, 4, 5],
        case,
        "Any number of sequences may use a block. Add one to the current count.",
    )
    pool = attempt(6, 16)
    pool.allocate(2)
    case = "blocks 0 and 1 are in use and have no hashes; `touch([0, 1])`, as when a sequence is forked."
    _touch(pool, [0, 1], case)
    expect(pool, {0: 2, 1: 2}, [2, 3, 4, 5], case, counts)


def _free_all(pool, blocks: list[int], case: str) -> None:
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


def _freed(attempt, case: str):
    """A pool whose first three blocks have hashes and are free: the queue is [3, 4, 5, 2, 1, 0]."""
    pool = _filled(attempt, 6, 3)
    _free_all(pool, [0, 1, 2], case)
    return pool


def _check_touch_free(attempt) -> None:
    case = (
        "blocks 0, 1, 2 have the hashes a, b, c and were freed; the free queue is [3, 4, 5, 2, 1, 0]. `touch([0, 1])`."
    )
    pool = _freed(attempt, case)
    _check_books_after_free(pool, case.split(" `touch")[0])
    _touch(pool, [0, 1], case)
    idea = (
        "A block that is in use again must leave the free queue, wherever it is in it: `self.free_queue.pop(block, "
        "None)`. Otherwise it is allocated a second time."
    )
    expect(pool, {0: 1, 1: 1}, [3, 4, 5, 2], case, idea)
    got = call(pool.allocate, 3, case=case + " Then `allocate(3)`.")
    if list(got) != [3, 4, 5]:
        raise Mistake(
            f"`allocate(3)` should return [3, 4, 5]; yours returned {short(got)}.",
            case=case + " Then `allocate(3)`.",
            idea=idea,
        )
    _match(
        pool,
        HASHES[:3],
        [0, 1, 2],
        case + " Then `match_prefix([a, b, c])`.",
        "Shared blocks keep their hashes: a third sequence may find them.",
    )


def _check_books_after_free(pool, case: str) -> None:
    """Blocks 0, 1, 2 of six were freed by the only sequence that used them."""
    lower = "The last sequence that used them is gone: lower the count, and delete an entry that drops to 0."
    if queue_of(pool)[:3] == [2, 1, 0] or queue_of(pool)[:3] == [0, 1, 2]:
        front = (
            "Freed blocks join the *end* of the queue. At the front they would be allocated next, although they "
            "were used more recently than all others."
        )
        raise Mistake(f"the free queue should be [3, 4, 5, 2, 1, 0]; yours is {queue_of(pool)}.", case=case, idea=front)
    tail = (
        "The last block comes first: it is useless without the ones before it, so it has to be evicted before them. `super().free` reverses the list: pass it all blocks that become free "  # noqa: E501
        "in one call, in the order of the tokens."
    )
    expect(pool, {}, [3, 4, 5, 2, 1, 0], case, lower, tail)


def _check_touch_refused(attempt) -> None:
    idea = (
        "A free block without a hash contains nothing to share; the caller must have mixed up its blocks. And "
        "check all blocks before you change anything."
    )
    for blocks in ([4], [0, 4], [2, 0, 5]):
        case = (
            "blocks 0 and 1 have hashes and are free, block 2 has a hash and is in use; 3, 4, 5 contain nothing. "
            f"`touch({blocks})`."
        )
        pool = _filled(attempt, 6, 3)
        _free_all(pool, [0, 1], case)
        refused(
            ValueError, pool.touch, blocks, doing=(f"touching block {blocks[-1]}, which is free and has no "
                                                  "hash,"), case=case, idea=idea,
            unchanged=lambda pool=pool, case=case: expect(pool, {2: 1}, [3, 4, 5, 1, 0], case),
        )  # fmt: skip


def _check_free(attempt) -> None:
    case = "one sequence uses blocks 0, 1, 2, which have the hashes a, b, c; `free([0, 1, 2])`."
    pool = _freed(attempt, case)
    _check_books_after_free(pool, case)
    kept = (
        "A free block keeps its contents and its hash until it is allocated again. That is the whole point: the "
        "next sequence with this beginning finds it. `allocate` removes the hashes."
    )
    looked = "The hashes are still there. For `match_prefix` it doesn't matter whether a block is in use."
    _match(
        pool,
        HASHES[:3],
        [0, 1, 2],
        case + " Then `match_prefix([a, b, c])`.",
        looked if HASHES[0] in pool.hash_to_block else kept,
    )
    only_looks = (
        "`match_prefix` only looks blocks up, free ones too. They leave the free queue when the caller calls `touch`."
    )
    expect(pool, {}, [3, 4, 5, 2, 1, 0], case + " Then `match_prefix([a, b, c])`.", only_looks, only_looks)
    pool = attempt(6, 16)
    pool.allocate(1)
    case = "one sequence uses block 0, which has no hash; `free([0])`, then `free([])`."
    _free_all(pool, [0], case)
    _free_all(pool, [], case)
    expect(pool, {}, [1, 2, 3, 4, 5, 0], case, "A block without a hash is freed in the same way.")


def _check_free_shared(attempt) -> None:
    pool = _filled(attempt, 6, 3)
    case = "one sequence uses blocks 0, 1, 2, and a second one uses 0 and 1 too; the second one frees [0, 1]."
    _touch(pool, [0, 1], case)
    _free_all(pool, [0, 1], case)
    other = (
        "The other sequence still uses 0 and 1, and reads from them. Only blocks with a count of 1 go back to the "
        "queue; for the others, just lower the count."
    )
    expect(pool, {0: 1, 1: 1, 2: 1}, [3, 4, 5], case, other)
    pool = _filled(attempt, 6, 3)
    case = "one sequence uses blocks 0, 1, 2, and a second one uses 0 and 1 too; the first one frees [0, 1, 2]."
    _touch(pool, [0, 1], case)
    _free_all(pool, [0, 1, 2], case)
    expect(pool, {0: 1, 1: 1}, [3, 4, 5, 2], case, other)
    case += " Then the second one frees [0, 1]."
    _free_all(pool, [0, 1], case)
    expect(pool, {}, [3, 4, 5, 2, 1, 0], case, "Now no sequence uses them anymore.")


def _check_order(attempt) -> None:
    pool = _filled(attempt, 5, 4)
    case = (
        "five blocks; X uses 0 and 1 (hashes a, b), Y uses 2 and 3 (hashes c, d). X is freed, then Y; then X's "
        "blocks are touched and freed again."
    )
    _free_all(pool, [0, 1], case)
    _free_all(pool, [2, 3], case)
    expect(
        pool,
        {},
        [4, 1, 0, 3, 2],
        case.split(";")[0] + "; X is freed, then Y.",
        "",
        "Blocks that were freed earlier are closer to the front.",
    )
    _touch(pool, [0, 1], case)
    _free_all(pool, [0, 1], case)
    recent = (
        "X's blocks were used last, so Y's are now the least recently used. A freed block joins the end of the "
        "queue, even if it was in the queue before."
    )
    expect(pool, {}, [4, 3, 2, 1, 0], case, "", recent)
    got = call(pool.allocate, 2, case=case + " Then `allocate(2)`.")
    if list(got) != [4, 3]:
        raise Mistake(
            f"`allocate(2)` should return [4, 3]; yours returned {short(got)}.",
            case=case + " Then `allocate(2)`.",
            idea=recent,
        )
    _match(
        pool,
        HASHES[2:4],
        [2],
        case + " Then `allocate(2)` takes 4 and 3, and `match_prefix([c, d])`.",
        "Block 3 was evicted and block 2 is left: a shorter beginning, but still useful.",
    )


def _check_free_refused(attempt) -> None:
    cases = (
        (
            [3],
            "freeing block 3, which is free,",
            (
                "It would be in the queue twice. `super().free` refuses it, if you pass it the block before you change "
                "anything."
            ),
        ),
        (
            [0, 4],
            "freeing block 0 and, with it, block 4, which is free,",
            (
                "Check all blocks before you change anything. `super().free` checks those that you pass to it, so call it "  # noqa: E501
                "before you lower a count."
            ),
        ),
        (
            [1, 1],
            "listing block 1 twice, even though two sequences use it,",
            (
                "A sequence uses a block once. Here both references would be gone although a second sequence still reads "  # noqa: E501
                "the block: compare `len(set(blocks))` with `len(blocks)`."
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
        pool = _filled(attempt, 6, 3)
        case = f"blocks 0, 1, 2 are in use, block 1 by two sequences; `free({blocks})`."
        _touch(pool, [1], case)
        refused(
            ValueError, pool.free, blocks, doing=doing, case=case, idea=idea,
            unchanged=lambda pool=pool, case=case: expect(pool, {0: 1, 1: 2, 2: 1}, [3, 4, 5], case),
        )  # fmt: skip
