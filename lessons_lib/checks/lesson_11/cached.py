"""Judges 11.5, `take_cached`: a sequence starts with the blocks that were found, and still computes its last token."""

from lessons_lib.checks.exercise import Mistake, call, short
from lessons_lib.checks.lesson_03.books import counted
from lessons_lib.kv_cache.block_hashes import hash_full_blocks
from lessons_lib.kv_cache.prefix_cache import PrefixCache
from lessons_lib.scheduling.sequence import Sequence

SIZE = 16


def check_take_cached(attempt) -> None:
    _check_part(attempt)
    _check_own_list(attempt)
    _check_used_by_another(attempt)
    _check_all(attempt)
    _check_answer_counts(attempt)
    _check_no_block_for_the_copy(attempt)
    _check_other_sizes(attempt)


def _pool(num_blocks: int, found: int, prompt: list[int], in_use: bool = False, others: int = 0, size: int = SIZE):
    """A pool that knows the first `found` blocks of a prompt. `others` more blocks are in use.

    Returns:
        (pool, what `match_prefix` returns).
    """
    pool = PrefixCache(num_blocks, size)
    first = Sequence("first", prompt, 1)
    blocks = pool.allocate(found)
    for block, block_hash in zip(blocks, hash_full_blocks(first, size)):
        pool.cache_full_block(block, block_hash)
    pool.allocate(others)
    if not in_use:
        pool.free(blocks)
    return pool, pool.match_prefix(hash_full_blocks(first, size)[:found])


def _take(
    attempt, pool, sequence, blocks, case: str, want_blocks: int, want_computed: int, why: str, why_blocks: str = ""
) -> None:
    before = dict(pool.ref_count)
    call(attempt, pool, sequence, blocks, case=case)
    expected, known = blocks[:want_blocks], sequence.num_tokens
    if not isinstance(sequence.blocks, (list, tuple)) or list(sequence.blocks) != expected:
        raise Mistake(
            f"`sequence.blocks` should be {expected}; yours is {short(sequence.blocks)}.",
            case=case,
            idea=_added_idea(sequence, blocks) or why_blocks or _blocks_idea(sequence, blocks),
        )
    if sequence.num_computed_tokens != want_computed:
        what = (
            f"`sequence.num_computed_tokens` should be {want_computed}; yours is {short(sequence.num_computed_tokens)}."
        )
        raise Mistake(
            what,
            case=case,
            idea=_computed_idea(sequence.num_computed_tokens, known, len(expected) * pool.block_size, why),
        )
    for block in expected:
        should = before.get(block, 0) + 1
        if pool.ref_count.get(block, 0) != should:
            idea = (
                (
                    "Tell the pool: `pool.touch(blocks)`. Otherwise it allocates these blocks to another sequence, which "  # noqa: E501
                    "overwrites them."
                )
                if pool.ref_count.get(block, 0) < should
                else "Touch the blocks once: only one more sequence uses them."
            )
            raise Mistake(
                f"the reference count of block {block} should be {should}; it is {pool.ref_count.get(block, 0)}.",
                case=case,
                idea=idea,
            )
    extra = {
        block: count
        for block, count in pool.ref_count.items()
        if block not in expected and count != before.get(block, 0)
    }
    if extra:
        idea = "Touch exactly the blocks that the sequence takes. No sequence would ever free the others."
        raise Mistake(
            (
                f"the reference count of block {next(iter(extra))} has changed, although the sequence doesn't have this "  # noqa: E501
                "block."
            ),
            case=case,
            idea=idea,
        )


def _added_idea(sequence, blocks) -> str:
    if isinstance(sequence.blocks, (list, tuple)) and any(block not in blocks for block in sequence.blocks):
        return (
            "The sequence starts with blocks that were found, and no others. Allocate nothing here: the scheduler "
            "makes the copy, just before the sequence writes."
        )
    return ""


