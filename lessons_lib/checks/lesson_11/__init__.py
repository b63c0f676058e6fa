"""The exercises and the quiz of lesson 11: block hashes, a pool that shares blocks and finds them again, copies before
a write, and what a sequence takes from the cache.
"""

from lessons_lib.checks.exercise import Exercise
from lessons_lib.checks.lesson_11.cached import check_take_cached
from lessons_lib.checks.lesson_11.copies import check_copy_before_write
from lessons_lib.checks.lesson_11.counts import check_shared_pool
from lessons_lib.checks.lesson_11.found import check_prefix_cache
from lessons_lib.checks.lesson_11.hashes import check_block_hash
from lessons_lib.checks.lesson_11.quiz import QUIZ

__all__ = ["EXERCISES", "QUIZ"]

EXERCISES = [
    Exercise(
        id="11.1",
        title="the hash of a block",
        reference="lessons_lib.kv_cache.block_hashes:block_hash",
        test=check_block_hash,
        hints=(
            "SHA-256 takes bytes, and you have 32 bytes and a list of ints. How can ints become bytes so that [1, 12] "
            "and [11, 2], or 1 and 65,537, don't become the same?",
            '`array("q", token_ids)` holds the tokens as ints of eight bytes each, and its `tobytes()` returns them. '
            "`hashlib.sha256(data).digest()` hashes bytes. `+` concatenates bytes.",
            '`return hashlib.sha256(parent + array("q", token_ids).tobytes()).digest()`.',
        ),
        points=1,
    ),
    Exercise(
        id="11.2",
        title="counting the users of a block",
        reference="lessons_lib.kv_cache.prefix_cache:SharedBlockPool",
        test=check_shared_pool,
        hints=(
            "A block has three places in the pool's records: the queue, `used` and `ref_count`. Which of them change "
            "when a count goes from 0 to 1, from 1 to 2, and back?",
            "`touch`: for each block, raise the count (from 0 if it has no entry) and take it out of the free queue if "
            "it is there; finally add all blocks to `used`. `free`: refuse a block that appears twice; pass the blocks "
            "with count 1 to `super().free`, all in one call, before you change any count, since it may refuse too; "
            "then lower every count, and delete those that drop to 0.",
            "`self.ref_count[block] = self.ref_count.get(block, 0) + 1` and `self.free_queue.pop(block, None)`. In "
            "`free`: `super().free([block for block in blocks if self.ref_count.get(block, 1) == 1])`. The default of "
            "1 passes a block without an entry on to `super().free`, which refuses it.",
        ),
        points=3,
    ),
    Exercise(
        id="11.3",
        title="finding blocks by their contents",
        reference="lessons_lib.kv_cache.prefix_cache:PrefixCache",
        test=check_prefix_cache,
        hints=(
            "Which sequences read a block now, and which may read it later? One of the pool's tables answers the first "
            "question, another one the second.",
            "`match_prefix`: a loop over the hashes that ends at the first one that isn't in `hash_to_block`. "
            "`is_writable`: two conditions, the count and the hash.",
            "`if block_hash not in self.hash_to_block: break`. `return self.ref_count.get(block) == 1 and block not in "
            "self.block_to_hash`.",
        ),
        points=3,
    ),
    Exercise(
        id="11.4",
        title="copy before a write",
        reference="lessons_lib.scheduling.shared_blocks:copy_before_write",
        test=check_copy_before_write,
        hints=(
            "Which of the pool's methods changes the count of a block by one, and which of them may raise? What may "
            "have changed by then? The pool itself knows what becomes of a block that no table contains.",
            "First allocate one block. Then put it into the table in place of the old one. Then free the old one. "
            "The pool's counts need nothing else.",
            "`source = sequence.blocks[index]`; `(target,) = pool.allocate(1)`; `sequence.blocks[index] = target`; "
            "`pool.free([source])`; `return BlockCopy(COPY, source, target)`.",
        ),
    ),
    Exercise(
        id="11.5",
        title="starting from what is cached (optional)",
        reference="lessons_lib.scheduling.shared_blocks:take_cached",
        test=check_take_cached,
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
    ),
]
