"""Exercises and quiz of lesson 08: a softmax of many rows, the group kernel; optional: splits merged, work, tiles."""

from lessons_lib.checks.exercise import Exercise
from lessons_lib.checks.lesson_08.find_seq_idx import check_find_seq_idx
from lessons_lib.checks.lesson_08.groups import check_decode_groups_kernel
from lessons_lib.checks.lesson_08.merge import check_merge_kernel
from lessons_lib.checks.lesson_08.quiz import QUIZ
from lessons_lib.checks.lesson_08.softmax import check_online_softmax
from lessons_lib.checks.lesson_08.work import check_attention_work

__all__ = ["EXERCISES", "QUIZ"]

EXERCISES = [
    Exercise(
        id="08.1",
        title="the softmax of a tile",
        reference="lessons_lib.kernels.paged_flash:online_softmax",
        test=check_online_softmax,
        hints=(
            "Write down the shape of every intermediate result. Which of them are columns when they meet `scores` or "
            "`acc`? Then: which difference becomes NaN in a row that has seen nothing?",
            "The new maximum of each row. What you subtract: that maximum, or 0 where it's minus infinity. Weights and "
            "factor are `tl.exp2` of differences. Return the weights, the new maximum, the sum times the factor plus "
            "the sum of the weights, and acc times the factor.",
            "`new_max = tl.maximum(row_max, tl.max(scores, axis=1))`; "
            '`reference = tl.where(new_max == float("-inf"), 0.0, new_max)`; '
            "`rescale = tl.exp2(row_max - reference)`. Compute the weights in the same way, with `reference` as a "
            "column. Multiply the old state by `rescale`: `row_sum` directly, `acc` with a column again.",
        ),
        points=2,
    ),
    Exercise(
        id="08.2",
        title="a group of heads and a tile of keys",
        reference="lessons_lib.kernels.group_decode:decode_groups_kernel",
        test=check_decode_groups_kernel,
        time_limit=30.0,
        hints=(
            "Name the axes of each tile first. Queries: rows and dimensions. Keys and values: positions and "
            "dimensions. Scores and weights: rows and positions. `acc`: rows and dimensions. Maximum and sum: rows. "
            "Which of them does an iteration load, and which does it carry to the next one?",
            "Before the loop: `head = kv_head * GROUP + row`, the queries with the mask `row < GROUP`, the three tiles "
            "of state. In the loop: positions, their mask, a load of BLOCK_N blocks from the table, offsets in 64 "
            "bits, keys and values [BLOCK_N, HEAD_DIM], scores by `tl.dot`, minus infinity past the context, "
            "`online_softmax`, and `acc` by another `tl.dot`. After it: divide and store with the mask of the queries.",
            "`position = first + tl.arange(0, BLOCK_N)`; `blocks = tl.load(block_tables + seq * stride_table + "
            "position // BLOCK_SIZE, mask=is_key, other=0).to(tl.int64)`; the slots are at `blocks * stride_block + "
            "position % BLOCK_SIZE * stride_slot + kv_head * stride_head`; `scores = tl.dot(queries, tl.trans(keys), "
            'input_precision="ieee") * scale`; `weights, row_max, row_sum, acc = online_softmax(scores, row_max, '
            'row_sum, acc)`; `acc = tl.dot(weights.to(values.dtype), values, acc, input_precision="ieee")`.',
        ),
        points=4,
    ),
    Exercise(
        id="08.3",
        title="splits merged (optional)",
        reference="lessons_lib.kernels.group_decode:merge_kernel",
        test=check_merge_kernel,
        hints=(
            "All splits have finished: their attentions and log-sum-exps are in memory. The result is a weighted mean "
            "of the attentions; each weight is 2 to the power of the log-sum-exp.",
            "The head, the sequence, and its token. Which splits have keys. Their indices in `partial_lse`. Weights "
            "relative to the largest log-sum-exp. The attentions, a rectangle [splits, head size]. Sum of weight × "
            "attention along the splits, divided by the sum of the weights. Store it.",
            "`is_used = split < tl.cdiv(tl.load(context_lens + seq), SPLIT_SIZE)`; "
            "`partial = (token * tl.num_programs(0) + head) * NUM_SPLITS + split`; "
            '`lse = tl.load(partial_lse + partial, mask=is_used, other=float("-inf"))`; '
            "`weights = tl.exp2(lse - tl.max(lse, axis=0))`; the attentions are at "
            "`partial_out + partial[:, None] * HEAD_DIM + dim[None, :]`.",
        ),
        points=3,
    ),
    Exercise(
        id="08.4",
        title="bytes and operations (optional)",
        reference="lessons_lib.measuring.roofline:attention_work",
        test=check_attention_work,
        hints=(
            "Two counts. What must move: keys and values of the whole contexts, queries and outputs of the new tokens. "
            "What must be computed: a fixed number of operations for each pair of a new token and a key that it sees.",
            "Elements moved: 2 × (sum of context_lens) × kv_heads × head_dim, and 2 × (sum of q_lens) × q_heads × "
            "head_dim. The pairs of a sequence: q_len × context, minus the triangle of later tokens that a query "
            "doesn't see, q_len × (q_len − 1) // 2.",
            "`pairs = sum(q_len * context - q_len * (q_len - 1) // 2 for q_len, context "
            "in zip(q_lens, context_lens))`; "
            "`Work(bytes=elements * bytes_per_element, flop=4 * pairs * q_heads * head_dim)`.",
        ),
    ),
    Exercise(
        id="08.5",
        title="the sequence of a tile (optional)",
        reference="lessons_lib.kernels.paged_flash:find_seq_idx",
        test=check_find_seq_idx,
        time_limit=6.0,
        hints=(
            "The first tiles increase from sequence to sequence. You want the last sequence whose first tile is at "
            "most `tile`: look at the middle one, and drop one half.",
            "Keep `low`, a sequence that starts at or before the tile, and `high`, one that starts after it; "
            "initially 0 and num_seqs. While they are more than 1 apart, take the middle, load its entry, compute "
            "its first tile, and move `low` or `high` there.",
            "`while high - low > 1:`, `middle = (low + high) // 2`, and the first tile of the middle is "
            "`tl.load(cu_seqlens_q + middle) // BLOCK_Q + middle`. If it is at most `tile`, the middle may be the "
            "result: which of the two ends moves there? Otherwise the other end moves. `return` comes after the loop, "
            "since a loop in a kernel must not contain one.",
        ),
    ),
]
