"""Exercises and quiz of lesson 07: addition, attention over one block and over block tables, the cache write."""

from lessons_lib.checks.exercise import Exercise
from lessons_lib.checks.lesson_07.add import check_add_kernel
from lessons_lib.checks.lesson_07.attend import check_attend_blocks
from lessons_lib.checks.lesson_07.decode import check_decode_heads_kernel
from lessons_lib.checks.lesson_07.one_block import check_one_block_kernel
from lessons_lib.checks.lesson_07.quiz import QUIZ
from lessons_lib.checks.lesson_07.write import check_write_kernel

__all__ = ["EXERCISES", "QUIZ"]

EXERCISES = [
    Exercise(
        id="07.1",
        title="addition, one tile per program",
        reference="lessons_lib.kernels.basics:add_kernel",
        test=check_add_kernel,
        hints=(
            "Start from `double_kernel`. Which of its lines touch memory, and which offsets of program 2 would be "
            "wrong with ten elements?",
            "Four steps: the offsets of this program's tile, a mask that is True where an offset is below "
            "`n_elements`, the sum of two loads, a store. All loads and stores use the same offsets and the same "
            "mask.",
            "`offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)` and `mask = offsets < n_elements`. Then "
            "`tl.load(x + offsets, mask=mask)`, the same for y, and `tl.store(out + offsets, ..., mask=mask)`.",
        ),
        points=1,
    ),
    Exercise(
        id="07.2",
        title="attention over one block (optional)",
        reference="lessons_lib.kernels.simple_paged:one_block_kernel",
        test=check_one_block_kernel,
        hints=(
            "`scores_kernel` has the scores. Then come a softmax, and the sum of weights times values. "
            "Which of the tiles are `[HEAD_DIM]`, which `[BLOCK_SIZE]`, which have both sides?",
            "Offsets, keys and values are `[BLOCK_SIZE, HEAD_DIM]`; the query and the result `[HEAD_DIM]`; mask, "
            "scores and weights `[BLOCK_SIZE]`. Load keys and values with `other=0.0`. A key of zeros has a score of "
            "0, which is a score like any other, so replace it with minus infinity before you take the maximum.",
            "`is_key = slot < num_tokens`; `keys = tl.load(k_block + offsets, mask=is_key[:, None], other=0.0)`; "
            "`scores = tl.sum(query[None, :] * keys, axis=1) * scale`, then "
            '`tl.where(is_key, scores, float("-inf"))`. The result is `tl.sum(weights[:, None] * values, axis=0)`, '
            "divided by the sum of the weights.",
        ),
        points=3,
    ),
    Exercise(
        id="07.3",
        title="attention over a block table",
        reference="lessons_lib.kernels.simple_paged:attend_blocks",
        test=check_attend_blocks,
        hints=(
            "Sort the lines of lesson 06's `attention_in_place` and `add_block`. What happens once per block, what "
            "before the first block, and what after the last? Three variables go from block to block.",
            "Before the loop: row_max is minus infinity, row_sum 0.0, acc a tile of zeros. In an iteration: load the "
            "block's index and convert it to 64 bits; compute the offsets of its keys; load keys and values, masked; "
            "scores, minus infinity where there is no key; the new maximum, over the old one and these scores; "
            "weights, relative to it; the factor exp(old − new), by which the sum and acc so far are multiplied before "
            "the block's part is added; then the new maximum becomes the old one. After the loop: acc / row_sum.",
            "`for first in range(0, num_tokens, BLOCK_SIZE)`: "
            "`block = tl.load(table + first // BLOCK_SIZE).to(tl.int64)`, `is_key = first + slot < num_tokens`, "
            "`offsets = block * stride_block + slot[:, None] * stride_slot + dim[None, :]`. "
            "`new_max = tl.maximum(row_max, tl.max(scores, axis=0))`, `rescale = tl.exp(row_max - new_max)`, "
            "`acc = acc * rescale + tl.sum(weights[:, None] * block_values, axis=0)`, the same for row_sum.",
        ),
        points=4,
    ),
    Exercise(
        id="07.4",
        title="all sequences, all heads",
        reference="lessons_lib.kernels.simple_paged:decode_heads_kernel",
        test=check_decode_heads_kernel,
        hints=(
            "`single_head_kernel`, with pointers moved for each program. Program (i, h) needs its query, its KV head, "
            "its row of the block tables, its context length, and the start of its output.",
            "Program id 0 is the sequence, program id 1 the query head. The KV head is head // GROUP; move the "
            "pointers of both caches to it. Move block_tables to the sequence's row. Load the length. Then call "
            "attend_blocks, and store.",
            "`offsets = seq * stride_seq + head * stride_q_head + dim` works for both q and out. "
            "`keys = k_cache + head // GROUP * stride_head`, the same for the values; "
            "`table = block_tables + seq * stride_table`; `num_tokens = tl.load(context_lens + seq)`.",
        ),
        points=3,
    ),
    Exercise(
        id="07.5",
        title="the cache write (optional)",
        reference="lessons_lib.kernels.simple_paged:write_kernel",
        test=check_write_kernel,
        hints=(
            "The gather above, reversed. What is read in order, and what does the table decide?",
            "The program id is the token. Load its slot from `slot_mapping`, load its elements from `new`, store them "
            "where the slot starts. Slots are numbered across the whole pool, so one stride is enough.",
            "`slot = tl.load(slot_mapping + token)`; "
            "`values = tl.load(new + token * stride_new + offsets, mask=mask)`; "
            "`tl.store(cache + slot * stride_slot + offsets, values, mask=mask)`.",
        ),
        points=1,
    ),
]
