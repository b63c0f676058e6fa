"""Lesson 08: attention over a paged KV cache in two Triton kernels, one for decodes and one for prefills.

Shapes, here and below: T query tokens of B sequences, Hq query heads, Hkv KV heads, D numbers a head, M blocks a table.
The kernels run compiled on a GPU, and through Triton's interpreter on any machine.

The online softmax is that of Milakov and Gimelshein 2018 (https://arxiv.org/abs/1805.02867) and FlashAttention (Dao et al. 2022,
https://arxiv.org/abs/2205.14135); cutting one sequence's keys into splits is Flash-Decoding (Dao et al. 2023).
"""

import triton
import triton.language as tl


@triton.jit
def online_softmax(scores, row_max, row_sum, acc):
    """One turn of the online softmax, in base 2: the weights of the new keys, and the state rescaled to the new maximum."""
    new_max = tl.maximum(row_max, tl.max(scores, axis=1))
    # A row that has seen no key yet has the maximum minus infinity, and -inf minus -inf is NaN.
    reference = tl.where(new_max == float("-inf"), 0.0, new_max)
    weights = tl.exp2(scores - reference[:, None])
    rescale = tl.exp2(row_max - reference)
    return weights, new_max, row_sum * rescale + tl.sum(weights, axis=1), acc * rescale[:, None]


@triton.jit
def places_of(blocks, position, stride_block, stride_slot, BLOCK_SIZE: tl.constexpr, USE_INT64: tl.constexpr):
    """Where the keys of these positions begin in a cache, counted in numbers. In a large cache that takes 64 bits."""
    if USE_INT64:
        blocks = blocks.to(tl.int64)
    return blocks * stride_block + (position % BLOCK_SIZE) * stride_slot


