"""Checks 06.4, `paged_attention`: a packed batch over scattered blocks, against each sequence on its own."""

from dataclasses import replace
from random import Random

import torch
import torch.nn.functional as F

from lessons_lib.attention.packing import unpack
from lessons_lib.attention.plain_attention import attention_one_by_one
from lessons_lib.checks.exercise import Mistake, call
from lessons_lib.checks.lesson_06.operators import CountOperators
from lessons_lib.measuring.random_batches import RandomRow, random_row

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


def check_paged_attention(attempt) -> None:
    for index, (lens, query_heads, kv_heads, block_size) in enumerate(CASES):
        _check_row(attempt, lens, query_heads, kv_heads, block_size, seed=index)
    _check_no_loop(attempt)
    for dtype in (torch.float16, torch.bfloat16, torch.float64):
        _check_row(attempt, [(2, 1), (0, 3)], 4, 2, 4, seed=50, dtype=dtype)
    rng = Random(6)
    for index in range(12):
        lens = [
            (rng.choice((0, 0, 1, 7, 15, 16, 40)), rng.choice((1, 1, 1, 2, 9, 17))) for _ in range(rng.randint(1, 8))
        ]
        _check_row(attempt, lens, *rng.choice(((4, 2), (3, 3), (6, 1))), rng.choice((1, 4, 16)), seed=100 + index)


def _check_row(attempt, lens, query_heads: int, kv_heads: int, block_size: int, seed: int, dtype=torch.float32) -> None:
    names = "ABCDEFGH"
    described = ", ".join(f"{name} with {new} new and {cached} cached" for name, (cached, new) in zip(names, lens))
    heads = f"{query_heads} query head{'s' if query_heads > 1 else ''}, {kv_heads} KV head{'s' if kv_heads > 1 else ''}"
    case = f"one packed batch, {described} tokens; {heads}, blocks of {block_size}" + (
        f", all in {_kind(dtype)}." if dtype != torch.float32 else "."
    )
    row = random_row(lens, query_heads, kv_heads, block_size, seed, dtype=dtype)
    before = row.keys.clone(), row.values.clone()
    try:
        got = _call(attempt, row, case)
    except (RuntimeError, IndexError) as error:
        idea = _why_it_stopped(str(error))
        if not idea:
            raise
        raise Mistake(f"PyTorch raised an error: {' '.join(str(error).split())[:200]}", case=case, idea=idea) from None
    if any(not torch.equal(old.nan_to_num(7), now.nan_to_num(7)) for old, now in zip(before, (row.keys, row.values))):
        raise Mistake(
            "your code changed the cache.",
            case=case,
            idea="Only read the cache here. Indexing with `group.slots` gives a copy, which you may change; a view "
            "is the cache itself.",
        )
    exact = replace(row, **{name: getattr(row, name).double() for name in ("query", "keys", "values")})
    want = attention_one_by_one(exact.query, exact.keys, exact.values, row.packed, row.block_tables, row.scale)
    _check_shape(got, want, row.query.dtype, case)
    got, tolerance = got.double(), 5e-2 if dtype.itemsize == 2 else 1e-4
    if torch.allclose(got, want, rtol=1e-3, atol=tolerance):
        return
    parts = zip(names, unpack(row.packed, got), unpack(row.packed, want))
    name, found, expected = next((n, f, e) for n, f, e in parts if not torch.allclose(f, e, rtol=1e-3, atol=tolerance))
    what = f"the output of {name} should be the same as for {name} alone"
    what += (
        "; it contains NaN."
        if bool(found.isnan().any())
        else f"; it differs by up to {float((found - expected).abs().max()):.2g}."
    )
    raise Mistake(what, case=case, idea=_why(got, want, exact))


def _call(attempt, row: RandomRow, case: str):
    def over_the_cache(query):
        # `call` compares its arguments before and after, and the NaN in the cache is not equal to itself.
        return attempt(query, row.keys, row.values, list(row.groups), row.scale)

    return call(over_the_cache, row.query, case=case)


def _check_no_loop(attempt) -> None:
    """Attention over a group of 8 sequences takes as many large operators as over a group of 2."""
    counts = []
    for count in (2, 8):
        case = f"{count} decodes with 5 cached tokens each, all in one group; 4 query heads, 2 KV heads, blocks of 4."
        with CountOperators() as operators:
            _call(attempt, random_row([(5, 1)] * count, 4, 2, 4), case)
        counts.append(
            sum(any(part in name for part in ("scaled_dot_product", "mm", "softmax")) for name in operators.names)
        )
    few, many = counts
    if many >= few + 6:
        what = (
            f"your code ran {few} matrix products and attention calls for 2 sequences, and {many} for 8 of the "
            "same length: it loops over the sequences."
        )
        raise Mistake(
            what,
            case=case,
            idea="A group is a rectangle so that one call can compute all its sequences: `keys.flatten(0, "
            "1)[group.slots]` is [S, K, KV heads, head size].",
        )


def _why_it_stopped(error: str) -> str:
    """Recognize a mistake from PyTorch's error message; "" if the message isn't about indices, shapes or dtypes."""
    if "out of bounds" in error:
        return (
            "`group.slots` are slots, not block ids. `keys.flatten(0, 1)` has one row per slot; `keys` itself has "
            "one per block."
        )
    if "of the mask" in error or "shape mismatch" in error:
        return (
            "The attention has the shape [S, query heads, Q, head size]; `is_query` and `rows` are [S, Q]. "
            "Swap heads and tokens back first, `attended.transpose(1, 2)`, "
            "then pick the real queries with `[group.is_query]`."
        )
    if "dtype" in error or "scalar type" in error:
        return (
            "Everything has the dtype of the query. Create the output with `torch.empty_like(query)`, and don't "
            "convert anything."
        )
    if any(
        words in error
        for words in ("size of tensor", "must match", "shape", "expand", "sizes", "Number of heads", "imension")
    ):
        return (
            "In `scaled_dot_product_attention`, heads come before tokens: q [S, query heads, Q, head size], k and "
            "v [S, KV heads, K, head size], and `enable_gqa=True`."
        )
    return ""


