"""Lesson 08: lesson 07's decode kernel, for a group of query heads and a tile of keys at a time, and then split-KV.

A step between simple_paged and paged_flash: the loop of `decode_kernel` there, reduced to decodes with equal head
sizes. The engine uses paged_flash.

Shapes: N sequences, Hq query heads, Hkv KV heads, D elements per head, M entries per block table. All strides count
elements, and the last axis of every tensor is contiguous. D is a power of two, at least 16.
"""

import torch
import triton
import triton.language as tl

from lessons_lib.kernels.paged_flash import LOG2_E, online_softmax
from lessons_lib.kernels.validation import check_alike


@triton.jit
def tile_offsets(table, position, is_key, stride_block, stride_slot, BLOCK_SIZE: tl.constexpr):
    """Where the keys at these positions begin, in elements from the first key of the cache. Called from a kernel.

    Args:
        table: pointer to the sequence's int32 block table; entries past its last block may be garbage or missing.
        position, is_key: tiles [BLOCK_N]: positions in the sequence; False for those without a key.
        stride_block, stride_slot: elements from one block to the next, and from one slot to the next.
        BLOCK_SIZE: slots per block, any number.

    Returns:
        tile [BLOCK_N] of 64-bit integers, anything where `is_key` is False.
    """
    blocks = tl.load(table + position // BLOCK_SIZE, mask=is_key, other=0)
    return blocks.to(tl.int64) * stride_block + position % BLOCK_SIZE * stride_slot


@triton.jit
def attend_keys(
    queries, keys, values, table, start, end, scale, stride_block, stride_slot,
    BLOCK_SIZE: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Attention of several queries over the keys at positions `start` to `end` - 1. Called from a kernel.

    Args:
        queries: tile [rows, D], of the dtype of the caches: one query head per row.
        keys, values: pointers to the start of the queries' KV head in the caches. Slots without a token may hold NaN.
        table, stride_block, stride_slot, BLOCK_SIZE: see `tile_offsets`.
        start, end: at least one key; `start` needn't be the beginning of a block.
        scale: factor of the scores, log2(e) included.
        BLOCK_N: keys per iteration, a power of two, at least 16.

    Returns:
        three tiles of float32: each row's largest score [rows], the sum of its weights [rows] and its weighted sum of
        the values [rows, D], both relative to that maximum.
    """
    dim = tl.arange(0, queries.shape[1])
    row_max = tl.full([queries.shape[0]], float("-inf"), tl.float32)
    row_sum = tl.zeros([queries.shape[0]], tl.float32)
    acc = tl.zeros([queries.shape[0], queries.shape[1]], tl.float32)
    for first in range(start, end, BLOCK_N):
        position = first + tl.arange(0, BLOCK_N)
        is_key = position < end
        offsets = tile_offsets(table, position, is_key, stride_block, stride_slot, BLOCK_SIZE)
        elements = offsets[:, None] + dim[None, :]
        tile_keys = tl.load(keys + elements, mask=is_key[:, None], other=0.0)
        tile_values = tl.load(values + elements, mask=is_key[:, None], other=0.0)
        scores = tl.dot(queries, tl.trans(tile_keys), input_precision="ieee") * scale
        scores = tl.where(is_key[None, :], scores, float("-inf"))
        weights, row_max, row_sum, acc = online_softmax(scores, row_max, row_sum, acc)
        acc = tl.dot(weights.to(tile_values.dtype), tile_values, acc, input_precision="ieee")
    return row_max, row_sum, acc


@triton.jit
def merge_splits(lse, outputs):
    """Merge the attentions that one query computed over different keys. Called from a kernel.

    Args:
        lse: tile [splits]: each split's log-sum-exp, in base 2; minus infinity for splits without keys, but not all.
        outputs: tile [splits, D]: each split's attention; 0 for splits without keys.

    Returns:
        tile [D]: the attention over all keys.
    """
    weights = tl.exp2(lse - tl.max(lse, axis=0))
    return tl.sum(outputs * weights[:, None], axis=0) / tl.sum(weights, axis=0)


@triton.jit
def decode_groups_kernel(
    q, k_cache, v_cache, block_tables, context_lens, out, scale,
    stride_seq, stride_q_head, stride_block, stride_slot, stride_head, stride_table,
    GROUP: tl.constexpr, BLOCK_M: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_SIZE: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Attention of one new token per sequence.

    The grid is (Hkv, N): program (h, i) computes all query heads of KV head h, for sequence i.

    Args:
        q, out: pointers to [N, Hq, D].
        k_cache, v_cache: pointers to [num_blocks, block_size, Hkv, D], of the dtype of q. Slots without a token may
            hold NaN.
        block_tables: pointer to int32 [N, M]; entries past the last block in use may be garbage or missing.
        context_lens: pointer to int32 [N]: tokens of each sequence, the new one included.
        scale: factor of the scores, log2(e) included.
        stride_seq, stride_q_head: of q and out, elements from one sequence and query head to the next.
        stride_block, stride_slot, stride_head: of both caches, elements from one block, slot and KV head to the next.
        stride_table: of block_tables, elements from one table to the next.
        GROUP: query heads per KV head. BLOCK_M: rows of the query tile, a power of two, at least GROUP and 16.
        HEAD_DIM: D, a power of two, at least 16. BLOCK_SIZE: slots per block, any number.
        BLOCK_N: keys per iteration, a power of two, at least 16.
    """
    kv_head, seq = tl.program_id(0), tl.program_id(1)
    row, dim = tl.arange(0, BLOCK_M), tl.arange(0, HEAD_DIM)
    head, is_row = kv_head * GROUP + row, row < GROUP
    offsets = seq * stride_seq + head[:, None] * stride_q_head + dim[None, :]
    queries = tl.load(q + offsets, mask=is_row[:, None], other=0.0)
    keys, values = k_cache + kv_head * stride_head, v_cache + kv_head * stride_head
    table = block_tables + seq * stride_table
    end = tl.load(context_lens + seq)
    _, row_sum, acc = attend_keys(
        queries, keys, values, table, 0, end, scale, stride_block, stride_slot, BLOCK_SIZE, BLOCK_N
    )
    tl.store(out + offsets, acc / row_sum[:, None], mask=is_row[:, None])


@triton.jit
def decode_splits_kernel(
    q, k_cache, v_cache, block_tables, context_lens, partial_out, partial_lse, scale,
    stride_seq, stride_q_head, stride_block, stride_slot, stride_head, stride_table,
    GROUP: tl.constexpr, BLOCK_M: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_SIZE: tl.constexpr, BLOCK_N: tl.constexpr,
    SPLIT_SIZE: tl.constexpr, NUM_SPLITS: tl.constexpr,
):  # fmt: skip
    """`decode_groups_kernel`, with each sequence split among several programs.

    The grid is (Hkv, N, NUM_SPLITS): program (h, i, s) processes only keys s * SPLIT_SIZE to (s + 1) * SPLIT_SIZE - 1,
    and stores a partial result for `merge_kernel`.

    Args:
        partial_out: pointer to float32 [N, Hq, NUM_SPLITS, D], contiguous: each split's attention, normalized by its
            own sum. Only splits with keys are written.
        partial_lse: pointer to float32 [N, Hq, NUM_SPLITS], contiguous: each split's log-sum-exp in base 2.
        SPLIT_SIZE: keys per split. NUM_SPLITS: at least the splits of the longest sequence.
        The rest: see `decode_groups_kernel`.
    """
    kv_head, seq, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    row, dim = tl.arange(0, BLOCK_M), tl.arange(0, HEAD_DIM)
    head, is_row = kv_head * GROUP + row, row < GROUP
    offsets = seq * stride_seq + head[:, None] * stride_q_head + dim[None, :]
    queries = tl.load(q + offsets, mask=is_row[:, None], other=0.0)
    keys, values = k_cache + kv_head * stride_head, v_cache + kv_head * stride_head
    table = block_tables + seq * stride_table
    start = split * SPLIT_SIZE
    end = tl.minimum(start + SPLIT_SIZE, tl.load(context_lens + seq))
    if start >= end:
        return
    row_max, row_sum, acc = attend_keys(
        queries, keys, values, table, start, end, scale, stride_block, stride_slot, BLOCK_SIZE, BLOCK_N
    )
    partial = (seq * tl.num_programs(0) * GROUP + head) * NUM_SPLITS + split
    tl.store(partial_out + partial[:, None] * HEAD_DIM + dim[None, :], acc / row_sum[:, None], mask=is_row[:, None])
    tl.store(partial_lse + partial, row_max + tl.log2(row_sum), mask=is_row)


@triton.jit
def merge_kernel(
    partial_out, partial_lse, context_lens, out, stride_seq, stride_q_head,
    HEAD_DIM: tl.constexpr, SPLIT_SIZE: tl.constexpr, NUM_SPLITS: tl.constexpr, BLOCK_SPLITS: tl.constexpr,
):  # fmt: skip
    """Merge the splits of each query head: program (h, i) those of query head h of sequence i. The grid is (Hq, N).

    BLOCK_SPLITS is a power of two, at least NUM_SPLITS. For the other arguments see `decode_splits_kernel`.
    """
    head, seq = tl.program_id(0), tl.program_id(1)
    split, dim = tl.arange(0, BLOCK_SPLITS), tl.arange(0, HEAD_DIM)
    is_used = split < tl.cdiv(tl.load(context_lens + seq), SPLIT_SIZE)
    partial = (seq * tl.num_programs(0) + head) * NUM_SPLITS + split
    lse = tl.load(partial_lse + partial, mask=is_used, other=float("-inf"))
    elements = partial[:, None] * HEAD_DIM + dim[None, :]
    outputs = tl.load(partial_out + elements, mask=is_used[:, None], other=0.0)
    tl.store(out + seq * stride_seq + head * stride_q_head + dim, merge_splits(lse, outputs))


def decode_groups(
    q, k_cache, v_cache, block_tables, context_lens, scale, keys_per_tile=64, kernel=decode_groups_kernel, min_rows=16
) -> torch.Tensor:
    """Attention of one new token per sequence.

    Args:
        q, k_cache, v_cache, block_tables, context_lens, scale: see `simple_paged.decode_heads`; all of one dtype.
        keys_per_tile: keys per iteration, a power of two, at least 16.
        kernel: `decode_groups_kernel`, or your own.
        min_rows: minimum rows of the query tile; tensor cores need 16.

    Returns and Raises: see `decode_heads`; head and block sizes may be any that the kernel supports.
    """
    check_alike(k_cache, v_cache)
    q = q.contiguous()
    out = torch.empty_like(q)
    kernel[(k_cache.shape[2], len(q))](
        q, k_cache, v_cache, block_tables, context_lens, out, scale * LOG2_E.value,
        *q.stride()[:2], *k_cache.stride()[:3], block_tables.stride(0), **_sizes(q, k_cache, keys_per_tile, min_rows),
    )  # fmt: skip
    return out


def decode_splits(
    q, k_cache, v_cache, block_tables, context_lens, scale, split_size, keys_per_tile=64,
    kernel=decode_splits_kernel, merge=merge_kernel,
) -> torch.Tensor:  # fmt: skip
    """`decode_groups` with sequences split into parts of `split_size` keys, merged by a second kernel."""
    check_alike(k_cache, v_cache)
    q = q.contiguous()
    out = torch.empty_like(q)
    (num_seqs, q_heads, head_dim), kv_heads = q.shape, k_cache.shape[2]
    num_splits = triton.cdiv(block_tables.shape[1] * k_cache.shape[1], split_size)  # for a full table
    partial_out = q.new_empty(num_seqs, q_heads, num_splits, head_dim, dtype=torch.float32)
    partial_lse = q.new_empty(num_seqs, q_heads, num_splits, dtype=torch.float32)
    kernel[(kv_heads, num_seqs, num_splits)](
        q, k_cache, v_cache, block_tables, context_lens, partial_out, partial_lse, scale * LOG2_E.value,
        *q.stride()[:2], *k_cache.stride()[:3], block_tables.stride(0), **_sizes(q, k_cache, keys_per_tile),
        SPLIT_SIZE=split_size, NUM_SPLITS=num_splits,
    )  # fmt: skip
    merge[(q_heads, num_seqs)](
        partial_out, partial_lse, context_lens, out, *out.stride()[:2], HEAD_DIM=head_dim, SPLIT_SIZE=split_size,
        NUM_SPLITS=num_splits, BLOCK_SPLITS=triton.next_power_of_2(num_splits),
    )  # fmt: skip
    return out


def _sizes(q, k_cache, keys_per_tile: int, min_rows: int = 16) -> dict[str, int]:
    """The kernels' constants."""
    group = q.shape[1] // k_cache.shape[2]
    rows = max(min_rows, triton.next_power_of_2(group))
    return dict(GROUP=group, BLOCK_M=rows, HEAD_DIM=q.shape[2], BLOCK_SIZE=k_cache.shape[1], BLOCK_N=keys_per_tile)
