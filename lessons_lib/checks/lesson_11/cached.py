"""11.2, `take_cached`: a sequence starts with the blocks that were found, and still computes its last token."""

from collections.abc import Iterator
from random import Random
from typing import Any, NamedTuple

from lessons_lib.checks.diagnosis import Task, Watch, mistakes
from lessons_lib.checks.lesson_03.books import counted
from lessons_lib.kv_cache.block_hashes import hash_full_blocks
from lessons_lib.kv_cache.prefix_cache import PrefixCache
from lessons_lib.scheduling.sequence import Sequence


class Case(NamedTuple):
    """A sequence, and the pool that it comes to.

    Attributes:
        prompt, answer: how many tokens are known.
        found: how many of its blocks are cached.
        used: how many of these, from the first, another sequence uses; the others are free.
        free: how many other blocks are free.
    """

    prompt: int
    answer: int
    found: int
    used: int
    free: int
    size: int = 16

    @property
    def known(self) -> int:
        return self.prompt + self.answer


def cases() -> Iterator[Case]:
    """Smallest first."""
    for size in (16, 4):
        yield Case(2 * size + 8, 0, 2, 0, 4, size)
        for used, free in ((0, 4), (0, 1), (2, 4), (2, 1), (1, 1), (1, 0), (2, 0), (0, 0)):
            yield Case(2 * size, 0, 2, used, free, size)
        for free in (0, 1):
            yield Case(size, 0, 1, free, free, size)
            yield Case(size, 0, 1, 0, 0, size)
        for known in (2 * size + 1, 2 * size + 8, 3 * size):
            yield Case(known, 0, 2, 2, 0, size)
            yield Case(known, 0, 2, 0, 0, size)
        yield Case(size + 4, size - 4, 2, 0, 4, size)
        yield Case(size + 4, size - 4, 2, 2, 0, size)
        yield Case(size, size, 1, 0, 2, size)
        yield Case(size, size, 1, 1, 0, size)
    draw = Random(11)
    for _ in range(20):
        size, found = draw.choice((1, 2, 16)), draw.randint(1, 4)
        answer = draw.choice((0, 0, draw.randrange(found * size)))
        more = draw.choice((0, 0, 1, size))
        yield Case(found * size - answer + more, answer, found, draw.randint(0, found), draw.randint(0, 3), size)


def run(attempt: Any, case: Case, watch: Watch) -> None:
    pool = PrefixCache(case.found + case.free + 1, case.size)
    tokens = list(range(case.known))
    hashes = hash_full_blocks(Sequence("X", tokens, 1), case.size)[: case.found]
    in_use = pool.allocate(pool.num_blocks)
    cached, others = in_use[: case.found], in_use[case.found + 1 :]  # the one between is another sequence's
    for block, one in zip([*cached, *others], [*hashes, *(bytes([other]) * 32 for other in others)]):
        pool.cache_full_block(block, one)
    pool.free([*cached[case.used :], *others[::-1]])
    y = Sequence("Y", tokens[: case.prompt], case.answer + 9, output_ids=tokens[case.prompt :])
    blocks = pool.match_prefix(hashes)

    def look() -> dict[str, Any]:
        return {
            "sequence.blocks": y.blocks,
            "sequence.num_computed_tokens": y.num_computed_tokens,
            "pool.ref_count": dict(sorted(pool.ref_count.items())),
            "pool.free_queue": list(pool.free_queue),
            "what `pool.match_prefix` finds": pool.match_prefix(hashes),
            "the blocks with a hash": sorted(pool.block_to_hash),
        }

    watch(f"`take_cached(pool, sequence, {blocks})`", attempt, pool, y, blocks, look=look)
    watch("`sequence.blocks.append(9)`", y.blocks.append, 9, look=lambda: {"the list `blocks` of the caller": blocks})


def tell(case: Case) -> str:
    answer = f" and {counted(case.answer, 'token')} of its answer" if case.answer else ""
    users = {0: "free", case.found: "in use by another sequence"}.get(
        case.used, f"free, but another sequence uses the first {case.used}"
    )
    return (
        f"blocks of {case.size}; {counted(case.prompt, 'prompt token')}{answer} are known; "
        f"{counted(case.found, 'block')} found, {users}; other free blocks: {case.free}."
    )


def facts(case: Case) -> dict[str, Any]:
    return {"known": case.known, "size": case.size, "covered": case.found * case.size}


HASHES = "The found blocks keep their hashes: other sequences find them, too."

