"""The exercises and the quiz of lesson 11: block hashes, a pool that shares blocks, and what a sequence takes from the cache."""

from lessons_lib.checks.exercise import Exercise
from lessons_lib.checks.lesson_11.cached import check_take_cached
from lessons_lib.checks.lesson_11.names import check_block_hash
from lessons_lib.checks.lesson_11.quiz import QUIZ
from lessons_lib.checks.lesson_11.shared_pool import check_prefix_cache

__all__ = ["EXERCISES", "QUIZ"]

EXERCISES = [
    Exercise(
        id="11.1",
        title="the name of a block",
        reference="lessons_lib.kv_cache.prefix_cache:block_hash",
        test=check_block_hash,
        hints=(
            "One hash over two things: the name of the block before, and the tokens of this one. Both as bytes, one behind the other.",
            '`array("q", token_ids).tobytes()` are the bytes of the tokens, eight for each. `hashlib.sha256(data).digest()` is the hash of some bytes.',
            '`return hashlib.sha256(parent + array("q", token_ids).tobytes()).digest()`.',
        ),
        points=1,
    ),
    Exercise(
        id="11.2",
        title="a pool that shares",
        reference="lessons_lib.kv_cache.prefix_cache:PrefixCache",
        test=check_prefix_cache,
        hints=(
            "`match_prefix` goes through the names and stops at the first unknown one. `touch` and `free` change one count a block; what they do besides concerns blocks that nobody held, or nobody "
            "holds any more.",
            "`touch`: first a loop that only refuses. Then for each block: one more holder (0 before, if it has no entry), and out of the free queue; at the end, all into `used`. `free`: refuse "
            "a block named twice; give `super().free` those with one holder, before any count is changed, since it may refuse too; then lower every count, and delete those that come to 0.",
            "`self.ref_count[block] = self.holders.get(block, 0) + 1` and `self.free_queue.pop(block, None)`. In `free`: `super().free([block for block in blocks if "
            "self.holders.get(block, 1) == 1])`, where the 1 for a block without an entry lets `super().free` see it, and refuse it.",
        ),
        points=3,
    ),
    Exercise(
        id="11.3",
        title="beginning with what is cached",
        reference="lessons_lib.scheduling.preemption:take_cached",
        test=check_take_cached,
        hints=(
            "Two questions first. Do the blocks hold all known tokens? And is a block free for the copy, beside those that were found? Only if yes and no, the last block is left out.",
            "Free beside those found: the length of the free queue, less those of `blocks` that nobody holds, since these stand in the queue too. Then share what is left of `blocks`, give the "
            "sequence a list of its own, and count: the tokens in the blocks, but at most all known tokens less one.",
            "`others_free = len(pool.free_queue) - sum(block not in pool.ref_count for block in blocks)`; `blocks = blocks[:-1]` if all is covered and `not others_free`; `pool.touch(blocks)`; "
            "`sequence.blocks = list(blocks)`; `sequence.num_computed_tokens = min(len(blocks) * pool.block_size, sequence.num_tokens - 1)`.",
        ),
    ),
]
