"""Lesson 07: Triton kernels over a KV cache: the cache write, attention over block tables.

Shapes: N sequences, T new tokens, Hq query heads, Hkv KV heads, D elements per head, M entries per block table. All
strides count elements, and the last axis of every tensor is contiguous. D and the block size are powers of two here;
lesson 08 lifts that.
"""

import torch
import triton
import triton.language as tl

from lessons_lib.kernels.validation import check_alike


@triton.jit
def write_kernel(new, cache, slot_mapping, n_elements, stride_new, stride_slot, BLOCK: tl.constexpr):
    """Write new keys (or values) into their cache slots. Program i writes new token i, all KV heads at once.

    Args:
        new: pointer to [T, n_elements]: the keys (or values) of the new tokens.
        cache: pointer to [num_blocks * block_size, n_elements]: one row per cache slot, of the dtype of `new`.
        slot_mapping: pointer to int64 [T]: the cache slot of each new token, counted over the whole pool.
        n_elements: elements per token, Hkv * D.
        stride_new: elements from one token to the next in `new`.
        stride_slot: elements from one slot to the next in `cache`.
        BLOCK: a power of two, at least `n_elements`.
    """
    token, offsets = tl.program_id(0), tl.arange(0, BLOCK)
    mask = offsets < n_elements
    slot = tl.load(slot_mapping + token)
    values = tl.load(new + token * stride_new + offsets, mask=mask)
    tl.store(cache + slot * stride_slot + offsets, values, mask=mask)


@triton.jit
def add_keys(scores, values, row_max, row_sum, acc):
    """Lesson 06's `add_block`, for one query. Called from a kernel.

    Args:
        scores: tile [keys]; minus infinity where there is no key. values: tile [keys, HEAD_DIM]; 0 where there is none.
        row_max, row_sum: largest score and sum of weights so far. acc: tile [HEAD_DIM], weighted sum of values so far.

    Returns:
        the new row_max, row_sum and acc.
    """
    new_max = tl.maximum(row_max, tl.max(scores, axis=0))
    weights = tl.exp(scores - new_max)
    rescale = tl.exp(row_max - new_max)
    acc = acc * rescale + tl.sum(weights[:, None] * values, axis=0)
    return new_max, row_sum * rescale + tl.sum(weights, axis=0), acc


