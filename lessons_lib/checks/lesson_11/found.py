"""Judges 11.3, `PrefixCache`: what is found, what is lost when blocks are allocated, and what is writable."""

from lessons_lib.checks.exercise import Mistake, call, short
from lessons_lib.checks.lesson_03.books import is_whole, queue_of, refused, used_of
from lessons_lib.checks.lesson_11.counts import expect, free_all, touch
from lessons_lib.checks.lesson_11.shared_run import check_random_run
from lessons_lib.kv_cache.block_pool import OutOfBlocks
from lessons_lib.viz.words import marked

HASHES = [bytes([byte]) * 32 for byte in range(1, 9)]
LETTERS = dict(zip(HASHES, "abcxy"))
COUNTED = (
    "Call `super().allocate(count)` once, and don't count again. `SharedBlockPool` has counted the blocks already "
    "then, and taken them from the queue; `BlockPool.allocate` doesn't count."
)


def check_prefix_cache(attempt) -> None:
    _check_match(attempt)
    _check_match_free(attempt)
    _check_allocate(attempt)
    _check_found_anew(attempt)
    _check_allocate_refused(attempt)
    _check_writable(attempt)
    check_random_run(attempt)


def _filled(attempt, num_blocks: int, num_full: int):
    """A pool that has allocated blocks 0, 1, ..., all full, with the first hashes."""
    pool, blocks = attempt(num_blocks, 16), list(range(num_full))
    case = f"a new pool of {num_blocks} blocks; `allocate({num_full})`."
    _allocate(pool, num_full, blocks, case)
    expect(pool, dict.fromkeys(blocks, 1), list(range(num_full, num_blocks)), case, COUNTED)
    for block, block_hash in zip(blocks, HASHES):
        pool.cache_full_block(block, block_hash)
    return pool


def _match(pool, hashes: list[bytes], want: list[int], case: str, idea: str) -> None:
    ref_count, queue = dict(pool.ref_count), queue_of(pool)
    given = list(hashes)
    try:
        got = call(lambda: pool.match_prefix(given), case=case)
    except KeyError:
        lookup = (
            "A hash may be unknown: no sequence ever had these tokens, or their block was evicted. Check whether "
            "it is in `self.hash_to_block` first."
        )
        raise Mistake(f"`match_prefix` should return {want}; yours raised KeyError.", case=case, idea=lookup) from None
    except (IndexError, StopIteration, ValueError) as error:
        if len(want) < len(hashes):
            raise
        end = (
            "All of these hashes are known. Does your code look for the first unknown one, or go on until it meets "
            "one? It also has to stop at the end of the list."
            if hashes
            else "There are no hashes here. Does your code take the first one all the same?"
        )
        raise Mistake(f"your code raised {type(error).__name__}: {error}.", case=case, idea=end) from None
    if given != hashes:  # `call` would show the bytes of each hash
        raise Mistake(
            f"your code changed its argument `block_hashes`. It was {_letters(hashes)} before the call and is "
            f"{_letters(given)} after it.",
            case=case,
            idea="The caller still uses what it passed in. Go through it with `for`, or make a copy first: "
            "`list(block_hashes)`.",
        )
    if not isinstance(got, list) or not all(is_whole(block) for block in got):
        raise Mistake(
            f"`match_prefix` should return a list of blocks, {want}; yours returned {short(got)}.",
            case=case,
            idea=_kind_idea(got, idea),
        )
    if [int(block) for block in got] != want:
        if not got and len(want) == len(hashes):
            idea += _nothing_found(pool, hashes, want)
        if len(got) == len(hashes) - 1 and want[:-1] == list(got):
            idea += (
                " The last hash is known, too. Don't leave its block out here, even if all hashes are known: "
                "`take_cached`, which starts the sequence with them, leaves a token to compute."
            )
        raise Mistake(
            f"`match_prefix` should return {want}; yours returned {marked(want, list(got))}.", case=case, idea=idea
        )
    only_looks = (
        "`match_prefix` only looks blocks up. To use them, the caller calls `touch`; until then, a free block keeps "
        "its place in the queue."
    )
    expect(pool, ref_count, queue, case, only_looks, only_looks)


