"""Lesson 13: paged attention as one operator, so that a compiler can take the whole model and leave attention as it is.

`torch.compile` follows Python code down to single operations and fuses them anew. Our Triton kernels are done already, and their launch
looks at lengths that differ from step to step. As an operator that says what it reads, what it writes and what shape comes out, they are one
step of the compiled model that the compiler does not look into.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import AttentionInterface

from lessons_lib.attention.paged_attention import paged_attention, plan_groups
from lessons_lib.kv_cache.paged_kv_cache import PagedKVCache

PAGED_OPERATOR = "paged_operator"


@dataclass(frozen=True)
class RowInputs:
    """One row of T new tokens of B sequences, as the operator and the model take it; all but `maxima` on the device of the model.

    Attributes:
        input_ids: int64 [T]. A negative one, -1 - i, stands for the token that the step before has chosen for its sequence i.
        positions, slot_mapping: int64 [T].
        logits_index: place of each sequence's last token in the row, int64 [B].
        cu_seqlens_q: where each sequence begins in the row, and at the end T, int32 [B + 1].
        context_lens: tokens of each sequence, the new ones included, int32 [B].
        block_tables: int32 [B, M].
        maxima: most new tokens and longest context of any sequence, or more, int64 [2] on the CPU: to read them is to wait for nothing.
    """

    input_ids: Tensor
    positions: Tensor
    slot_mapping: Tensor
    logits_index: Tensor
    cu_seqlens_q: Tensor
    context_lens: Tensor
    block_tables: Tensor
    maxima: Tensor


@dataclass(frozen=True)
class OperatorPass:
    """What every layer needs to know about one forward pass: the row, and the cache of the whole model."""

    row: RowInputs
    cache: PagedKVCache


@torch.library.custom_op("lessons_lib::write_and_attend", mutates_args=("k_cache", "v_cache"))
def write_and_attend(
    query: Tensor, key: Tensor, value: Tensor, k_cache: Tensor, v_cache: Tensor, slot_mapping: Tensor, cu_seqlens_q: Tensor,
    context_lens: Tensor, block_tables: Tensor, maxima: Tensor, scale: float,
) -> Tensor:  # fmt: skip
    """Write the new keys and values of one layer to the cache, then attend: Triton on a GPU, PyTorch elsewhere.

    Args:
        query: [T, q_heads, head_dim]; key, value: [T, kv_heads, head_dim].
        k_cache, v_cache: of one layer, [num_blocks, block_size, kv_heads, head_dim].
        The others: see RowInputs.

    Returns:
        tensor of the shape and dtype of query, contiguous.
    """
    if query.is_cuda:
        from lessons_lib.kernels.launch import varlen
        from lessons_lib.kernels.simple_paged import write_cache  # only here: Triton is not to be had everywhere

        write_cache(key, k_cache, slot_mapping)
        write_cache(value, v_cache, slot_mapping)
        most_new, longest = maxima.tolist()
        return varlen(
            query.contiguous(),
            k_cache,
            v_cache,
            cu_seqlens_q,
            context_lens,
            block_tables,
            scale,
            max_seqlen_q=most_new,
            max_context_len=longest,
        )
    k_cache.flatten(0, 1)[slot_mapping] = key
    v_cache.flatten(0, 1)[slot_mapping] = value
    groups = plan_groups(cu_seqlens_q, context_lens, block_tables, k_cache.shape[1])
    return paged_attention(query.contiguous(), k_cache, v_cache, groups, scale)


@write_and_attend.register_fake
def _(query, key, value, k_cache, v_cache, slot_mapping, cu_seqlens_q, context_lens, block_tables, maxima, scale):
    return torch.empty_like(query, memory_format=torch.contiguous_format)


def operator_attention_forward(
    module, query, key, value, attention_mask, scaling=None, *, paged: OperatorPass, **kwargs
):
    """What a Hugging Face layer calls in place of its own attention; see `paged_model.paged_attention_forward`."""
    row, layer = paged.row, module.layer_idx
    new = (states[0].transpose(0, 1) for states in (query, key, value))
    caches = (paged.cache.keys[layer], paged.cache.values[layer])
    where = (row.slot_mapping, row.cu_seqlens_q, row.context_lens, row.block_tables, row.maxima)
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    return write_and_attend(*new, *caches, *where, scale)[None], None


AttentionInterface.register(PAGED_OPERATOR, operator_attention_forward)


def row_logits(model, cache: PagedKVCache, row: RowInputs, previous: Tensor) -> Tensor:
    """One forward pass of a model that calls the operator. Nothing in it looks at a number on the GPU, so it can be compiled and captured.

    Args:
        previous: the tokens that the step before has chosen, int64 [B of that step, or more].

    Returns:
        tensor [B, vocabulary]: the logits after each sequence's last token.
    """
    place = (-1 - row.input_ids).clamp(min=0)
    input_ids = torch.where(row.input_ids < 0, previous[place], row.input_ids)
    return model(
        input_ids=input_ids[None],
        position_ids=row.positions[None],
        use_cache=False,
        logits_to_keep=row.logits_index,
        paged=OperatorPass(row, cache),
    ).logits[0]
