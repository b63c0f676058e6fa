"""Lesson 06: the continuous loop of lesson 05 over one shared pool of blocks. No cache is joined or split."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from lessons_lib.attention.hf_backend import paged_forward
from lessons_lib.attention.packing import PackedBatch
from lessons_lib.batching.prompts import make_requests
from lessons_lib.batching.ragged_batching import RaggedBatch, ragged_step, serve
from lessons_lib.batching.request import Request
from lessons_lib.kv_cache.block_pool import BlockPool, OutOfBlocks, blocks_for
from lessons_lib.kv_cache.block_table import BlockTable
from lessons_lib.kv_cache.cache_slots import slot_mapping
from lessons_lib.kv_cache.paged_kv_cache import PagedKVCache
from lessons_lib.models.validate import must


@dataclass
class PagedBatch(RaggedBatch):
    """A RaggedBatch whose requests keep their keys and values in blocks of one pool.

    Attributes:
        pool: allocates the blocks.
        cache: keys and values of all blocks; as many blocks as the pool has, of the same size.
        backend: attention backend, see `hf_backend.plan_attention`.
        caches: request id -> its BlockTable.
    """

    pool: BlockPool = field(kw_only=True)
    cache: PagedKVCache = field(kw_only=True)
    backend: str | Callable[..., Any] | None = None

    def submit(self, request: Request) -> None:
        """See `RaggedBatch.submit`.

        Raises:
            OutOfBlocks: the request could not run even in an empty pool; nothing changes.
        """
        needed = blocks_at_most(request, self.pool.block_size)
        if needed > self.pool.num_blocks:
            raise OutOfBlocks(
                f"request {request.id!r} may need {needed} blocks of {self.pool.block_size} tokens; the pool has "
                f"{self.pool.num_blocks}. Lower its max_new_tokens, or make the pool larger. Nothing was submitted."
            )
        super().submit(request)

    def has_room_for(self, request: Request) -> bool:
        """True if the pool suffices even when this and all running requests reach their limits."""
        promised = sum(blocks_at_most(other, self.pool.block_size) for other in [*self.running, request])
        return super().has_room_for(request) and promised <= self.pool.num_blocks

    def open_cache(self, request: Request) -> None:
        self.caches[request.id] = BlockTable(self.pool)

    def close_cache(self, request: Request) -> None:
        self.caches.pop(request.id).release()


def blocks_at_most(request: Request, block_size: int) -> int:
    """Blocks of a request at its token limit. The last token is never fed back, so it needs no cache slot."""
    return blocks_for(len(request.prompt_ids) + request.max_new_tokens - 1, block_size)


def forward_in_blocks(batch: PagedBatch, packed: PackedBatch) -> torch.Tensor:
    """Allocate cache slots for the new tokens and compute the packed batch, as `ragged_batching.forward` does. Cached
    tokens aren't moved."""
    tables = [batch.caches[request.id] for request in batch.running]
    slots = []
    for table, count in zip(tables, packed.new_lens):
        start = table.num_tokens
        table.append(count)
        slots.append(slot_mapping(table.blocks, batch.pool.block_size, start, table.num_tokens))
    batch.packed = packed
    blocks = [torch.tensor(table.blocks) for table in tables]
    forward_batch = packed.with_tables(torch.cat(slots), pad_sequence(blocks, batch_first=True))
    return paged_forward(batch.model, forward_batch, batch.cache, batch.backend)


def paged_step(batch: PagedBatch) -> None:
    """One step of lesson 05, with the cache in blocks."""
    ragged_step(batch, forward=forward_in_blocks)


def paged_generate(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, prompts: Sequence[str | Sequence[int]], *,
    max_new_tokens: int | Sequence[int] | None, max_num_seqs: int = 4, num_blocks: int | None = None,
    block_size: int = 16, names: Sequence[str] | None = None, backend: str | Callable[..., Any] | None = None,
    step: Callable[[PagedBatch], None] = paged_step, make_cache: Callable[..., PagedKVCache] = PagedKVCache,
    make_pool: Callable[[int, int], BlockPool] = BlockPool,
) -> list[list[int]]:  # fmt: skip
    """Serve requests with continuous batching in one packed row, with keys and values in the blocks of one pool.

    Args:
        num_blocks: size of the pool; by default, enough for the `max_num_seqs` largest requests.
        block_size: tokens in a block, at least 1.
        backend: see `hf_backend.plan_attention`.
        make_cache, make_pool: classes of the cache and the pool; you can pass your own.
        The others, and Returns: see `ragged_generate`.

    Raises:
        BadRequest: see `ragged_generate`.
        OutOfBlocks: a request is larger than the whole pool. Nothing was computed.
    """
    must(block_size >= 1, "block_size", block_size, "at least 1")
    must(max_num_seqs >= 1, "max_num_seqs", max_num_seqs, "at least 1")
    requests = make_requests(model, tokenizer, prompts, max_new_tokens, names)
    if num_blocks is None:
        largest = sorted((blocks_at_most(request, block_size) for request in requests), reverse=True)
        num_blocks = max(1, sum(largest[:max_num_seqs]))
    cache = make_cache(model.config, num_blocks, block_size, model.dtype, model.device)
    batch = PagedBatch(model, max_num_seqs, pool=make_pool(num_blocks, block_size), cache=cache, backend=backend)
    return serve(batch, requests, step)
