"""The same attention computed with PyTorch, and with vLLM's kernel if it is installed.

Each function returns one call per block table, or None if it doesn't apply.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from importlib.util import find_spec

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from lessons_lib.attention.paged_attention import paged_attention, plan_groups
from lessons_lib.kernels.launch import varlen
from lessons_lib.kernels.simple_paged import decode_heads
from lessons_lib.measuring.attention_cases import Inputs

Calls = list[Callable[[], torch.Tensor]]  # each returns [T, q_heads, head_dim]


def ours(inputs: Inputs) -> Calls:
    """The engine's kernels, as `varlen` launches them."""
    case, caches, lengths = inputs.case, (inputs.k_cache, inputs.v_cache), (inputs.cu_seqlens_q, inputs.context_lens)
    maxima = dict(max_seqlen_q=max(case.q_lens), max_context_len=max(case.context_lens))
    return [
        lambda table=table: varlen(inputs.q, *caches, *lengths, table, inputs.scale, **maxima)
        for table in inputs.tables
    ]


def lesson_07(inputs: Inputs) -> Calls | None:
    """The kernel of lesson 07: one program per query head, one block per iteration."""
    if inputs.case.kind != "decode":
        return None
    caches = (inputs.k_cache, inputs.v_cache)
    return [
        lambda table=table: decode_heads(inputs.q, *caches, table, inputs.context_lens, inputs.scale)
        for table in inputs.tables
    ]


def gather_sdpa(inputs: Inputs) -> Calls | None:
    """Gather the blocks into a dense copy for PyTorch's SDPA: without a mask if possible, else as in lesson 06."""
    case = inputs.case
    caches = (inputs.k_cache, inputs.v_cache)
    if not case.is_even:
        bounds, lens = inputs.packed.cu_seqlens_q.to(inputs.q.device), inputs.packed.context_lens.to(inputs.q.device)
        plans = [plan_groups(bounds, lens, table, case.block_size) for table in inputs.tables]
        # Indexing with a mask synchronizes, which a graph can't capture; compute the indices beforehand.
        plans = [
            [replace(group, is_query=group.is_query.nonzero(as_tuple=True)) for group in groups] for groups in plans
        ]
        return [lambda groups=groups: paged_attention(groups, inputs.q, *caches, inputs.scale) for groups in plans]
    query = _rectangle(inputs)

    def attend(table):
        keys, values = (cache[table].flatten(1, 2)[:, : case.context_lens[0]].transpose(1, 2) for cache in caches)
        out = F.scaled_dot_product_attention(
            query, keys, values, is_causal=case.kind == "prefill", scale=inputs.scale, enable_gqa=True
        )
        return out.transpose(1, 2).flatten(0, 1)

    return [lambda table=table: attend(table) for table in inputs.tables]


def dense_sdpa(inputs: Inputs, backend: SDPBackend) -> Calls | None:
    """PyTorch's SDPA over contiguous keys and values, which a paged cache doesn't have."""
    case = inputs.case
    if not case.is_even:
        return None
    query = _rectangle(inputs)
    context = case.context_lens[0]
    dense = [
        [
            cache[table].flatten(1, 2)[:, :context].transpose(1, 2).contiguous()
            for cache in (inputs.k_cache, inputs.v_cache)
        ]
        for table in inputs.tables
    ]

    def attend(keys, values):
        with sdpa_kernel(backend):
            out = F.scaled_dot_product_attention(
                query, keys, values, is_causal=case.kind == "prefill", scale=inputs.scale, enable_gqa=True
            )
        return out.transpose(1, 2).flatten(0, 1)

    return [lambda keys=keys, values=values: attend(keys, values) for keys, values in dense]


