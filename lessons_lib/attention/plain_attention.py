"""Lesson 06: simple attention over a paged cache, block by block in place."""

import torch

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
