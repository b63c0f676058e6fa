"""Attention of 06.3 with all keys at once, right or with one mistake."""

import torch

from lessons_lib.checks.lesson_06.in_place_cases import Case


def same(got: torch.Tensor, want: torch.Tensor) -> bool:
    return torch.allclose(got, want, rtol=1e-3, atol=1e-4)


def dense(
    case: Case, visible=lambda key, query: key <= query, kv_head=None, scale=None, slots=None, swapped=False,
    keys_only=False, hidden_score=float("-inf"),
) -> torch.Tensor:  # fmt: skip
    """The attention with all keys at once, in float64; the arguments are mistakes to compare with.

    Args:
        visible: (key position [1, K], query position [Q, 1]) -> bool [Q, K].
        kv_head: query head -> KV head.
    """
    num_new, q_heads = case.query.shape[:2]
    kv_heads = case.keys.shape[2]
    keys, values = (cache.flatten(0, 1)[slots or case.slots].double() for cache in (case.keys, case.values))
    keys, values = (values, keys) if swapped else (keys, keys if keys_only else values)
    of = [kv_head(head) if kv_head else head * kv_heads // q_heads for head in range(q_heads)]
    scores = torch.einsum("qhd,khd->hqk", case.query.double(), keys[:, of]) * (case.scale if scale is None else scale)
    query_position = torch.arange(case.num_tokens - num_new, case.num_tokens)[:, None]
    hidden = ~visible(torch.arange(len(keys))[None], query_position)
    return torch.einsum("hqk,khd->qhd", scores.masked_fill(hidden, hidden_score).softmax(dim=-1), values[:, of])


def averaged(case: Case) -> torch.Tensor:
    size = case.keys.shape[1]
    parts = [
        dense(case, visible=lambda key, query, s=start: (key <= query) & (key >= s) & (key < s + size))
        for start in range(0, case.num_tokens, size)
    ]
    return torch.stack(parts).nanmean(dim=0)


def totals(case: Case) -> torch.Tensor:
    """The denominator of each query, relative to its largest score: [Q, q_heads, 1]."""
    kv_heads, q_heads = case.keys.shape[2], case.query.shape[1]
    of = [head * kv_heads // q_heads for head in range(q_heads)]
    keys = case.keys.flatten(0, 1)[case.slots][:, of].double()
    scores = torch.einsum("qhd,khd->qhk", case.query.double(), keys) * case.scale
    position = torch.arange(case.num_tokens - len(scores), case.num_tokens)[:, None, None]
    scores = scores.masked_fill(torch.arange(case.num_tokens) > position, float("-inf"))
    return (scores - scores.amax(dim=-1, keepdim=True)).exp().sum(dim=-1, keepdim=True)
