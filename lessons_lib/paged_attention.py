"""Lesson 06: attention of a packed row over a paged cache, in PyTorch."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F


@dataclass(frozen=True)
class Group:
    """Sequences that are computed together, as a rectangle of S sequences, Q queries and M blocks.

    Attributes:
        rows: place of each query in the packed row, int64 [S, Q]; 0 where a sequence has fewer.
        is_query: whether there is a query, bool [S, Q].
        blocks: block table of each sequence, int64 [S, M]; 0 beyond its last block.
        mask: bool [S, 1, Q, M x block_size], True where the query may attend. The 1 stands for all heads.
        is_key: bool [S, M x block_size, 1, 1], True where the cell holds a token of the sequence.
    """

    rows: torch.Tensor
    is_query: torch.Tensor
    blocks: torch.Tensor
    mask: torch.Tensor
    is_key: torch.Tensor


def plan_groups(cu_seqlens_q, context_lens, block_tables, block_size):
    """Sort the sequences of a row into those with one new token and the rest. Made once a pass, used in every layer.

    A decode has one query and a prefill many: in one rectangle, the decodes would be mostly padding.

    Args:
        cu_seqlens_q: int [B + 1]; context_lens: int [B], the new tokens included; block_tables: int [B, M].

    Returns:
        list of Group: none, one or two.
    """
    q_lens = cu_seqlens_q.diff()
    is_decode = q_lens == 1
    groups = []
    for members in (is_decode.nonzero()[:, 0], (~is_decode).nonzero()[:, 0]):
        if len(members):
            groups.append(_group(members, cu_seqlens_q, q_lens, context_lens, block_tables, block_size))
    return groups


def _group(members, cu_seqlens_q, q_lens, context_lens, block_tables, block_size) -> Group:
    device = block_tables.device
    lens, contexts = q_lens[members, None], context_lens[members, None]
    num_blocks = -(-int(contexts.max()) // block_size)
    query = torch.arange(int(lens.max()), device=device)
    key = torch.arange(num_blocks * block_size, device=device)
    is_query, is_key = query < lens, key < contexts
    owns_block = torch.arange(num_blocks, device=device) * block_size < contexts
    position = contexts - lens + query
    return Group(
        rows=torch.where(is_query, cu_seqlens_q[members, None] + query, 0).long(),
        is_query=is_query,
        blocks=torch.where(owns_block, block_tables[members, :num_blocks], 0).long(),
        # What stands in for a missing query may attend to the first key: a row without any key would be NaN.
        mask=((key <= position[:, :, None]) & is_query[:, :, None] | (key == 0))[:, None],
        is_key=is_key[:, :, None, None],
    )


def paged_attention(query, keys, values, groups, scale):
    """Attention of the new tokens over their own sequences.

    Args:
        query: [T, q_heads, head_dim], the packed row.
        keys, values: of one layer, [num_blocks, block_size, kv_heads, head_dim]; the new tokens are in them already. What lies in
            cells without a token is never used, not even if it is NaN.
        groups: see `plan_groups`.
        scale: what the scores are multiplied by.

    Returns:
        tensor [T, q_heads, head_dim].
    """
    out = torch.empty_like(query)
    for group in groups:
        own_keys, own_values = (
            # 0 x NaN is NaN: a weight of 0 does not hide what an unused cell holds.
            cache[group.blocks].flatten(1, 2).masked_fill(~group.is_key, 0.0).transpose(1, 2)
            for cache in (keys, values)
        )
        attended = F.scaled_dot_product_attention(
            query[group.rows].transpose(1, 2), own_keys, own_values, attn_mask=group.mask, scale=scale, enable_gqa=True
        )
        out[group.rows[group.is_query]] = attended.transpose(1, 2)[group.is_query]
    return out
