"""Right answers to the exercises of lesson 08, and wrong ones that only the compiler tells; the other wrong ones are in
the exercises."""

import lessons_lib.kernels.triton_setup  # noqa: F401 - before Triton: decides whether kernels are compiled

# isort: split
import triton
import triton.language as tl
from changed_kernels import changed

from answers import Wrong
from lessons_lib.kernels.group_decode import attend_keys, merge_splits, tile_offsets
from lessons_lib.kernels.paged_flash import cache_offsets

# 08.1 tile_offsets


@triton.jit
def offsets_of_the_engine(table, position, is_key, stride_block, stride_slot, BLOCK_SIZE: tl.constexpr):
    blocks = tl.load(table + position // BLOCK_SIZE, mask=is_key)
    return cache_offsets(blocks, position, stride_block, stride_slot, BLOCK_SIZE, True)


@triton.jit
def offsets_by_subtracting(table, position, is_key, stride_block, stride_slot, BLOCK_SIZE: tl.constexpr):
    entry = tl.where(is_key, position, 0) // BLOCK_SIZE
    block = tl.load(table + entry).to(tl.int64)
    slot = position - entry * BLOCK_SIZE
    return tl.where(is_key, slot * stride_slot + stride_block * block, -1)


# 08.2 attend_keys


SCORES = 'scores = tl.dot(queries, tl.trans(tile_keys), input_precision="ieee") * scale'
ADD = 'acc = tl.dot(weights.to(tile_values.dtype), tile_values, acc, input_precision="ieee")'
START = 'row_max = tl.full([queries.shape[0]], float("-inf"), tl.float32)'


def attend(*lines):
    return changed(attend_keys, *lines)


@triton.jit
def attend_transposed(
    queries, keys, values, table, start, end, scale, stride_block, stride_slot,
    BLOCK_SIZE: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Keys loaded as [D, BLOCK_N], a `while` loop, the softmax inside."""
    dim = tl.arange(0, queries.shape[1])
    row_max = tl.full([queries.shape[0]], float("-inf"), tl.float32)
    row_sum = tl.zeros([queries.shape[0]], tl.float32)
    acc = tl.zeros([queries.shape[0], queries.shape[1]], tl.float32)
    left, first = end - start, start
    while left > 0:
        position = first + tl.arange(0, BLOCK_N)
        is_key = tl.arange(0, BLOCK_N) < left
        places = tile_offsets(table, position, is_key, stride_block, stride_slot, BLOCK_SIZE)
        own_keys = tl.load(keys + places[None, :] + dim[:, None], mask=is_key[None, :], other=0.0)
        own_values = tl.load(values + places[:, None] + dim[None, :], mask=is_key[:, None], other=0.0)
        scores = tl.where(is_key[None, :], tl.dot(queries, own_keys, input_precision="ieee") * scale, float("-inf"))
        new_max = tl.maximum(row_max, tl.max(scores, 1))
        weights = tl.exp2(scores - new_max[:, None])
        rescale = tl.exp2(row_max - new_max)
        row_sum = row_sum * rescale + tl.sum(weights, 1)
        product = tl.dot(weights.to(values.dtype.element_ty), own_values, input_precision="ieee")
        acc = acc * rescale[:, None] + product
        row_max = new_max
        first += BLOCK_N
        left -= BLOCK_N
    return row_max, row_sum, acc


def merge(*lines):
    return changed(merge_splits, *lines)


TILES_IN_FLOAT32 = (
    ("first in range", "queries = queries.to(tl.float32)\n    for first in range"),
    ("tile_keys = tl.load(keys + elements, mask=is_key[:, None], other=0.0)", "tile_keys = tl.load(keys + elements, mask=is_key[:, None], other=0.0).to(tl.float32)"),
    ("tile_values = tl.load(values + elements, mask=is_key[:, None], other=0.0)", "tile_values = tl.load(values + elements, mask=is_key[:, None], other=0.0).to(tl.float32)"),
)  # fmt: skip

# 08.3 merge_splits


@triton.jit
def merge_by_shares(lse, outputs):
    top = tl.max(lse, axis=0)
    whole = top + tl.log2(tl.sum(tl.exp2(lse - top), axis=0))
    return tl.sum(tl.exp2(lse - whole)[:, None] * outputs, axis=0)


@triton.jit
def merge_transposed(lse, outputs):
    ln2 = 0.6931471805599453
    weights = tl.where(lse == float("-inf"), 0.0, tl.exp((lse - tl.max(lse, axis=0)) * ln2))
    weights = weights / tl.sum(weights, axis=0)
    return tl.sum(weights[None, :] * tl.trans(outputs), axis=1)


WRONG = {
    "08.1": [],
    "08.2": [
        Wrong("every tile in float32", attend(*[(old.replace("first in", "for first in"), new) if "range" in old else (old, new) for old, new in TILES_IN_FLOAT32]), "no tensor core computes 2 of your `tl.dot`"),
        Wrong("sums instead of products", attend((SCORES, "scores = tl.sum(queries[:, None, :].to(tl.float32) * tile_keys[None, :, :].to(tl.float32), axis=2) * scale"), (ADD, "acc += tl.sum(weights[:, :, None] * tile_values[None, :, :].to(tl.float32), axis=1)")), "there is no `tl.dot`"),
        Wrong("the output without `tl.dot`", attend((ADD, "acc += tl.sum(weights[:, :, None] * tile_values[None, :, :].to(tl.float32), axis=1)")), "there is only one `tl.dot`"),
        Wrong("factors rounded by a GPU", attend((SCORES, SCORES.replace(', input_precision="ieee"', ""))), "would keep only 10 bits"),
        Wrong("a scalar maximum", attend((START, 'row_max = float("-inf")')), "where the loop makes a tile, with a tile"),
        Wrong("queries scaled before the loop", attend(("    for first in", "    queries = queries * scale\n    for first in"), (SCORES, SCORES.replace(" * scale", ""))), "ultiply the scores instead"),
        Wrong("from position 0", attend(("range(start", "range(0")), "Begin at `start`"),
        Wrong("the end as a key", attend(("position < end", "position <= end")), "`end` isn't one of your positions"),
        Wrong("no last tile", attend(("end, BLOCK_N)", "end - BLOCK_N + 1, BLOCK_N)")), "Some keys are missing"),
        Wrong("a step of one block", attend(("end, BLOCK_N)", "end, BLOCK_SIZE)")), "the loop's step is BLOCK_N"),
        Wrong("values not masked", attend(("values + elements, mask=is_key[:, None], other=0.0", "values + elements")), "with the same mask"),
        Wrong("scores in 16 bits", attend((SCORES, SCORES.replace(" * scale", ".to(queries.dtype) * scale"))), "has 16 bits"),
        Wrong("the maximum from 0", attend((START, START.replace('"-inf"', "0"))), "Scores may be very low"),
    ],
    "08.3": [
        Wrong("no maximum", merge(("lse - tl.max(lse, axis=0)", "lse")), "Subtract the largest"),
        Wrong("empty splits count", merge(("exp2(lse", 'exp2(tl.where(lse == float("-inf"), 0.0, lse)')), "Splits without keys"),
        Wrong("weights in 16 bits", merge(("axis=0))", "axis=0)).to(tl.float16)")), "in 16 bits they lose digits"),
        Wrong("small splits dropped", merge(("return", "weights = tl.where(weights < 1e-5, 0.0, weights)\n    return")), "A split far below"),
    ],
}  # fmt: skip
RIGHT = {
    "08.1": [offsets_of_the_engine, offsets_by_subtracting],
    "08.2": [
        attend_transposed,
        attend(("for first in range(", "for first in tl.range(")),
        attend(  # products of float32 tiles, each by three products on tensor cores
            ("    for first in", "    queries = queries.to(tl.float32)\n    for first in"),
            *TILES_IN_FLOAT32[1:],
            (SCORES, SCORES.replace("ieee", "tf32x3")),
            (ADD, ADD.replace("ieee", "tf32x3")),
        ),
        attend(  # the scale on the queries, which enter `tl.dot` in the dtype of the cache
            ("    for first in", "    queries = (queries * scale).to(keys.dtype.element_ty)\n    for first in"),
            (SCORES, SCORES.replace(" * scale", "")),
        ),
    ],
    "08.3": [merge_by_shares, merge_transposed, merge_splits],
}
