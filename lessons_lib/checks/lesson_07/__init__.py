"""The exercises and the quiz of lesson 07: three small kernels, the cache write, and decode attention over block tables."""

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
        title="addition, a tile for each program",
        reference="lessons_lib.kernels.basics:add_kernel",
        test=check_add_kernel,
        hints=(
            "All programs run the same lines. A program finds out by its number which part is its own, and the last one leaves out what is beyond the end.",
            "Four steps: the places of this program's tile, a mask that is True where a place is below `length`, the sum of two loads, a store. All loads "
            "and stores have the same places and the same mask.",
            "`place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)` and `is_number = place < length`. Then `tl.load(x + place, mask=is_number)`, the same for y, "
            "and `tl.store(out + place, ..., mask=is_number)`.",
        ),
        points=1,
    ),
    Exercise(
        id="07.2",
        title="softmax of each row",
        reference="lessons_lib.kernels.basics:softmax_kernel",
        test=check_softmax_kernel,
        hints=(
            "A program has one row, as a tile. The softmax of a tile is three lines. What remains is where the row lies, and what the places beyond its end hold.",
            '`column` goes from 0 to COLUMNS − 1; mask those below `columns`. The row begins `row * stride_x` behind x. Load with `other=float("-inf")`, subtract the '
            "largest score, take exponentials, divide by their sum, store at `row * stride_out`.",
            '`scores = tl.load(x + row * stride_x + column, mask=is_column, other=float("-inf"))`, then `weights = tl.exp(scores - tl.max(scores, axis=0))`, and store '
            "`weights / tl.sum(weights, axis=0)` with the same mask.",
        ),
    ),
    Exercise(
        id="07.3",
        title="gather: an address that is looked up",
        reference="lessons_lib.kernels.basics:gather_kernel",
        test=check_gather_kernel,
        hints=(
            "Two loads, one after the other. The first gets a number from `index`. The second gets the row of that number.",
            "`tl.load(index + row)` is one number, no tile. With it you have where the wanted row of `source` begins. The row of `out` is still that of the program.",
            "`wanted = tl.load(index + row)`, then `tl.load(source + wanted * stride_source + column, mask=is_column)`, and store it at `out + row * stride_out + column` "
            "with the same mask.",
        ),
        points=1,
    ),
    Exercise(
        id="07.4",
        title="the cache write",
        reference="lessons_lib.kernels.simple_paged:write_kernel",
        test=check_write_kernel,
        hints=(
            "The gather of 07.3, turned round: read in order, write where the table says.",
            "The program's token is its number. Load its slot from `slot_mapping`, load its line from `new`, store the line where the slot begins. A slot is counted "
            "through the whole pool, so it needs one stride.",
            "`slot = tl.load(slot_mapping + token)`; `line = tl.load(new + token * stride_new + number, mask=is_number)`; "
            "`tl.store(cache + slot * stride_slot + number, line, mask=is_number)`.",
        ),
        points=1,
    ),
    Exercise(
        id="07.5",
        title="attention over a block table",
        reference="lessons_lib.kernels.simple_paged:attend_blocks",
        test=check_attend_blocks,
        hints=(
            "`add_block` of lesson 06 in a loop, with tiles in place of tensors. New are only the addresses: the block from the table, the mask of the last block.",
            "Before the loop: row_max is minus infinity, row_sum 0.0, acc a tile of zeros: what a loop changes keeps its type and shape. In a turn: load the block's number and make it 64 bits wide; the places of its keys, a rectangle "
            "[BLOCK_SIZE, HEAD_DIM]; keys and values, masked, other=0.0; scores, minus infinity where there is no key; new maximum, weights, factor; sum and acc, each "
            "rescaled, and added to; the maximum carried. After the loop: acc / row_sum.",
            "`block = tl.load(table + first // BLOCK_SIZE).to(tl.int64)`, `is_key = first + offset < num_tokens`, `place = block * stride_block + offset[:, None] * stride_slot + "
            "dim[None, :]`. Keys: `tl.load(keys + place, mask=is_key[:, None], other=0.0)`. Scores: `tl.sum(query[None, :] * block_keys, axis=1) * scale`, then "
            '`tl.where(is_key, scores, float("-inf"))`. The block\'s part of acc: `tl.sum(weights[:, None] * block_values, axis=0)`.',
        ),
        points=4,
    ),
    Exercise(
        id="07.6",
        title="all sequences, all heads",
        reference="lessons_lib.kernels.simple_paged:decode_heads_kernel",
        test=check_decode_heads_kernel,
        hints=(
            "`one_head_kernel` with more pointers moved. Program (i, h) needs its query, its KV head, its row of the block tables, its length, and its place in out.",
            "Axis 0 of the grid is the sequence, axis 1 the query head. The KV head is head // GROUP; move the pointers of both caches by it. Move block_tables by the sequence. Load the "
            "length. Then call attend_blocks, and store.",
            "`place = seq * stride_seq + head * stride_q_head + dim` serves q and out. `keys = k_cache + head // GROUP * stride_head`, the same for the values; "
            "`table = block_tables + seq * stride_table`; `num_tokens = tl.load(context_lens + seq)`.",
        ),
        points=3,
    ),
]
