"""Right answers to the exercises of lesson 07, written in other ways than the reference. The wrong ones are the checks'
lists."""

import lessons_lib.kernels.triton_setup  # noqa: F401 - before Triton: decides whether kernels are compiled

# isort: split
import triton
import triton.language as tl

from lessons_lib.kernels.simple_paged import attend_blocks


# 07.1 add_kernel


@triton.jit
def add_by_pointers(x, y, out, n_elements, BLOCK: tl.constexpr):
    start = tl.program_id(axis=0) * BLOCK
    lanes = tl.arange(0, BLOCK)
    left = n_elements - start
    a = tl.load(x + start + lanes, mask=lanes < left, other=0.0)
    b = tl.load(y + start + lanes, mask=lanes < left, other=0.0)
    tl.store(out + start + lanes, a + b, mask=lanes < left)


@triton.jit
def add_one_by_one(x, y, out, n_elements, BLOCK: tl.constexpr):
    start = tl.program_id(0) * BLOCK
    for i in range(start, min(start + BLOCK, n_elements)):
        tl.store(out + i, tl.load(x + i) + tl.load(y + i))


@triton.jit
def add_with_clamped_loads(x, y, out, n_elements, BLOCK: tl.constexpr):
    start = tl.program_id(0) * BLOCK
    offsets = start + tl.arange(0, BLOCK)
    there = tl.minimum(offsets, n_elements - 1)
    tl.store(out + offsets, tl.load(x + there) + tl.load(y + there), mask=offsets < n_elements)


@triton.jit
def add_moved_pointers(x, y, out, n_elements, BLOCK: tl.constexpr):
    first = tl.program_id(0) * BLOCK
    lane = tl.arange(0, BLOCK)
    x += first
    y += first
    out += first
    is_there = lane < tl.minimum(BLOCK, n_elements - first)
    total = tl.load(x + lane, is_there, 0.0)
    total += tl.load(y + lane, is_there, 0.0)
    tl.store(out + lane, total, is_there)


@triton.jit
def add_in_two_stores(x, y, out, n_elements, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n_elements
    tl.store(out + offsets, tl.load(x + offsets, mask=mask), mask=mask)
    tl.store(out + offsets, tl.load(out + offsets, mask=mask) + tl.load(y + offsets, mask=mask), mask=mask)


@triton.jit
def add_across_barriers(x, y, out, n_elements, BLOCK: tl.constexpr):
    first, lane = tl.program_id(0) * BLOCK, tl.arange(0, BLOCK)
    offsets, last = first + lane, first + BLOCK - 1 - lane
    tl.store(out + offsets, tl.load(x + offsets, mask=offsets < n_elements), mask=offsets < n_elements)
    tl.debug_barrier()
    total = tl.load(out + last, mask=last < n_elements) + tl.load(y + last, mask=last < n_elements)
    tl.store(out + last, total, mask=last < n_elements)


# 07.2 attend_blocks


@triton.jit
def attend_by_count(
    query, keys, values, table, num_tokens, scale, stride_block, stride_slot,
    HEAD_DIM: tl.constexpr, BLOCK_SIZE: tl.constexpr,
):  # fmt: skip
    query = query * scale
    offsets = tl.arange(0, BLOCK_SIZE)[:, None] * stride_slot + tl.arange(0, HEAD_DIM)[None, :]
    m = tl.full([1], float("-inf"), tl.float32)
    total = tl.zeros([1], tl.float32)
    acc = tl.zeros([HEAD_DIM], tl.float32)
    for number in range(tl.cdiv(num_tokens, BLOCK_SIZE)):
        begin = tl.load(table + number).to(tl.int64) * stride_block
        valid = number * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE) < num_tokens
        k = tl.load(keys + begin + offsets, mask=valid[:, None], other=0.0)
        s = tl.where(valid, tl.sum(k * query[None, :], 1), -1e30)
        best = tl.maximum(m, tl.max(s, 0))
        p = tl.where(valid, tl.exp(s - best), 0.0)
        alpha = tl.exp(m - best)
        v = tl.load(values + begin + offsets, mask=valid[:, None], other=0.0)
        acc = acc * alpha + tl.sum(p[:, None] * v, 0)
        total = total * alpha + tl.sum(p, 0)
        m = best
    return acc / total


