"""Exercises and quiz of lesson 07: three small kernels, the cache write, and decode attention over block tables."""

from lessons_lib.checks.exercise import Exercise
from lessons_lib.checks.lesson_07.add import check_add_kernel
from lessons_lib.checks.lesson_07.attend import check_attend_blocks
from lessons_lib.checks.lesson_07.decode import check_decode_heads_kernel
from lessons_lib.checks.lesson_07.gather import check_gather_kernel
from lessons_lib.checks.lesson_07.quiz import QUIZ
from lessons_lib.checks.lesson_07.softmax import check_softmax_kernel
from lessons_lib.checks.lesson_07.write import check_write_kernel

__all__ = ["EXERCISES", "QUIZ"]

EXERCISES = [
    Exercise(
        id="07.1",
        title="addition, one tile per program",
        reference="lessons_lib.kernels.basics:add_kernel",
        test=check_add_kernel,
        hints=(
            "All programs run the same code. A program's id tells it which part is its own, and the last program "
            "leaves out offsets past the end.",
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
        title="softmax of each row",
        reference="lessons_lib.kernels.basics:softmax_kernel",
        test=check_softmax_kernel,
        hints=(
            "A program has one row, as a tile. The softmax of a tile takes three lines. The rest is where the row "
            "starts, and what the elements past its end should be.",
            "`column` goes from 0 to COLUMNS − 1; the mask is True for those below `columns`. The row starts at "
            '`x + row * stride_x`. Load with `other=float("-inf")`, subtract the largest score, take exponentials, '
            "divide by their sum, store at `out + row * stride_out`.",
            '`scores = tl.load(x + row * stride_x + column, mask=mask, other=float("-inf"))`, then '
            "`weights = tl.exp(scores - tl.max(scores, axis=0))`, and store `weights / tl.sum(weights, axis=0)` "
            "with the same mask.",
        ),
    ),
    Exercise(
        id="07.3",
        title="gather: an address from a table",
        reference="lessons_lib.kernels.basics:gather_kernel",
        test=check_gather_kernel,
        hints=(
            "Two loads, one after the other. The first gets a row index from `index`. The second gets that row.",
            "`tl.load(index + row)` is a scalar, not a tile. It tells you where the row of `source` starts. The row of "
            "`out` is still the program's own.",
            "`source_row = tl.load(index + row)`, then "
            "`tl.load(source + source_row * stride_source + column, mask=mask)`, and store it at "
            "`out + row * stride_out + column` with the same mask.",
        ),
        points=1,
    ),
    Exercise(
        id="07.4",
        title="the cache write",
        reference="lessons_lib.kernels.simple_paged:write_kernel",
        test=check_write_kernel,
        hints=(
            "The gather of 07.3, reversed: read in order, write where `slot_mapping` says.",
            "The program id is the token. Load its slot from `slot_mapping`, load its elements from `new`, store them "
            "where the slot starts. Slots are numbered across the whole pool, so one stride is enough.",
            "`slot = tl.load(slot_mapping + token)`; "
            "`values = tl.load(new + token * stride_new + offsets, mask=mask)`; "
            "`tl.store(cache + slot * stride_slot + offsets, values, mask=mask)`.",
        ),
        points=1,
    ),
    Exercise(
        id="07.5",
        title="attention over a block table",
        reference="lessons_lib.kernels.simple_paged:attend_blocks",
        test=check_attend_blocks,
        hints=(
            "`add_block` of lesson 06 in a loop, with tiles instead of tensors. Only the addresses are new: the block "
            "from the table, the mask of the last block.",
            "Before the loop: row_max is minus infinity, row_sum 0.0, acc a tile of zeros; variables that a loop "
            "updates keep their dtype and shape. In an iteration: load the block's index and convert it to 64 bits; "
            "compute the offsets of its keys, a rectangle [BLOCK_SIZE, HEAD_DIM]; load keys and values, masked, "
            "other=0.0; scores, minus infinity where there is no key; new maximum, weights, factor; rescale "
            "sum and acc, and add to them; carry the maximum. After the loop: acc / row_sum.",
            "`block = tl.load(table + first // BLOCK_SIZE).to(tl.int64)`, `is_key = first + slot < num_tokens`, "
            "`offsets = block * stride_block + slot[:, None] * stride_slot + dim[None, :]`. Keys: "
            "`tl.load(keys + offsets, mask=is_key[:, None], other=0.0)`. Scores: "
            "`tl.sum(query[None, :] * block_keys, axis=1) * scale`, then "
            '`tl.where(is_key, scores, float("-inf"))`. The block\'s part of acc: '
            "`tl.sum(weights[:, None] * block_values, axis=0)`.",
        ),
        points=4,
    ),
    Exercise(
        id="07.6",
        title="all sequences, all heads",
        reference="lessons_lib.kernels.simple_paged:decode_heads_kernel",
        test=check_decode_heads_kernel,
        hints=(
            "`single_head_kernel`, with pointers moved for each program. Program (i, h) needs its query, its KV head, "
            "its row of the block tables, its context length, and the start of its output.",
            "Axis 0 of the grid is the sequence, axis 1 the query head. The KV head is head // GROUP; move the "
            "pointers of both caches by it. Move block_tables by the sequence. Load the length. Then call "
            "attend_blocks, and store.",
            "`offsets = seq * stride_seq + head * stride_q_head + dim` works for both q and out. "
            "`keys = k_cache + head // GROUP * stride_head`, the same for the values; "
            "`table = block_tables + seq * stride_table`; `num_tokens = tl.load(context_lens + seq)`.",
        ),
        points=3,
    ),
]
