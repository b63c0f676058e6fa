"""Log-probabilities in the shapes of the two APIs."""

from typing import Any

from lessons_lib.engine.sampling import TokenLogprobs
from lessons_lib.serving.http.served_model import ServedModel

LEAST = -9999.0  # JSON has no -inf


def completion_logprobs(
    found: list[TokenLogprobs | None], count: int, served: ServedModel, offset: int = 0
) -> dict[str, Any]:
    """As /v1/completions has them.

    Args:
        found: one for each token; None for the first of a prompt, which nothing predicts.
        count: how many of the likeliest tokens were asked for; the chosen one comes first, and is no other entry.
        offset: where in the text the first token begins.
    """
    texts = served.token_text
    tokens: list[str] = []
    values: list[float | None] = []
    tops: list[dict[str, float] | None] = []
    offsets: list[int] = []
    for each in found:
        if each is None:
            continue
        text = texts[each.token]
        tokens.append(text)
        values.append(max(each.logprob, LEAST))
        likeliest = {texts[token]: max(value, LEAST) for token, value in each.top}
        tops.append({text: max(each.logprob, LEAST)} | likeliest)
        offsets.append(offset)
        offset += len(text)
    return {"text_offset": offsets, "token_logprobs": values, "tokens": tokens, "top_logprobs": tops}


def chat_logprobs(found: list[TokenLogprobs], count: int, served: ServedModel) -> dict[str, Any]:
    """As /v1/chat/completions has them.

    Args:
        count: `top_logprobs`.
    """
    return {
        "content": [
            _entry(each.token, each.logprob, served)
            | {"top_logprobs": [_entry(token, value, served) for token, value in each.top[: count if count >= 0 else None]]}
            for each in found
        ],
        "refusal": None,
    }


def _entry(token: int, logprob: float, served: ServedModel) -> dict[str, Any]:
    return {
        "token": served.token_text[token],
        "logprob": max(logprob, LEAST),
        "bytes": served.token_bytes[token],
    }


def prompt_logprobs(found: list[TokenLogprobs | None], served: ServedModel) -> list[dict[str, Any] | None]:
    """As vLLM has those of a prompt: token id -> its log-probability, the prompt's own token first."""
    return [
        None
        if each is None
        else {
            str(token): {"logprob": max(value, LEAST), "decoded_token": served.token_text[token]}
            for token, value in dict([(each.token, each.logprob), *each.top]).items()
        }
        for each in found
    ]
