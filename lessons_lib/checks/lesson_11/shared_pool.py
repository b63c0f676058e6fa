"""Judges 11.2, `PrefixCache`: what is found, how holders are counted, and what is lost first."""

from lessons_lib.checks.exercise import Mistake, call, short
from lessons_lib.checks.lesson_03.books import is_whole, queue_of, refused, used_of
from lessons_lib.checks.lesson_11.shared_run import check_random_run

NAMES = [bytes([number]) * 32 for number in range(1, 9)]


def check_prefix_cache(attempt) -> None:
    _check_find(attempt)
    _check_share_held(attempt)
    _check_free(attempt)
    _check_share_free(attempt)
    _check_share_refused(attempt)
    _check_free_shared(attempt)
    _check_order(attempt)
    _check_free_refused(attempt)
    check_random_run(attempt)


def _filled(attempt, num_blocks: int, named: int):
    """A pool that has handed out blocks 0, 1, ..., all full, with the first names."""
    pool = attempt(num_blocks, 16)
    for block, name in zip(pool.allocate(named), NAMES):
        pool.cache_full_block(block, name)
    return pool


def expect(pool, ref_count: dict[int, int], queue: list[int], case: str, idea: str = "", queue_idea: str = "") -> None:
    """The pool's books are these."""
    counted = {block: count for block, count in dict(pool.ref_count).items()}
    if counted != ref_count:
        raise Mistake(
            f"`ref_count` should be {ref_count}; yours is {short(counted)}.",
            case=case,
            idea=_holders_idea(counted, ref_count, idea),
        )
    found = queue_of(pool)
    if sorted(found) != sorted(queue):
        raise Mistake(
            f"the free queue should hold {queue}; yours holds {short(found)}.",
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
        idea = "`used` holds every block that somebody holds, those that left the free queue by `touch` as well: `self.used.update(blocks)`. `free` of lesson 03 refuses what is not in it."
        raise Mistake(f"`used` should be {short(set(ref_count))}; yours is {short(used_of(pool))}.", case=case, idea=idea)


def _holders_idea(counted: dict, ref_count: dict, idea: str) -> str:
    if any(count == 0 for count in counted.values()):
        return "A block that nobody holds has no entry in `ref_count`: delete it when the count comes to 0. `touch` and `allocate` ask whether a block is in there."
    return idea


def _queue_idea(found: list, queue: list, idea: str) -> str:
    if len(set(found)) < len(found):
        return (
            "A block stands in the queue twice. Two sequences would get it, and each would write over the other's keys."
        )
    return idea


def _find(pool, names: list[bytes], want: list[int], case: str, idea: str) -> None:
    try:
        got = call(pool.match_prefix, list(names), case=case)
    except KeyError:
        lookup = "A name may be unknown: nobody ever had these tokens, or their block was lost. Ask `name in self.hash_to_block` first."
        raise Mistake(f"`match_prefix` should return {want}; yours raised KeyError.", case=case, idea=lookup) from None
    if not isinstance(got, (list, tuple)) or not all(is_whole(block) for block in got):
        raise Mistake(
            f"`match_prefix` should return a list of block numbers, {want}; yours returned {short(got)}.",
            case=case,
            idea="`self.hash_to_block[name]` is the block of a name.",
        )
    if [int(block) for block in got] != want:
        raise Mistake(f"`match_prefix` should return {want}; yours returned {short(list(got))}.", case=case, idea=idea)


def _check_find(attempt) -> None:
    pool = _filled(attempt, 6, 3)
    begin = "blocks 0, 1, 2 are held, with the names a, b, c; "
    a, b, c, x, y = NAMES[:5]
    all_found = "Go through the names in order, and collect their blocks as long as they are known."
    _find(pool, [a, b, c], [0, 1, 2], begin + "`find([a, b, c])`.", all_found)
    _find(pool, [a, b], [0, 1], begin + "`find([a, b])`.", all_found)
    _find(
        pool,
        [a, b, x],
        [0, 1],
        begin + "`find([a, b, x])`; x is unknown.",
        "The blocks before the first unknown name are of use all the same.",
    )
    gap = "Behind a gap nothing is of use: a sequence computes its tokens from the first missing one on, and there is no place for the blocks behind. Stop at the first unknown name."
    _find(pool, [a, x, c], [0], begin + "`find([a, x, c])`; x is unknown.", gap)
    _find(pool, [x, y], [], begin + "`find([x, y])`; both are unknown.", "Nothing is found, so the list is empty.")
    _find(pool, [], [], begin + "`find([])`.", "No names, no blocks.")
    expect(
        pool,
        {0: 1, 1: 1, 2: 1},
        [3, 4, 5],
        begin + "after some calls of `match_prefix`.",
        "`match_prefix` only looks. Whoever wants the blocks calls `touch`.",
    )
    pool = attempt(6, 16)
    pool.allocate(4)
    pool.cache_full_block(3, a)
    pool.cache_full_block(1, b)
    _find(
        pool,
        [a, b],
        [3, 1],
        "block 3 has the name a, block 1 the name b; `find([a, b])`.",
        "In the order of the names, which is the order of the tokens.",
    )


def _share(pool, blocks: list[int], case: str) -> None:
    try:
        call(pool.touch, list(blocks), case=case)
    except ValueError as error:
        idea = "Refuse only a block that nobody holds *and* that has no name. A held block may have no name yet; a free one with a name may be shared."
        raise Mistake(
            f"these blocks can be shared, but `touch` raised ValueError: {str(error)[:100]}", case=case, idea=idea
        ) from None


def _check_share_held(attempt) -> None:
    pool = _filled(attempt, 6, 3)
    case = "blocks 0, 1, 2 are held by one sequence; `share([0, 1])`."
    counts = "One more holder for each block: 2 for 0 and 1, still 1 for 2."
    _share(pool, [0, 1], case)
    expect(pool, {0: 2, 1: 2, 2: 1}, [3, 4, 5], case, counts)
    case += " Then `share([0])`."
    _share(pool, [0], case)
    expect(
        pool,
        {0: 3, 1: 2, 2: 1},
        [3, 4, 5],
        case,
        "A block may have any number of holders. Add one to the count that is there.",
    )
    pool = attempt(6, 16)
    pool.allocate(2)
    case = "blocks 0 and 1 are held and have no names; `share([0, 1])`, as when a sequence is forked."
    _share(pool, [0, 1], case)
    expect(pool, {0: 2, 1: 2}, [2, 3, 4, 5], case, counts)


def _free_all(pool, blocks: list[int], case: str) -> None:
    try:
        call(pool.free, list(blocks), case=case)
    except (ValueError, KeyError) as error:
        idea = "Refuse a block that nobody holds, and a block that is named twice, nothing else. A block with several holders may be given back by each of them, once."
        raise Mistake(
            f"these blocks are held, but `free` raised {type(error).__name__}: {str(error)[:100]}", case=case, idea=idea
        ) from None


def _lose_all(attempt, case: str):
    """A pool whose first three blocks have names and are free: the queue is [3, 4, 5, 2, 1, 0]."""
    pool = _filled(attempt, 6, 3)
    _free_all(pool, [0, 1, 2], case)
    return pool


def _check_share_free(attempt) -> None:
    case = (
        "blocks 0, 1, 2 had the names a, b, c, and were freed; the free queue is [3, 4, 5, 2, 1, 0]. `share([0, 1])`."
    )
    pool = _lose_all(attempt, case)
    _free_books(pool, case.split(" `share")[0])
    _share(pool, [0, 1], case)
    idea = "A block that somebody holds again must leave the free queue, wherever in it it stands: `self.free_queue.pop(block, None)`. Otherwise it is handed out a second time."
    expect(pool, {0: 1, 1: 1}, [3, 4, 5, 2], case, idea)
    got = call(pool.allocate, 3, case=case + " Then `allocate(3)`.")
    if list(got) != [3, 4, 5]:
        raise Mistake(
            f"`allocate(3)` should give [3, 4, 5]; yours gave {short(got)}.",
            case=case + " Then `allocate(3)`.",
            idea=idea,
        )
    _find(
        pool,
        NAMES[:3],
        [0, 1, 2],
        case + " Then `find([a, b, c])`.",
        "Shared blocks keep their names: a third sequence may find them.",
    )


def _free_books(pool, case: str) -> None:
    """Blocks 0, 1, 2 of six were freed by their only holder."""
    lower = "The last holder has gone: lower the count, and delete the entry when nobody is left."
    if queue_of(pool)[:3] == [2, 1, 0] or queue_of(pool)[:3] == [0, 1, 2]:
        front = "Freed blocks join the *end* of the queue. In front they would be handed out next, although they have been used more recently than all others."
        raise Mistake(f"the free queue should be [3, 4, 5, 2, 1, 0]; yours is {queue_of(pool)}.", case=case, idea=front)
    tail = (
        "The last block first: it is of use only together with those before it, so it has to be lost before them. `super().free` turns the list round; give it all blocks that are to be "
        "freed in one call, in the order of the tokens."
    )
    expect(pool, {}, [3, 4, 5, 2, 1, 0], case, lower, tail)


def _check_share_refused(attempt) -> None:
    idea = "What is free and has no name holds nothing that anybody could use; somebody has mixed up block numbers. And look at all blocks before you change anything."
    for blocks in ([4], [0, 4], [2, 0, 5]):
        case = f"blocks 0 and 1 have names and are free, block 2 has a name and is held; 3, 4, 5 hold nothing. `share({blocks})`."
        pool = _filled(attempt, 6, 3)
        _free_all(pool, [0, 1], case)
        refused(
            ValueError, pool.touch, blocks, doing=f"sharing block {blocks[-1]}, which is free and has no name,", case=case, idea=idea,
            unchanged=lambda pool=pool, case=case: expect(pool, {2: 1}, [3, 4, 5, 1, 0], case),
        )  # fmt: skip


def _check_free(attempt) -> None:
    case = "blocks 0, 1, 2 have the names a, b, c and one holder; `free([0, 1, 2])`."
    pool = _lose_all(attempt, case)
    _free_books(pool, case)
    kept = "A free block keeps what is in it, and its name, until it is handed out. That is the whole point: the next sequence with this beginning finds it. `allocate` takes the names away."
    looked = "The names are still there. Whether anybody holds a block does not matter for `match_prefix`."
    _find(
        pool,
        NAMES[:3],
        [0, 1, 2],
        case + " Then `find([a, b, c])`.",
        looked if NAMES[0] in pool.hash_to_block else kept,
    )
    pool = attempt(6, 16)
    pool.allocate(1)
    case = "block 0 has no name and one holder; `free([0])`, and `free([])`."
    _free_all(pool, [0], case)
    _free_all(pool, [], case)
    expect(pool, {}, [1, 2, 3, 4, 5, 0], case, "A block without a name is freed in the same way.")


def _check_free_shared(attempt) -> None:
    pool = _filled(attempt, 6, 3)
    case = "blocks 0, 1, 2 are held by one sequence, 0 and 1 by a second one too; the second one frees [0, 1]."
    _share(pool, [0, 1], case)
    _free_all(pool, [0, 1], case)
    other = "The first sequence still holds 0 and 1, and reads from them. Only blocks with a single holder go back to the queue; for the others the count is lowered."
    expect(pool, {0: 1, 1: 1, 2: 1}, [3, 4, 5], case, other)
    pool = _filled(attempt, 6, 3)
    case = "blocks 0, 1, 2 are held by one sequence, 0 and 1 by a second one too; the first one frees [0, 1, 2]."
    _share(pool, [0, 1], case)
    _free_all(pool, [0, 1, 2], case)
    expect(pool, {0: 1, 1: 1}, [3, 4, 5, 2], case, other)
    case += " Then the second one frees [0, 1]."
    _free_all(pool, [0, 1], case)
    expect(pool, {}, [3, 4, 5, 2, 1, 0], case, "Now nobody holds them any more.")


def _check_order(attempt) -> None:
    pool = _filled(attempt, 5, 4)
    case = "five blocks; 0 and 1 (names a, b) belong to X, 2 and 3 (names c, d) to Y. X is freed, then Y; then X's beginning is shared again and freed again."
    _free_all(pool, [0, 1], case)
    _free_all(pool, [2, 3], case)
    expect(
        pool,
        {},
        [4, 1, 0, 3, 2],
        case.split(";")[0] + "; X is freed, then Y.",
        "",
        "Who was freed first stands further in front.",
    )
    _share(pool, [0, 1], case)
    _free_all(pool, [0, 1], case)
    recent = "X was used last, so Y's blocks are now the least recently used. A freed block joins the end of the queue, whether it was there before or not."
    expect(pool, {}, [4, 3, 2, 1, 0], case, "", recent)
    got = call(pool.allocate, 2, case=case + " Then `allocate(2)`.")
    if list(got) != [4, 3]:
        raise Mistake(
            f"`allocate(2)` should give [4, 3]; yours gave {short(got)}.",
            case=case + " Then `allocate(2)`.",
            idea=recent,
        )
    _find(
        pool,
        NAMES[2:4],
        [2],
        case + " Then `allocate(2)` takes 4 and 3, and `find([c, d])`.",
        "Block 3 was lost and block 2 is left: a shorter beginning, but one of use.",
    )


def _check_free_refused(attempt) -> None:
    cases = (
        (
            [3],
            "freeing block 3, which is free,",
            "It would stand in the queue twice. `super().free` refuses it, if you let it see the block before you change anything.",
        ),
        (
            [0, 4],
            "freeing block 0 and, with it, block 4, which is free,",
            "Look at all blocks before you change anything. `super().free` looks at those that you give it, so call it before you lower a count.",
        ),
        (
            [1, 1],
            "naming block 1 twice, which has two holders,",
            "A sequence holds a block once. With two holders, both would be gone although one of them still reads: compare `len(set(blocks))` with `len(blocks)`.",
        ),
        ([0, 1, 0], "naming block 0 twice", "A sequence holds a block once."),
        (
            [9],
            "freeing block 9, which this pool does not have,",
            "`super().free` refuses it, if you let it see the block.",
        ),
    )
    for blocks, doing, idea in cases:
        pool = _filled(attempt, 6, 3)
        case = f"blocks 0, 1, 2 are held, block 1 by two sequences; `free({blocks})`."
        _share(pool, [1], case)
        refused(
            ValueError, pool.free, blocks, doing=doing, case=case, idea=idea,
            unchanged=lambda pool=pool, case=case: expect(pool, {0: 1, 1: 2, 2: 1}, [3, 4, 5], case),
        )  # fmt: skip
