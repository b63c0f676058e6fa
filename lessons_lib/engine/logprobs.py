"""Lesson 12: log-probabilities of chosen tokens, and of the likeliest ones, for all rows of a step at once."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple, overload

import numpy as np
import torch

NUM_LOGITS_AT_ONCE = 2**26  # prompts may have thousands of rows
CHUNK = 128  # logits, see `likeliest`


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
    def of(cls, row: bytes) -> "TokenLogprobs":
        """From a row of a `logprobs_table`."""
        token, logprob, rank, *top = np.frombuffer(row).tolist()
        half = len(top) // 2
        return cls(int(token), logprob, int(rank), tuple(zip(map(int, top[half:]), top[:half])))


class FlatLogprobs(Sequence[TokenLogprobs]):
    """The log-probabilities of a completion, made objects where they are read. A million tuples would keep Python's
    garbage collector busy; vLLM's class of this name avoids them, too.

    Attributes:
        rows: of a `logprobs_table`, as bytes.
    """

    def __init__(self, rows: Iterable[bytes] = ()):
        self.rows = list(rows)

    def __len__(self) -> int:
        return len(self.rows)

    @overload
    def __getitem__(self, place: int) -> TokenLogprobs: ...
    @overload
    def __getitem__(self, place: slice) -> "FlatLogprobs": ...
    def __getitem__(self, place: int | slice) -> "TokenLogprobs | FlatLogprobs":
        rows = self.rows[place]
        return TokenLogprobs.of(rows) if isinstance(rows, bytes) else FlatLogprobs(rows)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)


def likeliest(logits: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The `count` largest logits of each row, largest first, and their tokens. [R, count].

    They are all in the `count` chunks with the largest maxima, so only those are sorted.

    Args:
        logits: [R, vocabulary].
    """
    vocabulary = logits.shape[-1]
    num_chunks = vocabulary // CHUNK
    if count >= num_chunks:
        return logits.topk(count)
    chunks = logits[:, : num_chunks * CHUNK].unflatten(1, (num_chunks, CHUNK))
    best = chunks.amax(dim=-1).topk(count).indices[:, :, None]
    ids = best * CHUNK + torch.arange(CHUNK, device=logits.device)
    rest = torch.arange(num_chunks * CHUNK, vocabulary, device=logits.device).expand(len(logits), -1)
    ids = torch.cat([ids.flatten(1), rest], dim=1)
    values, index = logits.gather(1, ids).topk(count)
    return values, ids.gather(1, index)


def logprobs_table(logits: torch.Tensor, tokens: torch.Tensor, count: int) -> torch.Tensor:
    """The log-probabilities of a token of each row, and of the likeliest ones.

    Args:
        logits: [R, vocabulary].
        tokens: int64 [R]. If one is negative, what is found for it has no meaning.
        count: how many of the likeliest to find in each row; -1 for all.

    Returns:
        float64 [R, 3 + 2 * count], on the device: token, log-probability, rank; then the log-probabilities of the
        likeliest, and their ids.
    """
    vocabulary, parts = logits.shape[-1], []
    count = vocabulary if count < 0 else min(count, vocabulary)
    at_once = max(1, NUM_LOGITS_AT_ONCE // vocabulary)
    for part, own in zip(torch.split(logits, at_once), torch.split(tokens[:, None], at_once)):
        logprobs, index = part.log_softmax(dim=-1, dtype=torch.float32), own.clamp(min=0)
        ids = likeliest(part, count)[1]
        rank = (part > part.gather(1, index)).sum(dim=-1, keepdim=True) + 1
        columns = own, logprobs.gather(1, index), rank, logprobs.gather(1, ids), ids
        parts.append(torch.cat([column.double() for column in columns], dim=1))
    return torch.cat(parts)