def _nothing_found(pool, hashes: list[bytes], want: list[int]) -> str:
    if want[0] == 0 and list(call(pool.match_prefix, hashes[1:2], case="")) == want[1:2]:
        return " Is there a test such as `if not block`? Block 0 is a block, too."
    if not used_of(pool) & set(want):
        return " While these blocks were in use, yours found them. Does it test whether a block is in use?"
    return " Do you look the hash up in `hash_to_block`?"


def _letters(hashes: list[bytes]) -> str:
    return f"[{', '.join(LETTERS.get(one, '?') for one in hashes)}]"


def _kind_idea(got, idea: str) -> str:
    if got is None:
        return "Return a list in every case. If nothing is found, it is empty."
    if isinstance(got, list) and None in got:
        return "An unknown hash has no block, so it adds nothing to the list. " + idea
    if isinstance(got, tuple):
        return "A tuple can't grow, and a list is asked for: new blocks join those found. Return `list(...)` of it."
    return "`self.hash_to_block[block_hash]` is the block with that hash. Return a list of such blocks."


def _check_match(attempt) -> None:
    pool = _filled(attempt, 6, 3)
    begin = "blocks 0, 1, 2 are in use, with the hashes a, b, c; "
    a, b, c, x, y = HASHES[:5]
    all_found = (
        "Go through the hashes in order, and collect their blocks as long as the hashes are known, whether these "
        "blocks are in use or free."
    )
    _match(pool, [a, b, c], [0, 1, 2], begin + "`match_prefix([a, b, c])`.", all_found)
    if pool.hash_to_block != {a: 0, b: 1, c: 2} or pool.block_to_hash != {0: a, 1: b, 2: c}:
        raise Mistake(
            "`match_prefix` has changed `hash_to_block` or `block_to_hash`.",
            case=begin + "`match_prefix([a, b, c])`.",
            idea="It only looks blocks up, and the next sequence must find them too: read the table with `[...]` or "
            "`.get`, and take nothing out of it.",
        )
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
    _match(pool, [a, x, b, c], [0], begin + "`match_prefix([a, x, b, c])`; x is unknown.", gap)
    _match(
        pool, [x, y], [], begin + "`match_prefix([x, y])`; both are unknown.", "Nothing is found, so the list is empty."
    )
    _match(pool, [], [], begin + "`match_prefix([])`.", "No hashes, no blocks.")
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


def _check_match_free(attempt) -> None:
    pool = _filled(attempt, 6, 3)
    case = "blocks 0, 1, 2 have the hashes a, b, c and were freed; `match_prefix([a, b, c])`."
    free_all(pool, [0, 1, 2], case)
    looked = "A free block keeps its hash until it is allocated. `match_prefix` finds it, too."
    _match(pool, HASHES[:3], [0, 1, 2], case, looked)
    case = (
        "blocks 0, 1, 2 have the hashes a, b, c; 0 was freed, then 1 and 2, so the queue is [3, 4, 5, 0, 2, 1]; "
        "`match_prefix([a])`."
    )
    pool = _filled(attempt, 6, 3)
    free_all(pool, [0], case)
    free_all(pool, [1, 2], case)
    _match(pool, HASHES[:1], [0], case, looked)


