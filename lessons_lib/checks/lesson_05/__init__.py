"""The exercises and the quiz of lesson 05: the packed row, the caches taken apart, one pass over the row, and one step of the loop."""

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
            "Three fields have an entry for each token of the row, three have one for each sequence. The first three are the sequences' pieces, one "
            "behind the other; the others follow from the number of new tokens of each sequence.",
            "Refuse first: as many cached lengths as sequences, no empty list of new tokens, no negative length. Then `lengths`, the number of new tokens "
            "of each. `tag_tokens(lengths, starts=cached_lens)` has positions and sequence ids. Adding the lengths up from the left gives where each sequence "
            "ends in the row; with a 0 in front, where each begins.",
            "`ends = torch.tensor(lengths, dtype=torch.int64).cumsum(dim=0)`. Then `cu_seqlens_q` is `torch.cat([torch.zeros(1, dtype=torch.int64), ends])`, "
            "`logits_index` is `ends - 1`, and `context_lens` is the sum of two tensors, cached and new. The tokens: "
            "`[token for tokens in new_tokens for token in tokens]`.",
        ),
    ),
    Exercise(
        id="05.2",
        title="the caches taken apart",
        reference="lessons_lib.attention.packing:scatter_cache",
        test=check_scatter_cache,
        hints=(
            "The joined cache is a row of 2 × B pieces: the cached tokens of each sequence, then the new tokens of each. Sequence i owns piece i and piece B + i.",
            "For the keys of one layer: split them along the tokens (`dim=2`) into 2 × B pieces, and concatenate pieces i and B + i for every i. The same for "
            "the values, and the same in every layer. Then collect: sequence i needs its keys and values of all layers.",
            "`pieces = tensor.split(packed.cached_lens + packed.new_lens, dim=2)`, and `torch.cat([pieces[i], pieces[count + i]], dim=2)` is sequence i's part, with "
            "`count = len(packed.new_lens)`. A cache is `cache_of([(keys, values), ...])` with a pair for each of `joined.layers`.",
        ),
        points=3,
    ),
    Exercise(
        id="05.3",
        title="one pass over the row",
        reference="lessons_lib.attention.packing:packed_forward",
        test=check_packed_forward,
        hints=(
            "One call of `model`. Everything it needs is in `packed` and `cache`; you only bring it into the shapes of a batch with one row.",
            "Five arguments: the tokens, their positions, the mask, the cache, and for which tokens logits are wanted. Tokens and positions get one axis in "
            "front, the mask two. The result's `.logits` has the axis of the rows in front; take it away.",
            "`model(input_ids=packed.input_ids[None], position_ids=packed.positions[None], attention_mask=packed_mask(packed)[None, None], "
            "past_key_values=cache, logits_to_keep=packed.logits_index).logits[0]`, and `.to(model.device)` on each tensor.",
        ),
        points=1,
    ),
    Exercise(
        id="05.4",
        title="one step of the ragged batch",
        reference="lessons_lib.batching.ragged_batching:ragged_step",
        test=check_ragged_step,
        hints=(
            "You need not ask whether a request prefills or decodes. In both cases the row takes the tokens that are known and not computed: a whole prompt, "
            "or the one token of the step before.",
            "Collect the uncomputed tokens of every running request. `pack` them with the `num_computed_tokens` of each. `forward`, then argmax. For every request: "
            "`num_computed_tokens` grows by what it had in the row, and it gets its token. Then `retire`, then `admit`.",
            "`uncomputed = [(request.prompt_ids + request.output_ids)[request.num_computed_tokens :] for request in batch.running]`, and "
            "`next_tokens = forward(batch, packed).argmax(dim=-1).tolist()`. Go over `zip(batch.running, uncomputed, next_tokens)`.",
        ),
        points=3,
    ),
]
