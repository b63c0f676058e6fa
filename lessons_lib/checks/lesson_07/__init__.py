"""Exercises and quiz of lesson 07: addition, attention over a block table, all sequences and heads."""

from lessons_lib.checks.exercise import Exercise
from lessons_lib.checks.lesson_07 import add, attend
from lessons_lib.checks.lesson_07.decode import check_decode_heads_kernel
from lessons_lib.checks.lesson_07.quiz import QUIZ

__all__ = ["EXERCISES", "QUIZ"]

EXERCISES = [
    add.EXERCISE,
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
