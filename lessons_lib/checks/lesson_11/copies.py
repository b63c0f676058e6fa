"""Judges 11.4, `copy_before_write`: the sequence gets a block of its own, and all others keep what they have."""

from lessons_lib.checks.exercise import Mistake, call, short
from lessons_lib.checks.lesson_03.books import refused
from lessons_lib.checks.lesson_11.counts import expect
from lessons_lib.kv_cache.block_copies import COPY, BlockCopy
from lessons_lib.kv_cache.block_pool import OutOfBlocks
from lessons_lib.kv_cache.prefix_cache import PrefixCache
from lessons_lib.scheduling.sequence import Sequence

A, B = bytes([1]) * 32, bytes([2]) * 32


def check_copy_before_write(attempt) -> None:
    _check_fork(attempt)
    _check_cached(attempt)
    _check_old_hash_of_the_new_block(attempt)
    _check_any_block(attempt)
    _check_three_users(attempt)
    _check_no_block_free(attempt)


def _forked(num_blocks: int, blocks: list[int], users: int = 2):
    """(pool, sequences that all use the same blocks)."""
    pool = PrefixCache(num_blocks, 4)
    # The block ids are those that the pool allocates, in another order if the case wants it.
    assert sorted(pool.allocate(len(blocks))) == sorted(blocks)
    for _ in range(users - 1):
        pool.touch(blocks)
    prompt = list(range(4 * len(blocks) - 2))
    return pool, [
        Sequence(name, prompt, 5, blocks=list(blocks), num_computed_tokens=len(prompt)) for name in "XYZ"[:users]
    ]


def _copy(attempt, pool, sequence, index: int, target: int, case: str) -> None:
    """`attempt` replaces one block of the table, and says what has to be copied."""
    before, hashes = list(sequence.blocks), dict(pool.block_to_hash)
    want = BlockCopy(COPY, before[index], target)
    got = call(attempt, pool, sequence, index, case=case)
    if not isinstance(got, BlockCopy):
        idea = "The contents of the block still have to be copied on the device. Return what to copy: a `BlockCopy`."
        if got is None and list(sequence.blocks) == before:
            idea = _table_idea(True, index) + " Return what to copy: a `BlockCopy`."
            if pool.block_to_hash != hashes:
                idea = "Without its hash, no sequence that comes later finds the block. " + idea
        raise Mistake(f"the function should return {want}; yours returned {short(got)}.", case=case, idea=idea)
    if list(sequence.blocks) != [*before[:index], target, *before[index + 1 :]]:
        raise Mistake(
            f"`sequence.blocks` should be {[*before[:index], target, *before[index + 1 :]]}; yours is "
            f"{short(sequence.blocks)}.",
            case=case,
            idea=_table_idea(list(sequence.blocks) == before, index) + _no_list(sequence.blocks),
        )
    if sequence.num_computed_tokens != len(sequence.prompt_ids) or sequence.output_ids:
        raise Mistake(
            f"`num_computed_tokens` should still be {len(sequence.prompt_ids)}, and `output_ids` empty; they are "
            f"{sequence.num_computed_tokens} and {short(sequence.output_ids)}.",
            case=case,
            idea="The copy holds the same keys and values, so nothing has to be computed again.",
        )
    if got != want:
        raise Mistake(f"the copy should be {want}; yours is {got}.", case=case, idea=_copy_idea(got, want))


def _table_idea(is_unchanged: bool, index: int) -> str:
    if is_unchanged:
        return (
            "The table still has the old block, to which the sequence may not write: what it holds must stay, for "
            "others now or for those that find it later. Put the new block in its place."
        )
    return f"Only entry {index} of the table changes: from the old block to the new one."


def _copy_idea(got: BlockCopy, want: BlockCopy) -> str:
    if (got.source, got.target) == (want.target, want.source):
        return "`source` is the block that is read, and `target` the one that is written: the new block."
    if got.kind != want.kind:
        return "This copy stays within the pool: its kind is `COPY`. The swap space is not involved."
    idea = "It is copied from the block that was in the table to the block that replaces it."
    return idea + _no_list([got.source, got.target])


def _no_list(blocks: list) -> str:
    return " `pool.allocate(1)` returns a list with one block." if any(isinstance(one, list) for one in blocks) else ""


def _check_fork(attempt) -> None:
    pool, (first, second) = _forked(4, [0, 1])
    case = "four blocks; X and its fork Y use blocks 0 and 1; the free queue is [2, 3]. Y is about to write to block 1."
    _copy(attempt, pool, second, 1, 2, case)
    if first.blocks != [0, 1]:
        raise Mistake(
            f"X's table should still be [0, 1]; it is {first.blocks}.", case=case, idea="Only Y gets a new block."
        )
    books = (
        "Y uses the new block now, and no longer uses block 1: `pool.allocate` has counted the one, and the other has "
        "to be freed, once. Y still uses block 0."
    )
    expect(pool, {0: 2, 1: 1, 2: 1}, [3], case, books)
    _check_new_is_writable(pool, case)


