"""Lesson 06: a Hugging Face model that computes its attention over a paged cache."""

from contextlib import contextmanager
from dataclasses import dataclass

import torch
from transformers import AttentionInterface

from lessons_lib.packing import PackedBatch
from lessons_lib.paged_attention import Group, paged_attention, plan_groups
from lessons_lib.paged_cache import PagedKVCache

PAGED = "paged"


@dataclass(frozen=True)
class PagedPass:
    """What every layer needs to know about one forward pass.

    Attributes:
        cache: the cache of the whole model.
        slot_mapping: the place of each new token, int64 [T].
        groups: the sequences, sorted for attention; see `plan_groups`.
    """

    cache: PagedKVCache
    slot_mapping: torch.Tensor
    groups: list[Group]


def paged_attention_forward(module, query, key, value, attention_mask, scaling=None, *, paged, **kwargs):
    """What a Hugging Face layer calls in place of its own attention: write the new keys and values, then read by block table.

    Args:
        module: the layer, which knows its number.
        query: [1, q_heads, T, head_dim]; key, value: [1, kv_heads, T, head_dim], after the rotary embedding where there is one.
        attention_mask: None: no mask is made for a name that no mask function is registered for.
        scaling: what the scores are multiplied by; 1 / sqrt(head_dim) if not given.
        paged: PagedPass, handed through by the model as it was given to it.

    Returns:
        (attention [1, T, q_heads, head_dim], None): no attention weights.
    """
    layer = module.layer_idx
    paged.cache.write(layer, key[0].transpose(0, 1), value[0].transpose(0, 1), paged.slot_mapping)
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    keys, values = paged.cache.keys[layer], paged.cache.values[layer]
    return paged_attention(query[0].transpose(0, 1), keys, values, paged.groups, scale)[None], None


AttentionInterface.register(PAGED, paged_attention_forward)


@contextmanager
def paged_attention_in(model):
    """Inside, the model computes paged attention; afterwards, what it did before."""
    before = model.config._attn_implementation
    model.set_attn_implementation(PAGED)
    try:
        yield
    finally:
        model.set_attn_implementation(before)


@torch.inference_mode()
def paged_forward(model, packed: PackedBatch, cache: PagedKVCache, slot_mapping, block_tables):
    """One forward pass over a packed row. The model must be inside `paged_attention_in`.

    Args:
        packed: a PackedBatch with at least one sequence.
        slot_mapping: int64 [T], the place of each new token.
        block_tables: int [B, M], the blocks of each sequence, those of the new tokens included.

    Returns:
        tensor [B, vocabulary]: the logits after each sequence's last token.
    """
    groups = plan_groups(packed.cu_seqlens_q, packed.context_lens, block_tables, cache.block_size)
    return model(
        input_ids=packed.input_ids[None],
        position_ids=packed.positions[None],
        use_cache=False,
        logits_to_keep=packed.logits_index,
        paged=PagedPass(cache, slot_mapping, groups),
    ).logits[0]
