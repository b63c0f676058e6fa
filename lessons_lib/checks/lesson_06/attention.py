"""Judges 06.4, `paged_attention`: a whole packed row over scattered blocks, against each sequence by itself."""

from dataclasses import dataclass
from random import Random

import torch
import torch.nn.functional as F

from lessons_lib.block_pool import blocks_for
from lessons_lib.checks.exercise import Mistake, call
from lessons_lib.packing import PackedBatch, pack, unpack
from lessons_lib.paged_attention import Group, attention_one_by_one, plan_groups

# (cached, new) of each sequence, query heads, KV heads, block size; smallest first.
CASES = (
    ([(2, 1)], 1, 1, 4),
    ([(0, 1)], 1, 1, 4),
    ([(5, 1)], 2, 2, 4),
    ([(5, 1)], 4, 2, 4),
    ([(0, 3)], 2, 1, 4),
    ([(4, 3)], 2, 1, 4),
    ([(2, 1), (5, 1)], 2, 1, 4),
    ([(2, 1), (0, 3)], 2, 1, 4),
    ([(3, 1), (0, 2), (0, 3)], 2, 1, 4),
    ([(0, 2), (3, 1), (0, 3), (6, 1)], 4, 2, 4),
)


@dataclass
class Row:
    """A packed row over a cache in which every cell without a token is NaN."""

    packed: PackedBatch
    query: torch.Tensor
    keys: torch.Tensor
    values: torch.Tensor
    block_tables: torch.Tensor
    groups: list[Group]
    scale: float


