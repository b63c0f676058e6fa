"""The exercises and the quiz of lesson 08: the work counted, the softmax of a tile, splits merged, and tiles of a packed row."""

from lessons_lib.checks.exercise import Exercise
from lessons_lib.checks.lesson_08.merge import check_merge_kernel
from lessons_lib.checks.lesson_08.quiz import QUIZ
from lessons_lib.checks.lesson_08.sequence import check_sequence_of
from lessons_lib.checks.lesson_08.softmax import check_online_softmax
from lessons_lib.checks.lesson_08.work import check_attention_work

__all__ = ["EXERCISES", "QUIZ"]

EXERCISES = [
    Exercise(
        id="08.1",
        title="bytes and operations",
        reference="lessons_lib.measuring.roofline:attention_work",
        test=check_attention_work,
        hints=(
            "Two counts. What must move: keys and values of the whole contexts, queries and outputs of the new tokens. What must be computed: something for each pair of a new "
            "token and a key that it sees.",
            "Numbers moved: 2 × (sum of context_lens) × kv_heads × head_dim, and 2 × (sum of q_lens) × q_heads × head_dim. The pairs of a sequence: q_len × context, less the "
            "triangle of later tokens that a query does not see, q_len × (q_len − 1) // 2.",
            "`pairs = sum(q_len * context - q_len * (q_len - 1) // 2 for q_len, context in zip(q_lens, context_lens))`; "
            "`Work(bytes=numbers * bytes_per_element, flop=4 * pairs * q_heads * head_dim)`.",
        ),
    ),
    Exercise(
        id="08.2",
        title="the softmax of a tile",
        reference="lessons_lib.kernels.paged_flash:online_softmax",
        test=check_online_softmax,
        hints=(
            "It is `add_block` of lesson 06 for a tile, with two differences: powers of 2 in place of powers of e, and the values are added by whoever calls it.",
            "New maximum of each row. What is subtracted: that maximum, or 0 where it is minus infinity. Weights and factor are `tl.exp2` of differences. Return the weights, the new "
            "maximum, the sum times the factor plus the sum of the weights, and acc times the factor.",
            '`new_max = tl.maximum(row_max, tl.max(scores, axis=1))`; `reference = tl.where(new_max == float("-inf"), 0.0, new_max)`; '
            "`rescale = tl.exp2(row_max - reference)`. The weights are made in the same way, with `reference` as a column. What was there before is multiplied by `rescale`: "
            "`row_sum` as it is, `acc` with a column again.",
        ),
        points=3,
    ),
    Exercise(
        id="08.3",
        title="splits merged",
        reference="lessons_lib.kernels.paged_flash:merge_kernel",
        test=check_merge_kernel,
        hints=(
            "Every split has finished: its attention and its log-sum-exp lie in memory. The result is a weighted mean of the attentions, with the weights 2 to the log-sum-exp.",
            "The number of the head, of the sequence, and of its token. Which splits have keys. Their lines in `partial_lse`. Weights relative to the largest log-sum-exp. The pieces, a "
            "rectangle of splits × numbers. Sum of weight × piece along the splits, divided by the sum of the weights. Store it.",
            "`is_used = split < tl.cdiv(tl.load(context_lens + seq), SPLIT)`; `partial = (token * tl.num_programs(0) + head) * NUM_SPLITS + split`; "
            '`lse = tl.load(partial_lse + partial, mask=is_used, other=float("-inf"))`; `weights = tl.exp2(lse - tl.max(lse, axis=0))`; the pieces lie at '
            "`partial_out + partial[:, None] * HEAD_DIM + dim[None, :]`.",
        ),
        points=3,
    ),
    Exercise(
        id="08.4",
        title="whose tile it is",
        reference="lessons_lib.kernels.paged_flash:sequence_of",
        test=check_sequence_of,
        time_limit=6.0,
        hints=(
            "The first tiles of the sequences rise from sequence to sequence. The one that is sought is the last whose first tile is at most `tile`: look in the middle, and drop one half.",
            "Keep `low`, a sequence that begins at or before the tile, and `high`, one that begins behind it. At first 0 and num_seqs. While they are more than 1 apart, take the middle, "
            "load its entry, compute its first tile, and move `low` or `high` there.",
            "`while high - low > 1:`, `middle = (low + high) // 2`, and the first tile of the middle is `tl.load(cu_seqlens_q + middle) // TOKENS + middle`. Is it at most `tile`, then the "
            "middle may be the one: which of the two ends moves there? Else the other end moves. `return` stands behind the loop, since a loop in a kernel must not contain one.",
        ),
    ),
]
