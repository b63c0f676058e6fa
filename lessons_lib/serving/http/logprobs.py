"""Log-probabilities in the shapes of the two APIs."""

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

from lessons_lib.engine.logprobs import TokenLogprobs
from lessons_lib.serving.http.served_model import ServedModel

LEAST = -9999.0  # JSON has no -inf


def completion_logprobs(
    tokens: list[int], found: Sequence[TokenLogprobs | None], served: ServedModel, offset: int = 0, as_ids: bool = False
) -> dict[str, Any]:
    """As /v1/completions has them.

    Args:
        found: one for each token, with as many of the likeliest as were asked for. None for the first token of a
            prompt, which nothing predicts.
        offset: where in the text the first token begins.
        as_ids: whether a token is called by its id, such as "token_id:5". Several tokens may have the same text.
    """
    texts = [served.token_text[token] for token in tokens]
    return {
        "text_offset": list(accumulate(map(len, texts[:-1]), initial=offset)),
        "token_logprobs": [each and max(each.logprob, LEAST) for each in found],
        "tokens": [_name(token, served, as_ids) for token in tokens],
        "top_logprobs": [each and _by_name(each, served, as_ids) for each in found],
    }


def _name(token: int, served: ServedModel, as_ids: bool) -> str:
    return f"token_id:{token}" if as_ids else served.token_text[token]


def _by_name(found: TokenLogprobs, served: ServedModel, as_ids: bool) -> dict[str, float]:
    """The chosen token first. Of tokens with the same text, such as halves of characters, the likeliest counts."""
    values: dict[str, float] = {}
    for token, value in [(found.token, found.logprob), *found.top]:
        name = _name(token, served, as_ids)
        values[name] = max(value, LEAST, values.get(name, LEAST))
    return values


def chat_logprobs(found: Sequence[TokenLogprobs], served: ServedModel, as_ids: bool = False) -> dict[str, Any]:
    """As /v1/chat/completions has them."""
    content = [
        _entry(each.token, each.logprob, served, as_ids)
        | {"top_logprobs": [_entry(token, value, served, as_ids) for token, value in each.top]}
        for each in found
    ]
    return {"content": content, "refusal": None}


def _entry(token: int, logprob: float, served: ServedModel, as_ids: bool) -> dict[str, Any]:
    return {
        "token": _name(token, served, as_ids),
        "logprob": max(logprob, LEAST),
        "bytes": served.token_bytes[token],
    }


def prompt_logprobs(found: Sequence[TokenLogprobs | None], served: ServedModel) -> list[dict[str, Any] | None]:
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
