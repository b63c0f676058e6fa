"""Attention for packed batches: masks, packing, online softmax, and attention over a paged KV cache.

Read in this order: masks and varlen (lesson 04), packing (05), online_softmax, plain_attention, score_terms,
paged_attention, hf_backend (06), custom_op (13). hf_backend is the only entry into a Hugging Face model.
"""

from lessons_lib.attention.hf_backend import PagedPass, paged_forward, plan_attention
from lessons_lib.attention.masks import tag_tokens
from lessons_lib.attention.online_softmax import Partial, add_block, add_block_naive, attention_of, nothing_seen
from lessons_lib.attention.packing import (
    PackedBatch,
    cache_of,
    concatenate_caches,
    copied_tokens,
    key_tags,
    pack,
    packed_mask,
    unpack,
)
from lessons_lib.attention.paged_attention import plan_groups, plan_torch
from lessons_lib.attention.plain_attention import attention_in_place
