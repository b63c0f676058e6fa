"""Lesson 06: attention of a packed batch over a paged cache, in PyTorch."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from operator import mul
from typing import Any

import torch
import torch.nn.functional as F

from lessons_lib.attention.score_terms import ScoreTerms, attention_with_terms


@dataclass(frozen=True)
class Group:
    """Sequences computed together, padded to a rectangle of S sequences, Q queries and K keys.

    Attributes:
        rows: index of each query in the packed batch, int64 [S, Q]. Padding repeats the sequence's last query, and so
            its result.
        slots: cache slot of each key, int64 [S, K]; the sequence's first key for padding.
        mask: bool [S, 1, Q, K], True where the query may attend to the key. The 1 broadcasts over heads.
    """

    rows: torch.Tensor
    slots: torch.Tensor
    mask: torch.Tensor


def plan_groups(
    cu_seqlens_q: torch.Tensor, context_lens: torch.Tensor, block_tables: torch.Tensor, block_size: int
) -> list[Group]:
    """Group a batch's sequences into decodes and prefills, once per pass for all layers.

    In one rectangle with prefills, decodes would be mostly padding. Both groups are divided further where lengths
    differ a lot.

    Args:
        cu_seqlens_q, context_lens, block_tables: see ForwardBatch.
    """
    q_lens, contexts = cu_seqlens_q.diff().tolist(), context_lens.tolist()
    decodes = [index for index, length in enumerate(q_lens) if length == 1]
    prefills = [index for index, length in enumerate(q_lens) if length > 1]
    groups = []
    for members in divide(decodes, q_lens, contexts) + divide(prefills, q_lens, contexts):
        groups.append(_group(members, cu_seqlens_q, context_lens, block_tables, block_size))
    return groups


def divide(members: list[int], q_lens: list[int], contexts: list[int]) -> list[list[int]]:
    """Divide sequences into rectangles: split off the largest ones while more than half of the rectangle is padding.

    Split by queries or contexts, whichever differ more. Sequences within a factor of two stay together.

    Returns:
        lists that partition `members`, the indices of the sequences.
    """
    divided: list[list[int]] = []
    while members:
        own_queries, own_contexts = [q_lens[each] for each in members], [contexts[each] for each in members]
        rectangle = len(members) * max(own_queries) * max(own_contexts)
        if rectangle <= 2 * sum(map(mul, own_queries, own_contexts)):
            return [*divided, members]
        queries_differ_more = max(own_queries) / sum(own_queries) >= max(own_contexts) / sum(own_contexts)
        sizes = q_lens if queries_differ_more else contexts
        half = max(sizes[each] for each in members) / 2
        divided.append([each for each in members if sizes[each] > half])
        members = [each for each in members if sizes[each] <= half]
    return divided


def _group(
    members: list[int], cu_seqlens_q: torch.Tensor, context_lens: torch.Tensor, block_tables: torch.Tensor,
    block_size: int,
) -> Group:  # fmt: skip
    """Lay out the queries and keys of these sequences as a rectangle."""
    device = block_tables.device
    chosen = torch.tensor(members, device=device)
    starts, contexts = cu_seqlens_q[chosen, None], context_lens[chosen, None]
    lens = cu_seqlens_q[chosen + 1, None] - starts
    query = torch.arange(int(lens.max()), device=device).minimum(lens - 1)
    key = torch.arange(int(contexts.max()), device=device)
    # Cache slots without a token may hold NaN, and 0 x NaN is NaN: pad with a real key.
    key_or_first = torch.where(key < contexts, key, 0)
    blocks = block_tables[chosen].gather(1, key_or_first // block_size)
    position = contexts - lens + query
    return Group(
        rows=(starts + query).long(),
        slots=blocks.long() * block_size + key_or_first % block_size,
        mask=(key <= position[:, :, None])[:, None],
    )


def paged_attention(
    groups: list[Group], query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, scale: float,
    terms: ScoreTerms | None = None,
) -> torch.Tensor:  # fmt: skip
    """Attention of the new tokens over their own sequences.

    Args:
        groups: see `plan_groups`.
        query: [T, q_heads, head_dim], of the packed batch.
        keys, values: of one layer, [num_blocks, block_size, kv_heads, head_dim]; they contain the new tokens. Slots
            without a token are never used; they may hold NaN.
        scale: factor of the scores.

    Returns:
        tensor [T, q_heads, head_dim of the values].
    """
    out = query.new_empty(*query.shape[:2], values.shape[-1])
    for group in groups:
        own_query = query[group.rows].transpose(1, 2)
        own_keys, own_values = (
            # `index_select` copies whole rows; indexing with a tensor takes several times as long.
            cache.flatten(0, 1)
            .index_select(0, group.slots.flatten())
            .unflatten(0, group.slots.shape)  # type: ignore[no-untyped-call]
            .transpose(1, 2)
            for cache in (keys, values)
        )
        if terms is None:
            attended = F.scaled_dot_product_attention(
                own_query, own_keys, own_values, attn_mask=group.mask, scale=scale, enable_gqa=True
            )
        else:
            attended = attention_with_terms(own_query, own_keys, own_values, group.mask, scale, terms)
        out[group.rows] = attended.transpose(1, 2)
    return out


def plan_torch(batch: Any, block_tables: torch.Tensor, block_size: int) -> Callable[..., torch.Tensor]:
    """The PyTorch backend: return the attention function for all layers of one pass.

    Args:
        batch: a ForwardBatch or a PackedBatch, on the device of the model.
        block_tables: int [N, M], on the same device.

    Returns:
        function (query, keys, values, scale, terms=None) -> tensor, see `paged_attention`.
    """
    return partial(paged_attention, plan_groups(batch.cu_seqlens_q, batch.context_lens, block_tables, block_size))
