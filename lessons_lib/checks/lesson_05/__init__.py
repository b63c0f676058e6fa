"""The exercises and the quiz of lesson 05: the packed row, splitting the cache, one pass, and one step of the loop."""

from lessons_lib.checks.exercise import Exercise
from lessons_lib.checks.lesson_05.forward import check_packed_forward
from lessons_lib.checks.lesson_05.pack import check_pack
from lessons_lib.checks.lesson_05.quiz import QUIZ
from lessons_lib.checks.lesson_05.scatter import check_scatter_cache
from lessons_lib.checks.lesson_05.step import check_ragged_step

__all__ = ["EXERCISES", "QUIZ"]

EXERCISES = [
    Exercise(
        id="05.1",
        title="one row without padding",
        reference="lessons_lib.attention.packing:pack",
        test=check_pack,
        hints=(
            "Which single list, computed once, do all fields but `input_ids` follow from, together with `cached_lens`?",
            "`lengths` is the number of new tokens of each sequence. `tag_tokens(lengths, starts=cached_lens)` "
            "gives positions and sequence ids. The running sum of the lengths gives the index where each sequence "
            "ends in the row; with a 0 in front, it gives where each begins.",
            "`ends = torch.tensor(lengths, dtype=torch.int64).cumsum(dim=0)`. Then `cu_seqlens_q` is "
            "`torch.cat([torch.zeros(1, dtype=torch.int64), ends])`, `logits_index` is `ends - 1`, and "
            "`context_lens` is the sum of two tensors, cached and new. The tokens are `[token for tokens in "
            "new_tokens for token in tokens]`.",
        ),
    ),
    Exercise(
        id="05.2",
        title="splitting the joined cache (optional)",
        reference="lessons_lib.attention.packing:scatter_cache",
        test=check_scatter_cache,
        hints=(
            "The joined cache consists of 2 × N parts: the cached tokens of each sequence, then the new tokens of "
            "each. Sequence i needs part i and part N + i.",
            "For the keys of one layer: split them along the tokens into 2 × N parts with "
            "`tensor.split(sizes, dim=2)`, and concatenate "
            "parts i and N + i for every i. Do the same for the values, and in every layer. Then regroup: sequence i "
            "needs its keys and values from all layers.",
            "`parts = tensor.split(packed.cached_lens + packed.new_lens, dim=2)`, and "
            "`torch.cat([parts[i], parts[num_seqs + i]], dim=2)` belongs to sequence i, with "
            "`num_seqs = len(packed.new_lens)`. A cache is `cache_of([(keys, values), ...])` with one pair per layer "
            "of `joined.layers`.",
        ),
        points=3,
    ),
    Exercise(
        id="05.3",
        title="one pass over the packed row",
        reference="lessons_lib.attention.packing:packed_forward",
        test=check_packed_forward,
        hints=(
            "The model computes batches, and its batch is a single row here. Which axes does each tensor lack for "
            "that, which axis do its logits have that yours shouldn't, and which tensors may be on another device?",
            "Five arguments: `input_ids`, `positions`, `packed_mask(packed)`, the cache, and `logits_index`. "
            "`tensor[None]` adds an axis in front: tokens and positions get one, the mask two. `.to(model.device)` "
            "moves a tensor. The `.logits` of the result have a batch axis in front; remove it.",
            "`model(input_ids=packed.input_ids[None], position_ids=packed.positions[None], "
            "attention_mask=packed_mask(packed)[None, None], past_key_values=cache, "
            "logits_to_keep=packed.logits_index).logits[0]`, with `.to(model.device)` on each tensor.",
        ),
        points=1,
    ),
    Exercise(
        id="05.4",
        title="one step of the ragged batch",
        reference="lessons_lib.batching.ragged_batching:ragged_step",
        test=check_ragged_step,
        hints=(
            "No `if` is needed for prefill or decode: one slice of a request's known tokens gives its part of the row. "
            "When the row is computed, what has changed for each request, and what for the batch?",
            "Collect the uncomputed tokens of every running request and `pack` them with each request's "
            "`num_computed_tokens`. Call `forward`, then take the argmax. For every request, increase "
            "`num_computed_tokens` by its number of tokens in the row, and append its token. Then `retire`, then "
            "`admit`.",
            "`uncomputed = [(request.prompt_ids + request.output_ids)[request.num_computed_tokens :] for request in "
            "batch.running]`, and `next_tokens = forward(batch, packed).argmax(dim=-1).tolist()`. Iterate over "
            "`zip(batch.running, uncomputed, next_tokens)`.",
        ),
        points=3,
    ),
]
