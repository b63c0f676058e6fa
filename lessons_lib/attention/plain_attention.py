"""Lesson 06: attention over a paged cache the plain ways: block by block for one token, and sequence after sequence for
a batch."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from lessons_lib.attention.online_softmax import Partial, add_block, attention_of, nothing_seen


def attention_in_place(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    blocks: list[int],
    num_tokens: int,
    scale: float,
    add_block: Callable[..., Partial] = add_block,
) -> torch.Tensor:
    """Attention of one new token, block by block, each read in place. No copy of the keys is made, and no row of all
    scores.

    Args:
        query: [Q, head_dim], the query heads that share one KV head.
        keys, values: of that KV head, [num_blocks, block_size, head_dim].
        blocks: the blocks of the sequence in the order of its tokens.
        num_tokens: tokens of the sequence, the new one included.
        scale: what the scores are multiplied by.

    Returns:
        tensor [Q, head_dim].
    """
    block_size = keys.shape[1]
    seen = nothing_seen(query.shape[0], query.shape[1], query.dtype)
    for start, block in zip(range(0, num_tokens, block_size), blocks):
        filled = min(block_size, num_tokens - start)
        scores = query @ keys[block, :filled].T * scale
        seen = add_block(seen, scores, values[block, :filled])
    return attention_of(seen)


def attention_one_by_one(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, packed: Any, block_tables: torch.Tensor, scale: float
) -> torch.Tensor:
    """Attention of a packed batch, one sequence after the other: gather its pages, and compute plain causal attention.

    Args:
        query: [T, q_heads, head_dim].
        keys, values: of one layer, [num_blocks, block_size, kv_heads, head_dim].
        packed: a PackedBatch or a ForwardBatch.
        block_tables: int [N, M].

    Returns:
        tensor [T, q_heads, head_dim].
    """
    out, block_size = [], keys.shape[1]
    for index, (count, cached) in enumerate(zip(packed.new_lens, packed.cached_lens)):
        blocks = block_tables[index, : -(-(cached + count) // block_size)]
        own_keys, own_values = (
            cache[blocks].flatten(0, 1)[: cached + count].transpose(0, 1) for cache in (keys, values)
        )
        own_query = query[sum(packed.new_lens[:index]) :][:count].transpose(0, 1)
        position = torch.arange(cached + count, device=query.device)
        may_see = position <= position[cached:, None]
        attended = F.scaled_dot_product_attention(
            own_query[None], own_keys[None], own_values[None], attn_mask=may_see, scale=scale, enable_gqa=True
        )
        out.append(attended[0].transpose(0, 1))
    return torch.cat(out)
