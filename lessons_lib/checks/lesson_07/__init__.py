"""Exercises and quiz of lesson 07: addition, attention over a block table, all sequences and heads."""

from lessons_lib.checks.exercise import Exercise
from lessons_lib.checks.lesson_07 import attend
from lessons_lib.checks.lesson_07.add import check_add_kernel
from lessons_lib.checks.lesson_07.decode import check_decode_heads_kernel
from lessons_lib.checks.lesson_07.quiz import QUIZ

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
    attend.EXERCISE,
    Exercise(
        id="07.3",
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
]
