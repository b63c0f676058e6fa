"""Lesson 12: log-probabilities of chosen tokens, and of the likeliest ones. `step_logprobs` computes them."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple, overload

import numpy as np


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
