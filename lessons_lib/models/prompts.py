"""Turns prompts into token ids, and refuses what can't be served before anything is computed."""

from __future__ import annotations

import operator
import reprlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from lessons_lib.models.loading import context_length
from lessons_lib.models.support import text_config

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

# No tokenizer in use has longer tokens (many have one of 128 spaces), so a longer text can't fit, and isn't encoded.
MAX_CHARACTERS_PER_TOKEN = 128


@runtime_checkable
class HasToList(Protocol):
    """An array of NumPy, a tensor, an `array.array`."""

    def tolist(self) -> list[Any]: ...


class BadRequest(ValueError):
    """A request that can't be served as it is. Nothing was computed, for any request of the call."""


def encode_prompts(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, prompts: Sequence[str | Sequence[int]],
    max_new_tokens: int | Sequence[int] | None, context: int | None = None,
) -> tuple[list[list[int]], list[int]]:  # fmt: skip
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
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, name: str, prompt: str | Sequence[int],
    max_new_tokens: int | None, context: int | None = None,
) -> tuple[list[int], int]:  # fmt: skip
    """Token ids and token limit of one request; see `encode_prompts`.

    Args:
        name: what error messages call the request.
    """
    context, vocab_size = checked_context(model, context), text_config(model.config).vocab_size
    return encode_within(tokenizer, name, prompt, max_new_tokens, context, vocab_size)


def encode_within(
    tokenizer: PreTrainedTokenizerBase, name: str, prompt: str | Sequence[int], max_new_tokens: int | None,
    context: int | None, vocab_size: int,
) -> tuple[list[int], int]:  # fmt: skip
    """`encode_prompt` for a caller that has looked up the model's limits: that takes longer than all the rest.

    Args:
        context: what `checked_context` returned.
    """
    prompt_ids = token_ids_of(tokenizer, name, prompt, vocab_size, context)
    if context is None and max_new_tokens is None:
        raise BadRequest(
            f"{name} has no token limit, and the model has no longest sequence. "
            "Give max_new_tokens, or the longest sequence."
        )
    max_tokens = (context or 0) - len(prompt_ids) if max_new_tokens is None else max_new_tokens
    return prompt_ids, _checked_limit(name, len(prompt_ids), max_tokens, context)


def token_ids_of(
    tokenizer: PreTrainedTokenizerBase, name: str, prompt: str | Sequence[int], vocab_size: int, context: int | None
) -> list[int]:
    """Token ids of a prompt, as Python integers, however they were given.

    Args:
        prompt: a text, or token ids: a list, a tuple, a range, or an array or tensor of one dimension.

    Raises:
        BadRequest: it is neither, it is empty, a token id is no integer or outside the vocabulary, or the context has
            no room for it and a new token.
    """
    if isinstance(prompt, str):
        if context is not None and len(prompt) > context * MAX_CHARACTERS_PER_TOKEN:
            raise BadRequest(
                f"{name} has {len(prompt)} characters; the context is {context} tokens, and {MAX_CHARACTERS_PER_TOKEN} "
                "characters are the most that a token may have. Shorten the prompt."
            )
        try:
            token_ids = tokenizer(prompt).input_ids
        except Exception as error:
            raise BadRequest(
                f"{name} can't be encoded by the tokenizer ({type(error).__name__}: {error}). "
                "Give a text without half characters (lone surrogates), or token ids."
            ) from error
    else:
        token_ids = _checked_type(name, prompt)
    if not len(token_ids):
        raise BadRequest(
            f"{name} is empty; a model needs at least one token to continue. Start with the end-of-text token."
        )
    # Before its ids are looked at: a refusal must not take longer for a longer prompt.
    if context is not None and len(token_ids) >= context:
        raise BadRequest(
            f"{name} has {len(token_ids)} tokens; the context is {context}, and a new token needs a position too. "
            f"Shorten the prompt to {context - 1} tokens or fewer."
        )
    if not isinstance(token_ids, Sequence):
        token_ids = token_ids.tolist()
    are_ints = set(map(type, token_ids)) == {int}  # nearly always; looking at each of them takes ten times as long
    checked = list(token_ids) if are_ints else [_token_id(name, token) for token in token_ids]
    if min(checked) < 0 or max(checked) >= vocab_size:
        outside = next(token for token in checked if not 0 <= token < vocab_size)
        raise BadRequest(
            f"{name} contains token id {shortened(outside)}; the vocabulary has ids 0 to {vocab_size - 1}. "
            "Encode the text with this model's own tokenizer."
        )
    return checked


