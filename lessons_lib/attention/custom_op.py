"""Lesson 13: the paged cache and its attention as custom operators, opaque to `torch.compile`.

`torch.compile` traces Python code down to single operations and fuses them. Our Triton kernels are fused already, and
their launch depends on lengths that change from step to step. A custom operator declares its inputs, side effects and
output shape; the compiler doesn't look inside.
"""

from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from lessons_lib.attention.hf_backend import Attend, ForwardBatch, PagedPass, logits_of
from lessons_lib.attention.paged_attention import paged_attention, plan_groups
from lessons_lib.attention.score_terms import ScoreTerms
from lessons_lib.kv_cache.paged_kv_cache import PagedKVCache


@torch.library.custom_op("lessons_lib::write_kv", mutates_args=("k_cache", "v_cache"))
def write_kv(key: Tensor, value: Tensor, k_cache: Tensor, v_cache: Tensor, slot_mapping: Tensor) -> None:
    """Write one layer's new keys and values to the cache: Triton on a GPU, PyTorch elsewhere.

    Args:
        key, value: [T, kv_heads, head_dim]; head sizes may differ.
        k_cache, v_cache: of one layer, [num_blocks, block_size, kv_heads, head_dim].
        slot_mapping: int64 [T].
    """
    if key.is_cuda:
        from lessons_lib.kernels.write_pair import write_pair  # imported here: Triton is not available everywhere

        write_pair(key, value, k_cache, v_cache, slot_mapping)
    else:
        for new, cache in ((key, k_cache), (value, v_cache)):
            cache.flatten(0, 1)[slot_mapping] = new


@torch.library.custom_op("lessons_lib::attend_paged", mutates_args=())
def attend_paged(
    query: Tensor, k_cache: Tensor, v_cache: Tensor, cu_seqlens_q: Tensor, context_lens: Tensor, block_tables: Tensor,
    max_lens: Tensor, scale: float, window: int | None = None, chunk: int | None = None, softcap: float | None = None,
    sinks: Tensor | None = None, alibi_slopes: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Attention of one layer over the cache, which contains the new tokens: Triton on a GPU, PyTorch elsewhere.

    Args:
        query: [T, q_heads, head_dim].
        k_cache, v_cache: of one layer, [num_blocks, block_size, kv_heads, head_dim].
        window, chunk, softcap, sinks, alibi_slopes: see ScoreTerms; operators don't accept dataclasses.
        The others: see ForwardBatch.

    Returns:
        tensor [T, q_heads, head_dim of the values], in the dtype of query, contiguous.
    """
    own = (window, chunk, softcap, sinks, alibi_slopes)
    terms = None if all(term is None for term in own) else ScoreTerms(*own)
    if query.is_cuda:
        from lessons_lib.kernels.launch import varlen

        most_new, longest = max_lens.tolist()
        batch = (cu_seqlens_q, context_lens, block_tables)
        out: Tensor = varlen(
            query.contiguous(), k_cache, v_cache, *batch, scale, terms, max_seqlen_q=most_new, max_context_len=longest
        )
        return out
    groups = plan_groups(cu_seqlens_q, context_lens, block_tables, k_cache.shape[1])
    return paged_attention(groups, query.contiguous(), k_cache, v_cache, scale, terms)


@attend_paged.register_fake
def _(query: Tensor, k_cache: Tensor, v_cache: Tensor, *others: Any, **named: Any) -> Tensor:
    return query.new_empty(*query.shape[:2], v_cache.shape[-1])


class OperatorCache(PagedKVCache):
    """A PagedKVCache written by an operator."""

    def write(self, layer: int, keys: Tensor, values: Tensor, slot_mapping: Tensor) -> None:
        """See `PagedKVCache.write`."""
        write_kv(keys, values, self.keys[layer], self.values[layer], slot_mapping)

    def plan(self, batch: ForwardBatch) -> Attend:
        """The backend of `attend_paged`, see `hf_backend.plan_attention`."""

        def attend(query: Tensor, keys: Tensor, values: Tensor, scale: float, terms: Any = None) -> Tensor:
            where = (batch.cu_seqlens_q, batch.context_lens, batch.block_tables, batch.max_lens)
            own = terms and (terms.window, terms.chunk, terms.softcap, terms.sinks, terms.alibi_slopes)
            return attend_paged(query, keys, values, *where, scale, *(own or ()))  # type: ignore[no-any-return]

        return attend


def replace_placeholders(input_ids: Tensor, previous_tokens: Tensor) -> Tensor:
    """Replace placeholders in a packed batch with the tokens of the step in flight.

    The host reads no values, so this can be compiled and captured.

    Args:
        input_ids: int64 [T]. A negative id, -1 - i, stands for token i of the step in flight.
        previous_tokens: tokens of that step, int64 [its sequences, or more].

    Returns:
        new tensor int64 [T]; `input_ids` stays as is, since a captured step reads it at each replay.
    """
    index = (-1 - input_ids).clamp(min=0)
    return torch.where(input_ids < 0, previous_tokens[index], input_ids)


def operator_logits(
    model: PreTrainedModel, cache: OperatorCache, batch: ForwardBatch, previous_tokens: Tensor
) -> Tensor:
    """`paged_forward` inside `paged_attention_in`, for a batch on the device of the model and the tokens of the step in
    flight. The host reads no values, so it can be compiled and captured."""
    input_ids = replace_placeholders(batch.input_ids, previous_tokens)
    return logits_of(model, batch, input_ids, PagedPass(cache, batch.slot_mapping, cache.plan(batch)))
