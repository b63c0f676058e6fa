"""Packed batches over a paged cache, and plain attention over them: each sequence's blocks gathered, in float32."""

import contextlib
from dataclasses import dataclass, replace

import torch

from lessons_lib.attention.score_terms import ScoreTerms


def slot_of(blocks, block_size, position):
    """The cache slot of one token: the first slot of its block, plus the offset in the block."""
    assert position >= 0
    return blocks[position // block_size] * block_size + position % block_size


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

    @property
    def cache(self):
        """What the launches of kernels take behind `q`."""
        return self.k_cache, self.v_cache, self.block_tables, self.context_lens, self.cu_seqlens_q

    @property
    def decode_inputs(self):
        return self.q, self.k_cache, self.v_cache, self.block_tables, self.context_lens, self.scale

    def varlen(self, terms=None, **maxima):
        from lessons_lib.kernels.launch import varlen

        lengths = (self.cu_seqlens_q, self.context_lens, self.block_tables)
        return varlen(self.q, self.k_cache, self.v_cache, *lengths, self.scale, terms, **maxima)

    def decode(self, terms=None):
        """One new token for each sequence, in tables of any length."""
        most = self.block_tables.shape[1] * self.k_cache.shape[1]
        return self.varlen(terms, max_seqlen_q=1, max_context_len=most)

    def reference(self, terms=None):
        """Plain attention in float32. What `terms` mean is written here once more, by the definitions of the papers and
        of transformers' eager functions, and not with the code under test."""
        out = self.q.new_empty(*self.q.shape[:2], self.v_cache.shape[3], dtype=torch.float32)
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
            key = torch.arange(context, device=self.q.device)[None, :]
            is_hidden = key > position[:, None]
            if terms and terms.softcap:
                scores = torch.tanh(scores / terms.softcap) * terms.softcap
            if terms and terms.alibi_slopes is not None:
                scores = scores + torch.einsum("h,qk->hqk", terms.alibi_slopes.float(), key - position[:, None])
            if terms and terms.window:
                is_hidden = is_hidden | (key <= position[:, None] - terms.window)
            if terms and terms.chunk:
                is_hidden = is_hidden | (key // terms.chunk != position[:, None] // terms.chunk)
            weights = scores.masked_fill(is_hidden, float("-inf"))
            if terms and terms.sinks is not None:
                sinks = terms.sinks.float()[:, None, None].expand(-1, end - begin, 1)
                weights = torch.cat([sinks, weights], dim=-1).softmax(-1)[..., 1:]
            else:
                weights = weights.softmax(-1)
            out[begin:end] = torch.einsum("hqk,khd->qhd", weights, values)
        return out


def make_case(
    q_lens, context_lens, q_heads=4, kv_heads=2, head_dim=32, block_size=8, dtype=torch.float32, seed=0,
    device="cpu", shared=0, value_dim=None,
):  # fmt: skip
    """Blocks in random order; the first `shared` blocks of all sequences are the same ones.

    `value_dim`: the head size of values, if it isn't that of keys.
    """
    generator = torch.Generator().manual_seed(seed)
    counts = [-(-context // block_size) for context in context_lens]
    order = torch.randperm(sum(counts) + 3, generator=generator).tolist()
    block_tables = torch.full((len(counts), max(counts, default=0) + 1), -(10**6), dtype=torch.int32)
    dims = (head_dim, value_dim or head_dim)
    caches = [torch.full((len(order), block_size, kv_heads, dim), float("nan")) for dim in dims]
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


@contextlib.contextmanager
def without_synchronizing():
    """Whatever waits for the GPU in here is an error."""
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def by_launching(case, terms=None, rows=16, keys=16, split=24, use_int64=None):
    """Both kernels with small tiles and short splits, so that small cases have many of them."""
    from lessons_lib.kernels.launch import Tiles, launch_decode, launch_prefill

    out = case.q.new_full((*case.q.shape[:2], case.v_cache.shape[3]), float("nan"))
    tiles, longest = Tiles(rows, keys, warps=4, stages=2), int(case.context_lens.max())
    launch_prefill(case.q, *case.cache, out, case.scale, terms=terms, tiles=tiles, use_int64=use_int64)
    launch_decode(case.q, *case.cache, out, case.scale, longest, terms=terms, tiles=tiles, split_size=split)
    return out


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


def make_terms(case, seed=0, sinks=False, alibi=False, **numbers):
    """ScoreTerms for a case; `numbers` are window, chunk and softcap. Some sinks are larger than any score."""
    generator = torch.Generator().manual_seed(seed)
    heads, device = case.q.shape[1], case.q.device
    sink_values = (3 * torch.randn(heads, generator=generator)).to(device, case.q.dtype)
    slopes = 0.5 ** torch.arange(1, heads + 1, device=device)
    return ScoreTerms(sinks=sink_values if sinks else None, alibi_slopes=slopes if alibi else None, **numbers)
