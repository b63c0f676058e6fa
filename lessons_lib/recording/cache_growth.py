"""Runs one request and writes down, step by step, what went in, what lay in the cache, and what came out."""

from lessons_lib.batching.greedy import greedy_with_cache
from lessons_lib.recording.forward_passes import watch_forwards
from lessons_lib.viz.cache.growth import CacheStep


def record_steps(model, tokenizer, prompt_ids, max_new_tokens, greedy=greedy_with_cache) -> list[CacheStep]:
    """One `CacheStep` for each forward pass of `greedy(model, prompt_ids, max_new_tokens, eos_token_id)`.

    What is recorded is what the model was really given, whatever `greedy` claims to do.
    """
    with watch_forwards(model) as passes:
        answer = greedy(model, prompt_ids, max_new_tokens, tokenizer.eos_token_id)
    steps = []
    for number, (forward, token) in enumerate(zip(passes, answer), start=1):
        steps.append(
            CacheStep(
                step=number,
                phase="prefill" if number == 1 else "decode",
                input_tokens=tuple(tokenizer.decode([fed]) for fed in forward.input_ids[0]),
                cached_before=forward.cached,
                cached_after=forward.cached + forward.tokens if forward.keeps_cache else 0,
                output_token=tokenizer.decode([token]),
            )
        )
    return steps
