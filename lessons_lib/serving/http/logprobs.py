"""Log-probabilities in the shapes of the two APIs."""

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

from lessons_lib.engine.logprobs import TokenLogprobs
from lessons_lib.serving.http.served_model import ServedModel

LEAST = -9999.0  # JSON has no -inf


def completion_logprobs(
    tokens: list[int], found: Sequence[TokenLogprobs | None], served: ServedModel, offset: int = 0
) -> dict[str, Any]:
    """In the shape of /v1/completions.

    Args:
        found: one for each token; None for the first token of a prompt, which nothing predicts.
        offset: where in the text the first token begins.
    """
    texts = [served.token_text(token) for token in tokens]
    return {
        "text_offset": list(accumulate(map(len, texts[:-1]), initial=offset)),
        "token_logprobs": [each and max(each.logprob, LEAST) for each in found],
        "tokens": texts,
        "top_logprobs": [each and _by_text(each, served) for each in found],
    }


def _by_text(found: TokenLogprobs, served: ServedModel) -> dict[str, float]:
    """The chosen token first. Of tokens with the same text, such as halves of characters, the likeliest counts."""
    values: dict[str, float] = {}
    for token, value in [(found.token, found.logprob), *found.top]:
        text = served.token_text(token)
        values[text] = max(value, LEAST, values.get(text, LEAST))
    return values


def chat_logprobs(found: Sequence[TokenLogprobs], served: ServedModel) -> dict[str, Any]:
    """In the shape of /v1/chat/completions."""
    content = [
        _entry(each.token, each.logprob, served)
        | {"top_logprobs": [_entry(token, value, served) for token, value in each.top]}
        for each in found
    ]
    return {"content": content, "refusal": None}


def _entry(token: int, logprob: float, served: ServedModel) -> dict[str, Any]:
    return {"token": served.token_text(token), "logprob": max(logprob, LEAST), "bytes": served.token_bytes(token)}


def prompt_logprobs(found: Sequence[TokenLogprobs | None], served: ServedModel) -> list[dict[str, Any] | None]:
    """In vLLM's shape, for prompts: token id -> its log-probability, the prompt's own token first."""
    return [
        None
        if each is None
        else {
            str(token): {"logprob": max(value, LEAST), "decoded_token": served.token_text(token)}
            for token, value in dict([(each.token, each.logprob), *each.top]).items()
        }
        for each in found
    ]
