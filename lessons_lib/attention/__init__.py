"""Attention for packed batches: masks, packing, online softmax, and attention over a paged KV cache.

Read in this order: masks and varlen (lesson 04), packing (05), online_softmax, plain_attention, score_terms,
paged_attention, hf_backend (06), custom_op (13). hf_backend is the only entry into a Hugging Face model.
"""

from lessons_lib.attention.custom_op import OperatorCache, attend_paged, write_kv
from lessons_lib.attention.hf_backend import (
    ForwardBatch,
    PagedPass,
    attention_of_layer,
    paged_attention_forward,
    paged_forward,
    plan_attention,
)
from lessons_lib.attention.masks import (
    PADDING,
    RULES,
    Tags,
    additive_mask,
    block_diagonal_mask,
    combine,
    not_in_the_future,
    not_padding,
    same_chunk,
    same_sequence,
    tag_tokens,
    within_window,
)
from lessons_lib.attention.online_softmax import (
    Partial,
    add_block,
    add_block_naive,
    attention_of,
    log_sum_exp,
    merge,
    nothing_seen,
)
from lessons_lib.attention.packing import (
    PackedBatch,
    cache_of,
    concatenate_caches,
    copied_tokens,
    key_tags,
    pack,
    packed_forward,
    packed_mask,
    scatter_cache,
    unpack,
)
from lessons_lib.attention.paged_attention import paged_attention, plan_groups
from lessons_lib.attention.plain_attention import attention_in_place, attention_one_by_one
from lessons_lib.attention.score_terms import ScoreTerms, score_terms, weights_with_terms
from lessons_lib.attention.varlen import varlen_attention

__all__ = [
    "PADDING",
    "RULES",
    "ForwardBatch",
    "OperatorCache",
    "PackedBatch",
    "PagedPass",
    "Partial",
    "ScoreTerms",
    "Tags",
    "add_block",
    "add_block_naive",
    "additive_mask",
    "attend_paged",
    "attention_in_place",
    "attention_of",
    "attention_of_layer",
    "attention_one_by_one",
    "block_diagonal_mask",
    "cache_of",
    "combine",
    "concatenate_caches",
    "copied_tokens",
    "key_tags",
    "log_sum_exp",
    "merge",
    "not_in_the_future",
    "not_padding",
    "nothing_seen",
    "pack",
    "packed_forward",
    "packed_mask",
    "paged_attention",
    "paged_attention_forward",
    "paged_forward",
    "plan_attention",
    "plan_groups",
    "same_chunk",
    "same_sequence",
    "scatter_cache",
    "score_terms",
    "tag_tokens",
    "unpack",
    "varlen_attention",
    "weights_with_terms",
    "within_window",
    "write_kv",
]
