"""Encode and validate the prompts of a batch before anything is computed."""

from collections.abc import Sequence

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from lessons_lib.models.configuration import text_config
from lessons_lib.models.prompts import token_ids_of, token_limit
from lessons_lib.models.support import checked_context
from lessons_lib.models.validate import BadRequest, integer, shortened


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
    context = checked_context(model, context)
    prompt_ids = token_ids_of(tokenizer, name, prompt, text_config(model.config).vocab_size, context)
    if max_new_tokens is not None:
        try:
            max_new_tokens = integer(max_new_tokens)
        except TypeError:
            raise BadRequest(
                f"max_new_tokens is {shortened(max_new_tokens)} for {name}; it must be an integer, or None to fill "
                "the context."
            ) from None
        if max_new_tokens < 1:
            raise BadRequest(f"max_new_tokens is {shortened(max_new_tokens)} for {name}; it must be at least 1.")
    return prompt_ids, token_limit(name, len(prompt_ids), max_new_tokens, context)


def check_batch_size(batch_size: int) -> None:
    """Reject a batch without rows.

    Raises:
        BadRequest: `batch_size` is below 1.
    """
    if batch_size < 1:
        raise BadRequest(f"batch_size is {batch_size}; it must be at least 1.")


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