@triton.jit
def decode_kernel(
    q, k_cache, v_cache, block_tables, context_lens, cu_seqlens_q, out, partial_out, partial_lse, scale,
    stride_q, stride_q_head, stride_out, stride_out_head, stride_block, stride_slot, stride_head, stride_table,
    GROUP: tl.constexpr, BLOCK_M: tl.constexpr, HEAD_DIM: tl.constexpr, DIM: tl.constexpr, BLOCK_SIZE: tl.constexpr,
    BLOCK_N: tl.constexpr, SPLIT: tl.constexpr, NUM_SPLITS: tl.constexpr, RAGGED: tl.constexpr, USE_INT64: tl.constexpr,
):  # fmt: skip
    """Sequences with one new token. A program has all query heads of one KV head, and one split of one sequence's keys."""
    kv_head, seq, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    token = seq
    if RAGGED:
        token = tl.load(cu_seqlens_q + seq)
        if tl.load(cu_seqlens_q + seq + 1) - token != 1:
            return
    start = split * SPLIT
    context_len = tl.load(context_lens + seq)
    if start >= context_len:
        return
    end = tl.minimum(start + SPLIT, context_len)

    row, dim, offset = tl.arange(0, BLOCK_M), tl.arange(0, DIM), tl.arange(0, BLOCK_N)
    head = kv_head * GROUP + row
    is_row, is_dim = row < GROUP, dim < HEAD_DIM
    in_query = is_row[:, None] & is_dim[None, :]
    token = token.to(tl.int64)
    queries = tl.load(q + token * stride_q + head[:, None] * stride_q_head + dim[None, :], mask=in_query, other=0.0)
    row_max = tl.full([BLOCK_M], float("-inf"), tl.float32)
    row_sum = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, DIM], tl.float32)

    table = block_tables + seq.to(tl.int64) * stride_table
    k_head, v_head = k_cache + kv_head * stride_head, v_cache + kv_head * stride_head
    for first in range(start, end, BLOCK_N):
        position = first + offset
        is_key = position < end
        blocks = tl.load(table + position // BLOCK_SIZE, mask=is_key, other=0)
        place = places_of(blocks, position, stride_block, stride_slot, BLOCK_SIZE, USE_INT64)
        keys = tl.load(k_head + place[None, :] + dim[:, None], mask=is_key[None, :] & is_dim[:, None], other=0.0)
        scores = tl.dot(queries, keys, input_precision="ieee") * scale
        scores = tl.where(is_key[None, :], scores, float("-inf"))
        weights, row_max, row_sum, acc = online_softmax(scores, row_max, row_sum, acc)
        # Cells that hold no token may hold NaN, and 0 x NaN is NaN: they are read as 0.
        values = tl.load(v_head + place[:, None] + dim[None, :], mask=is_key[:, None] & is_dim[None, :], other=0.0)
        acc = tl.dot(weights.to(values.dtype), values, acc, input_precision="ieee")

    result = acc / row_sum[:, None]
    if NUM_SPLITS == 1:
        place = token * stride_out + head[:, None] * stride_out_head + dim[None, :]
        tl.store(out + place, result.to(out.dtype.element_ty), mask=in_query)
    else:
        partial = (token * tl.num_programs(0) * GROUP + head) * NUM_SPLITS + split
        tl.store(partial_out + partial[:, None] * HEAD_DIM + dim[None, :], result, mask=in_query)
        tl.store(partial_lse + partial, row_max + tl.log2(row_sum), mask=is_row)


@triton.jit
def merge_kernel(
    partial_out, partial_lse, context_lens, cu_seqlens_q, out, stride_out, stride_out_head,
    HEAD_DIM: tl.constexpr, DIM: tl.constexpr, SPLIT: tl.constexpr, NUM_SPLITS: tl.constexpr, SPLITS: tl.constexpr, RAGGED: tl.constexpr,
):  # fmt: skip
    """Join the splits of one query head: each counts by its share of the whole sum of exponentials."""
    head, seq = tl.program_id(0), tl.program_id(1)
    token = seq
    if RAGGED:
        token = tl.load(cu_seqlens_q + seq)
        if tl.load(cu_seqlens_q + seq + 1) - token != 1:
            return
    token = token.to(tl.int64)
    split, dim = tl.arange(0, SPLITS), tl.arange(0, DIM)
    is_used, is_dim = split < tl.cdiv(tl.load(context_lens + seq), SPLIT), dim < HEAD_DIM
    partial = (token * tl.num_programs(0) + head) * NUM_SPLITS + split
    lse = tl.load(partial_lse + partial, mask=is_used, other=float("-inf"))
    weights = tl.exp2(lse - tl.max(lse, axis=0))
    pieces = tl.load(
        partial_out + partial[:, None] * HEAD_DIM + dim[None, :], mask=is_used[:, None] & is_dim[None, :], other=0.0
    )
    result = tl.sum(pieces * weights[:, None], axis=0) / tl.sum(weights, axis=0)
    tl.store(out + token * stride_out + head * stride_out_head + dim, result.to(out.dtype.element_ty), mask=is_dim)


@triton.jit
def sequence_of(tile, cu_seqlens_q, num_seqs, TOKENS: tl.constexpr):
    """The sequence that a tile of the row belongs to, by bisection: sequence i has its tiles from cu_seqlens_q[i] // TOKENS + i on.

    So the host needs no length of any sequence to know how many tiles are enough: T // TOKENS + B.
    """
    low, high = 0, num_seqs
    while high - low > 1:
        middle = (low + high) // 2
        if tl.load(cu_seqlens_q + middle) // TOKENS + middle <= tile:
            low = middle
        else:
            high = middle
    return low


@triton.jit
def prefill_kernel(
    q, k_cache, v_cache, block_tables, context_lens, cu_seqlens_q, out, scale, num_seqs,
    stride_q, stride_q_head, stride_out, stride_out_head, stride_block, stride_slot, stride_head, stride_table,
    GROUP: tl.constexpr, BLOCK_M: tl.constexpr, TOKENS: tl.constexpr, HEAD_DIM: tl.constexpr, DIM: tl.constexpr, BLOCK_SIZE: tl.constexpr,
    BLOCK_N: tl.constexpr, USE_INT64: tl.constexpr,
):  # fmt: skip
    """Sequences with several new tokens. A program has TOKENS neighbouring tokens, with all query heads of one KV head."""
    # The last tokens see most keys: their programs start first, and the short ones fill the gaps at the end.
    kv_head, tile = tl.program_id(0), tl.num_programs(1) - 1 - tl.program_id(1)
    seq = sequence_of(tile, cu_seqlens_q, num_seqs, TOKENS)
    begin = tl.load(cu_seqlens_q + seq)
    q_len = tl.load(cu_seqlens_q + seq + 1) - begin
    first_token = (tile - begin // TOKENS - seq) * TOKENS
    if first_token >= q_len or q_len == 1:
        return
    context_len = tl.load(context_lens + seq)

    row, dim, offset = tl.arange(0, BLOCK_M), tl.arange(0, DIM), tl.arange(0, BLOCK_N)
    token, head = first_token + row // GROUP, kv_head * GROUP + row % GROUP
    is_dim = dim < HEAD_DIM
    in_query = ((row < TOKENS * GROUP) & (token < q_len))[:, None] & is_dim[None, :]
    line = (begin + token).to(tl.int64)[:, None]
    queries = tl.load(q + line * stride_q + head[:, None] * stride_q_head + dim[None, :], mask=in_query, other=0.0)
    query_position = context_len - q_len + token
    first_position = context_len - q_len + first_token
    end = tl.minimum(first_position + TOKENS, context_len)
    row_max = tl.full([BLOCK_M], float("-inf"), tl.float32)
    row_sum = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, DIM], tl.float32)

    table = block_tables + seq.to(tl.int64) * stride_table
    k_head, v_head = k_cache + kv_head * stride_head, v_cache + kv_head * stride_head
    # Up to here every token of the program sees every key: nothing to mask, and every row has a maximum.
    diagonal = (first_position + 1) // BLOCK_N * BLOCK_N
    for first in range(0, diagonal, BLOCK_N):
        position = first + offset
        place = places_of(
            tl.load(table + position // BLOCK_SIZE), position, stride_block, stride_slot, BLOCK_SIZE, USE_INT64
        )
        keys = tl.load(k_head + place[None, :] + dim[:, None], mask=is_dim[:, None], other=0.0)
        values = tl.load(v_head + place[:, None] + dim[None, :], mask=is_dim[None, :], other=0.0)
        scores = tl.dot(queries, keys, input_precision="ieee")
        new_max = tl.maximum(row_max, tl.max(scores, axis=1) * scale)
        weights = tl.exp2(scores * scale - new_max[:, None])
        rescale = tl.exp2(row_max - new_max)
        row_max, row_sum, acc = new_max, row_sum * rescale + tl.sum(weights, axis=1), acc * rescale[:, None]
        acc = tl.dot(weights.to(values.dtype), values, acc, input_precision="ieee")
    for first in range(diagonal, end, BLOCK_N):
        position = first + offset
        is_key = position < end
        place = places_of(
            tl.load(table + position // BLOCK_SIZE, mask=is_key, other=0),
            position,
            stride_block,
            stride_slot,
            BLOCK_SIZE,
            USE_INT64,
        )
        keys = tl.load(k_head + place[None, :] + dim[:, None], mask=is_key[None, :] & is_dim[:, None], other=0.0)
        scores = tl.dot(queries, keys, input_precision="ieee") * scale
        scores = tl.where(position[None, :] <= query_position[:, None], scores, float("-inf"))
        weights, row_max, row_sum, acc = online_softmax(scores, row_max, row_sum, acc)
        values = tl.load(v_head + place[:, None] + dim[None, :], mask=is_key[:, None] & is_dim[None, :], other=0.0)
        acc = tl.dot(weights.to(values.dtype), values, acc, input_precision="ieee")

    result = (acc / row_sum[:, None]).to(out.dtype.element_ty)
    tl.store(out + line * stride_out + head[:, None] * stride_out_head + dim[None, :], result, mask=in_query)
