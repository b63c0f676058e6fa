"""Lesson 12: the attention of lesson 06, with everything that is the same in every layer done once a pass."""

from collections.abc import Callable

import torch
import torch.nn.functional as F

from lessons_lib.attention.masks import additive_mask
from lessons_lib.attention.packing import PackedBatch
from lessons_lib.attention.paged_attention import plan_groups


def plan_fused(packed: PackedBatch, block_tables: torch.Tensor, block_size: int) -> Callable:
    """What computes attention in every layer of one pass, as `paged_attention.plan_torch` does, in fewer operations a layer.

    Masks are made additive here; otherwise every layer would do that anew. The results of all groups are joined and sorted in one step
    at the end of a layer; where each token's result lies in them is found here too.

    Args:
        packed: the PackedBatch, of at least one sequence; block_tables: int [B, M].

    Returns:
        function (query, keys, values, scale) -> tensor, see `paged_attention.paged_attention`.
    """
    groups = plan_groups(packed.cu_seqlens_q, packed.context_lens, block_tables, block_size)
    scheduler_outputs = [(group.rows.flatten(), group.slots.flatten(), additive_mask(group.mask)) for group in groups]
    tokens = torch.cat([group.rows[group.is_query] for group in groups])
    result_of_token = torch.cat([group.is_query.flatten() for group in groups]).nonzero()[:, 0][tokens.argsort()]

    def attend(query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, scale: float) -> torch.Tensor:
        results = []
        for rows, slots, mask in scheduler_outputs:
            own_query, own_keys, own_values = (
                cells.index_select(0, places).unflatten(0, (len(mask), -1)).transpose(1, 2)
                for cells, places in ((query, rows), (keys.flatten(0, 1), slots), (values.flatten(0, 1), slots))
            )
            attended = F.scaled_dot_product_attention(
                own_query, own_keys, own_values, attn_mask=mask, scale=scale, enable_gqa=True
            )
            results.append(attended.transpose(1, 2).flatten(0, 1))
        return torch.cat(results).index_select(0, result_of_token)

    return attend
