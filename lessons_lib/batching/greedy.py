"""Lesson 00: greedy decoding of one request, first without and then with a KV cache."""

import torch
from transformers import DynamicCache

from lessons_lib.batching.batch_result import BatchResult, request_names
from lessons_lib.models.loading import cache_bytes_per_token
from lessons_lib.models.prompts import encode_prompts
from lessons_lib.recording.forward_passes import Forward, watch_forwards
from lessons_lib.recording.trace import RowWork, Step


@torch.inference_mode()
def greedy_without_cache(model, prompt_ids, max_new_tokens, eos_token_id=None):
    """Continue one prompt greedily, computing the whole sequence again for every new token.

    Args:
        model: a Hugging Face causal language model.
        prompt_ids: list of int, at least one.
        max_new_tokens: the most tokens to add, at least 1.
        eos_token_id: the token after which to stop; it is part of the answer.

    Returns:
        list of int: the new tokens, without the prompt.
    """
    token_ids = list(prompt_ids)
    while len(token_ids) - len(prompt_ids) < max_new_tokens:
        logits = model(input_ids=torch.tensor([token_ids], device=model.device), use_cache=False).logits
        token_ids.append(int(logits[0, -1].argmax()))
        if token_ids[-1] == eos_token_id:
            break
    return token_ids[len(prompt_ids) :]


@torch.inference_mode()
def prefill(model, prompt_ids):
    """Compute all tokens of the prompt in one forward pass, and keep their keys and values.

    Args:
        prompt_ids: list of int, at least one.

    Returns:
        (first_token, cache): the first new token, and a `DynamicCache` that holds `len(prompt_ids)` tokens.
    """
    cache = DynamicCache(config=model.config)
    logits = model(
        input_ids=torch.tensor([prompt_ids], device=model.device), past_key_values=cache, logits_to_keep=1
    ).logits
    return int(logits[0, -1].argmax()), cache


@torch.inference_mode()
def decode_step(model, last_token, cache):
    """Feed the newest token, which the cache does not hold yet, and get the token after it.

    Args:
        last_token: int, the token that the step before produced.
        cache: a `DynamicCache` with every token before `last_token`. The model adds `last_token` to it.

    Returns:
        int: the next token.
    """
    logits = model(input_ids=torch.tensor([[last_token]], device=model.device), past_key_values=cache).logits
    return int(logits[0, -1].argmax())


def greedy_with_cache(model, prompt_ids, max_new_tokens, eos_token_id=None):
    """Continue one prompt greedily: one prefill, then one decode step for each further token.

    Takes and returns the same as `greedy_without_cache`.
    """
    token, cache = prefill(model, prompt_ids)
    new_tokens = [token]
    while len(new_tokens) < max_new_tokens and token != eos_token_id:
        token = decode_step(model, token, cache)
        new_tokens.append(token)
    return new_tokens


def generate_one_by_one(
    model, tokenizer, prompts, *, max_new_tokens, names=None, greedy=greedy_with_cache
) -> BatchResult:
    """Serve requests one after the other, each alone: the baseline of every later lesson.

    Args:
        prompts: texts, or lists of token ids.
        max_new_tokens: one cap for all, or one for each.
        names: what to call the requests in the trace; "0", "1", ... if not given.
        greedy: the function that serves one request, yours if you like.

    Raises:
        BadRequest: see `lessons_lib.models.prompts.encode_prompts`; nothing was computed.
    """
    prompt_ids, max_tokens_each = encode_prompts(model, tokenizer, prompts, max_new_tokens)
    names = request_names(names, len(prompt_ids))
    result = BatchResult()
    for index, (ids, max_tokens) in enumerate(zip(prompt_ids, max_tokens_each)):
        with watch_forwards(model) as passes:
            result.outputs.append(greedy(model, ids, max_tokens, tokenizer.eos_token_id))
        bytes_per_token = cache_bytes_per_token(model.config, model.dtype.itemsize)
        result.trace.steps += alone_trace(names[index], passes, tuple(names[index + 1 :]), bytes_per_token)
    return result


def alone_trace(name: str, passes: list[Forward], waiting: tuple[str, ...], bytes_per_token: int) -> list[Step]:
    """What each forward pass did for one request that has the model to itself."""
    steps = []
    for number, forward in enumerate(passes):
        # Without a cache, every pass after the first computes the old tokens again; only the newest is needed.
        needed = forward.tokens if number == 0 else 1
        length = forward.cached + forward.tokens
        steps.append(
            Step(
                rows=(RowWork(name, "prefill" if number == 0 else "decode", forward.tokens, needed),),
                seconds=forward.seconds,
                waiting=waiting,
                forward_calls=1,
                cache_reserved=length if forward.keeps_cache else 0,
                cache_used=length if forward.keeps_cache else 0,
                # A DynamicCache makes room for a new token by copying all the old ones into a larger tensor.
                bytes_copied=forward.cached * bytes_per_token,
            )
        )
    return steps
