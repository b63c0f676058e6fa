"""Convert a prompt to token ids, and validate it, before anything is computed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from lessons_lib.models.validate import BadRequest, integer, shortened

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

# No tokenizer in use has longer tokens (many have one of 128 spaces), so reject texts that can't fit unencoded.
MAX_CHARACTERS_PER_TOKEN = 128


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
        token_ids = _listed(name, prompt)
    if not len(token_ids):
        raise BadRequest(f"{name} is empty; a model needs a token to continue. Start with the end-of-text token.")
    # Before looking at the ids: rejecting a long prompt must be fast.
    if context is not None and len(token_ids) >= context:
        raise BadRequest(
            f"{name} has {len(token_ids)} tokens; the context is {context}, and a new token needs a position too. "
            f"Shorten the prompt to {context - 1} tokens or fewer."
        )
    are_ints = set(map(type, token_ids)) == {int}  # the usual case, and ten times as fast
    checked = list(token_ids) if are_ints else [_token_id(name, token) for token in token_ids]
    if min(checked) < 0 or max(checked) >= vocab_size:
        outside = next(token for token in checked if not 0 <= token < vocab_size)
        raise BadRequest(
            f"{name} contains token id {shortened(outside)}; the vocabulary has ids 0 to {vocab_size - 1}. "
            "Encode the text with this model's own tokenizer."
        )
    return checked


def _listed(name: str, prompt: Any) -> Sequence[Any]:
    """The tokens of a list, an array or a tensor."""
    listed = prompt.tolist() if hasattr(prompt, "tolist") else prompt
    if not isinstance(listed, Sequence) or isinstance(prompt, bytes | bytearray | memoryview):
        raise BadRequest(f"{name} is {shortened(prompt)}; give a str, or a list such as `encoding.input_ids`.")
    return listed


def _token_id(name: str, token: Any) -> int:
    try:
        return integer(token)
    except TypeError:
        raise BadRequest(
            f"{name} contains {shortened(token)}, which is {type(token).__name__}, not a token id. "
            "Give one flat list of integers per prompt."
        ) from None


def token_limit(name: str, prompt_length: int, max_tokens: int | None, context: int | None) -> int:
    """Maximum number of new tokens of a request: `max_tokens`, or the rest of the context.

    Raises:
        BadRequest: prompt and limit together exceed the context, or there is neither a limit nor a context.
    """
    if max_tokens is None:
        if context is None:
            raise BadRequest(f"{name} has no token limit, and the model has no maximum length. Give one of the two.")
        return context - prompt_length
    if context is not None and prompt_length + max_tokens > context:
        raise BadRequest(
            f"{name} has {prompt_length} tokens and asks for {shortened(max_tokens)} more, "
            f"{shortened(prompt_length + max_tokens)} in all; the context is {context}. "
            f"Ask for {context - prompt_length} or fewer."
        )
    return max_tokens
