"""The exercises and the quiz of lesson 06.

The cache in blocks, the online softmax, attention over a block table, the hook into a model, merging two parts.
"""

from lessons_lib.checks.exercise import Exercise
from lessons_lib.checks.lesson_06.add_block import check_add_block
from lessons_lib.checks.lesson_06.cache import check_paged_cache
from lessons_lib.checks.lesson_06.forward import check_paged_attention_forward
from lessons_lib.checks.lesson_06.in_place import check_attention_in_place
from lessons_lib.checks.lesson_06.merge import check_merge
from lessons_lib.checks.lesson_06.quiz import QUIZ

__all__ = ["EXERCISES", "QUIZ"]

EXERCISES = [
    Exercise(
        id="06.1",
        title="a cache in blocks",
        reference="lessons_lib.kv_cache.paged_kv_cache:PagedKVCache",
        test=check_paged_cache,
        hints=(
            "`read` indexes a tensor with a whole list, on the right of `=`. What does such an index do on the left of "
            "`=`? (You need no division: flatten first.)",
            "Take this layer's tensor of keys, flatten its first two axes (a view), and assign to "
            "the rows `slot_mapping`; then do the same for the values.",
            "`self.keys[layer].flatten(0, 1)[slot_mapping] = keys`, and the same for the values.",
        ),
    ),
    Exercise(
        id="06.2",
        title="a softmax, one block at a time",
        reference="lessons_lib.attention.online_softmax:add_block",
        test=check_add_block,
        hints=(
            "Before you can add two sums, both must have the same score subtracted. Which one do the old sums have, "
            "and which one will the new ones have? If you get NaN: it is the difference of two infinities, and "
            "whatever you subtract from −∞ needs to be finite.",
            "New maximum: the larger of `seen.maximum` and the largest score in each row (`dim=1`). "
            "Weights: exp(score − new maximum). Factor for the old sums: exp(old maximum − new maximum). "
            "Where the new maximum is minus infinity, subtract 0 instead of it in both, but return minus infinity. "
            "To combine a [Q] tensor with [Q, K] or [Q, D], add an axis: `x[:, None]`.",
            "`maximum = torch.maximum(seen.maximum, scores.max(dim=1).values)`; `reference = "
            'maximum.masked_fill(maximum == float("-inf"), 0.0)`; '
            "`weights = (scores - reference[:, None]).exp()`; `rescale = (seen.maximum - reference).exp()`. "
            "Then `Partial(maximum, seen.total * rescale + "
            "weights.sum(dim=1), ...)`.",
        ),
        points=3,
    ),
    Exercise(
        id="06.3",
        title="paged attention",
        reference="lessons_lib.attention.plain_attention:attention_in_place",
        test=check_attention_in_place,
        hints=(
            "For block i of the table: at which position is its first key, and how many of its slots hold tokens? And "
            "at which position is query j of Q? These three numbers say what to read and what to hide.",
            "For each query head: start with `nothing_seen`, and go through the blocks with the position at which each "
            "of them starts, 0, block_size, 2 × block_size, …, below `num_tokens`. In each: how many slots are filled? "
            "The scores are query @ keys.T × scale; they are minus infinity where a key's position is larger "
            "than the query's; then `add_block`. After the last block, `attention_of` is this head's output.",
            "`position = torch.arange(num_tokens - num_new, num_tokens)[:, None]`; "
            "`for start, block in zip(range(0, num_tokens, block_size), blocks)`; "
            "`filled = min(block_size, num_tokens - start)`; "
            "`scores = query[:, head] @ keys[block, :filled, kv_head].T * scale`; "
            "`is_later = torch.arange(start, start + filled) > position`; "
            '`scores.masked_fill(is_later, float("-inf"))`. The KV head is `head * kv_heads // q_heads`.',
        ),
        points=4,
    ),
    Exercise(
        id="06.4",
        title="the function a model calls (optional)",
        reference="lessons_lib.attention.hf_backend:paged_attention_forward",
        test=check_paged_attention_forward,
        hints=(
            "A new token attends to itself as well. What must have happened to its key before `attend` reads the "
            "cache?",
            "The layer's index is `module.layer_idx`. Write `key` and `value` without their first axis, "
            "tokens before heads. Work out the scale. Call `paged.attend` with "
            "the query in the same layout and this layer's two cache tensors. Add a leading axis to the result.",
            "`paged.cache.write(layer, key[0].transpose(0, 1), value[0].transpose(0, 1), paged.slot_mapping)`; "
            "`scale = query.shape[-1] ** -0.5 if scaling is None else scaling`; `attended = "
            "paged.attend(query[0].transpose(0, 1), paged.cache.keys[layer], "
            "paged.cache.values[layer], scale)`; `return attended[None], None`.",
        ),
        points=2,
    ),
    Exercise(
        id="06.5",
        title="merging two parts (optional)",
        reference="lessons_lib.attention.online_softmax:merge",
        test=check_merge,
        hints=(
            "In `add_block`, only the old sums needed a factor. Here, which side has sums that are already made?",
            "Take the larger maximum for each query, and use 0 as the reference where it is minus infinity. A "
            "part's factor is exp(its own maximum − reference). "
            "The new total is the sum of the two totals, each times its factor; the same goes for the output.",
            "`shares = [(part.maximum - reference).exp() for part in (one, other)]`; `one.total * shares[0] + "
            "other.total * shares[1]`; the same for the output, "
            "with `shares[0][:, None]` and `shares[1][:, None]`.",
        ),
    ),
]
