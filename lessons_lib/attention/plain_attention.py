"""Lesson 06: simple attention over a paged cache: block by block in place, or with all keys of a sequence gathered."""

from typing import Any

import torch
import torch.nn.functional as F

from lessons_lib.attention.online_softmax import add_block, attention_of, nothing_seen


def attention_in_place(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, blocks: list[int], num_tokens: int, scale: float
) -> torch.Tensor:
    """Paged attention of one sequence: its new tokens attend over its blocks, one at a time, each read in place.

    Args:
        query: [Q, q_heads, head_dim], of the last Q tokens of the sequence. Neighboring query heads share a KV head.
        keys, values: of one layer, [num_blocks, block_size, kv_heads, head_dim]; the new tokens are already in them.
            Slots without a token of the sequence are never read: they may hold NaN.
        blocks: the blocks of the sequence in the order of its tokens; more may follow, as in a padded block table.
        num_tokens: tokens of the sequence, the new ones included.
        scale: factor of the scores.

    Returns:
        tensor [Q, q_heads, head_dim], in the dtype of the query.
    """
    num_new, q_heads, head_dim = query.shape
    block_size, kv_heads = keys.shape[1:3]
    position = torch.arange(num_tokens - num_new, num_tokens)[:, None]
    out = torch.empty_like(query)
    for head in range(q_heads):
        kv_head = head * kv_heads // q_heads
        seen = nothing_seen(num_new, head_dim, query.dtype)
        for start, block in zip(range(0, num_tokens, block_size), blocks):
            filled = min(block_size, num_tokens - start)
            scores = query[:, head] @ keys[block, :filled, kv_head].T * scale
            is_later = torch.arange(start, start + filled) > position
            seen = add_block(seen, scores.masked_fill(is_later, float("-inf")), values[block, :filled, kv_head])
        out[:, head] = attention_of(seen)
    return out


def attention_one_by_one(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, packed: Any, block_tables: torch.Tensor, scale: float
) -> torch.Tensor:
    """Attention of a packed batch, sequence by sequence: gather the blocks, then compute plain causal attention.

    Args:
        query: [T, q_heads, head_dim].
        keys, values: of one layer, [num_blocks, block_size, kv_heads, head_dim].
        packed: a PackedBatch or a ForwardBatch.
        block_tables: int [N, M].

    Returns:
        tensor [T, q_heads, head_dim].
    """
    out, block_size = [], keys.shape[1]
    starts, contexts = packed.cu_seqlens_q.tolist(), packed.context_lens.tolist()
    for index, (start, end, context) in enumerate(zip(starts, starts[1:], contexts)):
        blocks = block_tables[index, : -(-context // block_size)]
        own_keys, own_values = (cache[blocks].flatten(0, 1)[:context].transpose(0, 1) for cache in (keys, values))
        own_query = query[start:end].transpose(0, 1)
        position = torch.arange(context, device=query.device)
        may_see = position <= position[context - (end - start) :, None]
        attended = F.scaled_dot_product_attention(
            own_query[None], own_keys[None], own_values[None], attn_mask=may_see, scale=scale, enable_gqa=True
        )
        out.append(attended[0].transpose(0, 1))
    return torch.cat(out)
