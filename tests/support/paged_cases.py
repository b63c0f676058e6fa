"""Packed batches over a paged cache, and plain attention over them: each sequence's blocks gathered, in float32."""

from dataclasses import dataclass, replace

import torch


@dataclass
class Case:
    """A packed batch over a paged cache. Cache slots without a token are NaN."""

    q: torch.Tensor
    k_cache: torch.Tensor
    v_cache: torch.Tensor
    cu_seqlens_q: torch.Tensor
    context_lens: torch.Tensor
    block_tables: torch.Tensor
    scale: float

    def varlen(self, **maxima):
        from lessons_lib.kernels.launch import varlen

        return varlen(
            self.q,
            self.k_cache,
            self.v_cache,
            self.cu_seqlens_q,
            self.context_lens,
            self.block_tables,
            self.scale,
            **maxima,
        )

    def decode(self):
        from lessons_lib.kernels.launch import decode

        return decode(self.q, self.k_cache, self.v_cache, self.block_tables, self.context_lens, self.scale)

    def reference(self):
        out = torch.empty_like(self.q, dtype=torch.float32)
        bounds, block_size = self.cu_seqlens_q.tolist(), self.k_cache.shape[1]
        for index, context in enumerate(self.context_lens.tolist()):
            begin, end = bounds[index : index + 2]
            blocks = self.block_tables[index, : -(-context // block_size)].long()
            group = self.q.shape[1] // self.k_cache.shape[2]
            keys, values = (
                c[blocks].flatten(0, 1)[:context].float().repeat_interleave(group, 1)
                for c in (self.k_cache, self.v_cache)
            )
            scores = torch.einsum("qhd,khd->hqk", self.q[begin:end].float(), keys) * self.scale
            position = torch.arange(context - (end - begin), context, device=self.q.device)
            future = torch.arange(context, device=self.q.device)[None, :] > position[:, None]
            out[begin:end] = torch.einsum("hqk,khd->qhd", scores.masked_fill(future, float("-inf")).softmax(-1), values)
        return out


def make_case(
    q_lens,
    context_lens,
    q_heads=4,
    kv_heads=2,
    head_dim=32,
    block_size=8,
    dtype=torch.float32,
    seed=0,
    device="cpu",
    shared=0,
):
    """Blocks in random order; the first `shared` blocks of all sequences are the same ones."""
    generator = torch.Generator().manual_seed(seed)
    counts = [-(-context // block_size) for context in context_lens]
    order = torch.randperm(sum(counts) + 3, generator=generator).tolist()
    block_tables = torch.full((len(counts), max(counts, default=0) + 1), -(10**6), dtype=torch.int32)
    caches = [torch.full((len(order), block_size, kv_heads, head_dim), float("nan")) for _ in range(2)]
    first_blocks = None
    for index, (count, context) in enumerate(zip(counts, context_lens)):
        blocks, order = order[:count], order[count:]
        if first_blocks:
            in_common = min(shared, count, len(first_blocks))
            blocks[:in_common] = first_blocks[:in_common]
        first_blocks = first_blocks or blocks
        block_tables[index, :count] = torch.tensor(blocks, dtype=torch.int32)
        for cache in caches:
            for position in range(context):
                cell = cache[blocks[position // block_size], position % block_size]
                if cell.isnan().any():
                    cell.copy_(torch.randn(cell.shape, generator=generator))
    q = torch.randn(sum(q_lens), q_heads, head_dim, generator=generator)
    bounds = torch.tensor([0, *q_lens]).cumsum(0).to(torch.int32)
    tensors = [
        q.to(dtype),
        *(cache.to(dtype) for cache in caches),
        bounds,
        torch.tensor(context_lens, dtype=torch.int32),
        block_tables,
    ]
    return Case(*(tensor.to(device) for tensor in tensors), scale=head_dim**-0.5)


def error(got, expected):
    return float((got.float() - expected).norm() / expected.norm())


def as_views(case, layout):
    """The same case with tensors that are parts of larger ones, NaN elsewhere, as engines keep them.

    "of their own": unchanged; "keys beside values": one tensor with both for each block; "heads first": a block has one
    KV head after the other; "one of several layers": every third block of a pool. In all but the first, queries are a
    part of a fused product with keys and values.
    """
    if layout == "of their own":
        return case
    blocks, size, heads, dim = case.k_cache.shape
    shape, view = {
        "keys beside values": ((blocks, 2, size, heads, dim), lambda pool, which: pool[:, which]),
        "heads first": ((2, blocks, heads, size, dim), lambda pool, which: pool[which].transpose(1, 2)),
        "one of several layers": ((2, 3 * blocks, size, heads, dim), lambda pool, which: pool[which, 1::3]),
    }[layout]
    pool = case.k_cache.new_full(shape, float("nan"))
    fused = case.q.new_full((len(case.q), case.q.shape[1] + 2 * heads, dim), float("nan"))
    views = [fused[:, : case.q.shape[1]], view(pool, 0), view(pool, 1)]
    for part, tensor in zip(views, (case.q, case.k_cache, case.v_cache)):
        part.copy_(tensor)
    return replace(case, q=views[0], k_cache=views[1], v_cache=views[2])