def _expect_hashes(pool, want: dict[int, bytes], evicted: int, case: str) -> None:
    """The two tables agree with `want`, and so does the number of lost blocks."""
    names = {block: LETTERS[one] for block, one in want.items()}
    forward = {block: LETTERS.get(one, "?") for block, one in sorted(pool.block_to_hash.items())}
    backward = {block: LETTERS.get(one, "?") for one, block in pool.hash_to_block.items()}
    lost = (
        "A block that is allocated loses its contents, so its hash has to go, from both tables. A block that wasn't "
        "allocated keeps its hash."
    )
    back = dict(sorted(backward.items()))
    if forward != names and forward == back:
        raise Mistake(f"both tables should hold {names}; yours hold {short(forward)}.", case=case, idea=lost)
    if forward != names:
        raise Mistake(f"`block_to_hash` should be {names}; yours is {short(forward)}.", case=case, idea=lost)
    if back != names:
        found = {name: block for block, name in back.items()}
        expected = {name: block for block, name in names.items()}
        if set(names.values()) < set(back.values()):
            lost += " A sequence that finds an old hash would read the keys of other tokens."
        raise Mistake(f"`hash_to_block` should be {expected}; yours is {short(found)}.", case=case, idea=lost)
    if pool.evicted != evicted:
        idea = "`self.evicted` counts the blocks that had a hash and were allocated for something else, over all calls."
        raise Mistake(f"`evicted` should be {evicted}; yours is {short(pool.evicted)}.", case=case, idea=idea)


def _allocate(pool, count: int, want: list[int], case: str) -> None:
    try:
        got = call(pool.allocate, count, case=case)
    except KeyError as error:
        keys = (
            "The keys of `hash_to_block` are hashes, those of `block_to_hash` blocks. And not every block has a hash: "
            "a block may be new, or not full."
        )
        raise Mistake(f"`allocate({count})` raised KeyError: {str(error)[:80]}.", case=case, idea=keys) from None
    if not isinstance(got, (list, tuple)) or list(got) != want:
        idea = "`super().allocate(count)` takes the blocks from the front of the queue. Return its list as it is."
        raise Mistake(f"`allocate({count})` should return {want}; yours returned {short(got)}.", case=case, idea=idea)


def _check_allocate(attempt) -> None:
    a, b, c = HASHES[:3]
    pool = _filled(attempt, 5, 3)
    begin = "five blocks; 0, 1, 2 have the hashes a, b, c and were freed, so the queue is [3, 4, 2, 1, 0]; "
    free_all(pool, [0, 1, 2], begin)
    case = begin + "`allocate(1)`."
    _allocate(pool, 1, [3], case)
    expect(pool, {3: 1}, [4, 2, 1, 0], case, COUNTED)
    _expect_hashes(pool, {0: a, 1: b, 2: c}, 0, case)
    case = begin + "`allocate(1)`, then `allocate(2)`."
    _allocate(pool, 2, [4, 2], case)
    expect(pool, {2: 1, 3: 1, 4: 1}, [1, 0], case, COUNTED)
    _expect_hashes(pool, {0: a, 1: b}, 1, case)
    _match(
        pool, [a, b, c], [0, 1], case + " Then `match_prefix([a, b, c])`.", "c's block was evicted, the others weren't."
    )
    case = begin + "`allocate(1)`, `allocate(2)`, and `allocate(2)`."
    _allocate(pool, 2, [1, 0], case)
    _expect_hashes(pool, {}, 3, case)
    pool = _filled(attempt, 3, 1)
    case = "three blocks; block 0 has the hash a and is freed; `allocate(3)`."
    free_all(pool, [0], case)
    call(pool.allocate, 3, case=case)
    case = "three blocks; block 0 had the hash a and was allocated again. Now block 2 gets the hash a."
    call(pool.cache_full_block, 2, a, case=case)
    _expect_hashes(pool, {2: a}, 1, case)
    pool = _filled(attempt, 2, 1)
    call(pool.allocate, 1, case="two blocks; 0 has the hash a; `allocate(1)`.")
    case = "two blocks; 0 has the hash a, 1 has none; 0 was freed, then 1, so the queue is [0, 1]; `allocate(1)`."
    free_all(pool, [0], case)
    free_all(pool, [1], case)
    _allocate(pool, 1, [0], case)
    _expect_hashes(pool, {}, 1, case)


