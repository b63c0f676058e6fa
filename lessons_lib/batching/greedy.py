"""Lesson 00: greedy decoding of one request, first without and then with a KV cache."""

from collections.abc import Callable, Sequence

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from lessons_lib.batching.growing_cache import KVCache
from lessons_lib.batching.prompts import encode_prompts


@torch.inference_mode()
def greedy_without_cache(
    model: "PreTrainedModel", prompt_ids: list[int], max_new_tokens: int, eos_token_id: int | None = None
) -> list[int]:
    """Continue one prompt greedily, recomputing the whole sequence for every new token.

    Args:
        model: a Hugging Face causal language model.
        prompt_ids: list of int, at least one.
        max_new_tokens: maximum number of new tokens, at least 1.
        eos_token_id: the token that ends the answer; it is part of the answer.

    Returns:
        list of int: the new tokens, without the prompt.
    """
    new_tokens: list[int] = []
    while len(new_tokens) < max_new_tokens:
        token_ids = [*prompt_ids, *new_tokens]
        logits = model(input_ids=torch.tensor([token_ids], device=model.device), use_cache=False).logits
        new_tokens.append(int(logits[0, -1].argmax()))
        if new_tokens[-1] == eos_token_id:
            break
    return new_tokens


@torch.inference_mode()
def greedy_with_cache(
    model: "PreTrainedModel", prompt_ids: list[int], max_new_tokens: int, eos_token_id: int | None = None
) -> list[int]:
    """Continue one prompt greedily, computing each token of the text in one pass only: one prefill, then one decode
    step for each further token.

    Arguments and result are those of `greedy_without_cache`.
    """
    cache, token_ids = KVCache(), prompt_ids
    new_tokens: list[int] = []
    while len(new_tokens) < max_new_tokens:
        logits = model(input_ids=torch.tensor([token_ids], device=model.device), past_key_values=cache).logits
        new_tokens.append(int(logits[0, -1].argmax()))
        if new_tokens[-1] == eos_token_id:
            break
        token_ids = new_tokens[-1:]
    return new_tokens


def generate_one_by_one(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, prompts: Sequence[str | Sequence[int]], *,
    max_new_tokens: int | Sequence[int] | None, greedy: Callable[..., list[int]] = greedy_with_cache,
) -> list[list[int]]:  # fmt: skip
    """Serve requests one at a time: the baseline for every later lesson.

    Args:
        prompts: texts, or lists of token ids; all requests arrive at the start.
        max_new_tokens: one limit for all requests, or one for each.
        greedy: function that serves one request; you can pass your own.

    Returns:
        The new tokens of each request, in the order of the prompts.

    Raises:
        BadRequest: see `lessons_lib.batching.prompts.encode_prompts`; nothing was computed.
    """
    prompt_ids, max_tokens_each = encode_prompts(model, tokenizer, prompts, max_new_tokens)
    return [greedy(model, ids, most, tokenizer.eos_token_id) for ids, most in zip(prompt_ids, max_tokens_each)]
