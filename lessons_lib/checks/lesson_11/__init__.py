"""The exercises and the quiz of lesson 11: block hashes, a pool that shares blocks, and what a sequence takes from the
cache.
"""

from lessons_lib.checks.exercise import Exercise
from lessons_lib.checks.lesson_11.cached import check_take_cached
from lessons_lib.checks.lesson_11.hashes import check_block_hash
from lessons_lib.checks.lesson_11.quiz import QUIZ
from lessons_lib.checks.lesson_11.shared_pool import check_prefix_cache

__all__ = ["EXERCISES", "QUIZ"]

EXERCISES = [
    Exercise(
        id="11.1",
        title="the hash of a block",
        reference="lessons_lib.kv_cache.prefix_cache:block_hash",
        test=check_block_hash,
        hints=(
            "One hash over two things: the hash of the previous block, and the tokens of this block. Turn both into "
            "bytes and concatenate them.",
            '`array("q", token_ids).tobytes()` turns the tokens into bytes, eight per token. '
            "`hashlib.sha256(data).digest()` hashes bytes.",
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
            "`match_prefix` goes through the hashes and stops at the first unknown one. `touch` and `free` change the "
            "count of each block by one. The rest is about blocks that "
            "weren't in use before, or no longer are.",
            "`touch`: start with a loop that only checks and refuses. Then, for each block, raise the count (from 0 "
            "if it has no entry) and take it out of the free queue; finally add all blocks to "
            "`used`. `free`: refuse a block that appears twice; pass the blocks with count 1 to `super().free` before "
            "you change any count, since it may refuse too; then lower every count, and "
            "delete those that drop to 0.",
            "`self.ref_count[block] = self.ref_count.get(block, 0) + 1` and `self.free_queue.pop(block, None)`. In "
            "`free`: `super().free([block for block in blocks if "
            "self.ref_count.get(block, 1) == 1])`. The default of 1 passes a block without an entry on to "
            "`super().free`, which refuses it.",
        ),
        points=3,
    ),
    Exercise(
        id="11.3",
        title="starting from what is cached",
        reference="lessons_lib.scheduling.preemption:take_cached",
        test=check_take_cached,
        hints=(
            "Ask two questions first. Do the blocks hold all known tokens? And is there a free block for the copy, "
            "other than the ones that were found? Leave out the last block only if the "
            "answers are yes and no.",
            "The number of other free blocks is the length of the free queue minus those of `blocks` that no sequence "
            "uses, since these are in the queue too. Then touch the remaining blocks, give the "
            "sequence a list of its own, and count: the tokens in the blocks, but at most all known tokens minus one.",
            "`others_free = len(pool.free_queue) - sum(block not in pool.ref_count for block in blocks)`; `blocks = "
            "blocks[:-1]` if all known tokens are found and `not others_free`; `pool.touch(blocks)`; "
            "`sequence.blocks = list(blocks)`; `sequence.num_computed_tokens = min(len(blocks) * pool.block_size, "
            "sequence.num_tokens - 1)`.",
        ),
    ),
]
