"""Lesson 08: variants of the fast kernels, each without one idea, to measure its benefit.

If an idea is a separate function, `with_functions` builds the kernel with another function in its place. If it is part
of the kernel's loop, the kernel is written out again. All variants compute the same results as the originals.
"""

import difflib
import functools
import inspect
import types
from dataclasses import dataclass
from typing import Any

import lessons_lib.kernels.triton_setup  # noqa: F401 - before Triton: decides whether kernels are compiled

# isort: split

# isort: split
import triton
import triton.language as tl

from lessons_lib.kernels import paged_flash
from lessons_lib.kernels.paged_flash import (
    cache_offsets,
    decode_kernel,
    first_visible_key,
    merge_if_last,
    online_softmax,
    prefill_kernel,
    start_with_sink,
    store_part,
    value_offset,
    with_terms,
)


@dataclass(frozen=True)
class Variant:
    """A kernel without one of its ideas.

    Attributes:
        idea: the missing idea.
        kernel: the changed kernel, with the arguments of the original.
        changed: (original, changed) for each function that differs; the kernel itself if it is written out again.
    """

    idea: str
    kernel: Any
    changed: tuple[tuple[Any, Any], ...]

    def diff(self) -> str:
        """The differing lines, with one line of context, function by function."""
        return "\n".join(
            f"  in {original.fn.__name__}:\n{_diff(original.fn, changed.fn)}" for original, changed in self.changed
        )


def with_functions(kernel, **functions):
    """Copy a kernel so that it calls these functions in place of those with the same names.

    Args:
        functions: name of a function that the kernel calls -> another function with the same arguments and results.
    """
    fn = kernel.fn
    own = types.FunctionType(fn.__code__, {**fn.__globals__, **functions}, fn.__name__, fn.__defaults__, fn.__closure__)
    return triton.jit(functools.update_wrapper(own, fn))


def _diff(original, changed) -> str:
    """Diff of the two bodies; names and docstrings always differ."""
    old, new = (inspect.getsource(function).split('"""', 2)[2].splitlines() for function in (original, changed))
    lines = list(difflib.unified_diff(old, new, n=1, lineterm=""))[3:]
    return "\n".join("  ..." if line.startswith("@@") else line for line in lines if line.strip())


def _replacing(idea: str, kernel, **functions) -> Variant:
    pairs = tuple((getattr(paged_flash, name), function) for name, function in functions.items())
    return Variant(idea, with_functions(kernel, **functions), pairs)


# --- decode_kernel written out again, with other lines in its loop


