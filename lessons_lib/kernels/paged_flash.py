"""Lesson 08: attention over a paged KV cache in two Triton kernels, one for decodes and one for prefills.

Shapes, here and in launch.py: T query tokens of N sequences, Hq query heads, Hkv KV heads, D elements per head of a
query or key, V per head of a value (in most models V is D), M entries per block table. The last axis of every tensor is
contiguous, and a stride is the number of elements from one token, head, block, slot or table to the next. BLOCK_M,
BLOCK_N, BLOCK_D and BLOCK_V are sides of tiles, powers of two, at least 16. Scores, maxima and log-sum-exps are in base
2: the launcher multiplies the scale by log2(e).

The online softmax is that of Milakov and Gimelshein 2018 (https://arxiv.org/abs/1805.02867) and FlashAttention (Dao et
al. 2022, https://arxiv.org/abs/2205.14135); splitting one sequence's keys among programs is Flash-Decoding (Dao et al.
2023).
"""

import triton
import triton.language as tl

LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def online_softmax(scores, row_max, row_sum, acc):
    """One step of the online softmax, in base 2.

    Args:
        scores: tile [rows, keys] of float32, already multiplied by scale * log2(e); minus infinity for masked keys.
        row_max: [rows], largest score so far; minus infinity before the first key.
        row_sum: [rows], sum of the weights so far, relative to `row_max`.
        acc: [rows, D], weighted sum of the values so far, relative to `row_max`.

    Returns:
        the weights of these keys [rows, keys], the new maximum [rows], the new sum [rows], and `acc` rescaled to the
        new maximum [rows, D].
    """
    new_max = tl.maximum(row_max, tl.max(scores, axis=1))
    # A row that hasn't seen a key yet has the maximum -inf, and -inf - (-inf) is NaN.
    reference = tl.where(new_max == float("-inf"), 0.0, new_max)
    weights = tl.exp2(scores - reference[:, None])
    rescale = tl.exp2(row_max - reference)
    return weights, new_max, row_sum * rescale + tl.sum(weights, axis=1), acc * rescale[:, None]


@triton.jit
def unmasked_softmax(scores, scale, row_max, row_sum, acc):
    """`online_softmax` of scores before scaling, for a tile without masked keys, so that no row is empty."""
    new_max = tl.maximum(row_max, tl.max(scores, axis=1) * scale)
    weights = tl.exp2(scores * scale - new_max[:, None])
    rescale = tl.exp2(row_max - new_max)
    return weights, new_max, row_sum * rescale + tl.sum(weights, axis=1), acc * rescale[:, None]


@triton.jit
def cache_offsets(blocks, position, stride_block, stride_slot, BLOCK_SIZE: tl.constexpr, USE_INT64: tl.constexpr):
    """Offsets of the keys at these positions, in elements from the start of a KV head.

    Args:
        blocks, position: integer tiles of the same shape: the block of the pool, and the position in the sequence.
        stride_block, stride_slot: elements from one block to the next, and from one slot to the next.
        USE_INT64: True if offsets in this cache can exceed 32 bits.
    """
    if USE_INT64:
        blocks = blocks.to(tl.int64)
    return blocks * stride_block + (position % BLOCK_SIZE) * stride_slot


@triton.jit
def value_offset(offsets, HEAD_DIM: tl.constexpr, VALUE_DIM: tl.constexpr):
    """Convert key offsets to value offsets: both caches have the same layout, but head sizes may differ."""
    if VALUE_DIM == HEAD_DIM:
        return offsets
    else:
        return offsets // HEAD_DIM * VALUE_DIM


@triton.jit
def first_visible_key(query_position, WINDOW: tl.constexpr, CHUNKED: tl.constexpr):
    """First key visible to a query; negative if its window begins before the sequence."""
    if CHUNKED:
        return query_position // WINDOW * WINDOW
    else:
        return query_position - WINDOW + 1