def _check_cached(attempt) -> None:
    pool, (only,) = _forked(4, [0, 1], users=1)
    pool.cache_full_block(0, A)
    pool.cache_full_block(1, B)
    case = (
        "four blocks; only X uses blocks 0 and 1, which have the hashes a and b; the free queue is [2, 3]. X is about "
        "to write to block 1."
    )
    _copy(attempt, pool, only, 1, 2, case)
    if pool.ref_count.get(1) == 0:
        raise Mistake(
            "block 1 has a count of 0 in `ref_count`, but it isn't in the free queue.",
            case=case,
            idea="Leave the counting to the pool: `pool.free([block])` lowers the count, and frees the block if no "
            "other sequence uses it.",
        )
    books = (
        "X no longer uses block 1, and neither does any other sequence: it is free, and goes to the end of the queue."
    )
    expect(pool, {0: 1, 2: 1}, [3, 1], case, books)
    if pool.match_prefix([A, B]) != [0, 1]:
        idea = (
            "Block 1 keeps its contents and its hash, so that others still find it. The copy gets no hash: X is about "
            "to change it."
        )
        raise Mistake(
            f"afterwards `pool.match_prefix([a, b])` should return [0, 1]; it returns {pool.match_prefix([A, B])}.",
            case=case,
            idea=idea,
        )
    _check_new_is_writable(pool, case)


def _check_old_hash_of_the_new_block(attempt) -> None:
    pool, (_, second) = _forked(3, [0, 1])
    pool.cache_full_block(*pool.allocate(1), A)
    pool.free([2])
    case = (
        "three blocks; X and its fork Y use blocks 0 and 1; block 2 is free, and has the hash a. Y is about to write "
        "to block 1."
    )
    _copy(attempt, pool, second, 1, 2, case)
    expect(pool, {0: 2, 1: 1, 2: 1}, [], case)
    if pool.match_prefix([A]) or pool.evicted != 1:
        raise Mistake(
            "block 2 is Y's now, but it still has its old hash.",
            case=case,
            idea="A sequence that finds it by this hash would read Y's tokens. `pool.allocate(1)` takes the block from "
            "the queue, counts it, and removes its hash.",
        )


def _check_new_is_writable(pool, case: str) -> None:
    if not pool.is_writable(2):
        idea = "It has one user and no hash, if you leave it as `pool.allocate` returns it."
        raise Mistake("the new block should be writable; it isn't.", case=case, idea=idea)


def _check_any_block(attempt) -> None:
    for index in (0, 1):
        pool, (_, second) = _forked(6, [2, 0, 1])
        target = 3
        case = (
            "six blocks; X and Y use blocks [2, 0, 1], in this order; the free queue is [3, 4, 5]. Y is about to write "
            f"to the block at index {index} of its table."
        )
        _copy(attempt, pool, second, index, target, case)
        counts = dict.fromkeys(range(3), 2) | {[2, 0][index]: 1, target: 1}
        expect(pool, counts, [4, 5], case, "Free the block that was in the table, and no other.")


def _check_three_users(attempt) -> None:
    pool, (_, second, third) = _forked(5, [0], users=3)
    case = "five blocks; X, Y and Z use block 0; the free queue is [1, 2, 3, 4]. Y is about to write to it, then Z."
    _copy(attempt, pool, second, 0, 1, case)
    _copy(attempt, pool, third, 0, 2, case)
    expect(pool, {0: 1, 1: 1, 2: 1}, [3, 4], case, "Each of them gets a block of its own, and X keeps block 0.")


def _check_no_block_free(attempt) -> None:
    idea = (
        "`pool.allocate(1)` raises it. Allocate the new block before you change anything else: if there is none, the "
        "sequence must still have its old one."
    )
    for users, who in ((1, "only X uses it, and it has the hash a"), (2, "X and Y use it")):
        pool, sequences = _forked(1, [0], users=users)
        if users == 1:
            pool.cache_full_block(0, A)
        case = f"a pool of one block; {who}. The free queue is empty, and {sequences[-1].id} is about to write."

        def unchanged(pool=pool, sequence=sequences[-1], users=users, case=case) -> None:
            if sequence.blocks != [0]:
                raise Mistake(f"`sequence.blocks` should be [0]; yours is {short(sequence.blocks)}.", case=case)
            expect(pool, {0: users}, [], case)
            if users == 1 and pool.match_prefix([A]) != [0]:
                raise Mistake("block 0 should still be found by its hash; it isn't.", case=case)

        def attempt_at(*args, case=case):
            try:
                return attempt(*args)
            except RuntimeError as error:  # `refused` names only some kinds of errors
                if isinstance(error, (OutOfBlocks, NotImplementedError, RecursionError)):
                    raise
                what = f"copying a block with none free should raise OutOfBlocks; yours raised {short(error)}."
                raise Mistake(what, case=case, idea=idea) from None

        refused(
            OutOfBlocks,
            attempt_at,
            pool,
            sequences[-1],
            0,
            doing="copying a block with none free",
            case=case,
            idea=idea,
            unchanged=unchanged,
        )
