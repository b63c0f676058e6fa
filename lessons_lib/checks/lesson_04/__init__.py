"""The exercises and the quiz of lesson 04: tags, the mask made of them, the mask as numbers, and one pass over a packed row."""

from lessons_lib.checks.exercise import Exercise
from lessons_lib.checks.lesson_04.additive import check_additive_mask
from lessons_lib.checks.lesson_04.mask import check_block_diagonal_mask
from lessons_lib.checks.lesson_04.packed import check_packed_logits
from lessons_lib.checks.lesson_04.quiz import QUIZ
from lessons_lib.checks.lesson_04.tags import check_tag_tokens

__all__ = ["EXERCISES", "QUIZ"]

EXERCISES = [
    Exercise(
        id="04.1",
        title="a sequence id and a position on every token",
        reference="lessons_lib.attention.masks:tag_tokens",
        test=check_tag_tokens,
        hints=(
            "Build two plain lists, one entry for each token, and turn each into a tensor at the end. Both go sequence by sequence: sequence i "
            "adds its own number, and its own positions, as often as it has tokens.",
            "If `starts` is None, take a list of zeros. For sequence i, with its length and its start: put i into the first list `length` times, and "
            "the numbers start, start + 1, ... into the second, also `length` of them.",
            "`for i, (length, start) in enumerate(zip(lengths, starts)):` then `seq_ids += [i] * length` and `positions += range(start, start "
            "+ length)`. At "
            "the end `Tags(torch.tensor(seq_ids, dtype=torch.int64), torch.tensor(positions, dtype=torch.int64))`.",
        ),
    ),
    Exercise(
        id="04.2",
        title="the mask from three comparisons",
        reference="lessons_lib.attention.masks:block_diagonal_mask",
        test=check_block_diagonal_mask,
        hints=(
            "Each rule is one comparison, and a cell is True where all three hold. A row of the mask is a query, a column is a key.",
            "Every query must meet every key. So the numbers of the queries need a second axis, of size 1: `queries.positions[:, None]` has "
            "shape [queries, 1], "
            "and comparing it with `keys.positions`, of shape [keys], gives [queries, keys]. Do the same with the sequence ids. The padding "
            "rule asks the key alone.",
            "`keys.seq_ids != PADDING`, `keys.seq_ids == queries.seq_ids[:, None]` and `keys.positions <= queries.positions[:, None]`, joined "
            "by `&`. Put brackets round "
            "each comparison: `&` binds more tightly than `==`.",
        ),
    ),
    Exercise(
        id="04.3",
        title="the mask as numbers",
        reference="lessons_lib.attention.masks:additive_mask",
        test=check_additive_mask,
        hints=(
            "Adding 0 changes no score. What is added elsewhere must be so low that nothing is left of the score, and it must be a number.",
            "Make a tensor of zeros with the mask's shape and the dtype that is asked for. Fill it with the lowest number of that dtype where "
            "the mask is False.",
            "`torch.zeros(mask.shape, dtype=dtype)`, then `.masked_fill(~mask, torch.finfo(dtype).min)`.",
        ),
        points=1,
    ),
    Exercise(
        id="04.4",
        title="several sequences in one forward pass",
        reference="lessons_lib.batching.packed_logits:packed_logits",
        test=check_packed_logits,
        hints=(
            "Three things go to the model: the tokens of all sequences one behind the other, a position for each, and the mask of all pairs. "
            "Everything else is "
            "cutting the result into pieces as long as the sequences.",
            "`tag_tokens` of the lengths gives the positions, and `mask(tags, tags)` the mask. The model wants a batch axis: `[1, T]` for "
            "tokens and positions; and "
            "`[1, 1, T, T]` for the mask, with an axis for the heads. Its `.logits[0]` is `[T, vocabulary]`; `tensor.split(lengths)` cuts it.",
            "`logits = model(input_ids=torch.tensor([row]), position_ids=tags.positions[None], attention_mask=mask(tags, tags)[None, None], "
            "use_cache=False).logits[0]`, where "
            "`row = [token for sequence in sequences for token in sequence]`. Then `return list(logits.split(lengths))`.",
        ),
        points=3,
    ),
]