@triton.jit
def start_with_sink(sinks, head, is_row, is_here):
    """Start the softmax with the head's sink, a key with a fixed score and no value; return maximum and sum.

    Args:
        sinks: pointer to [Hq], natural scores.
        head, is_row: [rows].
        is_here: True if this program includes the sink; elsewhere no key has been seen yet.
    """
    sink = tl.load(sinks + head, mask=is_row, other=0.0).to(tl.float32) * LOG2_E
    return tl.where(is_here, sink, float("-inf")), tl.where(is_here, 1.0, tl.zeros_like(sink))


@triton.jit
def with_terms(
    scores, position, query_position, head, is_row, alibi_slopes, WINDOW: tl.constexpr, CHUNKED: tl.constexpr,
    SOFTCAP: tl.constexpr,
):  # fmt: skip
    """Apply the softcap, ALiBi's bias and the window's mask to scores, each only if the layer has it.

    Args:
        scores: tile [rows, keys], already multiplied by scale * log2(e).
        position: [1, keys]; query_position: [rows, 1].
        head, is_row: [rows]; alibi_slopes: pointer to [Hq], or None.
        WINDOW, CHUNKED: see `decode_kernel`. SOFTCAP: the bound of the scores.
    """
    if SOFTCAP is not None:
        tanh = 1 - 2 / (tl.exp2(scores * (2 / SOFTCAP)) + 1)
        scores = tanh * (SOFTCAP * LOG2_E)
    if alibi_slopes is not None:
        slopes = tl.load(alibi_slopes + head, mask=is_row, other=0.0).to(tl.float32) * LOG2_E
        scores += slopes[:, None] * (position - query_position)
    if WINDOW is not None:
        scores = tl.where(position >= first_visible_key(query_position, WINDOW, CHUNKED), scores, float("-inf"))
    return scores


@triton.jit
def split_of(split, num_keys, min_tiles, max_splits, BLOCK_N: tl.constexpr):
    """Cut a sequence into splits, by its own length only: what else is in the batch doesn't change its result.

    Args:
        split: index of a split.
        num_keys: keys that the sequence's new token sees.
        min_tiles, max_splits: tiles of BLOCK_N keys per split, at least; splits, at most.

    Returns:
        the number of splits; the first key of this one and the end of its keys, counted from the first visible key. A
        split has keys if its first key is below num_keys.
    """
    tiles = tl.maximum(min_tiles, tl.cdiv(tl.cdiv(num_keys, max_splits), BLOCK_N))
    start = split * tiles * BLOCK_N
    return tl.cdiv(num_keys, tiles * BLOCK_N), start, tl.minimum(start + tiles * BLOCK_N, num_keys)


@triton.jit
def merge_if_last(
    finished, num_splits, partial_out, partial_lse, out, stride_out_head, GROUP: tl.constexpr,
    BLOCK_GROUP: tl.constexpr, VALUE_DIM: tl.constexpr, BLOCK_V: tl.constexpr, BLOCK_PARTS: tl.constexpr,
):  # fmt: skip
    """Merge the splits of a sequence and KV head if this program finishes last: an online softmax in which each split
    is like a key with the split's log-sum-exp as its score.

    Args:
        finished: pointer to an int32: number of finished programs. The last one resets it to 0.
        num_splits: number of programs, at least 1.
        partial_out, partial_lse, out: see `decode_kernel`; pointers to the first query head of this KV head.
        BLOCK_GROUP: a power of two, for GROUP. BLOCK_PARTS: splits to load at the same time, a power of two.
    """
    tl.debug_barrier()  # all threads store their part before the program is counted
    if tl.atomic_add(finished, 1) == num_splits - 1:
        head, value_dim = tl.arange(0, BLOCK_GROUP), tl.arange(0, BLOCK_V)
        is_head = head < GROUP
        in_out = is_head[:, None] & (value_dim < VALUE_DIM)[None, :]
        row_max = tl.full([BLOCK_GROUP], float("-inf"), tl.float32)
        row_sum = tl.zeros([BLOCK_GROUP], tl.float32)
        acc = tl.zeros([BLOCK_GROUP, BLOCK_V], tl.float32)
        for first in range(0, num_splits, BLOCK_PARTS):
            split = first + tl.arange(0, BLOCK_PARTS)
            is_split = (split < num_splits)[None, :]
            partial = head[:, None] * tl.num_programs(2) + split[None, :]
            lse = tl.load(partial_lse + partial, mask=is_head[:, None] & is_split, other=0.0)
            weights, row_max, row_sum, acc = online_softmax(
                tl.where(is_split, lse, float("-inf")), row_max, row_sum, acc
            )
            values = partial_out + partial[:, :, None] * VALUE_DIM + value_dim[None, None, :]
            values = tl.load(values, mask=in_out[:, None, :] & is_split[:, :, None], other=0.0)
            acc += tl.sum(weights[:, :, None] * values, axis=1)
        places = out + head[:, None] * stride_out_head + value_dim[None, :]
        tl.store(places, (acc / row_sum[:, None]).to(out.dtype.element_ty), mask=in_out)
        tl.store(finished, 0)