@triton.jit
def attend_twice_over(
    query, keys, values, table, num_tokens, scale, stride_block, stride_slot,
    HEAD_DIM: tl.constexpr, BLOCK_SIZE: tl.constexpr,
):  # fmt: skip
    """First the maximum, token by token; then the sums."""
    dim = tl.arange(0, HEAD_DIM)
    stride_block = tl.full([], 1, tl.int64) * stride_block
    highest = float("-inf")
    for token in range(num_tokens):
        offsets = tl.load(table + token // BLOCK_SIZE) * stride_block + token % BLOCK_SIZE * stride_slot + dim
        highest = tl.maximum(highest, tl.sum(query * tl.load(keys + offsets), axis=0) * scale)
    total = 0.0
    result = tl.zeros([HEAD_DIM], tl.float32)
    for token in range(num_tokens):
        offsets = tl.load(table + token // BLOCK_SIZE) * stride_block + token % BLOCK_SIZE * stride_slot + dim
        weight = tl.exp(tl.sum(query * tl.load(keys + offsets), axis=0) * scale - highest)
        total += weight
        result += weight * tl.load(values + offsets)
    return result / total


@triton.jit
def attend_newest_first(
    query, keys, values, table, num_tokens, scale, stride_block, stride_slot,
    HEAD_DIM: tl.constexpr, BLOCK_SIZE: tl.constexpr,
):  # fmt: skip
    slot, dim = tl.arange(0, BLOCK_SIZE), tl.arange(0, HEAD_DIM)
    best, total = float("-inf"), 0.0
    acc = tl.zeros([HEAD_DIM], tl.float32)
    last = (num_tokens - 1) // BLOCK_SIZE
    for back in range(0, last + 1):
        number = last - back
        here = slot[None, :] < num_tokens - number * BLOCK_SIZE
        place = tl.load(table + number).to(tl.int64) * stride_block + slot[None, :] * stride_slot + dim[:, None]
        found = tl.sum(tl.load(keys + place, mask=here, other=0.0) * query[:, None], axis=0) * scale
        found = tl.where(slot < num_tokens - number * BLOCK_SIZE, found, float("-inf"))
        higher = tl.maximum(best, tl.max(found, axis=0))
        shrink = tl.exp(best - higher)
        weights = tl.exp(found - higher)
        total = total * shrink + tl.sum(weights, axis=0)
        acc = acc * shrink + tl.sum(weights[None, :] * tl.load(values + place, mask=here, other=0.0), axis=1)
        best = higher
    return acc / total


@triton.jit
def attend_as_a_running_mean(
    query, keys, values, table, num_tokens, scale, stride_block, stride_slot,
    HEAD_DIM: tl.constexpr, BLOCK_SIZE: tl.constexpr,
):  # fmt: skip
    """The output is divided in every iteration, rightly; the sum is kept as its logarithm."""
    slot, dim = tl.arange(0, BLOCK_SIZE), tl.arange(0, HEAD_DIM)
    lse = float("-inf")
    mean = tl.zeros([HEAD_DIM], tl.float32)
    first = 0
    while first < num_tokens:
        is_key = slot < num_tokens - first
        start = tl.load(table + first // BLOCK_SIZE).to(tl.int64) * stride_block
        offsets = start + slot[:, None] * stride_slot + dim[None, :]
        scores = tl.sum(tl.load(keys + offsets, is_key[:, None], other=0.0) * (query * scale)[None, :], axis=1)
        scores = tl.where(is_key, scores, float("-inf"))
        highest = tl.max(scores, axis=0)
        own = tl.log(tl.sum(tl.exp(scores - highest), axis=0)) + highest
        top = tl.maximum(lse, own)
        both = top + tl.log(tl.exp(lse - top) + tl.exp(own - top))
        weights = tl.exp(scores - both)
        block_values = tl.load(values + offsets, is_key[:, None], other=0.0)
        mean = mean * tl.exp(lse - both) + tl.sum(weights[:, None] * block_values, axis=0)
        lse = both
        first += BLOCK_SIZE
    return mean


# 07.3 decode_heads_kernel


@triton.jit
def decode_by_moved_pointers(
    q, k_cache, v_cache, block_tables, context_lens, out, scale,
    stride_seq, stride_q_head, stride_block, stride_slot, stride_head, stride_table,
    GROUP: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_SIZE: tl.constexpr,
):  # fmt: skip
    i = tl.program_id(0)
    h = tl.program_id(1)
    own = i * stride_seq + h * stride_q_head + tl.arange(0, HEAD_DIM)
    k_cache += (h // GROUP) * stride_head
    v_cache += (h // GROUP) * stride_head
    result = attend_blocks(
        tl.load(q + own).to(tl.float32) * scale, k_cache, v_cache, block_tables + i * stride_table, tl.load(context_lens + i), 1.0,
        stride_block, stride_slot, HEAD_DIM, BLOCK_SIZE,
    )  # fmt: skip
    tl.store(out + own, result.to(out.dtype.element_ty))


@triton.jit
def decode_by_element(
    q, k_cache, v_cache, block_tables, context_lens, out, scale,
    stride_seq, stride_q_head, stride_block, stride_slot, stride_head, stride_table,
    GROUP: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_SIZE: tl.constexpr,
):  # fmt: skip
    seq, head = tl.program_id(axis=0), tl.program_id(axis=1)
    kv_head = (head - head % GROUP) // GROUP
    q += seq * stride_seq + head * stride_q_head
    out += seq * stride_seq + head * stride_q_head
    query = tl.load(q + tl.arange(0, HEAD_DIM)) * 1.0
    got = attend_blocks(
        query.to(tl.float32), k_cache + kv_head * stride_head, v_cache + kv_head * stride_head,
        table=block_tables + seq * stride_table, num_tokens=tl.load(context_lens + seq), scale=scale,
        stride_block=stride_block, stride_slot=stride_slot, HEAD_DIM=HEAD_DIM, BLOCK_SIZE=BLOCK_SIZE,
    )  # fmt: skip
    tl.store(out + tl.arange(0, HEAD_DIM), got, mask=tl.arange(0, HEAD_DIM) < HEAD_DIM)


@triton.jit
def decode_without_a_function(
    q, k_cache, v_cache, block_tables, context_lens, out, scale,
    stride_seq, stride_q_head, stride_block, stride_slot, stride_head, stride_table,
    GROUP: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_SIZE: tl.constexpr,
):  # fmt: skip
    seq, head, dim = tl.program_id(0), tl.program_id(1), tl.arange(0, HEAD_DIM)
    query = tl.load(q + seq * stride_seq + head * stride_q_head + dim).to(tl.float32)
    base = head // GROUP * stride_head + dim
    best, total = float("-inf"), 0.0
    acc = tl.zeros([HEAD_DIM], tl.float32)
    for token in range(tl.load(context_lens + seq)):
        block = tl.load(block_tables + seq * stride_table + token // BLOCK_SIZE).to(tl.int64)
        offsets = block * stride_block + token % BLOCK_SIZE * stride_slot + base
        score = tl.sum(query * tl.load(k_cache + offsets).to(tl.float32), axis=0) * scale
        higher = tl.maximum(best, score)
        weight = tl.exp(score - higher)
        total = total * tl.exp(best - higher) + weight
        acc = acc * tl.exp(best - higher) + weight * tl.load(v_cache + offsets).to(tl.float32)
        best = higher
    tl.store(out + seq * stride_seq + head * stride_q_head + dim, acc / total)


WRONG = {}

RIGHT = {
    "07.1": [
        *(add_by_pointers, add_one_by_one, add_with_clamped_loads, add_moved_pointers),
        *(add_in_two_stores, add_across_barriers),
    ],
    "07.2": [attend_by_count, attend_twice_over, attend_newest_first, attend_as_a_running_mean],
    "07.3": [decode_by_moved_pointers, decode_without_a_function, decode_by_element],
}
