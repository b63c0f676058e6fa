"""Packed batches of random values over a paged cache, to test and time attention without a model."""

from dataclasses import dataclass

import torch

from lessons_lib.attention.packing import PackedBatch, pack
from lessons_lib.attention.paged_attention import Group, plan_groups
from lessons_lib.kv_cache.block_pool import blocks_for


@dataclass
class RandomRow:
    """A packed batch over a cache whose empty slots are NaN. See `paged_attention` for the shapes."""

    packed: PackedBatch
    query: torch.Tensor
    keys: torch.Tensor
    values: torch.Tensor
    block_tables: torch.Tensor
    groups: list[Group]
    scale: float


def random_row(
    lens: list[tuple[int, int]],
    q_heads: int,
    kv_heads: int,
    block_size: int,
    seed: int = 0,
    head_dim: int = 4,
    dtype: torch.dtype = torch.float32,
    scale: float = 0.8,
) -> RandomRow:
    """Build a packed batch, (cached, new) tokens per sequence, whose blocks are scattered over the pool."""
    generator = torch.Generator().manual_seed(seed)
    counts = [blocks_for(cached + new, block_size) for cached, new in lens]
    order = torch.randperm(sum(counts) + 2, generator=generator)
    block_tables = torch.zeros(len(lens), max(counts), dtype=torch.int64)
    caches = [torch.full((len(order), block_size, kv_heads, head_dim), float("nan"), dtype=dtype) for _ in range(2)]
    for index, ((cached, new), count) in enumerate(zip(lens, counts)):
        block_tables[index, :count], order = order[:count], order[count:]
        position = torch.arange(cached + new)
        slots = block_tables[index, position // block_size] * block_size + position % block_size
        for cache in caches:
            cache.flatten(0, 1)[slots] = torch.randn(cached + new, kv_heads, head_dim, generator=generator).to(dtype)
    packed = pack([[0] * new for _, new in lens], [cached for cached, _ in lens])
    query = torch.randn(len(packed.input_ids), q_heads, head_dim, generator=generator).to(dtype)
    groups = plan_groups(packed.cu_seqlens_q, packed.context_lens, block_tables, block_size)
    keys, values = caches
    return RandomRow(packed, query, keys, values, block_tables, groups, scale)