def a_row(lens, query_heads: int, kv_heads: int, block_size: int, seed: int, head_dim: int = 4) -> Row:
    generator = torch.Generator().manual_seed(seed)
    counts = [blocks_for(cached + new, block_size) for cached, new in lens]
    order = torch.randperm(sum(counts) + 2, generator=generator)
    block_tables = torch.zeros(len(lens), max(counts), dtype=torch.int64)
    caches = [torch.full((len(order), block_size, kv_heads, head_dim), float("nan")) for _ in range(2)]
    for index, ((cached, new), count) in enumerate(zip(lens, counts)):
        block_tables[index, :count], order = order[:count], order[count:]
        position = torch.arange(cached + new)
        slots = block_tables[index, position // block_size] * block_size + position % block_size
        for cache in caches:
            cache.flatten(0, 1)[slots] = torch.randn(cached + new, kv_heads, head_dim, generator=generator)
    packed = pack([[0] * new for _, new in lens], [cached for cached, _ in lens])
    query = torch.randn(len(packed.input_ids), query_heads, head_dim, generator=generator)
    groups = plan_groups(packed.cu_seqlens_q, packed.context_lens, block_tables, block_size)
    return Row(packed, query, *caches, block_tables, groups, scale=0.8)


def check_paged_attention(attempt) -> None:
    for number, (lens, query_heads, kv_heads, block_size) in enumerate(CASES):
        _check_row(attempt, lens, query_heads, kv_heads, block_size, seed=number)
    rng = Random(6)
    for number in range(12):
        lens = [(rng.choice((0, 0, 1, 7, 15, 16, 40)), rng.choice((1, 1, 1, 2, 9, 17))) for _ in range(rng.randint(1, 8))]
        _check_row(attempt, lens, *rng.choice(((4, 2), (3, 3), (6, 1))), rng.choice((1, 4, 16)), seed=100 + number)


def _check_row(attempt, lens, query_heads: int, kv_heads: int, block_size: int, seed: int) -> None:
    names = "ABCDEFGH"
    told = ", ".join(f"{name} with {new} new after {cached}" for name, (cached, new) in zip(names, lens))
    heads = f"{query_heads} query head{'s' if query_heads > 1 else ''}, {kv_heads} KV head{'s' if kv_heads > 1 else ''}"
    case = f"one row of {told}; {heads}, blocks of {block_size}."
    row = a_row(lens, query_heads, kv_heads, block_size, seed)
    before = row.keys.clone(), row.values.clone()

    def over_the_cache(query):
        # Only the query is compared with what it was: the cache holds NaN, which is not equal to itself.
        return attempt(query, row.keys, row.values, list(row.groups), row.scale)

    try:
        got = call(over_the_cache, row.query, case=case)
    except (RuntimeError, IndexError) as error:
        if _shapes(error):
            what = f"the shapes do not fit: {str(error)[:160]}"
            idea = "For scaled_dot_product_attention the heads come before the tokens: q [S, query heads, Q, head size], k and v [S, KV heads, K, head size], and `enable_gqa=True`."
            raise Mistake(what, case=case, idea=idea) from None
        raise
    if any(not torch.equal(old.nan_to_num(7), now.nan_to_num(7)) for old, now in zip(before, (row.keys, row.values))):
        raise Mistake("your code changed the cache.", case=case, idea="The cache is only read here. A tensor made by indexing with `group.slots` is a copy, and may be changed; a view may not.")
    want = attention_one_by_one(row.query, row.keys, row.values, row.packed, row.block_tables, row.scale)
    _check_shape(got, want, case)
    if torch.allclose(got, want, rtol=1e-3, atol=1e-4):
        return
    pieces = zip(names, unpack(row.packed, got), unpack(row.packed, want))
    name, found, expected = next((n, f, e) for n, f, e in pieces if not torch.allclose(f, e, rtol=1e-3, atol=1e-4))
    what = f"the output of {name} is not that of {name} alone"
    what += ": it holds NaN." if bool(found.isnan().any()) else f"; it differs by up to {float((found - expected).abs().max()):.2g}."
    raise Mistake(what, case=case, idea=_why(got, row))


def _shapes(error: Exception) -> bool:
    return any(words in str(error) for words in ("size of tensor", "must match", "shape", "expand", "sizes", "Number of heads"))


def _check_shape(got, want: torch.Tensor, case: str) -> None:
    if not isinstance(got, torch.Tensor):
        raise Mistake(f"a tensor should come back; yours returned {type(got).__name__}.", case=case, idea="Make the output before the loop, `torch.empty_like(query)`, fill in the groups, and return it.")
    if got.shape == want.shape:
        if got.dtype != want.dtype:
            kinds = [str(tensor.dtype).removeprefix("torch.") for tensor in (want, got)]
            raise Mistake(f"the output should be {kinds[0]}, as the query is; yours is {kinds[1]}.", case=case, idea="The layer multiplies it by its weights, and wants one type for both.")
        return
    idea = "The output has the shape of the query: a line for each token of the row, in the order of the row."
    if got.dim() == 4:
        idea = "That is the rectangle of one group. Its entries belong into the row: `out[group.rows[group.is_query]] = ...`."
    elif got.shape == want.flatten(1).shape:
        idea = "The heads stay apart here; the model joins them afterwards."
    elif got.shape == want.transpose(0, 1).shape:
        idea = "Tokens come first, then heads. Transpose back after the attention."
    raise Mistake(f"the output should have the shape {list(want.shape)}; yours has {list(got.shape)}.", case=case, idea=idea)


def _variant(row: Row, mask=True, scale=None, causal=False, swapped=False, repeat=False, only=None, keys_too=False) -> torch.Tensor:
    """The attention, with one thing done wrong."""
    out = row.query.clone() * 0
    for group in row.groups[:only]:
        caches = (row.values, row.keys) if swapped else (row.keys, row.keys if keys_too else row.values)
        k, v = (cache.flatten(0, 1)[group.slots].transpose(1, 2) for cache in caches)
        q = row.query[group.rows].transpose(1, 2)
        if repeat:
            k, v = (part.repeat(1, q.shape[1] // part.shape[1], 1, 1) for part in (k, v))
        own_mask = None if causal or not mask else group.mask
        attended = F.scaled_dot_product_attention(
            q, k, v, attn_mask=own_mask, is_causal=causal, scale=row.scale if scale is None else scale or None, enable_gqa=not repeat
        ).transpose(1, 2)
        out[group.rows[group.is_query]] = attended[group.is_query]
    return out


def _why(got: torch.Tensor, row: Row) -> str:
    """Recognise a wrong output by what it equals."""
    if bool(got.isnan().any()):
        return "Cells of the pool that hold no token may hold anything, here NaN. Pick the keys by `group.slots`: those are slots of real tokens only, in all places."
    for guess, idea in (
        (_variant(row, scale=0.0), "The scores were multiplied by 1 / sqrt(head size). Hand over `scale=scale`: the model knows its own."),
        (_variant(row, scale=1.0), "The scores were not multiplied by `scale`."),
        (_variant(row, scale=row.scale**2), "The scores were multiplied by `scale` twice. `scaled_dot_product_attention(..., scale=scale)` does it."),
        (_variant(row, mask=False), "Every query attended to all keys of the rectangle, also to later tokens and to the filling. Hand over `attn_mask=group.mask`."),
        (_variant(row, causal=True), "`is_causal=True` lets query i see the keys 0 to i. But a query's keys include the cached ones. `group.mask` knows where each query stands."),
        (_variant(row, swapped=True), "Keys and values are exchanged."),
        (_variant(row, keys_too=True), "The values are the keys. Gather from `values` as well."),
        (_variant(row, repeat=True), "Query heads 0 and 1 share KV head 0, and so on: neighbours share. `enable_gqa=True` does it; by hand it is `repeat_interleave`, not `repeat`."),
        (_variant(row, only=1), "Only the first group was filled in. There may be two: decodes, and the rest."),
    ):
        if torch.allclose(got, guess, rtol=1e-3, atol=1e-4):
            return idea
    if any(not bool(group.is_query.all()) for group in row.groups):
        want = attention_one_by_one(row.query, row.keys, row.values, row.packed, row.block_tables, row.scale)
        wrong = ~torch.isclose(got, want, atol=1e-4).flatten(1).all(dim=1)
        if wrong.nonzero().flatten().tolist() == [0]:
            return "Row 0 was overwritten by filling. Where `is_query` is False, `rows` says 0: put only `attended[group.is_query]` at `group.rows[group.is_query]`."
    return "For each group: gather q by `rows` and k, v by `slots`, put the heads before the tokens, attend with the mask and the scale, turn back, and put the real queries in their places."
