"""Batches in the middle of decoding, for timing their steps.

A step's time doesn't depend on cached values, so the caches are zeros and no prompt is computed.
"""

from typing import TypeVar

import torch
from transformers import PreTrainedModel

from lessons_lib.attention.packing import cache_of
from lessons_lib.batching.paged_batching import PagedBatch
from lessons_lib.batching.ragged_batching import RaggedBatch
from lessons_lib.batching.request import Request
from lessons_lib.kv_cache.block_pool import BlockPool, blocks_for
from lessons_lib.kv_cache.paged_kv_cache import PagedKVCache
from lessons_lib.models.configuration import kv_head_size

Batch = TypeVar("Batch", bound=RaggedBatch)


def decoding_ragged(model: PreTrainedModel, count: int, context: int, steps: int) -> RaggedBatch:
    """Lesson 05's batch with `count` decoding requests of `context` cached tokens each, for at least `steps` steps."""
    kv_heads, head_dim = kv_head_size(model.config)
    batch = _submitted(RaggedBatch(model, count), count, context, steps)
    zeros = torch.zeros(1, kv_heads, context, head_dim, dtype=model.dtype, device=model.device)
    for name in batch.caches:
        batch.caches[name] = cache_of([(zeros.clone(), zeros.clone()) for _ in range(model.config.num_hidden_layers)])
    return batch


def decoding_paged(model: PreTrainedModel, count: int, context: int, steps: int, block_size: int = 16) -> PagedBatch:
    """The same requests over a pool of blocks."""
    pool = BlockPool(count * blocks_for(context + steps + 1, block_size), block_size)
    cache = PagedKVCache(model.config, pool.num_blocks, block_size, model.dtype, model.device)
    batch = _submitted(PagedBatch(model, count, pool=pool, cache=cache), count, context, steps)
    for table in batch.caches.values():
        table.append(context)
    return batch


def _submitted(batch: Batch, count: int, context: int, steps: int) -> Batch:
    for index in range(count):
        request = Request(str(index), [0] * (context + 1), max_new_tokens=steps + 1)
        batch.submit(request)
        request.num_computed_tokens = context
    return batch