def _kind(dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _check_shape(got, want: torch.Tensor, dtype, case: str) -> None:
    if not isinstance(got, torch.Tensor):
        raise Mistake(
            f"expected a tensor; your function returned {type(got).__name__}.",
            case=case,
            idea="Create the output before the loop, `torch.empty_like(query)`, write each group's results into "
            "it, and return it.",
        )
    if got.shape == want.shape:
        if got.dtype != dtype:
            raise Mistake(
                f"the output should be {_kind(dtype)}, like the query; yours is {_kind(got.dtype)}.",
                case=case,
                idea="The layer multiplies it by its weights, and both must have the same dtype.",
            )
        return
    idea = "The output has the shape of the query: one entry per token, in the order of the packed row."
    if got.dim() == 4:
        idea = (
            "That is the rectangle of one group. Write its entries to the packed row: "
            "`out[group.rows[group.is_query]] = ...`."
        )
    elif got.shape == want.flatten(1).shape:
        idea = "Keep the heads separate; the model concatenates them afterwards."
    elif got.shape == want.transpose(0, 1).shape:
        idea = "Tokens come first, then heads. Transpose back after the attention."
    raise Mistake(
        f"the output should have the shape {list(want.shape)}; yours has {list(got.shape)}.", case=case, idea=idea
    )


def _variant(
    row: RandomRow, mask=True, scale=None, causal=False, swapped=False, repeat=False, keys_too=False, back=True
) -> torch.Tensor:
    """The attention with one mistake."""
    out = row.query.clone() * 0
    for group in row.groups:
        caches = (row.values, row.keys) if swapped else (row.keys, row.keys if keys_too else row.values)
        k, v = (cache.flatten(0, 1)[group.slots].transpose(1, 2) for cache in caches)
        q = row.query[group.rows].transpose(1, 2)
        if repeat:
            k, v = (part.repeat(1, q.shape[1] // part.shape[1], 1, 1) for part in (k, v))
        own_mask = None if causal or not mask else group.mask
        attended = F.scaled_dot_product_attention(
            q,
            k,
            v,
            attn_mask=own_mask,
            is_causal=causal,
            scale=row.scale if scale is None else scale or None,
            enable_gqa=not repeat,
        )
        attended = attended.transpose(1, 2) if back else attended.reshape(*group.rows.shape, *q.shape[1::2])
        out[group.rows[group.is_query]] = attended[group.is_query]
    return out


def _why(got: torch.Tensor, want: torch.Tensor, row: RandomRow) -> str:
    """Recognize a wrong output by what it equals."""
    if bool(got.isnan().any()):
        return (
            "Slots without a token may contain anything, here NaN. Gather the keys with `group.slots`: it "
            "contains only slots of real tokens, even as padding."
        )
    for guess, idea in (
        (
            _variant(row, scale=0.0),
            "The scores were multiplied by 1 / sqrt(head size). Pass `scale=scale`: a model may use another factor.",
        ),
        (_variant(row, scale=1.0), "The scores were not multiplied by `scale`."),
        (
            _variant(row, scale=row.scale**2),
            "The scores were multiplied by `scale` twice. `scaled_dot_product_attention(..., scale=scale)` does it.",
        ),
        (
            _variant(row, mask=False),
            "Every query attended to all keys of the rectangle, including later tokens and padding. Pass "
            "`attn_mask=group.mask`.",
        ),
        (
            _variant(row, causal=True),
            "`is_causal=True` lets query i see keys 0 to i. But a query also sees the cached keys. "
            "`group.mask` accounts for each query's position.",
        ),
        (_variant(row, swapped=True), "Keys and values are swapped."),
        (_variant(row, keys_too=True), "The values are the keys. Gather from `values` as well."),
        (
            _variant(row, repeat=True),
            "Query heads 0 and 1 share KV head 0, and so on: adjacent query heads share. `enable_gqa=True` "
            "does that; by hand it is `repeat_interleave`, not `repeat`.",
        ),
        (
            _variant(row, back=False),
            "Heads and tokens were mixed up after the attention. Swap the axes with `attended.transpose(1, "
            "2)`; `reshape` and `view` keep the order in memory and only relabel it.",
        ),
    ):
        if torch.allclose(got, guess, rtol=1e-3, atol=1e-4):
            return idea
    wrong = set((~torch.isclose(got, want, atol=1e-4)).flatten(1).any(dim=1).nonzero().flatten().tolist())
    if wrong == {0} and any(not bool(group.is_query.all()) for group in row.groups):
        return (
            "Row 0 was overwritten by padding. Where `is_query` is False, `rows` contains 0: write only "
            "`attended[group.is_query]` to `group.rows[group.is_query]`."
        )
    first, last = (set(group.rows[group.is_query].tolist()) for group in (row.groups[0], row.groups[-1]))
    everything = set(range(len(want)))
    if len(row.groups) > 1 and wrong == everything - first:
        return (
            "Only the entries of the first group are right. Are the others written to the output? Or does the "
            "loop end early, perhaps with a `return` inside it?"
        )
    if len(row.groups) > 1 and wrong == everything - last:
        return (
            "Only the entries of the last group are right. Create the output once, before the loop, and write to "
            "it in every iteration."
        )
    return (
        "For each group: gather q with `rows` and k, v with `slots`, move heads before tokens, attend with the "
        "mask and the scale, swap back, and write the real queries to their rows."
    )
