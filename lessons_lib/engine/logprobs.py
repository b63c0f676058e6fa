"""Lesson 12: log-probabilities of chosen tokens, and of the likeliest ones, for all rows of a step at once."""

from typing import NamedTuple

import torch

NUM_LOGITS_AT_ONCE = 2**24  # prompts may have thousands of rows


class TokenLogprobs(NamedTuple):
    """Log-probabilities at one place of an answer, by the model's own logits, before temperature and cuts.

    Attributes:
        token, logprob: the token that stands there.
        rank: its place among all tokens; 1 for the likeliest, 0 if it is not known.
        top: (token, log-probability) of the likeliest, likeliest first.
    """

    token: int
    logprob: float
    rank: int
    top: tuple[tuple[int, float], ...]

    @classmethod
    def of(cls, row: list[float]) -> "TokenLogprobs":
        """From a row of a `logprobs_table`."""
        token, logprob, rank, *top = row
        half = len(top) // 2
        return cls(int(token), logprob, int(rank), tuple(zip(map(int, top[half:]), top[:half])))


def logprobs_table(logits: torch.Tensor, rows: torch.Tensor, tokens: torch.Tensor, count: int) -> torch.Tensor:
    """The log-probabilities of a token of each row, and of the likeliest ones.

    Args:
        logits: [T, vocabulary].
        rows: int64 [R], of the logits.
        tokens: int64 [R]. If one is negative, what is found for it has no meaning.
        count: how many of the likeliest to find in each row; -1 for all.

    Returns:
        float64 [R, 3 + 2 * count], on the device: token, log-probability, rank; then the log-probabilities of the
        likeliest, and their ids.
    """
    vocabulary, parts = logits.shape[-1], []
    count = vocabulary if count < 0 else min(count, vocabulary)
    at_once = max(1, NUM_LOGITS_AT_ONCE // vocabulary)
    for part, own in zip(torch.split(rows, at_once), torch.split(tokens[:, None], at_once)):
        top, likeliest = logits[part].topk(count)
        own_logits = logits[part].float()
        total = own_logits.logsumexp(dim=-1, keepdim=True)
        chosen = own_logits.gather(1, own.clamp(min=0))
        rank = (own_logits > chosen).sum(dim=-1, keepdim=True) + 1
        columns = own, chosen - total, rank, top.float() - total, likeliest
        parts.append(torch.cat([column.double() for column in columns], dim=1))
    return torch.cat(parts)
