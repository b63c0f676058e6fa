"""Lesson 08: lesson 07's decode kernel with two changes, a group of query heads and a tile of keys, and then split-KV.

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
        stride_seq, stride_q_head: of q and out, elements from one sequence to the next, and from one query head to the
            next.
        stride_block, stride_slot, stride_head: of both caches, elements from one block, slot and KV head to the next.
        stride_table: of block_tables, elements from one table to the next.
        GROUP: query heads per KV head. BLOCK_M: rows of the query tile, a power of two, at least GROUP and 16.
        HEAD_DIM: D, a power of two, at least 16. BLOCK_SIZE: slots per block, any number.
        BLOCK_N: keys per iteration, a power of two, at least 16.
    """
    kv_head, seq = tl.program_id(0), tl.program_id(1)
    row, dim, key = tl.arange(0, BLOCK_M), tl.arange(0, HEAD_DIM), tl.arange(0, BLOCK_N)
    head, is_row = kv_head * GROUP + row, row < GROUP
    offsets = seq * stride_seq + head[:, None] * stride_q_head + dim[None, :]
    queries = tl.load(q + offsets, mask=is_row[:, None], other=0.0)
    row_max = tl.full([BLOCK_M], float("-inf"), tl.float32)
    row_sum = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, HEAD_DIM], tl.float32)
    context_len = tl.load(context_lens + seq)
    for first in range(0, context_len, BLOCK_N):
        position = first + key
        is_key = position < context_len
        blocks = tl.load(block_tables + seq * stride_table + position // BLOCK_SIZE, mask=is_key, other=0)
        slots = blocks.to(tl.int64) * stride_block + position % BLOCK_SIZE * stride_slot + kv_head * stride_head
        elements = slots[:, None] + dim[None, :]
        keys = tl.load(k_cache + elements, mask=is_key[:, None], other=0.0)
        values = tl.load(v_cache + elements, mask=is_key[:, None], other=0.0)
        scores = tl.dot(queries, tl.trans(keys), input_precision="ieee") * scale
        scores = tl.where(is_key[None, :], scores, float("-inf"))
        weights, row_max, row_sum, acc = online_softmax(scores, row_max, row_sum, acc)
        acc = tl.dot(weights.to(values.dtype), values, acc, input_precision="ieee")
    tl.store(out + offsets, (acc / row_sum[:, None]).to(out.dtype.element_ty), mask=is_row[:, None])


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
    start = split * SPLIT_SIZE
    context_len = tl.load(context_lens + seq)
    if start >= context_len:
        return
    end = tl.minimum(start + SPLIT_SIZE, context_len)
    row, dim, key = tl.arange(0, BLOCK_M), tl.arange(0, HEAD_DIM), tl.arange(0, BLOCK_N)
    head, is_row = kv_head * GROUP + row, row < GROUP
    offsets = seq * stride_seq + head[:, None] * stride_q_head + dim[None, :]
    queries = tl.load(q + offsets, mask=is_row[:, None], other=0.0)
    row_max = tl.full([BLOCK_M], float("-inf"), tl.float32)
    row_sum = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, HEAD_DIM], tl.float32)
    for first in range(start, end, BLOCK_N):
        position = first + key
        is_key = position < end
        blocks = tl.load(block_tables + seq * stride_table + position // BLOCK_SIZE, mask=is_key, other=0)
        slots = blocks.to(tl.int64) * stride_block + position % BLOCK_SIZE * stride_slot + kv_head * stride_head
        elements = slots[:, None] + dim[None, :]
        keys = tl.load(k_cache + elements, mask=is_key[:, None], other=0.0)
        values = tl.load(v_cache + elements, mask=is_key[:, None], other=0.0)
        scores = tl.dot(queries, tl.trans(keys), input_precision="ieee") * scale
        scores = tl.where(is_key[None, :], scores, float("-inf"))
        weights, row_max, row_sum, acc = online_softmax(scores, row_max, row_sum, acc)
        acc = tl.dot(weights.to(values.dtype), values, acc, input_precision="ieee")
    partial = (seq * tl.num_programs(0) * GROUP + head) * NUM_SPLITS + split
    tl.store(partial_out + partial[:, None] * HEAD_DIM + dim[None, :], acc / row_sum[:, None], mask=is_row[:, None])
    tl.store(partial_lse + partial, row_max + tl.log2(row_sum), mask=is_row)


@triton.jit
def merge_kernel(
    partial_out, partial_lse, context_lens, cu_seqlens_q, out, stride_out, stride_out_head,
    HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr, SPLIT_SIZE: tl.constexpr, NUM_SPLITS: tl.constexpr,
    BLOCK_SPLITS: tl.constexpr, RAGGED: tl.constexpr,
):  # fmt: skip
    """Merge the splits of each query head, each weighted by its share of the total sum of exponentials.

    The grid is (Hq, N): program (h, i) merges query head h of sequence i.

    Args:
        partial_out: pointer to float32 [T, Hq, NUM_SPLITS, D], contiguous: each split's attention, divided by its own
            sum. Splits without keys hold garbage, here and in partial_lse.
        partial_lse: pointer to float32 [T, Hq, NUM_SPLITS], contiguous: each split's log-sum-exp, in base 2.
        context_lens: pointer to int32 [N]: keys of each sequence.
        cu_seqlens_q: pointer to int32 [N + 1]: where each sequence starts in the packed batch, and its end; read only
            if RAGGED.
        out: pointer to [T, Hq, D]; stride_out, stride_out_head: elements from one token to the next, and from one head
            to the next.
        HEAD_DIM: D. BLOCK_D: a power of two, at least HEAD_DIM. SPLIT_SIZE: keys per split.
        NUM_SPLITS: splits that the partial tensors have room for. BLOCK_SPLITS: a power of two, at least NUM_SPLITS.
        RAGGED: True if the batch may contain more than decodes.
    """
    head, seq = tl.program_id(0), tl.program_id(1)
    token = seq
    if RAGGED:
        token = tl.load(cu_seqlens_q + seq)
        if tl.load(cu_seqlens_q + seq + 1) - token != 1:
            return
    token = token.to(tl.int64)
    split, dim = tl.arange(0, BLOCK_SPLITS), tl.arange(0, BLOCK_D)
    is_used, is_dim = split < tl.cdiv(tl.load(context_lens + seq), SPLIT_SIZE), dim < HEAD_DIM
    partial = (token * tl.num_programs(0) + head) * NUM_SPLITS + split
    lse = tl.load(partial_lse + partial, mask=is_used, other=float("-inf"))
    weights = tl.exp2(lse - tl.max(lse, axis=0))
    in_partial = is_used[:, None] & is_dim[None, :]
    outputs = tl.load(partial_out + partial[:, None] * HEAD_DIM + dim[None, :], mask=in_partial, other=0.0)
    result = tl.sum(outputs * weights[:, None], axis=0) / tl.sum(weights, axis=0)
    tl.store(out + token * stride_out + head * stride_out_head + dim, result.to(out.dtype.element_ty), mask=is_dim)


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
        partial_out, partial_lse, context_lens, context_lens, out, *out.stride()[:2], HEAD_DIM=head_dim,
        BLOCK_D=head_dim, SPLIT_SIZE=split_size, NUM_SPLITS=num_splits,
        BLOCK_SPLITS=triton.next_power_of_2(num_splits), RAGGED=False,
    )  # fmt: skip
    return out


def _sizes(q, k_cache, keys_per_tile: int, min_rows: int = 16) -> dict[str, int]:
    """The kernels' constants."""
    group = q.shape[1] // k_cache.shape[2]
    return dict(
        GROUP=group, BLOCK_M=max(min_rows, triton.next_power_of_2(group)), HEAD_DIM=q.shape[2],
        BLOCK_SIZE=k_cache.shape[1], BLOCK_N=keys_per_tile,
    )  # fmt: skip