@triton.jit(do_not_specialize=["min_tiles", "max_splits"])
def decode_kernel(
    q, k_cache, v_cache, block_tables, context_lens, cu_seqlens_q, out, partial_out, partial_lse, finished, scale,
    min_tiles, max_splits,
    stride_q, stride_q_head, stride_out, stride_out_head, stride_block, stride_slot, stride_head, stride_table,
    GROUP: tl.constexpr, BLOCK_M: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr, VALUE_DIM: tl.constexpr,
    BLOCK_V: tl.constexpr, BLOCK_SIZE: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_GROUP: tl.constexpr,
    BLOCK_PARTS: tl.constexpr, USE_INT64: tl.constexpr, sinks=None, alibi_slopes=None,
    WINDOW: tl.constexpr = None, CHUNKED: tl.constexpr = False, SOFTCAP: tl.constexpr = None,
):  # fmt: skip
    """Attention of the sequences with one new token.

    The grid is (Hkv, N, S): program (h, i, s) computes all query heads of KV head h, over split s of sequence i's keys.
    S is at least the splits of any sequence; programs without keys exit immediately.

    Args:
        q, out: pointers to [T, Hq, D] and [T, Hq, V]: the packed batch, one sequence after another.
        k_cache, v_cache: pointers to [num_blocks, block_size, Hkv, D] and [..., V], of the dtype of q; their strides
            differ by the factor V / D.
        block_tables: pointer to int32 [N, M].
        context_lens: pointer to int32 [N]: tokens of each sequence, the new ones included.
        cu_seqlens_q: pointer to int32 [N + 1], where each sequence starts in the packed batch.
        partial_out, partial_lse: pointers to float32 [N, Hq, S, V] and [N, Hq, S], contiguous: each split's attention,
            divided by its own sum, and its log-sum-exp in base 2. Used where a sequence has several splits.
        finished: pointer to int32 [N * Hkv], zeros before and after: see `merge_if_last`.
        scale: factor of the scores, log2(e) included.
        min_tiles, max_splits: see `split_of`.
        stride_block, stride_slot, stride_head: of k_cache.
        GROUP: query heads per KV head. BLOCK_M: rows of the query tile, for GROUP. BLOCK_D, BLOCK_V: for D and V.
        BLOCK_SIZE: slots per block of the cache. BLOCK_N: keys per iteration of the loop.
        BLOCK_GROUP, BLOCK_PARTS: see `merge_if_last`. USE_INT64: see `cache_offsets`.
        The rest is for layers with ScoreTerms, at no cost for others. sinks, alibi_slopes: pointers to [Hq]. WINDOW:
            maximum number of keys that a query sees; CHUNKED: True if a query sees only keys since the last multiple of
            WINDOW. SOFTCAP: bound on the scores.
    """
    kv_head, seq, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    token = tl.load(cu_seqlens_q + seq)
    if not has_own_kernel(tl.load(cu_seqlens_q + seq + 1) - token):
        return
    context_len = tl.load(context_lens + seq)
    first_key = 0
    if WINDOW is not None:
        first_key = tl.maximum(first_visible_key(context_len - 1, WINDOW, CHUNKED), 0)
    num_splits, start, end = split_of(split, context_len - first_key, min_tiles, max_splits, BLOCK_N)
    if start >= context_len - first_key:
        return
    start, end = start + first_key, end + first_key

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

    result = acc / row_sum[:, None]
    out += token * stride_out + kv_head * GROUP * stride_out_head
    if num_splits == 1:
        places = out + row[:, None] * stride_out_head + value_dim[None, :]
        tl.store(places, result.to(out.dtype.element_ty), mask=in_out)
    else:
        pair = seq.to(tl.int64) * tl.num_programs(0) + kv_head
        partial_lse += pair * GROUP * tl.num_programs(2)
        partial_out += pair * GROUP * tl.num_programs(2) * VALUE_DIM
        partial = row * tl.num_programs(2) + split
        tl.store(partial_out + partial[:, None] * VALUE_DIM + value_dim[None, :], result, mask=in_out)
        tl.store(partial_lse + partial, row_max + tl.log2(row_sum), mask=is_row)
        merge_if_last(
            finished + pair, num_splits, partial_out, partial_lse, out, stride_out_head, GROUP, BLOCK_GROUP, VALUE_DIM,
            BLOCK_V, BLOCK_PARTS,
        )  # fmt: skip


