"""Lesson 12: log-probabilities of chosen tokens, and of the likeliest ones."""

from collections.abc import Sequence as ListOf
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class TokenLogprobs:
    """Log-probabilities at one place of an answer, by the model's own logits, before temperature and cuts.

    Attributes:
        token, logprob: the token that stands there.
        top: (token, log-probability) of the likeliest, likeliest first.
    """

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...]


def rows_of_logprobs(logits: torch.Tensor, tokens: ListOf[int], count: int) -> list[TokenLogprobs]:
    """The log-probabilities of chosen tokens, and of the likeliest ones.

    Args:
        logits: [T, vocabulary].
        tokens: T of them.
        count: how many of the likeliest to return of each row; -1 for all.
    """
    logprobs = logits.float().log_softmax(dim=-1)
    vocabulary = logprobs.shape[-1]
    values, likeliest = logprobs.topk(vocabulary if count < 0 else min(count, vocabulary))
    own = logprobs.gather(1, torch.tensor(tokens, device=logits.device)[:, None])[:, 0].tolist()
    tops = zip(likeliest.tolist(), values.tolist())
    return [TokenLogprobs(token, value, tuple(zip(*top))) for token, value, top in zip(tokens, own, tops)]