def _blocks_idea(sequence, blocks) -> str:
    if not sequence.blocks:
        return "The sequence starts with the blocks that were found: `sequence.blocks = list(blocks)`."
    if len(sequence.blocks) < len(blocks):
        return (
            "All of them hold tokens of this sequence. Leave out the last one only if all known tokens are found "
            "and no block is free for the copy."
        )
    return "Exactly these blocks, in this order."


def _computed_idea(got, known: int, covered: int, why: str) -> str:
    if got == known:
        return (
            "Then nothing is left to compute. But the next token is chosen from the logits of the last one, and no cache holds logits. The step would compute nothing for this "  # noqa: E501
            "sequence, or choose its token from another sequence's logits. Count at most all known tokens minus one."
        )
    if got == 0:
        return (
            "`num_computed_tokens` says where the step starts computing. With 0, everything is computed again, "
            "into blocks that other sequences may read."
        )
    return why


def _check_part(attempt) -> None:
    prompt = list(range(40))
    pool, blocks = _pool(6, 2, prompt)
    case = "blocks of 16; a prompt of 40 tokens, the first two blocks are found and free; four other blocks are free."
    why = (
        "Two full blocks hold 32 tokens, and all 32 count: tokens 32 to 39 remain to be computed, including the "
        "last one."
    )
    _take(attempt, pool, Sequence("second", prompt, 5), blocks, case, 2, 32, why)


def _check_own_list(attempt) -> None:
    prompt = list(range(40))
    pool, blocks = _pool(6, 2, prompt)
    case = "as before; afterwards the sequence gets one more block, `sequence.blocks.append(5)`."
    second, given = Sequence("second", prompt, 5), list(blocks)
    call(attempt, pool, second, given, case=case)
    if second.blocks is given:
        idea = (
            "`sequence.blocks = blocks` stores the caller's own list, so both would grow together. Make a copy: "
            "`list(blocks)`."
        )
        raise Mistake("`sequence.blocks` is the same list object that was passed in as `blocks`.", case=case, idea=idea)
    if not isinstance(second.blocks, list):
        raise Mistake(
            f"`sequence.blocks` should be a list; yours is a {type(second.blocks).__name__}.",
            case=case,
            idea="The scheduler appends blocks to it as the sequence grows.",
        )


def _check_used_by_another(attempt) -> None:
    for known in (40, 33, 48):
        prompt = list(range(known))
        pool, blocks = _pool(3, 2, prompt, in_use=True, others=1)
        case = (
            f"blocks of 16; a prompt of {known} tokens, its first two blocks are found, and another sequence uses "
            "them; no block is free."
        )
        idea = (
            f"A copy is made only if the last token's block is among those found. Here token {known - 1} goes into a "
            "new block, so both blocks can be used."
        )
        why = "Two full blocks hold 32 tokens."
        _take(attempt, pool, Sequence("second", prompt, 5), blocks, case, 2, 32, why, idea)


def _check_all(attempt) -> None:
    prompt = list(range(32))
    for in_use, others in ((False, 0), (True, 0), (True, 3)):
        pool, blocks = _pool(6, 2, prompt, in_use=in_use, others=others)
        case = (
            "blocks of 16; a prompt of 32 tokens, both its blocks are found and "
            f"{'in use by another sequence' if in_use else 'free'}; other free blocks: {4 - others}."
        )
        why = "All 32 tokens are found. Only the last one is still computed: 31 count."
        dropped = (
            "There is a free block for the copy, so keep both blocks and compute one token. Leaving out the "
            "last block also gives the right answer, but computes 16 tokens instead of 1."
        )
        _take(attempt, pool, Sequence("second", prompt, 5), blocks, case, 2, 31, why, dropped)


