"""Turns prompts into token ids, and refuses what can't be served before anything is computed."""

from collections.abc import Sequence

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from lessons_lib.models.loading import context_length
from lessons_lib.models.support import text_config


class BadRequest(ValueError):
    """A request that can't be served as it is. Nothing was computed, for any request of the call."""


def encode_prompts(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    prompts: Sequence[str | Sequence[int]],
    max_new_tokens: int | Sequence[int] | None,
    context: int | None = None,
) -> tuple[list[list[int]], list[int]]:
    """Token ids and token limit of each request.

    Args:
        prompts: texts, or lists of token ids.
        max_new_tokens: one limit for all requests, one for each, or None for as many as fit in the context.
        context: the longest sequence, prompt and answer together; the model's own context if not given. Some models
            have none.

    Returns:
        (prompt_ids, max_tokens_each), both as long as `prompts`.

    Raises:
        BadRequest: an empty prompt, a token id outside the vocabulary, a limit below 1, a prompt and a limit that
            together exceed the context, or no limit at all: neither a token limit nor a context.
    """
    if isinstance(prompts, str):
        raise BadRequest("prompts is one string; give a list of prompts, such as `[prompt]`.")
    max_tokens_each = _one_limit_each(max_new_tokens, len(prompts))
    names = (f"prompt {index}" for index in range(len(prompts)))
    encoded = [encode_prompt(model, tokenizer, *request, context) for request in zip(names, prompts, max_tokens_each)]
    return [prompt_ids for prompt_ids, _ in encoded], [max_tokens for _, max_tokens in encoded]


def encode_prompt(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    name: str,
    prompt: str | Sequence[int],
    max_new_tokens: int | None,
    context: int | None = None,
) -> tuple[list[int], int]:
    """Token ids and token limit of one request; see `encode_prompts`.

    Args:
        name: what error messages call the request.
    """
    context = _checked_context(model, context)
    prompt_ids = tokenizer(prompt).input_ids if isinstance(prompt, str) else list(prompt)
    if context is None and max_new_tokens is None:
        raise BadRequest(
            f"{name} has no token limit, and the model has no longest sequence. Give max_new_tokens, or set the "
            "longest sequence."
        )
    max_tokens = (context or 0) - len(prompt_ids) if max_new_tokens is None else max_new_tokens
    _check_request(name, prompt_ids, max_tokens, text_config(model.config).vocab_size, context)
    return prompt_ids, max_tokens


def _check_request(name: str, prompt_ids: list[int], max_new_tokens: int, vocab_size: int, context: int | None) -> None:
    if not prompt_ids:
        raise BadRequest(
            f"{name} is empty; a model needs at least one token to continue. Start with the end-of-text token."
        )
    outside = [token for token in prompt_ids if not 0 <= token < vocab_size]
    if outside:
        raise BadRequest(
            f"{name} contains token id {outside[0]}; the vocabulary has ids 0 to {vocab_size - 1}. "
            "Encode the text with this model's own tokenizer."
        )
    if context is not None and len(prompt_ids) >= context:
        raise BadRequest(
            f"{name} has {len(prompt_ids)} tokens; the context is {context}, and a new token needs a position too. "
            f"Shorten the prompt to {context - 1} tokens or fewer."
        )
    if max_new_tokens < 1:
        raise BadRequest(f"max_new_tokens is {max_new_tokens} for {name}; it must be at least 1.")
    if context is not None and len(prompt_ids) + max_new_tokens > context:
        raise BadRequest(
            f"{name} has {len(prompt_ids)} tokens and asks for {max_new_tokens} more, "
            f"{len(prompt_ids) + max_new_tokens} in all; the context is {context}. "
            f"Ask for {context - len(prompt_ids)} or fewer."
        )


def check_batch_size(batch_size: int) -> None:
    """Refuse a batch without rows.

    Raises:
        BadRequest: `batch_size` is below 1.
    """
    if batch_size < 1:
        raise BadRequest(f"batch_size is {batch_size}; it must be at least 1.")


def _checked_context(model: PreTrainedModel, context: int | None) -> int | None:
    """The longest sequence; None if neither the caller nor the model has a limit."""
    longest = context_length(model.config)
    if context is None:
        return longest
    if context < 2 or (longest is not None and context > longest):
        limits = "at least 2" if longest is None else f"2 to {longest}, which is the model's context"
        raise BadRequest(f"the longest sequence is set to {context}; it must be {limits}.")
    return context


def _one_limit_each(max_new_tokens: int | Sequence[int] | None, count: int) -> list[int | None]:
    if max_new_tokens is None or isinstance(max_new_tokens, int):
        return [max_new_tokens] * count
    max_tokens_each: list[int | None] = list(max_new_tokens)
    if len(max_tokens_each) != count:
        raise BadRequest(
            f"{len(max_tokens_each)} values of max_new_tokens for {count} prompts; "
            "give one value, or one for each prompt."
        )
    return max_tokens_each
