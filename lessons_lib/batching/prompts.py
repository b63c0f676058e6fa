"""Encode and validate the prompts of a batch before anything is computed."""

from collections.abc import Sequence

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from lessons_lib.batching.request import Request, request_names
from lessons_lib.models.configuration import text_config
from lessons_lib.models.prompts import token_ids_of, token_limit
from lessons_lib.models.support import checked_context
from lessons_lib.models.validate import BadRequest, whole


def encode_prompts(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, prompts: Sequence[str | Sequence[int]],
    max_new_tokens: int | Sequence[int] | None, context: int | None = None,
) -> tuple[list[list[int]], list[int]]:  # fmt: skip
    """Token ids of each request, and token limit of each.

    Args:
        prompts: texts, or lists of token ids.
        max_new_tokens: one limit for all requests, one for each, or None to fill the context.
        context: maximum sequence length, prompt and answer together; by default the model's, which may be None.

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
    """Token ids and token limit of one request; see `encode_prompts`. `name` is for error messages."""
    context = checked_context(model, context)
    prompt_ids = token_ids_of(tokenizer, name, prompt, text_config(model.config).vocab_size, context)
    if max_new_tokens is not None:
        wanted = "an integer of at least 1, or None to fill the context"
        max_new_tokens = whole(f"max_new_tokens of {name}", max_new_tokens, wanted, 1)
    return prompt_ids, token_limit(name, len(prompt_ids), max_new_tokens, context)


def make_requests(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, prompts: Sequence[str | Sequence[int]],
    max_new_tokens: int | Sequence[int] | None, names: Sequence[str] | None, context: int | None = None,
) -> list[Request]:  # fmt: skip
    """Build the requests of a call, with the ids `names`, by default "0", "1", ...

    Raises:
        BadRequest: see `encode_prompts` and `request_names`.
    """
    prompt_ids, max_tokens_each = encode_prompts(model, tokenizer, prompts, max_new_tokens, context)
    own_names = request_names(names, len(prompt_ids))
    return [
        Request(name, ids, max_tokens, tokenizer.eos_token_id)
        for name, ids, max_tokens in zip(own_names, prompt_ids, max_tokens_each)
    ]


def _one_limit_each(max_new_tokens: int | Sequence[int] | None, count: int) -> list[int | None]:
    try:
        max_tokens_each: list[int | None] = list(max_new_tokens)  # type: ignore[arg-type]
    except TypeError:
        return [max_new_tokens] * count  # type: ignore[list-item]  # one for all; what isn't a limit is rejected later
    if len(max_tokens_each) != count:
        raise BadRequest(
            f"{len(max_tokens_each)} values of max_new_tokens for {count} prompts; "
            "give one value, or one for each prompt."
        )
    return max_tokens_each
