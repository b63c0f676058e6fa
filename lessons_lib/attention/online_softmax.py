"""Lesson 06: attention one block of keys at a time. The softmax is corrected as larger scores turn up, and parts can be merged.

Milakov and Gimelshein 2018, "Online normalizer calculation for softmax" (https://arxiv.org/abs/1805.02867); Dao et al. 2022,
"FlashAttention" (https://arxiv.org/abs/2205.14135), section 3.1.
"""

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Partial:
    """Attention of Q queries over the keys seen so far.

    Attributes:
        maximum: largest score of each query, [Q]; minus infinity before the first key.
        total: sum of exp(score - maximum) over the keys, [Q].
        output: sum of exp(score - maximum) x value, [Q, D]; divided by `total` it is the attention over these keys.
    """

    maximum: torch.Tensor
    total: torch.Tensor
    output: torch.Tensor


def nothing_seen(num_queries: int, head_dim: int, dtype=torch.float32) -> Partial:
    """The state before the first key."""
    return Partial(
        maximum=torch.full((num_queries,), float("-inf"), dtype=dtype),
        total=torch.zeros(num_queries, dtype=dtype),
        output=torch.zeros(num_queries, head_dim, dtype=dtype),
    )


def add_block_naive(seen, scores, values):
    """Add a block of keys with bare exponentials, as the formula of softmax has them.

    Right as long as no score is large. `maximum` stays as it is; the state is read as if it were 0.

    Args:
        seen: Partial.
        scores: [Q, K]; values: [K, D].
    """
    weights = scores.exp()
    return Partial(seen.maximum, seen.total + weights.sum(dim=1), seen.output + weights @ values)


def add_block(seen, scores, values):
    """Add a block of keys, with all exponentials relative to the largest score so far.

    What was added up before is multiplied by exp(old maximum - new maximum), so that it is relative to the same score.

    Args:
        seen: Partial.
        scores: [Q, K], minus infinity where a query may not attend to a key; values: [K, D].

    Returns:
        Partial. A query that may attend to none of the keys keeps its state.
    """
    maximum = torch.maximum(seen.maximum, scores.max(dim=1).values)
    # Before the first key that a query may see, its maximum is minus infinity, and -inf - -inf is NaN.
    reference = maximum.masked_fill(maximum == float("-inf"), 0.0)
    weights = (scores - reference[:, None]).exp()
    rescale = (seen.maximum - reference).exp()
    return Partial(
        maximum, seen.total * rescale + weights.sum(dim=1), seen.output * rescale[:, None] + weights @ values
    )


def merge(one, other):
    """Join what was computed over two sets of keys, in any order, as if one had seen both.

    Args:
        one, other: Partial, of the same queries and of keys that they do not share.
    """
    maximum = torch.maximum(one.maximum, other.maximum)
    reference = maximum.masked_fill(maximum == float("-inf"), 0.0)
    shares = [(part.maximum - reference).exp() for part in (one, other)]
    total = one.total * shares[0] + other.total * shares[1]
    return Partial(maximum, total, one.output * shares[0][:, None] + other.output * shares[1][:, None])


def attention_of(seen: Partial) -> torch.Tensor:
    """The attention over all keys seen, [Q, D]. NaN for a query that has seen none."""
    return seen.output / seen.total[:, None]


def log_sum_exp(seen: Partial) -> torch.Tensor:
    """Logarithm of the sum of exp(score) over all keys seen, [Q]: how much this part weighs when parts are merged."""
    return seen.maximum + seen.total.log()
