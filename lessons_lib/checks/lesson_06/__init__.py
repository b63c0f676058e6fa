"""The exercises and the quiz of lesson 06.

The cache in blocks, the online softmax, attention for a packed batch, the hook into a model.
"""

from lessons_lib.checks.exercise import Exercise
from lessons_lib.checks.lesson_06.add_block import check_add_block
from lessons_lib.checks.lesson_06.attention import check_paged_attention
from lessons_lib.checks.lesson_06.cache import check_paged_cache
from lessons_lib.checks.lesson_06.forward import check_paged_attention_forward
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
            "Flatten blocks and offsets into one long axis, and a slot is simply a row index. Then both "
            "methods are plain indexing.",
            "`write`: take this layer's tensor of keys, flatten its first two axes (a view), and assign to "
            "the rows `slot_mapping`; then do the same for the values. "
            "`read`: index this layer's tensor with the blocks, flatten the first two axes of the result, and "
            "keep the first `num_tokens` rows.",
            "`self.keys[layer].flatten(0, 1)[slot_mapping] = keys`, and the same for the values. "
            "`self.keys[layer][blocks].flatten(0, 1)[:num_tokens]`, and the same for the values; return both.",
        ),
    ),
    Exercise(
        id="06.2",
        title="a softmax, one block at a time",
        reference="lessons_lib.attention.online_softmax:add_block",
        test=check_add_block,
        hints=(
            "The old sums are relative to the old maximum, the new weights to the new one. One factor per "
            "query converts the old sums.",
            "New maximum: the larger of `seen.maximum` and the largest score in each row (`dim=1`). Subtract "
            "that maximum, or 0 where it is minus infinity. "
            "Weights and factor are exponentials of differences. To combine a [Q] tensor with [Q, K] or [Q, "
            "D], add an axis: `x[:, None]`.",
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
        title="merging two parts",
        reference="lessons_lib.attention.online_softmax:merge",
        test=check_merge,
        hints=(
            "As in `add_block`, but here both sides are sums. Rescale each to the larger maximum, with its own factor.",
            "Take the larger maximum for each query, and use 0 as the reference where it is minus infinity. A "
            "part's factor is exp(its own maximum − reference). "
            "The new total is the sum of the two totals, each times its factor; the same goes for the output.",
            "`shares = [(part.maximum - reference).exp() for part in (one, other)]`; `one.total * shares[0] + "
            "other.total * shares[1]`; the same for the output, "
            "with `shares[0][:, None]` and `shares[1][:, None]`.",
        ),
    ),
    Exercise(
        id="06.4",
        title="attention for a packed batch",
        reference="lessons_lib.attention.paged_attention:paged_attention",
        test=check_paged_attention,
        hints=(
            "Call PyTorch's attention once per group. Before it, gather queries, keys and values into "
            "rectangles; after it, write the results back to the packed row.",
            "Create the output with the shape of the query. For each group: index the flattened cache with "
            "`slots` and the query with `rows`; move heads before tokens in "
            "all three; attend with the group's mask and the scale; move tokens before heads again; write the "
            "entries where `is_query` is True.",
            "`own_keys = keys.flatten(0, 1)[group.slots].transpose(1, 2)`, the same for the values, and "
            "`query[group.rows].transpose(1, 2)`. At the end "
            "`out[group.rows[group.is_query]] = attended.transpose(1, 2)[group.is_query]`.",
        ),
        points=3,
    ),
    Exercise(
        id="06.5",
        title="the function a model calls",
        reference="lessons_lib.attention.hf_backend:paged_attention_forward",
        test=check_paged_attention_forward,
        hints=(
            "Write, then attend. The rest is shapes: the model's tensors have a batch axis in front and heads "
            "before tokens. Ours have no batch axis, and tokens come first.",
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
]
