"""The right output of 04.4 by a mask over the whole row, and wrong outputs that the check recognizes."""

from collections.abc import Callable

import torch

from lessons_lib.checks.lesson_04.scoreboard import HEAD_DIM, HEADS


def dense(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, query_lens: list[int], seq_lens: list[int],
    may: Callable[[int, int, int], bool] = lambda query, key, first: key <= query,
    across: bool = False, scale: float = HEAD_DIM**-0.5,
) -> torch.Tensor:  # fmt: skip
    """All scores, and a mask that is made cell by cell.

    Args:
        may: function (position of the query, position of the key, position of the sequence's first query).
        across: whether a query sees the other sequences as well.
    """
    queries = [(i, s - n + j, s - n) for i, (n, s) in enumerate(zip(query_lens, seq_lens)) for j in range(n)]
    keys = [(i, position) for i, length in enumerate(seq_lens) for position in range(length)]
    rows = [[(across or own == other) and may(at, key, first) for other, key in keys] for own, at, first in queries]
    mask = torch.tensor(rows, dtype=torch.bool).reshape(len(queries), len(keys))
    return (q @ k.mT * scale).masked_fill(~mask, float("-inf")).softmax(dim=-1) @ v


def _masked_after(q, k, v, query_lens: list[int], seq_lens: list[int]) -> torch.Tensor:
    """The softmax goes over all keys of the sequence, and the mask comes after it."""
    identity = torch.eye(k.shape[1], dtype=k.dtype).expand(k.shape[0], -1, -1)
    weights = dense(q, k, identity, query_lens, seq_lens, may=lambda query, key, first: True)
    seen = dense(torch.zeros_like(q), k, identity, query_lens, seq_lens) > 0
    return (weights * seen) @ v


def _forbidden_at_zero(q, k, v, query_lens: list[int], seq_lens: list[int]) -> torch.Tensor:
    """The forbidden keys of the own sequence get the score 0."""
    identity = torch.eye(k.shape[1], dtype=k.dtype).expand(k.shape[0], -1, -1)
    nothing = torch.zeros_like(q)
    seen = dense(nothing, k, identity, query_lens, seq_lens) > 0
    own = dense(nothing, k, identity, query_lens, seq_lens, may=lambda query, key, first: True) > 0
    scores = (q @ k.mT * HEAD_DIM**-0.5).masked_fill(~seen, 0.0).masked_fill(~own, float("-inf"))
    return scores.softmax(dim=-1) @ v


def _heads_as_one(q, k, v, query_lens: list[int], seq_lens: list[int]) -> torch.Tensor:
    """One softmax for all heads: the scores are summed over them."""
    joined = [x.transpose(0, 1).flatten(1)[None] for x in (q, k, v)]
    together = dense(*joined, query_lens, seq_lens, scale=joined[0].shape[-1] ** -0.5)
    return together[0].unflatten(1, (HEADS, -1)).transpose(0, 1)


def _over_queries(q, k, v, query_lens: list[int], seq_lens: list[int]) -> torch.Tensor:
    """The softmax goes over the queries of a key."""
    identity = torch.eye(k.shape[1], dtype=k.dtype).expand(k.shape[0], -1, -1)
    seen = dense(torch.zeros_like(q), k, identity, query_lens, seq_lens) > 0
    return (q @ k.mT * HEAD_DIM**-0.5).masked_fill(~seen, float("-inf")).softmax(dim=1) @ v


WRONG_WAYS = (
    (
        "Your weights of a query don't sum to 1: the forbidden keys take part in its softmax. They have to be out "
        "before it.",
        _masked_after,
    ),
    (
        "Your softmax goes over the queries. Over the keys, `dim=-1`, the weights of each query sum to 1.",
        _over_queries,
    ),
    (
        "Your forbidden keys have the score 0. That isn't the weight 0: exp(0) is 1. Take minus infinity.",
        _forbidden_at_zero,
    ),
    (
        "Yours is a mix of the keys. The weights belong to the values, `v`.",
        lambda q, k, v, *lens: dense(q, k, k, *lens),
    ),
    (
        "Every head of yours has the output of head 0. Each head has queries, keys and values of its own.",
        lambda q, k, v, *lens: dense(q[:1], k[:1], v[:1], *lens).expand_as(q),
    ),
    (
        "Your heads share one softmax. Each head has scores and weights of its own.",
        _heads_as_one,
    ),
    (
        "Your weights of a query are all equal: the scores have no effect.",
        lambda q, *rest: dense(torch.zeros_like(q), *rest),
    ),
    (
        "Yours also sees later tokens of its sequence.",
        lambda *args: dense(*args, may=lambda query, key, first: True),
    ),
    (
        "Yours sees one key too many, that of the next token. Is the diagonal of your mask one too far? With n queries "
        "and s keys, query i sees keys 0 to s - n + i, its own.",
        lambda *args: dense(*args, may=lambda query, key, first: key <= query + 1),
    ),
    (
        "Yours takes the first query of a sequence for its position 0. The queries are those of its *last* tokens. "
        "(`is_causal=True` counts from the first, too.)",
        lambda *args: dense(*args, may=lambda query, key, first: key <= query - first),
    ),
    (
        "Yours doesn't see its own position.",
        lambda *args: dense(*args, may=lambda query, key, first: key < query),
    ),
    (
        "Yours sees keys of the other sequences.",
        lambda *args: dense(*args, across=True),
    ),
    (
        "Yours sees all keys of the row.",
        lambda *args: dense(*args, across=True, may=lambda query, key, first: True),
    ),
    (
        "Your scores aren't divided by √head_dim.",
        lambda *args: dense(*args, scale=1.0),
    ),
    (
        "Your scores are divided by head_dim; it should be its square root.",
        lambda *args: dense(*args, scale=1 / HEAD_DIM),
    ),
    (
        f"Your scores are divided by the square root of {HEADS}, another side of q. head_dim is its *last* axis.",
        lambda *args: dense(*args, scale=HEADS**-0.5),
    ),
    (
        "Your scores are multiplied by √head_dim; divide by it.",
        lambda *args: dense(*args, scale=HEAD_DIM**0.5),
    ),
)
