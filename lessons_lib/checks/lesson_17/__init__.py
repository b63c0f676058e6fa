"""The exercise and the quiz of lesson 17: an engine of the learner's own, judged by the conformance suite."""

from lessons_lib.checks.exercise import Exercise
from lessons_lib.checks.lesson_17.judging import check_make_engine
from lessons_lib.checks.lesson_17.quiz import QUIZ

__all__ = ["EXERCISES", "QUIZ"]

EXERCISES = [
    Exercise(
        id="17.1",
        title="an engine of your own, small size",
        reference="lessons_lib.conformance.examples.small_engine:make_engine",
        test=check_make_engine,
        hints=(
            "One level at a time. For `answers`, `step` may compute the whole sequence of one request in every step: "
            "ten lines. Keep that version: it is the oracle of the next one.",
            "For `batches`, a sequence has its tokens, its own keys and values, and how many tokens these cover. A "
            "step admits sequences while slots are free, takes the uncomputed tokens of each, and puts them into one "
            "row: ids, positions, and a mask of [row, cached keys + row] that is open where the owner is the same and "
            "the key's position isn't greater. The caches of all are concatenated before the pass and split after it. "
            "For `manners`, check everything before you append; change sequences only after the pass has returned; "
            "and let a stream be a generator with `try` and `finally`.",
            "`cache = DynamicCache()`, then for each layer `cache.update(keys, values, layer)` with the concatenated "
            "caches, [1, heads, tokens, head size]; `model(input_ids=ids[None], position_ids=positions[None], "
            "attention_mask=mask[None, None], past_key_values=cache, use_cache=True)`, with a float mask of 0 and "
            "`torch.finfo(torch.float32).min`. Afterwards `cache.layers[layer].keys` has the cached keys first, in "
            "your order, then those of the row. Tokens that a stream computes for others wait in a list that the next "
            "`step` returns. The solution is in `lessons_lib/conformance/examples/small_engine.py`.",
        ),
        points=9,
        time_limit=30.0,
    ),
]
