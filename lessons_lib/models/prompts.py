"""Encode and validate prompts before anything is computed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from lessons_lib.models.configuration import context_length, text_config
from lessons_lib.models.validate import BadRequest, integer, shortened

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

# No tokenizer in use has longer tokens (many have one of 128 spaces), so reject texts that can't fit unencoded.
MAX_CHARACTERS_PER_TOKEN = 128


@runtime_checkable
class HasToList(Protocol):
    """A NumPy array, a tensor or an `array.array`."""

    def tolist(self) -> list[Any]: ...


def encode_prompts(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, prompts: Sequence[str | Sequence[int]],
    max_new_tokens: int | Sequence[int] | None, context: int | None = None,
) -> tuple[list[list[int]], list[int]]:  # fmt: skip
    """Token ids and token limit of each request.

    Args:
        prompts: texts, or lists of token ids.
        max_new_tokens: one limit for all requests, one for each, or None to fill the context.
        context: maximum sequence length, prompt and answer together; by default the model's, which may be None.

    Returns:
        (prompt_ids, max_tokens_each), both as long as `prompts`.

    Raises:
        BadRequest: a prompt is empty, a token id is outside the vocabulary, a limit is below 1, prompt and limit
            together exceed the context, or there is neither a token limit nor a context.
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
        name: name of the request in error messages.
    """
    context, vocab_size = checked_context(model, context), text_config(model.config).vocab_size
    return encode_within(tokenizer, name, prompt, max_new_tokens, context, vocab_size)


def encode_within(
    tokenizer: PreTrainedTokenizerBase, name: str, prompt: str | Sequence[int], max_new_tokens: int | None,
    context: int | None, vocab_size: int,
) -> tuple[list[int], int]:  # fmt: skip
    """`encode_prompt` with the model's limits given: looking them up takes longer than everything else.

    Args:
        context: result of `checked_context`.
    """
    prompt_ids = token_ids_of(tokenizer, name, prompt, vocab_size, context)
    if context is None and max_new_tokens is None:
        raise BadRequest(
            f"{name} has no token limit, and the model has no maximum length. Give max_new_tokens or a context."
        )
    max_tokens = (context or 0) - len(prompt_ids) if max_new_tokens is None else max_new_tokens
    return prompt_ids, _checked_limit(name, len(prompt_ids), max_tokens, context)


def token_ids_of(
    tokenizer: PreTrainedTokenizerBase, name: str, prompt: str | Sequence[int], vocab_size: int, context: int | None
) -> list[int]:
    """Convert a prompt to token ids: Python integers.

    Args:
        prompt: a text, or token ids: a list, tuple, range, or one-dimensional array or tensor.

    Raises:
        BadRequest: the type is wrong, the prompt is empty, a token id isn't an integer or is outside the vocabulary,
            or the context has no room for the prompt and one new token.
    """
    if isinstance(prompt, str):
        if context is not None and len(prompt) > context * MAX_CHARACTERS_PER_TOKEN:
            raise BadRequest(
                f"{name} has {len(prompt)} characters; the context is {context} tokens of at most "
                f"{MAX_CHARACTERS_PER_TOKEN} characters. Shorten the prompt."
            )
        try:
            token_ids = tokenizer(prompt).input_ids
        except Exception as error:
            raise BadRequest(
                f"{name} can't be encoded by the tokenizer ({type(error).__name__}: {error}). "
                "Give a text without lone surrogates, or token ids."
            ) from error
    else:
        token_ids = _checked_type(name, prompt)
    if not len(token_ids):
        raise BadRequest(
            f"{name} is empty; a model needs at least one token to continue. Start with the end-of-text token."
        )
    # Before looking at the ids: rejecting a long prompt must be fast.
    if context is not None and len(token_ids) >= context:
        raise BadRequest(
            f"{name} has {len(token_ids)} tokens; the context is {context}, and a new token needs a position too. "
            f"Shorten the prompt to {context - 1} tokens or fewer."
        )
    if not isinstance(token_ids, Sequence):
        token_ids = token_ids.tolist()
    are_ints = set(map(type, token_ids)) == {int}  # the usual case, and ten times as fast
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
            f"{name} contains {shortened(token)}, which is {type(token).__name__}, not a token id. "
            "Give one flat list of integers per prompt."
        ) from None


def _checked_limit(name: str, prompt_length: int, max_new_tokens: int, context: int | None) -> int:
    try:
        max_new_tokens = integer(max_new_tokens)
    except TypeError:
        raise BadRequest(
            f"max_new_tokens is {shortened(max_new_tokens)} for {name}; it must be an integer, or None to fill the "
            "context."
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
    """Reject a batch without rows.

    Raises:
        BadRequest: `batch_size` is below 1.
    """
    if batch_size < 1:
        raise BadRequest(f"batch_size is {batch_size}; it must be at least 1.")


def checked_context(model: PreTrainedModel, context: int | None) -> int | None:
    """Return the maximum sequence length; None if neither the caller nor the model sets one.

    Raises:
        BadRequest: `context` is below 2 or exceeds the model's.
    """
    longest: int | None = context_length(model.config)
    if context is None:
        return longest
    if context < 2 or (longest is not None and context > longest):
        limits = "at least 2" if longest is None else f"2 to {longest}, the model's context"
        raise BadRequest(f"the maximum sequence length is set to {context}; it must be {limits}.")
    return context


def _one_limit_each(max_new_tokens: int | Sequence[int] | None, count: int) -> list[int | None]:
    if max_new_tokens is None or isinstance(max_new_tokens, int):
        return [max_new_tokens] * count
    try:
        max_tokens_each: list[int | None] = list(max_new_tokens)
    except TypeError:
        return [max_new_tokens] * count  # type: ignore[list-item]  # a NumPy integer; anything else is rejected later
    if len(max_tokens_each) != count:
        raise BadRequest(
            f"{len(max_tokens_each)} values of max_new_tokens for {count} prompts; "
            "give one value, or one for each prompt."
        )
    return max_tokens_each
