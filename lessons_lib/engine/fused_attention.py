"""Lesson 12: the attention of lesson 06, with everything that is the same in every layer computed once per pass."""

import torch
import torch.nn.functional as F

from lessons_lib.attention.hf_backend import Attend, ForwardBatch
from lessons_lib.attention.masks import additive_mask
from lessons_lib.attention.paged_attention import plan_groups


def plan_fused(batch: ForwardBatch, block_tables: torch.Tensor, block_size: int) -> Attend:
    """Plan the attention of one pass, as `paged_attention.plan_torch` does, for fewer operations per layer.

    Masks are made additive here; otherwise every layer would do that again. At the end of a layer, one step joins and
    sorts the results of all groups.

    Args:
        batch: of at least one sequence.
        block_tables: int [N, M], those of the batch.

    Returns:
        function (query, keys, values, scale) -> tensor, see `paged_attention.paged_attention`.
    """
    groups = plan_groups(batch.cu_seqlens_q, batch.context_lens, block_tables, block_size)
    planned = [(group.rows.flatten(), group.slots.flatten(), additive_mask(group.mask)) for group in groups]
    tokens = torch.cat([group.rows[group.is_query] for group in groups])
    result_of_token = torch.cat([group.is_query.flatten() for group in groups]).nonzero()[:, 0][tokens.argsort()]

    def attend(query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, scale: float) -> torch.Tensor:
        results = []
        for rows, slots, mask in planned:
            own_query, own_keys, own_values = (
                source.index_select(0, index)
                .unflatten(0, (len(mask), -1))  # type: ignore[no-untyped-call]
                .transpose(1, 2)
                for source, index in ((query, rows), (keys.flatten(0, 1), slots), (values.flatten(0, 1), slots))
            )
            attended = F.scaled_dot_product_attention(
                own_query, own_keys, own_values, attn_mask=mask, scale=scale, enable_gqa=True
            )
            results.append(attended.transpose(1, 2).flatten(0, 1))
        return torch.cat(results).index_select(0, result_of_token)

    return attend
