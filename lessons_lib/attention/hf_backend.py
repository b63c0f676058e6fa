"""Lesson 06: a Hugging Face model that computes its attention over a paged cache."""

from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from transformers import AttentionInterface

from lessons_lib.attention.packing import PackedBatch
from lessons_lib.attention.paged_attention import plan_torch
from lessons_lib.kv_cache.paged_kv_cache import PagedKVCache

PAGED = "paged"


@dataclass(frozen=True)
class PagedPass:
    """What every layer needs to know about one forward pass.

    Attributes:
        cache: the cache of the whole model.
        slot_mapping: the place of each new token, int64 [T].
        attend: (query [T, q_heads, head_dim], keys, values, scale) -> [T, q_heads, head_dim], with the keys and values of one layer
            as they lie in the cache. It knows the block tables.
    """

    cache: PagedKVCache
    slot_mapping: torch.Tensor
    attend: Callable


def paged_attention_forward(module, query, key, value, attention_mask, scaling=None, *, paged, **kwargs):
    """What a Hugging Face layer calls in place of its own attention: write the new keys and values, then read by block table.

    Args:
        module: the layer; `module.layer_idx` is its number.
        query: [1, q_heads, T, head_dim]; key, value: [1, kv_heads, T, head_dim], with their positions in them already.
        attention_mask: None: no mask is made for a name that no mask function is registered for.
        scaling: what the scores are multiplied by; 1 / sqrt(head_dim) if not given.
        paged: PagedPass, handed through by the model as it was given to it.

    Returns:
        (attention [1, T, q_heads, head_dim], None): no attention weights.
    """
    layer = module.layer_idx
    paged.cache.write(layer, key[0].transpose(0, 1), value[0].transpose(0, 1), paged.slot_mapping)
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    attended = paged.attend(query[0].transpose(0, 1), paged.cache.keys[layer], paged.cache.values[layer], scale)
    return attended[None], None


AttentionInterface.register(PAGED, paged_attention_forward)


@contextmanager
def paged_attention_in(model):
    """Inside, the model calls the function registered as "paged" for its attention; afterwards, what it called before."""
    # `model.set_attn_implementation` sets the same after a walk through all layers, which takes a tenth of a small model's pass.
    before = model.config._attn_implementation
    model.config._attn_implementation = PAGED
    try:
        yield
    finally:
        model.config._attn_implementation = before


def plan_attention(backend: str | Callable | None, device: torch.device) -> Callable:
    """The function (packed, block_tables, block_size) -> attend of a backend.

    Args:
        backend: "torch", "triton" (lesson 08), or such a function. If None, Triton where the model is on a GPU, and PyTorch elsewhere.

    Raises:
        ValueError: there is no such backend.
    """
    if callable(backend):
        return backend
    backend = backend or ("triton" if device.type == "cuda" else "torch")
    if backend == "torch":
        return plan_torch
    if backend == "triton":
        from lessons_lib.kernels.launch import (
            plan_triton,  # only here: Triton is not needed, and not to be had everywhere
        )

        return plan_triton
    raise ValueError(f"there is no backend {backend!r}; there are 'torch' and 'triton'.")


@torch.inference_mode()
def paged_forward(model, packed: PackedBatch, cache: PagedKVCache, slot_mapping, block_tables, backend=None):
    """One forward pass over a packed row.

    Args:
        packed: a PackedBatch with at least one sequence.
        slot_mapping: int64 [T], the place of each new token.
        block_tables: int [B, M], the blocks of each sequence, those of the new tokens included.
        backend: see `plan_attention`.

    Returns:
        tensor [B, vocabulary]: the logits after each sequence's last token.
    """
    device = model.device
    attend = plan_attention(backend, device)(packed.to(device), block_tables.to(device), cache.block_size)
    with paged_attention_in(model):
        return model(
            input_ids=packed.input_ids[None].to(device),
            position_ids=packed.positions[None].to(device),
            use_cache=False,
            logits_to_keep=packed.logits_index.to(device),
            paged=PagedPass(cache, slot_mapping.to(device), attend),
        ).logits[0]