@triton.jit
def decode_per_query_head(
    q, k_cache, v_cache, block_tables, context_lens, cu_seqlens_q, out, partial_out, partial_lse, scale,
    stride_q, stride_q_head, stride_out, stride_out_head, stride_block, stride_slot, stride_head, stride_table,
    GROUP: tl.constexpr, BLOCK_M: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr, VALUE_DIM: tl.constexpr,
    BLOCK_V: tl.constexpr, BLOCK_SIZE: tl.constexpr, BLOCK_N: tl.constexpr, SPLIT_SIZE: tl.constexpr,
    NUM_SPLITS: tl.constexpr, RAGGED: tl.constexpr, USE_INT64: tl.constexpr, finished=None, sinks=None,
    alibi_slopes=None, WINDOW: tl.constexpr = None, CHUNKED: tl.constexpr = False, SOFTCAP: tl.constexpr = None,
):  # fmt: skip
    """One program per query head, GROUP = 1.

    For cache views with one KV head per query head, four of which share the same memory.
    """
    kv_head, seq, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    token = seq
    if RAGGED:
        token = tl.load(cu_seqlens_q + seq)
        if tl.load(cu_seqlens_q + seq + 1) - token != 1:
            return
    start = split * SPLIT_SIZE
    context_len = tl.load(context_lens + seq)
    if start >= context_len:
        return
    end = tl.minimum(start + SPLIT_SIZE, context_len)
    if WINDOW is not None:
        start = tl.maximum(start, first_visible_key(context_len - 1, WINDOW, CHUNKED))

    row, dim, key = tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_D), tl.arange(0, BLOCK_N)
    head = kv_head * GROUP + row
    value_dim = tl.arange(0, BLOCK_V)
    is_row, is_dim, is_value_dim = row < GROUP, dim < HEAD_DIM, value_dim < VALUE_DIM
    in_query, in_out = is_row[:, None] & is_dim[None, :], is_row[:, None] & is_value_dim[None, :]
    token = token.to(tl.int64)
    queries = tl.load(q + token * stride_q + head[:, None] * stride_q_head + dim[None, :], mask=in_query, other=0.0)
    row_max = tl.full([BLOCK_M], float("-inf"), tl.float32)
    row_sum = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, BLOCK_V], tl.float32)
    if sinks is not None:
        row_max, row_sum = start_with_sink(sinks, head, is_row, end == context_len)

    table = block_tables + seq.to(tl.int64) * stride_table
    k_head, v_head = k_cache + kv_head // 4 * HEAD_DIM, v_cache + kv_head // 4 * VALUE_DIM
    for first in range(start, end, BLOCK_N):
        position = first + key
        is_key = position < end
        blocks = tl.load(table + position // BLOCK_SIZE, mask=is_key, other=0)
        offsets = cache_offsets(blocks, position, stride_block, stride_slot, BLOCK_SIZE, USE_INT64)
        keys = tl.load(k_head + offsets[None, :] + dim[:, None], mask=is_key[None, :] & is_dim[:, None], other=0.0)
        scores = tl.dot(queries, keys, input_precision="ieee") * scale
        # The loop begins at the window, so it needs no mask.
        scores = with_terms(
            scores, position[None, :], context_len - 1, head, is_row, alibi_slopes, None, CHUNKED, SOFTCAP
        )
        scores = tl.where(is_key[None, :], scores, float("-inf"))
        weights, row_max, row_sum, acc = online_softmax(scores, row_max, row_sum, acc)
        # Slots without a token may hold NaN, and 0 * NaN is NaN: the mask reads them as 0.
        value_rows = v_head + value_offset(offsets, HEAD_DIM, VALUE_DIM)[:, None]
        values = tl.load(value_rows + value_dim[None, :], mask=is_key[:, None] & is_value_dim[None, :], other=0.0)
        acc = tl.dot(weights.to(values.dtype), values, acc, input_precision="ieee")

    if WINDOW is not None:  # a split without keys in the window yields 0, with weight 0
        row_sum = tl.where(row_sum == 0.0, 1.0, row_sum)
    result = acc / row_sum[:, None]
    out_places = out + token * stride_out + head[:, None] * stride_out_head + value_dim[None, :]
    if NUM_SPLITS == 1:
        tl.store(out_places, result.to(out.dtype.element_ty), mask=in_out)
    else:
        first_partial = (token * tl.num_programs(0) * GROUP + head) * NUM_SPLITS
        store_part(
            result, row_max, row_sum, split, first_partial, partial_out, partial_lse, value_dim, is_row, in_out,
            VALUE_DIM,
        )  # fmt: skip
        if finished is not None:
            merge_if_last(
                finished + seq * tl.num_programs(0) + kv_head, tl.cdiv(context_len, SPLIT_SIZE), first_partial,
                partial_out, partial_lse, value_dim, is_row, in_out, out_places, BLOCK_M, VALUE_DIM, BLOCK_V,
            )  # fmt: skip


@triton.jit
def decode_without_tensor_cores(
    q, k_cache, v_cache, block_tables, context_lens, cu_seqlens_q, out, partial_out, partial_lse, scale,
    stride_q, stride_q_head, stride_out, stride_out_head, stride_block, stride_slot, stride_head, stride_table,
    GROUP: tl.constexpr, BLOCK_M: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr, VALUE_DIM: tl.constexpr,
    BLOCK_V: tl.constexpr, BLOCK_SIZE: tl.constexpr, BLOCK_N: tl.constexpr, SPLIT_SIZE: tl.constexpr,
    NUM_SPLITS: tl.constexpr, RAGGED: tl.constexpr, USE_INT64: tl.constexpr, finished=None, sinks=None,
    alibi_slopes=None, WINDOW: tl.constexpr = None, CHUNKED: tl.constexpr = False, SOFTCAP: tl.constexpr = None,
):  # fmt: skip
    """Multiply and sum float32 elements, without `tl.dot`.

    Without tensor cores no padding is needed: the tile has GROUP rows, a power of two.
    """
    kv_head, seq, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    token = seq
    if RAGGED:
        token = tl.load(cu_seqlens_q + seq)
        if tl.load(cu_seqlens_q + seq + 1) - token != 1:
            return
    start = split * SPLIT_SIZE
    context_len = tl.load(context_lens + seq)
    if start >= context_len:
        return
    end = tl.minimum(start + SPLIT_SIZE, context_len)
    if WINDOW is not None:
        start = tl.maximum(start, first_visible_key(context_len - 1, WINDOW, CHUNKED))

    row, dim, key = tl.arange(0, GROUP), tl.arange(0, BLOCK_D), tl.arange(0, BLOCK_N)
    head = kv_head * GROUP + row
    value_dim = tl.arange(0, BLOCK_V)
    is_row, is_dim, is_value_dim = row < GROUP, dim < HEAD_DIM, value_dim < VALUE_DIM
    in_query, in_out = is_row[:, None] & is_dim[None, :], is_row[:, None] & is_value_dim[None, :]
    token = token.to(tl.int64)
    queries = tl.load(q + token * stride_q + head[:, None] * stride_q_head + dim[None, :], mask=in_query, other=0.0)
    row_max = tl.full([GROUP], float("-inf"), tl.float32)
    row_sum = tl.zeros([GROUP], tl.float32)
    acc = tl.zeros([GROUP, BLOCK_V], tl.float32)
    if sinks is not None:
        row_max, row_sum = start_with_sink(sinks, head, is_row, end == context_len)

    table = block_tables + seq.to(tl.int64) * stride_table
    k_head, v_head = k_cache + kv_head * stride_head, v_cache + value_offset(kv_head * stride_head, HEAD_DIM, VALUE_DIM)
    for first in range(start, end, BLOCK_N):
        position = first + key
        is_key = position < end
        blocks = tl.load(table + position // BLOCK_SIZE, mask=is_key, other=0)
        offsets = cache_offsets(blocks, position, stride_block, stride_slot, BLOCK_SIZE, USE_INT64)
        keys = tl.load(k_head + offsets[None, :] + dim[:, None], mask=is_key[None, :] & is_dim[:, None], other=0.0)
        scores = tl.sum(queries[:, :, None].to(tl.float32) * keys[None].to(tl.float32), axis=1) * scale
        # The loop begins at the window, so it needs no mask.
        scores = with_terms(
            scores, position[None, :], context_len - 1, head, is_row, alibi_slopes, None, CHUNKED, SOFTCAP
        )
        scores = tl.where(is_key[None, :], scores, float("-inf"))
        weights, row_max, row_sum, acc = online_softmax(scores, row_max, row_sum, acc)
        # Slots without a token may hold NaN, and 0 * NaN is NaN: the mask reads them as 0.
        value_rows = v_head + value_offset(offsets, HEAD_DIM, VALUE_DIM)[:, None]
        values = tl.load(value_rows + value_dim[None, :], mask=is_key[:, None] & is_value_dim[None, :], other=0.0)
        acc += tl.sum(weights[:, :, None] * values[None].to(tl.float32), axis=1)

    if WINDOW is not None:  # a split without keys in the window yields 0, with weight 0
        row_sum = tl.where(row_sum == 0.0, 1.0, row_sum)
    result = acc / row_sum[:, None]
    out_places = out + token * stride_out + head[:, None] * stride_out_head + value_dim[None, :]
    if NUM_SPLITS == 1:
        tl.store(out_places, result.to(out.dtype.element_ty), mask=in_out)
    else:
        first_partial = (token * tl.num_programs(0) * GROUP + head) * NUM_SPLITS
        store_part(
            result, row_max, row_sum, split, first_partial, partial_out, partial_lse, value_dim, is_row, in_out,
            VALUE_DIM,
        )  # fmt: skip
        if finished is not None:
            merge_if_last(
                finished + seq * tl.num_programs(0) + kv_head, tl.cdiv(context_len, SPLIT_SIZE), first_partial,
                partial_out, partial_lse, value_dim, is_row, in_out, out_places, BLOCK_M, VALUE_DIM, BLOCK_V,
            )  # fmt: skip


@triton.jit
def decode_with_early_table_read(
    q, k_cache, v_cache, block_tables, context_lens, cu_seqlens_q, out, partial_out, partial_lse, scale,
    stride_q, stride_q_head, stride_out, stride_out_head, stride_block, stride_slot, stride_head, stride_table,
    GROUP: tl.constexpr, BLOCK_M: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr, VALUE_DIM: tl.constexpr,
    BLOCK_V: tl.constexpr, BLOCK_SIZE: tl.constexpr, BLOCK_N: tl.constexpr, SPLIT_SIZE: tl.constexpr,
    NUM_SPLITS: tl.constexpr, RAGGED: tl.constexpr, USE_INT64: tl.constexpr, finished=None, sinks=None,
    alibi_slopes=None, WINDOW: tl.constexpr = None, CHUNKED: tl.constexpr = False, SOFTCAP: tl.constexpr = None,
):  # fmt: skip
    """Read the block table one iteration ahead: an idea that was tried and not kept."""
    kv_head, seq, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    token = seq
    if RAGGED:
        token = tl.load(cu_seqlens_q + seq)
        if tl.load(cu_seqlens_q + seq + 1) - token != 1:
            return
    start = split * SPLIT_SIZE
    context_len = tl.load(context_lens + seq)
    if start >= context_len:
        return
    end = tl.minimum(start + SPLIT_SIZE, context_len)
    if WINDOW is not None:
        start = tl.maximum(start, first_visible_key(context_len - 1, WINDOW, CHUNKED))

    row, dim, key = tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_D), tl.arange(0, BLOCK_N)
    head = kv_head * GROUP + row
    value_dim = tl.arange(0, BLOCK_V)
    is_row, is_dim, is_value_dim = row < GROUP, dim < HEAD_DIM, value_dim < VALUE_DIM
    in_query, in_out = is_row[:, None] & is_dim[None, :], is_row[:, None] & is_value_dim[None, :]
    token = token.to(tl.int64)
    queries = tl.load(q + token * stride_q + head[:, None] * stride_q_head + dim[None, :], mask=in_query, other=0.0)
    row_max = tl.full([BLOCK_M], float("-inf"), tl.float32)
    row_sum = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, BLOCK_V], tl.float32)
    if sinks is not None:
        row_max, row_sum = start_with_sink(sinks, head, is_row, end == context_len)

    table = block_tables + seq.to(tl.int64) * stride_table
    k_head, v_head = k_cache + kv_head * stride_head, v_cache + value_offset(kv_head * stride_head, HEAD_DIM, VALUE_DIM)
    blocks = tl.load(table + (start + key) // BLOCK_SIZE, mask=start + key < end, other=0)
    for first in range(start, end, BLOCK_N):
        position = first + key
        is_key = position < end
        offsets = cache_offsets(blocks, position, stride_block, stride_slot, BLOCK_SIZE, USE_INT64)
        upcoming = position + BLOCK_N
        blocks = tl.load(table + upcoming // BLOCK_SIZE, mask=upcoming < end, other=0)
        keys = tl.load(k_head + offsets[None, :] + dim[:, None], mask=is_key[None, :] & is_dim[:, None], other=0.0)
        scores = tl.dot(queries, keys, input_precision="ieee") * scale
        # The loop begins at the window, so it needs no mask.
        scores = with_terms(
            scores, position[None, :], context_len - 1, head, is_row, alibi_slopes, None, CHUNKED, SOFTCAP
        )
        scores = tl.where(is_key[None, :], scores, float("-inf"))
        weights, row_max, row_sum, acc = online_softmax(scores, row_max, row_sum, acc)
        # Slots without a token may hold NaN, and 0 * NaN is NaN: the mask reads them as 0.
        value_rows = v_head + value_offset(offsets, HEAD_DIM, VALUE_DIM)[:, None]
        values = tl.load(value_rows + value_dim[None, :], mask=is_key[:, None] & is_value_dim[None, :], other=0.0)
        acc = tl.dot(weights.to(values.dtype), values, acc, input_precision="ieee")

    if WINDOW is not None:  # a split without keys in the window yields 0, with weight 0
        row_sum = tl.where(row_sum == 0.0, 1.0, row_sum)
    result = acc / row_sum[:, None]
    out_places = out + token * stride_out + head[:, None] * stride_out_head + value_dim[None, :]
    if NUM_SPLITS == 1:
        tl.store(out_places, result.to(out.dtype.element_ty), mask=in_out)
    else:
        first_partial = (token * tl.num_programs(0) * GROUP + head) * NUM_SPLITS
        store_part(
            result, row_max, row_sum, split, first_partial, partial_out, partial_lse, value_dim, is_row, in_out,
            VALUE_DIM,
        )  # fmt: skip
        if finished is not None:
            merge_if_last(
                finished + seq * tl.num_programs(0) + kv_head, tl.cdiv(context_len, SPLIT_SIZE), first_partial,
                partial_out, partial_lse, value_dim, is_row, in_out, out_places, BLOCK_M, VALUE_DIM, BLOCK_V,
            )  # fmt: skip


# --- functions of prefill_kernel without their idea


@triton.jit
def natural_online_softmax(scores, row_max, row_sum, acc):
    """`online_softmax` with natural exponentials; the launcher passes the scale without log2(e)."""
    new_max = tl.maximum(row_max, tl.max(scores, axis=1))
    # A row that hasn't seen a key yet has the maximum -inf, and -inf - (-inf) is NaN.
    reference = tl.where(new_max == float("-inf"), 0.0, new_max)
    weights = tl.exp(scores - reference[:, None])
    rescale = tl.exp(row_max - reference)
    return weights, new_max, row_sum * rescale + tl.sum(weights, axis=1), acc * rescale[:, None]


@triton.jit
def natural_unmasked_softmax(scores, scale, row_max, row_sum, acc):
    """`unmasked_softmax` with natural exponentials."""
    new_max = tl.maximum(row_max, tl.max(scores, axis=1) * scale)
    weights = tl.exp(scores * scale - new_max[:, None])
    rescale = tl.exp(row_max - new_max)
    return weights, new_max, row_sum * rescale + tl.sum(weights, axis=1), acc * rescale[:, None]


@triton.jit
def shortest_first():
    """This program's tile, counted from the first."""
    return tl.program_id(1)


@triton.jit
def every_key(first_position, BLOCK_N: tl.constexpr):
    """Start the masked loop at the first key, so that the unmasked loop has no iterations."""
    return 0


@triton.jit
def never(q_len):
    """No sequence is left to another kernel."""
    return False


VARIANTS = {
    "one program per query head": Variant(
        "one program for all query heads of a KV head: its keys are read once",
        decode_per_query_head,
        ((decode_kernel, decode_per_query_head),),
    ),
    "no tensor cores": Variant(
        "tensor cores", decode_without_tensor_cores, ((decode_kernel, decode_without_tensor_cores),)
    ),
    "table read one iteration early": Variant(
        "a block table read when it is needed",
        decode_with_early_table_read,
        ((decode_kernel, decode_with_early_table_read),),
    ),
    "natural exponentials": _replacing(
        "exponentials in base 2",
        prefill_kernel,
        online_softmax=natural_online_softmax,
        unmasked_softmax=natural_unmasked_softmax,
    ),
    "a mask in every iteration": _replacing("a mask on the diagonal only", prefill_kernel, first_masked_key=every_key),
    "first tokens first": _replacing("the longest programs first", prefill_kernel, longest_first=shortest_first),
    "one kernel for prefills and decodes": _replacing(
        "a kernel of its own for decodes", prefill_kernel, has_own_kernel=never
    ),
}
