"""Lesson 00: one request, pass by pass: its input, the cache and the output."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from transformers import PreTrainedModel

from lessons_lib.batching.greedy import greedy_with_cache
from lessons_lib.recording.forward_passes import watch_forwards


@dataclass(frozen=True)
class CacheStep:
    """One forward pass of one request.

    Attributes:
        step: index of the step as shown, from 1.
        phase: "prefill" or "decode".
        input_tokens: text of each token fed to the model in this step.
        cached_before: positions in the KV cache before the step.
        cached_after: positions in the KV cache after the step; the new ones belong to the last input tokens.
        output_token: text of the token chosen from the last position's logits.
    """

    step: int
    phase: str
    input_tokens: Sequence[str]
    cached_before: int
    cached_after: int
    output_token: str


def record_steps(
    model: PreTrainedModel, tokenizer: Any, prompt_ids: list[int], max_new_tokens: int,
    greedy: Callable[..., list[int]] = greedy_with_cache,
) -> list[CacheStep]:  # fmt: skip
    """Record a `CacheStep` for each forward pass of `greedy(model, prompt_ids, max_new_tokens, eos_token_id)`."""
    with watch_forwards(model) as passes:
        answer = greedy(model, prompt_ids, max_new_tokens, tokenizer.eos_token_id)
    steps = []
    for index, (forward, token) in enumerate(zip(passes, answer), start=1):
        fed = tuple(tokenizer.decode([fed]) for fed in forward.input_ids[0])
        after = forward.cached + forward.tokens if forward.keeps_cache else 0
        phase = "prefill" if index == 1 else "decode"
        steps.append(CacheStep(index, phase, fed, forward.cached, after, tokenizer.decode([token])))
    return steps