MISTAKES = """
Then nothing is left to compute. But the next token is chosen from the logits of the last one, and no cache holds
logits. Count at most all known tokens minus one.
~ min(len(blocks) * pool.block_size, sequence.num_tokens - 1) => len(blocks) * pool.block_size
All tokens in the blocks count. Only if these are all {known} known ones, the last is computed again.
~ min(len(blocks) * pool.block_size, sequence.num_tokens - 1) => max(0, len(blocks) * pool.block_size - 1)
or ~ min(len(blocks) * pool.block_size, sequence.num_tokens - 1) => sequence.num_tokens - 1
or ~ min(len(blocks) * pool.block_size, sequence.num_tokens - 1) => len(blocks) * pool.block_size - 1
`sequence.blocks = blocks` stores the caller's own list, so both would grow together. Make a copy: `list(blocks)`.
~ list(blocks) => blocks
All tokens are found, so the last one is written into a copy of the last block, and for that a block *other than those
found* must be free. There is none: leave out the last block.
~ if covers_all and not others_free => if False
The found blocks are in the free queue, too, but these are the ones that the sequence takes. The copy needs another one.
= others_free = len(pool.free_queue)
Blocks that another sequence uses aren't in the free queue: take off only those of `blocks` that are.
= others_free = len(pool.free_queue) - len(blocks)
or = others_free = max(0, len(pool.free_queue) - len(blocks))
All of them hold tokens of this sequence. Leave out the last one only if all known tokens are found and no block is free
for the copy.
~ if covers_all and not others_free => if True
There is a free block for the copy, so keep all blocks and compute one token. Leaving out the last block gives the right
answer, but computes {size} tokens instead of 1.
~ if covers_all and not others_free => if covers_all
A copy is made only if the last token's block is among those found. Here token {known} goes into a new block, so all
blocks can be used.
~ if covers_all and not others_free => if not others_free
or = covers_all = sequence.num_tokens % pool.block_size == 0
The answer so far is known, too: `sequence.num_tokens` is {known}.
~ sequence.num_tokens => len(sequence.prompt_ids)
or ~ sequence.num_tokens - 1 => len(sequence.prompt_ids) - 1
or ~ == sequence.num_tokens => == len(sequence.prompt_ids)
or ~ == sequence.num_tokens => >= len(sequence.prompt_ids)
Leave out the last block and no other, even if it is the only one; what the others hold needn't be computed again.
~ blocks = blocks[:-1] => blocks = []
or ~ not others_free => not others_free and len(blocks) > 1
or ~ blocks[:-1] => blocks[1:]
The sequence starts with blocks that were found, and no others. Allocate nothing here: the scheduler makes the copy,
just before the sequence writes.
- sequence.blocks
+ sequence.blocks = list(blocks)
+ if covers_all and len(blocks) * pool.block_size == sequence.num_tokens:
+     sequence.blocks[-1:] = pool.allocate(1)
+     pool.free(blocks[-1:])
or - sequence.blocks
+ sequence.blocks = list(blocks)
+ if covers_all and others_free: sequence.blocks += pool.allocate(1)
Blocks aren't always of 16: `pool.block_size`.
~ pool.block_size => 16
or ~ len(blocks) * pool.block_size == => len(blocks) * 16 ==
If the last block is left out, its tokens aren't computed: count those of the blocks that are left.
- sequence.num_computed_tokens
+ sequence.num_computed_tokens = sequence.num_tokens - 1 if covers_all else len(blocks) * pool.block_size
or - sequence.num_computed_tokens
+ lost = min(others_free, 1)
+ sequence.num_computed_tokens = sequence.num_tokens - lost if covers_all else len(blocks) * pool.block_size
`allocate` takes other blocks, from the front of the queue. `touch` uses the ones that were found.
~ pool.touch(blocks) => pool.allocate(len(blocks))
"""

TASK = Task(
    reference="lessons_lib.scheduling.shared_blocks:take_cached",
    cases=cases,
    run=run,
    tell=tell,
    facts=facts,
    known=mistakes(MISTAKES),
    about={
        "sequence.blocks": "`sequence.blocks = list(blocks)`, in this order. The last one is missing only if they hold "
        "all known tokens and no other block is free.",
        "sequence.num_computed_tokens": "It is the number of tokens in its blocks, `pool.block_size` in each, but at "
        "most all known tokens minus one. The next step starts there.",
        "pool.ref_count": "`pool.touch` once, with exactly the blocks that the sequence takes, free or in use: a block "
        "that isn't touched goes to another sequence, and one that is touched too often is never freed.",
        "pool.free_queue": "`pool.touch` takes the sequence's blocks out of the queue. Nothing else moves.",
        "what `pool.match_prefix` finds": HASHES,
        "the blocks with a hash": HASHES,
        "returned": "Change the sequence and the pool, and return nothing.",
        "raised OutOfBlocks": "Allocate nothing here, and refuse nothing: if no block is left for the copy, leave out "
        "the last one.",
        "raised ValueError": "A block can be freed only after it was touched. If the last block is left out, don't "
        "touch it.",
        "raised TypeError": "`pool.touch` takes a list of blocks. For `-` between sets, both sides have to be sets.",
        "raised KeyError": "`pool.ref_count` has no entry for a free block; `pool.touch` counts it.",
    },
)

EXERCISE = TASK.exercise(
    id="11.2",
    title="starting from what is cached",
    hints=(
        "When is a copy made at all? Only then it matters which blocks are free. And which of the free ones will "
        "still be free once the sequence has its blocks?",
        "The number of other free blocks is the length of the free queue minus those of `blocks` that no sequence "
        "uses, since these are in the queue too. If all known tokens are found and there is none, leave out the "
        "last block. Then touch the remaining blocks, give the sequence a list of its own, and count: the tokens "
        "in the blocks, but at most all known tokens minus one.",
        "`others_free = len(pool.free_queue) - sum(block not in pool.ref_count for block in blocks)`; `blocks = "
        "blocks[:-1]` if all known tokens are found and `not others_free`; `pool.touch(blocks)`; "
        "`sequence.blocks = list(blocks)`; `sequence.num_computed_tokens = min(len(blocks) * pool.block_size, "
        "sequence.num_tokens - 1)`.",
    ),
)