def packed_flash(inputs: Inputs) -> Calls:
    """PyTorch's FlashAttention-2 for sequences of different lengths, over packed keys and values."""
    case = inputs.case
    bounds_k = F.pad(inputs.context_lens.cumsum(0, dtype=torch.int32), (1, 0))
    packed = []
    for table in inputs.tables:
        own = [table[index, : -(-context // case.block_size)] for index, context in enumerate(case.context_lens)]
        packed.append(
            [
                torch.cat([cache[blocks].flatten(0, 1)[:context] for blocks, context in zip(own, case.context_lens)])
                for cache in (inputs.k_cache, inputs.v_cache)
            ]
        )
    longest = (max(case.q_lens), max(case.context_lens))

    def attend(keys, values):
        return torch.ops.aten._flash_attention_forward(
            inputs.q, keys, values, inputs.cu_seqlens_q, bounds_k, *longest, 0.0, True, False, scale=inputs.scale
        )[0]

    return [lambda keys=keys, values=values: attend(keys, values) for keys, values in packed]


def flex(inputs: Inputs) -> Calls | None:
    """FlexAttention over the whole pool; a block mask maps blocks to sequences. Decodes only."""
    case, device = inputs.case, inputs.q.device
    if case.kind != "decode":
        return None
    from torch.nn.attention.flex_attention import BlockMask, flex_attention

    size, num_slots = case.block_size, inputs.k_cache.shape[0] * case.block_size
    keys, values = (cache.flatten(0, 1).transpose(0, 1)[None] for cache in (inputs.k_cache, inputs.v_cache))
    compiled = torch.compile(flex_attention, dynamic=False)

    def masked(table):
        logical = torch.zeros(len(table), inputs.k_cache.shape[0], dtype=torch.int32, device=device)
        order = torch.arange(table.shape[1], device=device, dtype=torch.int32).expand_as(table)
        logical.scatter_(1, table.long(), order)
        lens = inputs.context_lens
        counts = (lens + size - 1) // size

        def in_context(b, h, q, slot):
            return logical[b, slot // size] * size + slot % size < lens[b]

        return BlockMask.from_kv_blocks(
            counts[:, None, None], table[:, None, None].contiguous(), BLOCK_SIZE=(128, size), mask_mod=in_context,
            seq_lengths=(1, num_slots), compute_q_blocks=False,
        )  # fmt: skip

    masks = [masked(table) for table in inputs.tables]
    query = inputs.q[:, :, None]

    def attend(mask):
        return compiled(
            query, keys, values, block_mask=mask, scale=inputs.scale, enable_gqa=True, kernel_options={"BLOCK_N": size}
        )[:, :, 0]

    return [lambda mask=mask: attend(mask) for mask in masks]


def flash_attention_3(inputs: Inputs) -> Calls | None:
    """As it is built into vLLM, over the same paged cache; None without vLLM."""
    if find_spec("vllm") is None:
        return None
    from vllm.vllm_flash_attn import flash_attn_varlen_func

    case = inputs.case
    attend = partial(
        flash_attn_varlen_func, inputs.q, inputs.k_cache, inputs.v_cache, max(case.q_lens), inputs.cu_seqlens_q,
        max(case.context_lens), seqused_k=inputs.context_lens, softmax_scale=inputs.scale, causal=True, fa_version=3,
    )  # fmt: skip
    return [partial(attend, block_table=table) for table in inputs.tables]


def _rectangle(inputs: Inputs) -> torch.Tensor:
    return inputs.q.unflatten(0, (len(inputs.case.q_lens), -1)).transpose(1, 2)


PEERS: dict[str, Callable[[Inputs], Calls | None]] = {
    "this course": ours,
    "lesson 07's kernel": lesson_07,
    "gather + SDPA": gather_sdpa,
    "dense SDPA, flash": lambda inputs: dense_sdpa(inputs, SDPBackend.FLASH_ATTENTION),
    "dense SDPA, cuDNN": lambda inputs: dense_sdpa(inputs, SDPBackend.CUDNN_ATTENTION),
    "packed FlashAttention-2": packed_flash,
    "FlexAttention": flex,
    "FlashAttention-3": flash_attention_3,
}