@triton.jit
def find_seq_idx(tile, cu_seqlens_q, num_seqs, BLOCK_Q: tl.constexpr):
    """Find the sequence of a tile of the packed batch by binary search.

    Sequence i owns the tiles from cu_seqlens_q[i] // BLOCK_Q + i on. So T // BLOCK_Q + N tiles are enough, and the host
    needs no sequence's length.

    """
    low, high = 0, num_seqs
    while high - low > 1:
        middle = (low + high) // 2
        if tl.load(cu_seqlens_q + middle) // BLOCK_Q + middle <= tile:
            low = middle
        else:
            high = middle
    return low


@triton.jit
def longest_first():
    """This program's tile, counted from the last.

    The last tokens of a prompt see the most keys: their programs start first, and short ones fill the gaps.
    """
    return tl.num_programs(1) - 1 - tl.program_id(1)


@triton.jit
def first_masked_key(first_position, BLOCK_N: tl.constexpr):
    """First key, a multiple of BLOCK_N, that needs a mask: tokens from `first_position` on see all keys before it."""
    return (first_position + 1) // BLOCK_N * BLOCK_N


@triton.jit
def has_own_kernel(q_len):
    """True if `decode_kernel` computes a sequence with this many new tokens."""
    return q_len == 1


@triton.jit(do_not_specialize=["num_seqs"])
def prefill_kernel(
    q, k_cache, v_cache, block_tables, context_lens, cu_seqlens_q, out, scale, num_seqs,
    stride_q, stride_q_head, stride_out, stride_out_head, stride_block, stride_slot, stride_head, stride_table,
    GROUP: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_Q: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr,
    VALUE_DIM: tl.constexpr, BLOCK_V: tl.constexpr, BLOCK_SIZE: tl.constexpr, BLOCK_N: tl.constexpr,
    USE_INT64: tl.constexpr, sinks=None, alibi_slopes=None, WINDOW: tl.constexpr = None, CHUNKED: tl.constexpr = False,
    SOFTCAP: tl.constexpr = None,
):  # fmt: skip
    """Causal attention of the sequences with several new tokens.

    The grid is (Hkv, T // BLOCK_Q + N): program (h, t) computes tile t of the packed batch, BLOCK_Q neighboring tokens
    of one sequence, with all query heads of KV head h. Row r of the tile is query head r % GROUP of token r // GROUP.

    Args:
        num_seqs: N. BLOCK_Q: tokens per tile. BLOCK_M: rows of the tile, for BLOCK_Q * GROUP.
        The rest: see `decode_kernel`.
    """
    kv_head, tile = tl.program_id(0), longest_first()
    seq = find_seq_idx(tile, cu_seqlens_q, num_seqs, BLOCK_Q)
    begin = tl.load(cu_seqlens_q + seq)
    q_len = tl.load(cu_seqlens_q + seq + 1) - begin
    first_token = (tile - begin // BLOCK_Q - seq) * BLOCK_Q
    if first_token >= q_len or has_own_kernel(q_len):
        return
    context_len = tl.load(context_lens + seq)

    row, dim, key = tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_D), tl.arange(0, BLOCK_N)
    token, head = first_token + row // GROUP, kv_head * GROUP + row % GROUP
    value_dim = tl.arange(0, BLOCK_V)
    is_dim, is_value_dim = dim < HEAD_DIM, value_dim < VALUE_DIM
    is_row = (row < BLOCK_Q * GROUP) & (token < q_len)
    in_query, in_out = is_row[:, None] & is_dim[None, :], is_row[:, None] & is_value_dim[None, :]
    packed = (begin + token).to(tl.int64)[:, None]  # index of each row's token in the packed batch
    queries = tl.load(q + packed * stride_q + head[:, None] * stride_q_head + dim[None, :], mask=in_query, other=0.0)
    query_position = context_len - q_len + token
    first_position = context_len - q_len + first_token
    end = tl.minimum(first_position + BLOCK_Q, context_len)
    row_max = tl.full([BLOCK_M], float("-inf"), tl.float32)
    row_sum = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, BLOCK_V], tl.float32)
    if sinks is not None:
        row_max, row_sum = start_with_sink(sinks, head, is_row, True)

    table = block_tables + seq.to(tl.int64) * stride_table
    k_head, v_head = k_cache + kv_head * stride_head, v_cache + value_offset(kv_head * stride_head, HEAD_DIM, VALUE_DIM)
    first_key = 0
    diagonal = first_masked_key(first_position, BLOCK_N)
    if WINDOW is not None:
        first_key = tl.maximum(first_visible_key(first_position, WINDOW, CHUNKED), 0)
    if WINDOW is not None or SOFTCAP is not None or alibi_slopes is not None:  # only the second loop applies the terms
        diagonal = first_key
    for first in range(first_key, diagonal, BLOCK_N):  # every row sees every key: no mask
        position = first + key
        blocks = tl.load(table + position // BLOCK_SIZE)
        offsets = cache_offsets(blocks, position, stride_block, stride_slot, BLOCK_SIZE, USE_INT64)
        keys = tl.load(k_head + offsets[None, :] + dim[:, None], mask=is_dim[:, None], other=0.0)
        value_rows = v_head + value_offset(offsets, HEAD_DIM, VALUE_DIM)[:, None]
        values = tl.load(value_rows + value_dim[None, :], mask=is_value_dim[None, :], other=0.0)
        scores = tl.dot(queries, keys, input_precision="ieee")
        weights, row_max, row_sum, acc = unmasked_softmax(scores, scale, row_max, row_sum, acc)
        acc = tl.dot(weights.to(values.dtype), values, acc, input_precision="ieee")
    for first in range(diagonal, end, BLOCK_N):
        position = first + key
        is_key = position < end
        blocks = tl.load(table + position // BLOCK_SIZE, mask=is_key, other=0)
        offsets = cache_offsets(blocks, position, stride_block, stride_slot, BLOCK_SIZE, USE_INT64)
        keys = tl.load(k_head + offsets[None, :] + dim[:, None], mask=is_key[None, :] & is_dim[:, None], other=0.0)
        scores = tl.dot(queries, keys, input_precision="ieee") * scale
        scores = with_terms(
            scores, position[None, :], query_position[:, None], head, is_row, alibi_slopes, WINDOW, CHUNKED, SOFTCAP
        )
        scores = tl.where(position[None, :] <= query_position[:, None], scores, float("-inf"))
        weights, row_max, row_sum, acc = online_softmax(scores, row_max, row_sum, acc)
        value_rows = v_head + value_offset(offsets, HEAD_DIM, VALUE_DIM)[:, None]
        values = tl.load(value_rows + value_dim[None, :], mask=is_key[:, None] & is_value_dim[None, :], other=0.0)
        acc = tl.dot(weights.to(values.dtype), values, acc, input_precision="ieee")

    if WINDOW is not None:  # padding rows may see no key
        row_sum = tl.where(row_sum == 0.0, 1.0, row_sum)
    result = (acc / row_sum[:, None]).to(out.dtype.element_ty)
    tl.store(out + packed * stride_out + head[:, None] * stride_out_head + value_dim[None, :], result, mask=in_out)
