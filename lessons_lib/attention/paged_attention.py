"""Lesson 06: attention of a packed row over a paged cache, in PyTorch."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from lessons_lib.attention.online_softmax import add_block, attention_of, nothing_seen


def attention_in_place(query, keys, values, blocks, num_tokens, scale, add_block=add_block):
    """Attention of one new token, block by block, each read where it lies. No copy of the keys is made, and no row of all scores.

    Args:
        query: [Q, head_dim], the query heads that share one KV head.
        keys, values: of that KV head, [num_blocks, block_size, head_dim].
        blocks: list of int, the blocks of the sequence in the order of its tokens.
        num_tokens: tokens of the sequence, the new one included.
        scale: what the scores are multiplied by.

    Returns:
        tensor [Q, head_dim].
    """
    block_size = keys.shape[1]
    seen = nothing_seen(*query.shape, query.dtype)
    for start, block in zip(range(0, num_tokens, block_size), blocks):
        filled = min(block_size, num_tokens - start)
        scores = query @ keys[block, :filled].T * scale
        seen = add_block(seen, scores, values[block, :filled])
    return attention_of(seen)


def attention_one_by_one(query, keys, values, packed, block_tables, scale):
    """Attention of a packed row, one sequence after the other: gather its pages, and compute plain causal attention.

    Args:
        query: [T, q_heads, head_dim].
        keys, values: of one layer, [num_blocks, block_size, kv_heads, head_dim].
        packed: the PackedBatch; block_tables: int [B, M].

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


@dataclass(frozen=True)
class Group:
    """Sequences that are computed together, as a rectangle of S sequences, Q queries and K keys.

    Attributes:
        rows: place of each query in the packed row, int64 [S, Q]; 0 where a sequence has fewer.
        is_query: whether there is a query, bool [S, Q].
        slots: where each key lies in the cache, int64 [S, K]; that of the sequence's first key where a sequence has fewer.
        mask: bool [S, 1, Q, K], True where the query may attend to the key. The 1 stands for all heads.
    """

    rows: torch.Tensor
    is_query: torch.Tensor
    slots: torch.Tensor
    mask: torch.Tensor


def plan_groups(cu_seqlens_q, context_lens, block_tables, block_size):
    """Sort the sequences of a row into those with one new token and the rest. Made once a pass, used in every layer.

    A decode has one query and a prefill many: in one rectangle, the decodes would be mostly padding. Where lengths differ much, each
    of the two is divided further.

    Args:
        cu_seqlens_q: int [B + 1]; context_lens: int [B], the new tokens included; block_tables: int [B, M].

    Returns:
        list of Group.
    """
    q_lens = cu_seqlens_q.diff()
    is_decode = q_lens == 1
    groups = []
    for members in (is_decode.nonzero()[:, 0], (~is_decode).nonzero()[:, 0]):
        for alike in divide(members, q_lens, context_lens):
            groups.append(_group(alike, cu_seqlens_q, q_lens, context_lens, block_tables, block_size))
    return groups


def divide(members, q_lens, context_lens):
    """Divide sequences into rectangles: while less than half of one is needed, the largest sequences are split off.

    They are split where they differ more, in queries or in contexts. Where all are alike to a factor of two, they stay together.

    Args:
        members: numbers of the sequences, int [S]; q_lens, context_lens: int [B].

    Returns:
        list of tensors: each sequence is in one of them.
    """
    divided = []
    while len(members):
        queries, contexts = q_lens[members], context_lens[members]
        rectangle = len(members) * int(queries.max()) * int(contexts.max())
        if rectangle <= 2 * int((queries * contexts).sum()):
            return [*divided, members]
        sizes = max(queries, contexts, key=lambda sizes: sizes.max() / sizes.sum())
        is_large = 2 * sizes > sizes.max()
        divided.append(members[is_large])
        members = members[~is_large]
    return divided


def _group(members, cu_seqlens_q, q_lens, context_lens, block_tables, block_size) -> Group:
    device = block_tables.device
    lens, contexts = q_lens[members, None], context_lens[members, None]
    query = torch.arange(int(lens.max()), device=device)
    key = torch.arange(int(contexts.max()), device=device)
    is_query = query < lens
    # Cells without a token may hold NaN, and 0 x NaN is NaN: what stands in for a missing key must be a key.
    key_or_first = torch.where(key < contexts, key, 0)
    blocks = block_tables[members].gather(1, key_or_first // block_size)
    position = contexts - lens + query
    return Group(
        rows=torch.where(is_query, cu_seqlens_q[members, None] + query, 0).long(),
        is_query=is_query,
        slots=blocks.long() * block_size + key_or_first % block_size,
        mask=(key <= position[:, :, None])[:, None],
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
            # `index_select` copies whole lines; indexing with a tensor takes several times as long.
            cache.flatten(0, 1).index_select(0, group.slots.flatten()).unflatten(0, group.slots.shape).transpose(1, 2)
            for cache in (keys, values)
        )
        attended = F.scaled_dot_product_attention(
            query[group.rows].transpose(1, 2), own_keys, own_values, attn_mask=group.mask, scale=scale, enable_gqa=True
        )
        out[group.rows[group.is_query]] = attended.transpose(1, 2)[group.is_query]
    return out


def plan_torch(packed, block_tables, block_size) -> Callable:
    """The PyTorch backend: what computes attention in every layer of one pass.

    Args:
        packed: the PackedBatch, on the device of the model.
        block_tables: int [B, M], on the same device.

    Returns:
        function (query, keys, values, scale) -> tensor, see `paged_attention`.
    """
    groups = plan_groups(packed.cu_seqlens_q, packed.context_lens, block_tables, block_size)
    return lambda query, keys, values, scale: paged_attention(query, keys, values, groups, scale)
