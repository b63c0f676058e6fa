"""The exercises and the quiz of lesson 04: tags, the mask, one pass over a packed row, attention without the mask."""

from lessons_lib.checks.exercise import Exercise
from lessons_lib.checks.lesson_04.additive import check_additive_mask
from lessons_lib.checks.lesson_04.mask import check_block_diagonal_mask
from lessons_lib.checks.lesson_04.packed import check_packed_logits
from lessons_lib.checks.lesson_04.quiz import QUIZ
from lessons_lib.checks.lesson_04.tags import check_tag_tokens
from lessons_lib.checks.lesson_04.varlen import check_varlen_attention

__all__ = ["EXERCISES", "QUIZ"]

EXERCISES = [
    Exercise(
        id="04.1",
        title="a sequence id and a position for every token (optional)",
        reference="lessons_lib.attention.masks:tag_tokens",
        test=check_tag_tokens,
        hints=(
            "Build two plain lists with one entry per token, and turn each into a tensor at the end. Go sequence by "
            "sequence: sequence i appends its id and its positions, one of each per token.",
            "If `starts` is None, use a list of zeros. For sequence i, append i to the first list `length` times, and "
            "append start, start + 1, ... to the second, also `length` values.",
            "`for i, (length, start) in enumerate(zip(lengths, starts)):` then `seq_ids += [i] * length` and "
            "`positions += range(start, start + length)`. At the end, return "
            "`Tags(torch.tensor(seq_ids, dtype=torch.int64), torch.tensor(positions, dtype=torch.int64))`.",
        ),
    ),
    Exercise(
        id="04.2",
        title="the mask from three comparisons",
        reference="lessons_lib.attention.masks:block_diagonal_mask",
        test=check_block_diagonal_mask,
        hints=(
            "Start with the sequence ids, for one query: compare its id with the ids of all keys. That's one row of "
            "the mask. Which shape must the queries' ids have so that a single comparison gives all rows?",
            "You need to compare every query with every key. So give the queries' tensors a second axis of size 1: "
            "`queries.positions[:, None]` has shape [queries, 1], and comparing it with `keys.positions`, of shape "
            "[keys], gives [queries, keys]. Do the same with the sequence ids. Padding depends only on the "
            "key. Combine masks with `&`, since Python's `and` doesn't work on tensors.",
            "`keys.seq_ids != PADDING`, `keys.seq_ids == queries.seq_ids[:, None]` and "
            "`keys.positions <= queries.positions[:, None]`, joined by `&`. Put parentheses around each comparison: "
            "`&` binds more tightly than `==`.",
        ),
    ),
    Exercise(
        id="04.3",
        title="several sequences in one forward pass",
        reference="lessons_lib.batching.packed_logits:packed_logits",
        test=check_packed_logits,
        hints=(
            "You need the list of lengths twice, before the pass and after it. For what? And which axes does the model "
            "expect that your tensors don't have yet?",
            "`tag_tokens` of the lengths gives the positions, and `mask(tags, tags)` the mask. The model expects a "
            "batch axis: `[1, T]` for tokens and positions, and `[1, 1, T, T]` for the mask, which also has an axis "
            "for the heads. Its `.logits[0]` is `[T, vocabulary]`, and `tensor.split(lengths)` splits that: "
            "`split([3, 5])` gives 3 rows and 5 rows.",
            "`logits = model(input_ids=torch.tensor([row]), position_ids=tags.positions[None], "
            "attention_mask=mask(tags, tags)[None, None], use_cache=False).logits[0]`, where "
            "`row = [token for sequence in sequences for token in sequence]`. Then `return "
            "list(logits.split(lengths))`.",
        ),
        points=3,
    ),
    Exercise(
        id="04.4",
        title="attention without a mask over the row",
        reference="lessons_lib.attention.varlen:varlen_attention",
        test=check_varlen_attention,
        hints=(
            "Go sequence by sequence. Where do its queries begin in q, and its keys in k? And at which position of "
            "its sequence is its first query?",
            "`q.split(query_lens, dim=1)` cuts q into one part for each sequence, and k and v likewise. In a sequence, "
            "the queries are at the positions `seq_len - query_len` to `seq_len - 1`, and the keys at 0 to "
            "`seq_len - 1`: compare the two, and fill −∞ in where the key is later. Softmax, times the values, and "
            "`torch.cat` joins the parts. What does it join if there is none?",
            "For one sequence: `scores = own_q @ own_k.mT / q.shape[-1] ** 0.5`; `position = torch.arange(seq_len - "
            "query_len, seq_len)[:, None]`; `scores.masked_fill(torch.arange(seq_len) > position, float('-inf'))"
            ".softmax(dim=-1) @ own_v`. Begin the list of parts with the empty `q[:, :0]`.",
        ),
        points=3,
    ),
    Exercise(
        id="04.5",
        title="the additive mask (optional)",
        reference="lessons_lib.attention.masks:additive_mask",
        test=check_additive_mask,
        hints=(
            "Each cell has one of two values. Only one of them depends on the dtype, and PyTorch knows the range of "
            "each dtype: look for the function that tells you. How do you choose cell by cell, for any shape?",
            "Make a tensor of zeros with the mask's shape and the requested dtype. Where the mask is False, fill in "
            "the lowest value of that dtype, `torch.finfo(dtype).min`. `tensor.masked_fill(where, value)` returns a "
            "copy that has `value` wherever `where` is True, and `~mask` swaps True and False.",
            "`torch.zeros(mask.shape, dtype=dtype)`, then `.masked_fill(~mask, torch.finfo(dtype).min)`.",
        ),
        points=1,
    ),
]
