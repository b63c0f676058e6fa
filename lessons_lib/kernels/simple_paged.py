"""Lesson 07: writing to a paged cache, and attention of one new token for each sequence over it, as Triton kernels.

Shapes: B sequences, Hq query heads, Hkv KV heads, D numbers a head, M blocks a table. D and the slots of a block are powers of two.
"""

import torch
import triton
import triton.language as tl

from lessons_lib.kernels.validation import check_alike


@triton.jit
def write_kernel(new, cache, slot_mapping, numbers, stride_new, stride_slot, NUMBERS: tl.constexpr):
    """Put new keys (or values) in their places in the cache. Program i has new token i, with all its KV heads.

    Args:
        new: pointer to [T, numbers]; cache: pointer to [slots, numbers]; numbers = Hkv x D.
        slot_mapping: pointer to int64 [T], the slot of each new token.
        stride_new, stride_slot: numbers from one token to the next, in `new` and in the cache.
        NUMBERS: a power of two, at least `numbers`.
    """
    token, number = tl.program_id(0), tl.arange(0, NUMBERS)
    is_number = number < numbers
    slot = tl.load(slot_mapping + token)
    line = tl.load(new + token * stride_new + number, mask=is_number)
    tl.store(cache + slot * stride_slot + number, line, mask=is_number)


@triton.jit
def attend_blocks(
    query,
    keys,
    values,
    table,
    num_tokens,
    scale,
    stride_block,
    stride_slot,
    HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
):
    """Attention of one query head of one new token, block by block. Called from a kernel.

    Args:
        query: the numbers of the query, [HEAD_DIM], float32.
        keys, values: pointers to where its KV head begins in the caches.
        table: pointer to the block table of the sequence, int32.
        num_tokens: tokens of the sequence, the new one included, 1 or more.
        scale: what the scores are multiplied by.
        stride_block, stride_slot: numbers from one block to the next, and from one slot to the next, in the caches.
        HEAD_DIM, BLOCK_SIZE: powers of two.

    Returns:
        the attention, [HEAD_DIM], float32.
    """
    offset, dim = tl.arange(0, BLOCK_SIZE), tl.arange(0, HEAD_DIM)
    row_max, row_sum = float("-inf"), 0.0
    acc = tl.zeros([HEAD_DIM], tl.float32)
    for first in range(0, num_tokens, BLOCK_SIZE):
        # In a large cache, block x stride_block is more than 32 bits can hold.
        block = tl.load(table + first // BLOCK_SIZE).to(tl.int64)
        is_key = first + offset < num_tokens
        place = block * stride_block + offset[:, None] * stride_slot + dim[None, :]
        block_keys = tl.load(keys + place, mask=is_key[:, None], other=0.0)
        block_values = tl.load(values + place, mask=is_key[:, None], other=0.0)
        scores = tl.sum(query[None, :] * block_keys, axis=1) * scale
        scores = tl.where(is_key, scores, float("-inf"))
        new_max = tl.maximum(row_max, tl.max(scores, axis=0))
        weights = tl.exp(scores - new_max)
        rescale = tl.exp(row_max - new_max)
        row_sum = row_sum * rescale + tl.sum(weights, axis=0)
        acc = acc * rescale + tl.sum(weights[:, None] * block_values, axis=0)
        row_max = new_max
    return acc / row_sum


@triton.jit
def one_head_kernel(
    ATTEND: tl.constexpr, q, k_cache, v_cache, block_table, out, num_tokens, scale, stride_block, stride_slot,
    HEAD_DIM: tl.constexpr, BLOCK_SIZE: tl.constexpr,
):  # fmt: skip
    """One program: `ATTEND`, such as `attend_blocks`, for a single query head of a single sequence, in a cache with one KV head."""
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
    """Attention of one new token for each sequence. Program (i, h) has query head h of sequence i.

    Args:
        q, out: pointers to [B, Hq, D]; k_cache, v_cache: to [num_blocks, block_size, Hkv, D].
        block_tables: pointer to int32 [B, M]; context_lens: to int32 [B], tokens of each sequence, the new one included.
        scale: what the scores are multiplied by.
        stride_seq, stride_q_head: of q and out, numbers from one sequence to the next, and from one query head to the next.
        stride_block, stride_slot, stride_head: of the caches; stride_table: of block_tables.
        GROUP: query heads that share one KV head, Hq / Hkv; HEAD_DIM, BLOCK_SIZE: powers of two.
    """
    seq, head, dim = tl.program_id(0), tl.program_id(1), tl.arange(0, HEAD_DIM)
    kv_head = head // GROUP
    place = seq * stride_seq + head * stride_q_head + dim
    query = tl.load(q + place).to(tl.float32)
    keys, values = k_cache + kv_head * stride_head, v_cache + kv_head * stride_head
    table = block_tables + seq * stride_table
    num_tokens = tl.load(context_lens + seq)
    result = attend_blocks(
        query, keys, values, table, num_tokens, scale, stride_block, stride_slot, HEAD_DIM, BLOCK_SIZE
    )
    tl.store(out + place, result)


def write_cache(new, cache, slot_mapping, kernel=write_kernel) -> None:
    """Put new keys or values in their places.

    Args:
        new: [T, Hkv, D]; cache: [num_blocks, block_size, Hkv, D]; slot_mapping: int64 [T].
        kernel: `write_kernel`, or yours.

    Raises:
        ValueError: the slots do not lie evenly apart; nothing is written.
    """
    if not len(new):
        return
    numbers = new.shape[1] * new.shape[2]
    lines = new.reshape(len(new), numbers).contiguous()
    _, block_size, _, head_dim = cache.shape
    if cache.stride(0) != block_size * cache.stride(1) or cache.stride()[2:] != (head_dim, 1):
        raise ValueError(
            f"cache has the shape {list(cache.shape)} and the strides {list(cache.stride())}; its slots must lie evenly apart, and the numbers of "
            "a slot side by side. Give keys and values a tensor each."
        )
    kernel[(len(new),)](
        lines, cache, slot_mapping, numbers, lines.stride(0), cache.stride(1), NUMBERS=triton.next_power_of_2(numbers)
    )


def decode_heads(q, k_cache, v_cache, block_tables, context_lens, scale, kernel=decode_heads_kernel) -> torch.Tensor:
    """Attention of one new token for each sequence; the arguments are those of `decode_heads_kernel`. `kernel` may be yours.

    Returns:
        tensor [B, Hq, D].

    Raises:
        ValueError: the two caches are laid out differently, or head size or block size is no power of two.
    """
    _check_caches(k_cache, v_cache)
    q = q.contiguous()
    out = torch.empty_like(q)
    (num_seqs, q_heads, head_dim), (_, block_size, kv_heads, _) = q.shape, k_cache.shape
    if num_seqs:
        kernel[(num_seqs, q_heads)](
            q, k_cache, v_cache, block_tables, context_lens, out, scale, *q.stride()[:2], *k_cache.stride()[:3], block_tables.stride(0),
            GROUP=q_heads // kv_heads, HEAD_DIM=head_dim, BLOCK_SIZE=block_size,
        )  # fmt: skip
    return out


def _check_caches(k_cache, v_cache) -> None:
    check_alike(k_cache, v_cache)
    _, block_size, _, head_dim = k_cache.shape
    if triton.next_power_of_2(head_dim) != head_dim or triton.next_power_of_2(block_size) != block_size:
        raise ValueError(
            f"heads have the size {head_dim} and blocks {block_size}; this kernel takes powers of two. Lesson 08's take others."
        )