@triton.jit
def attend_blocks(
    query, keys, values, table, num_tokens, scale, stride_block, stride_slot,
    HEAD_DIM: tl.constexpr, BLOCK_SIZE: tl.constexpr,
):  # fmt: skip
    """Attention of one query head of one new token, one block of the KV cache per iteration. Called from a kernel.

    Args:
        query: float32 tile [HEAD_DIM], not a pointer.
        keys, values: pointers to the first element of the query's KV head in the caches.
        table: pointer to the sequence's block table, int32 [M].
        num_tokens: tokens of the sequence, the new one included; at least 1.
        scale: factor of the scores, usually 1 / sqrt(HEAD_DIM).
        stride_block, stride_slot: elements from one block to the next, and from one slot to the next, the same in both
            caches.
        HEAD_DIM, BLOCK_SIZE: powers of two.

    Returns:
        the attention output, a tile [HEAD_DIM] of float32.
    """
    slot, dim = tl.arange(0, BLOCK_SIZE), tl.arange(0, HEAD_DIM)
    row_max, row_sum = float("-inf"), 0.0
    acc = tl.zeros([HEAD_DIM], tl.float32)
    for first in range(0, num_tokens, BLOCK_SIZE):
        # In a large cache, block * stride_block does not fit into 32 bits.
        block = tl.load(table + first // BLOCK_SIZE).to(tl.int64)
        is_key = first + slot < num_tokens
        offsets = block * stride_block + slot[:, None] * stride_slot + dim[None, :]
        block_keys = tl.load(keys + offsets, mask=is_key[:, None], other=0.0)
        block_values = tl.load(values + offsets, mask=is_key[:, None], other=0.0)
        scores = tl.sum(query[None, :] * block_keys, axis=1) * scale
        scores = tl.where(is_key, scores, float("-inf"))
        row_max, row_sum, acc = add_keys(scores, block_values, row_max, row_sum, acc)
    return acc / row_sum


@triton.jit
def single_head_kernel(
    ATTEND: tl.constexpr, q, k_cache, v_cache, block_table, out, num_tokens, scale, stride_block, stride_slot,
    HEAD_DIM: tl.constexpr, BLOCK_SIZE: tl.constexpr,
):  # fmt: skip
    """Run `ATTEND`, a function with the arguments of `attend_blocks`, once: one query head of one sequence over a cache
    with one KV head. The grid has a single program.

    Args:
        q, out: pointers to [HEAD_DIM].
        k_cache, v_cache: pointers to [num_blocks, BLOCK_SIZE, HEAD_DIM]. block_table: pointer to int32 [M].
        The others: see `attend_blocks`.
    """
    dim = tl.arange(0, HEAD_DIM)
    query = tl.load(q + dim).to(tl.float32)
    result = ATTEND(
        query, k_cache, v_cache, block_table, num_tokens, scale, stride_block, stride_slot, HEAD_DIM, BLOCK_SIZE
    )
    tl.store(out + dim, result)


@triton.jit
def decode_heads_kernel(
    q, k_cache, v_cache, block_tables, context_lens, out, scale,
    stride_seq, stride_q_head, stride_block, stride_slot, stride_head, stride_table,
    GROUP: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_SIZE: tl.constexpr,
):  # fmt: skip
    """Attention of one new token per sequence. Program (i, h) computes query head h of sequence i.

    Args:
        q, out: pointers to [N, Hq, D]. The caches may have another dtype; products are computed in float32.
        k_cache, v_cache: pointers to [num_blocks, block_size, Hkv, D].
        block_tables: pointer to int32 [N, M].
        context_lens: pointer to int32 [N]: tokens of each sequence, the new one included.
        scale: factor of the scores.
        stride_seq, stride_q_head: of q and out, elements from one sequence and query head to the next.
        stride_block, stride_slot, stride_head: of both caches, elements from one block, slot and KV head to the next.
        stride_table: of block_tables, elements from one table to the next.
        GROUP: query heads per KV head, Hq / Hkv.
        HEAD_DIM, BLOCK_SIZE: powers of two.
    """
    seq, head, dim = tl.program_id(0), tl.program_id(1), tl.arange(0, HEAD_DIM)
    kv_head = head // GROUP
    offsets = seq * stride_seq + head * stride_q_head + dim
    query = tl.load(q + offsets).to(tl.float32)
    keys, values = k_cache + kv_head * stride_head, v_cache + kv_head * stride_head
    table = block_tables + seq * stride_table
    num_tokens = tl.load(context_lens + seq)
    result = attend_blocks(
        query, keys, values, table, num_tokens, scale, stride_block, stride_slot, HEAD_DIM, BLOCK_SIZE
    )
    tl.store(out + offsets, result)


def rows_to_write(new, cache) -> torch.Tensor:
    """Reshape new keys or values to one row per token, [T, Hkv * D], contiguous within a row.

    Raises:
        ValueError: the slots of the cache aren't evenly spaced, each contiguous; `write_kernel` needs that.
    """
    _, block_size, _, head_dim = cache.shape
    if cache.stride(0) != block_size * cache.stride(1) or cache.stride()[2:] != (head_dim, 1):
        raise ValueError(
            f"cache has shape {list(cache.shape)} and strides {list(cache.stride())}; its slots must be evenly spaced "
            "and each slot contiguous. Use separate tensors for keys and values."
        )
    rows = new.reshape(len(new), new.shape[1] * new.shape[2])
    return rows if rows.stride(1) == 1 else rows.contiguous()


def decode_heads(q, k_cache, v_cache, block_tables, context_lens, scale, kernel=decode_heads_kernel) -> torch.Tensor:
    """Attention of one new token per sequence.

    Args:
        q: [N, Hq, D].
        k_cache, v_cache: [num_blocks, block_size, Hkv, D], with equal strides.
        block_tables: int32 [N, M].
        context_lens: int32 [N], tokens of each sequence, the new one included.
        scale: factor of the scores.
        kernel: `decode_heads_kernel`, or your own.

    Returns:
        tensor [N, Hq, D], of the dtype of q.

    Raises:
        ValueError: the two caches are laid out differently, or the head size or the block size isn't a power of two.
    """
    _check_caches(k_cache, v_cache)
    q = q.contiguous()
    out = torch.empty_like(q)
    (num_seqs, q_heads, head_dim), (_, block_size, kv_heads, _) = q.shape, k_cache.shape
    if num_seqs:
        kernel[(num_seqs, q_heads)](
            q, k_cache, v_cache, block_tables, context_lens, out, scale,
            *q.stride()[:2], *k_cache.stride()[:3], block_tables.stride(0),
            GROUP=q_heads // kv_heads, HEAD_DIM=head_dim, BLOCK_SIZE=block_size,
        )  # fmt: skip
    return out


def _check_caches(k_cache, v_cache) -> None:
    check_alike(k_cache, v_cache)
    _, block_size, _, head_dim = k_cache.shape
    if v_cache.shape[-1] != head_dim:
        raise ValueError(
            f"keys have the head size {head_dim}, values {v_cache.shape[-1]}; this kernel needs equal ones. Lesson "
            "08's kernels don't."
        )
    if triton.next_power_of_2(head_dim) != head_dim or triton.next_power_of_2(block_size) != block_size:
        raise ValueError(
            f"the head size is {head_dim} and the block size {block_size}; this kernel needs powers of two. Lesson "
            "08's kernels don't."
        )
