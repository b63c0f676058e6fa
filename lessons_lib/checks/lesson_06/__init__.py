"""The exercises and the quiz of lesson 06: the cache in blocks, the softmax in pieces, a whole row over blocks, and the hook into a model."""

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
            "A slot is the number of a row, once blocks and cells are looked at as one long axis. Both methods then are indexing with a list of numbers.",
            "`write`: for the keys and for the values, take this layer's tensor, flatten its first two axes (a view), and assign to the rows `slot_mapping`. "
            "`read`: pick the blocks from this layer's tensor, flatten the first two axes of what you picked, and cut it after `num_tokens`.",
            "`self.keys[layer].flatten(0, 1)[slot_mapping] = keys`, and the same for the values. "
            "`self.keys[layer][blocks].flatten(0, 1)[:num_tokens]`, and the same for the values; return both.",
        ),
    ),
    Exercise(
        id="06.2",
        title="a softmax block by block",
        reference="lessons_lib.attention.online_softmax:add_block",
        test=check_add_block,
        hints=(
            "The old sums are relative to the old maximum, the new weights to the new one. One factor for each query brings the old sums along.",
            "New maximum: the larger one of `seen.maximum` and the largest score of each line (`dim=1`). What is subtracted: that maximum, or 0 where it is minus "
            "infinity. Weights and factor are exponentials of differences. In [Q, K] and [Q, D], a number of each query needs an axis more: `x[:, None]`.",
            '`maximum = torch.maximum(seen.maximum, scores.max(dim=1).values)`; `reference = maximum.masked_fill(maximum == float("-inf"), 0.0)`; '
            "`weights = (scores - reference[:, None]).exp()`; `rescale = (seen.maximum - reference).exp()`. Then `Partial(maximum, seen.total * rescale + "
            "weights.sum(dim=1), ...)`.",
        ),
        points=3,
    ),
    Exercise(
        id="06.3",
        title="two parts merged",
        reference="lessons_lib.attention.online_softmax:merge",
        test=check_merge,
        hints=(
            "As in `add_block`, only that both sides are sums: each is brought to the larger maximum by a factor of its own.",
            "The larger maximum of the two, for each query; in its place 0 where it is minus infinity. The factor of a part: exp(its own maximum − that). "
            "Total and output are the two parts' times their factors, added.",
            "`shares = [(part.maximum - reference).exp() for part in (one, other)]`; `one.total * shares[0] + other.total * shares[1]`; for the output the same "
            "with `shares[0][:, None]` and `shares[1][:, None]`.",
        ),
    ),
    Exercise(
        id="06.4",
        title="attention of a whole row",
        reference="lessons_lib.attention.paged_attention:paged_attention",
        test=check_paged_attention,
        hints=(
            "Each group is one call of PyTorch's attention. Around it: pick queries and keys into rectangles, and put the results back into the row.",
            "Make the output like the query. For each group: keys and values by `slots` from the flattened cache; queries by `rows`; heads before tokens in all three; "
            "attend with the group's mask and the scale; tokens before heads again; assign the entries where `is_query` is True.",
            "`own_keys = keys.flatten(0, 1)[group.slots].transpose(1, 2)`, likewise the values, and `query[group.rows].transpose(1, 2)`. At the end "
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
            "Write, then attend. The rest is shapes: the model's tensors have a row axis in front, and heads before tokens; ours have neither.",
            "The layer's number is `module.layer_idx`. Write `key` and `value` without the first axis, with tokens before heads. Find the scale. Call `paged.attend` with the "
            "query in the same form and this layer's two tensors of the cache. Put an axis in front of what it returns.",
            "`paged.cache.write(layer, key[0].transpose(0, 1), value[0].transpose(0, 1), paged.slot_mapping)`; "
            "`scale = query.shape[-1] ** -0.5 if scaling is None else scaling`; `attended = paged.attend(query[0].transpose(0, 1), paged.cache.keys[layer], "
            "paged.cache.values[layer], scale)`; `return attended[None], None`.",
        ),
        points=2,
    ),
]