def _checked_type(name: str, prompt: Any) -> Any:
    if isinstance(prompt, bytes | bytearray | memoryview):
        raise BadRequest(f"{name} is {type(prompt).__name__}; decode it to a str, or give a list of token ids.")
    if not isinstance(prompt, Sequence) and not (isinstance(prompt, HasToList) and getattr(prompt, "ndim", 1) > 0):
        raise BadRequest(
            f"{name} is {shortened(prompt)}; give a str, or a list of token ids such as `encoding.input_ids`."
        )
    return prompt


def _token_id(name: str, token: Any) -> int:
    try:
        return integer(token)
    except TypeError:
        raise BadRequest(
            f"{name} contains {shortened(token)}, which is {type(token).__name__} and no token id. "
            "Give one flat list of integers per prompt."
        ) from None


def integer(value: Any) -> int:
    """A value as a Python integer. A bool, or a float that happens to be whole, is a mistake somewhere else.

    Raises:
        TypeError: it is not an integer.
    """
    if isinstance(value, bool):
        raise TypeError("a bool is not an integer here.")
    return operator.index(value)


def shortened(value: object) -> str:
    """What a message shows of a value, however long that is."""
    try:
        return reprlib.repr(value)
    except ValueError:  # an integer of more than 4,300 digits
        return f"a huge {type(value).__name__}"


def _checked_limit(name: str, prompt_length: int, max_new_tokens: int, context: int | None) -> int:
    try:
        max_new_tokens = integer(max_new_tokens)
    except TypeError:
        raise BadRequest(
            f"max_new_tokens is {shortened(max_new_tokens)} for {name}; it must be an integer, or None for as many as "
            "fit."
        ) from None
    if max_new_tokens < 1:
        raise BadRequest(f"max_new_tokens is {shortened(max_new_tokens)} for {name}; it must be at least 1.")
    if context is not None and prompt_length + max_new_tokens > context:
        raise BadRequest(
            f"{name} has {prompt_length} tokens and asks for {shortened(max_new_tokens)} more, "
            f"{shortened(prompt_length + max_new_tokens)} in all; the context is {context}. "
            f"Ask for {context - prompt_length} or fewer."
        )
    return max_new_tokens


def check_batch_size(batch_size: int) -> None:
    """Refuse a batch without rows.

    Raises:
        BadRequest: `batch_size` is below 1.
    """
    if batch_size < 1:
        raise BadRequest(f"batch_size is {batch_size}; it must be at least 1.")


def checked_context(model: PreTrainedModel, context: int | None) -> int | None:
    """The longest sequence; None if neither the caller nor the model has a limit.

    Raises:
        BadRequest: the model has no positions for so many tokens.
    """
    longest: int | None = context_length(model.config)
    if context is None:
        return longest
    if context < 2 or (longest is not None and context > longest):
        limits = "at least 2" if longest is None else f"2 to {longest}, which is the model's context"
        raise BadRequest(f"the longest sequence is set to {context}; it must be {limits}.")
    return context


def _one_limit_each(max_new_tokens: int | Sequence[int] | None, count: int) -> list[int | None]:
    if max_new_tokens is None or isinstance(max_new_tokens, int):
        return [max_new_tokens] * count
    try:
        max_tokens_each: list[int | None] = list(max_new_tokens)
    except TypeError:
        return [max_new_tokens] * count  # type: ignore[list-item]  # an integer of NumPy; others are refused later
    if len(max_tokens_each) != count:
        raise BadRequest(
            f"{len(max_tokens_each)} values of max_new_tokens for {count} prompts; "
            "give one value, or one for each prompt."
        )
    return max_tokens_each
