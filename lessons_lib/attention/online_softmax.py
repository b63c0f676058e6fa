"""Lesson 06: attention one block of keys at a time, with sums that are rescaled when a larger score appears.

Milakov and Gimelshein 2018, "Online normalizer calculation for softmax" (https://arxiv.org/abs/1805.02867);
Dao et al. 2022, "FlashAttention" (https://arxiv.org/abs/2205.14135), section 3.1.
"""

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Partial:
    """The state of attention for Q queries, over the keys seen so far.

    Attributes:
        maximum: the largest score of each query, [Q]; minus infinity before the first key.
        total: the sum of exp(score - maximum) over the keys, [Q].
        output: the sum of exp(score - maximum) x value, [Q, D]. Divided by `total`, it is the attention.
    """

    maximum: torch.Tensor
    total: torch.Tensor
    output: torch.Tensor


def nothing_seen(num_queries: int, head_dim: int, dtype: torch.dtype = torch.float32) -> Partial:
    """The state before the first key."""
    return Partial(
        maximum=torch.full((num_queries,), float("-inf"), dtype=dtype),
        total=torch.zeros(num_queries, dtype=dtype),
        output=torch.zeros(num_queries, head_dim, dtype=dtype),
    )


def add_block_naive(seen: Partial, scores: torch.Tensor, values: torch.Tensor) -> Partial:
    """Add a block of keys with plain exponentials, straight from the softmax formula; see `add_block`.

    Correct unless an exponential overflows. `maximum` isn't updated: all sums are relative to 0.
    """
    weights = scores.exp()
    return Partial(seen.maximum, seen.total + weights.sum(dim=1), seen.output + weights @ values)


def add_block(seen: "Partial", scores: torch.Tensor, values: torch.Tensor) -> "Partial":
    """Add a block of keys, with all exponentials relative to the largest score so far.

    Args:
        seen: Partial.
        scores: [Q, K], minus infinity where a query may not attend to a key; values: [K, D].

    Returns:
        Partial. A query that may not attend to any of these keys keeps its state.
    """
    maximum = torch.maximum(seen.maximum, scores.max(dim=1).values)
    # A query that has not seen any key has a maximum of minus infinity, and -inf - -inf is NaN.
    reference = maximum.masked_fill(maximum == float("-inf"), 0.0)
    weights = (scores - reference[:, None]).exp()
    # The old sums are relative to the old maximum: exp(old - new) makes them relative to the new one.
    rescale = (seen.maximum - reference).exp()
    return Partial(
        maximum, seen.total * rescale + weights.sum(dim=1), seen.output * rescale[:, None] + weights @ values
    )


def attention_of(seen: Partial) -> torch.Tensor:
    """The attention over all keys seen so far, [Q, D]. NaN for a query that has not seen any."""
    return seen.output / seen.total[:, None]
