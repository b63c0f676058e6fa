"""Lesson 08: a kernel between lesson 07's and `decode_groups_kernel`, to time each idea.

It has Ideas 1 and 2, a group of heads and a tile of keys, but multiplies element by element like lesson 07's.
"""

import torch
import triton
import triton.language as tl

from lessons_lib.kernels.paged_flash import LOG2_E, online_softmax


@triton.jit
def decode_groups_by_sums_kernel(
    q, k_cache, v_cache, block_tables, context_lens, out, scale,
    stride_seq, stride_q_head, stride_block, stride_slot, stride_head, stride_table,
    GROUP: tl.constexpr, BLOCK_M: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_SIZE: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """See `decode_groups_kernel`. Without `tl.dot`, BLOCK_M can be below 16: the next power of two from GROUP on."""
    kv_head, seq = tl.program_id(0), tl.program_id(1)
    row, dim, key = tl.arange(0, BLOCK_M), tl.arange(0, HEAD_DIM), tl.arange(0, BLOCK_N)
    head, is_row = kv_head * GROUP + row, row < GROUP
    offsets = seq * stride_seq + head[:, None] * stride_q_head + dim[None, :]
    queries = tl.load(q + offsets, mask=is_row[:, None], other=0.0).to(tl.float32)
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
        keys = tl.load(k_cache + elements, mask=is_key[:, None], other=0.0).to(tl.float32)
        values = tl.load(v_cache + elements, mask=is_key[:, None], other=0.0).to(tl.float32)
        scores = tl.sum(queries[:, None, :] * keys[None, :, :], axis=2) * scale
        scores = tl.where(is_key[None, :], scores, float("-inf"))
        weights, row_max, row_sum, acc = online_softmax(scores, row_max, row_sum, acc)
        acc += tl.sum(weights[:, :, None] * values[None, :, :], axis=1)
    tl.store(out + offsets, (acc / row_sum[:, None]).to(out.dtype.element_ty), mask=is_row[:, None])


def decode_groups_by_sums(
    q, k_cache, v_cache, block_tables, context_lens, scale, keys_per_tile=16, kernel=decode_groups_by_sums_kernel
) -> torch.Tensor:
    """See `decode_groups`; `keys_per_tile` may be any power of two."""
    q = q.contiguous()
    out, group = torch.empty_like(q), q.shape[1] // k_cache.shape[2]
    kernel[(k_cache.shape[2], len(q))](
        q, k_cache, v_cache, block_tables, context_lens, out, scale * LOG2_E.value,
        *q.stride()[:2], *k_cache.stride()[:3], block_tables.stride(0), GROUP=group,
        BLOCK_M=triton.next_power_of_2(group), HEAD_DIM=q.shape[2], BLOCK_SIZE=k_cache.shape[1], BLOCK_N=keys_per_tile,
    )  # fmt: skip
    return out