def _check_found_anew(attempt) -> None:
    """What is found may differ from call to call."""
    kept = (
        "Does your pool remember what an earlier call found? Blocks get a hash and lose it between two calls, so look "
        "the hashes up in `hash_to_block` each time."
    )
    pool, one = attempt(2, 16), HASHES[:1]
    case = (
        "two blocks; `match_prefix([a])` found nothing. Then block 0 was allocated and got the hash a: "
        "`match_prefix([a])` again."
    )
    for want in ([], [0]):
        got = list(call(pool.match_prefix, list(one), case=case))
        if got != want:
            raise Mistake(f"`match_prefix` should return {want}; yours returned {short(got)}.", case=case, idea=kept)
        if not want:
            pool.cache_full_block(*call(pool.allocate, 1, case=case), one[0])
    case = (
        "two blocks; 0 had the hash a, and `match_prefix([a])` found it. Then it was freed, and both blocks were "
        "allocated: `match_prefix([a])` again."
    )
    free_all(pool, [0], case)
    call(pool.allocate, 2, case=case)
    if got := list(call(pool.match_prefix, list(one), case=case)):
        raise Mistake(f"`match_prefix` should return []; yours returned {short(got)}.", case=case, idea=kept)


def _check_allocate_refused(attempt) -> None:
    case = "two blocks with the hashes a and b; a is in use, b is free; `allocate(2)`."
    pool = _filled(attempt, 2, 2)
    free_all(pool, [1], case)

    def unchanged() -> None:
        expect(pool, {0: 1}, [1], case)
        _expect_hashes(pool, dict(enumerate(HASHES[:2])), 0, case)

    idea = (
        "`super().allocate` raises it before it changes anything. Call it before you remove a hash, and let it raise."
    )
    doing = "allocating 2 blocks with 1 free"
    refused(OutOfBlocks, pool.allocate, 2, doing=doing, case=case, idea=idea, unchanged=unchanged)
    case = "three blocks with the hashes a, b and c; a is in use, b and c are free; `allocate(-1)`."
    pool = _filled(attempt, 3, 3)
    free_all(pool, [1, 2], case)

    def all_kept() -> None:
        expect(pool, {0: 1}, [2, 1], case)
        _expect_hashes(pool, dict(enumerate(HASHES[:3])), 0, case)

    doing = "allocating −1 blocks"
    refused(ValueError, pool.allocate, -1, doing=doing, case=case, idea=idea, unchanged=all_kept)


def _writable(pool, block: int, want: bool, case: str, idea: str) -> None:
    got = call(pool.is_writable, block, case=case)
    if bool(got) != want:
        raise Mistake(f"`is_writable({block})` should be {want}; yours is {short(got)}.", case=case, idea=idea)


def _check_writable(attempt) -> None:
    pool = attempt(4, 16)
    pool.allocate(2)
    alone = "No other sequence uses it, and it has no hash, so no sequence can find it. What could a write spoil?"
    _writable(pool, 1, True, "one sequence uses block 1, which has no hash.", alone)
    touch(pool, [1], "one sequence uses blocks 0 and 1; `touch([1])`.")
    others = "Another sequence reads this block. It would read what the write leaves there."
    _writable(pool, 1, False, "two sequences use block 1, which has no hash.", others)
    touch(pool, [1], "two sequences use block 1; `touch([1])`.")
    _writable(pool, 1, False, "three sequences use block 1, which has no hash.", others)
    free_all(pool, [1], "three sequences use block 1, one frees it.")
    free_all(pool, [1], "two sequences use block 1, one frees it.")
    _writable(pool, 1, True, "three sequences used block 1, which has no hash. Two of them have freed it.", alone)
    pool.cache_full_block(1, HASHES[0])
    found = (
        "The block has a hash: a sequence that comes later finds it, and expects the tokens that the hash stands for. "
        "A write would change them. (`block_to_hash` says which blocks have a hash; the keys of `hash_to_block` are "
        "hashes.)"
    )
    _writable(pool, 1, False, "one sequence uses block 1, which has a hash.", found)
    touch(pool, [1], "one sequence uses block 1, which has a hash; `touch([1])`.")
    _writable(pool, 1, False, "two sequences use block 1, which has a hash.", found)