def _check_answer_counts(attempt) -> None:
    prompt, answer = list(range(20)), list(range(100, 112))
    pool, blocks = _pool(6, 2, prompt + answer)
    case = (
        "blocks of 16; a sequence that was preempted: 20 prompt tokens and 12 answer tokens are known; both blocks "
        "are found; four other blocks are free."
    )
    why = "The known tokens are those of the prompt and of the answer so far: `sequence.num_tokens` is 32, so 31 count."
    _take(attempt, pool, Sequence("second", prompt, 30, output_ids=list(answer)), blocks, case, 2, 31, why)
    pool, blocks = _pool(6, 1, prompt + answer)
    case = (
        "blocks of 16; a sequence that was preempted: 16 prompt tokens and 16 answer tokens are known; the first "
        "block is found; other blocks are free."
    )
    second = Sequence("second", (prompt + answer)[:16], 30, output_ids=(prompt + answer)[16:])
    _take(
        attempt,
        pool,
        second,
        blocks,
        case,
        1,
        16,
        (
            "The answer so far is known too: `sequence.num_tokens` is 32. Block 0 holds 16 of them, and its last token "
            "isn't the last known one."
        ),
    )


def _check_no_block_for_the_copy(attempt) -> None:
    copied = (
        "All tokens are found, so the last one is written into a copy of the last block, and for that a block *other than those found* must be free. There is none. Leave out the last block "  # noqa: E501
        "and compute its 16 tokens again."
    )
    prompt = list(range(32))
    pool, blocks = _pool(3, 2, prompt, in_use=True, others=1)
    case = (
        "blocks of 16; a prompt of 32 tokens, both its blocks are found, and another sequence uses them; no block "
        "is free."
    )
    _take(
        attempt,
        pool,
        Sequence("second", prompt, 5),
        blocks,
        case,
        1,
        16,
        "One block is taken, so 16 tokens count.",
        copied,
    )
    pool, blocks = _pool(3, 2, prompt, others=1)
    case = (
        "a pool of 3 blocks of 16; a prompt of 32 tokens. The two free blocks are the two that are found; another "
        "sequence uses the third."
    )
    queue = copied + " `len(pool.free_queue)` is 2, but these two are the ones that the sequence takes."
    _take(
        attempt,
        pool,
        Sequence("second", prompt, 5),
        blocks,
        case,
        1,
        16,
        "One block is taken, so 16 tokens count.",
        queue,
    )
    pool, blocks = _pool(1, 1, prompt[:16])
    case = "a pool of one block of 16; a prompt of 16 tokens; its block is found and free."
    _take(
        attempt,
        pool,
        Sequence("second", prompt[:16], 1),
        blocks,
        case,
        0,
        0,
        "No block is taken, so no token counts as computed.",
        (
            "Its only token to compute would go into a copy of this block, and no *other* block is free. So the "
            "sequence does without it, although it is the only one."
        ),
    )
    prompt, answer = list(range(20)), list(range(100, 112))
    pool, blocks = _pool(3, 2, prompt + answer, in_use=True, others=1)
    case = (
        "blocks of 16; a sequence that was preempted: 20 prompt tokens and 12 answer tokens are known; both blocks are "
        "found, and another sequence uses them; no block is free."
    )
    copied = (
        "All 32 known tokens are found, those of the answer too, and there is no block for the copy of the last one."
    )
    second = Sequence("second", prompt, 30, output_ids=list(answer))
    _take(attempt, pool, second, blocks, case, 1, 16, "One block is taken, so 16 tokens count.", copied)


def _check_other_sizes(attempt) -> None:
    for size in (1, 4, 5):
        for known in range(1, 4 * size + 1):
            prompt = list(range(known))
            for found in range(1, known // size + 1):
                for num_blocks in (found, found + 1, found + 3):
                    pool, blocks = _pool(num_blocks, found, prompt, size=size)
                    keep = found - (found * size == known and num_blocks == found)
                    case = (
                        f"blocks of {size}, {num_blocks} of them, none in use; {known} known tokens, "
                        f"{counted(found, 'block')} found."
                    )
                    computed = min(keep * size, known - 1)
                    _take(
                        attempt,
                        pool,
                        Sequence("second", prompt, 5),
                        blocks,
                        case,
                        keep,
                        computed,
                        "The pool knows how large its blocks are: `pool.block_size`.",
                        (
                            "Does your code use `pool.block_size`, and not 16? A block is left out only if all known "
                            "tokens are found and no other block is free."
                        ),
                    )
