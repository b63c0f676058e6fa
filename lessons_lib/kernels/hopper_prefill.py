"""A warp-specialized prefill kernel for Hopper GPUs (H100, H200).

`paged_flash.prefill_kernel` computes the same on any GPU. There, each warp fetches, multiplies and computes the softmax
in turn, and the tensor cores wait for the rest. Here, as in FlashAttention-3 (Shah et al. 2024,
https://arxiv.org/abs/2407.08608), the sixteen warps of a program have roles:

- The producer (one warp; three more idle, since registers are allocated to four warps at a time) reads the block table
  and fetches keys and values: TMA, hardware that copies tiles, copies each block to shared memory.
- Three consumers (four warps each) compute 64 rows of the query tile each. A consumer starts two products, queries x
  keys of tile i and weights x values of tile i - 1, and computes the softmax of tile i while the second runs. The
  tensor cores meanwhile also work for the other consumers.

Producer and consumers synchronize through barriers in shared memory. Each of the STAGES buffers for a tile of keys has
two, `full` and `empty`, and so has each for a tile of values. A barrier's phase flips on completion, so the k-th use of
a buffer waits for phase k % 2.

Written in Gluon, Triton's language one level below: layouts, shared memory and asynchronous instructions are explicit.
Shapes: see paged_flash.py.
"""

import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from lessons_lib.kernels.paged_flash import LOG2_E, find_seq_idx, first_masked_key, has_own_kernel, longest_first

CONSUMERS, ROWS = gl.constexpr(3), gl.constexpr(64)
# Rows of shared memory have 128 bytes, 64 elements: tiles with longer heads are stored as several panels. Within a
# panel, blocks of 8 or more slots are contiguous, so each can be fetched separately. Heads that don't fill their panels
# are followed by elements of the next head, or by TMA's zeros: a query is 0 there, and what they give isn't stored.
WIDTH = gl.constexpr(64)
PANEL = gl.constexpr(gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=2))
CONSUMER_REGISTERS, PRODUCER_REGISTERS = gl.constexpr(160), gl.constexpr(24)
REGISTERS = 128  # per thread at the start: 65,536 for 512 threads, all registers of a processor


@gluon.jit
def fetch_tile(
    cache, buffers, stage, full, table, first_block, last_block, column, BLOCK_SIZE: gl.constexpr,
    BLOCK_N: gl.constexpr, BLOCK_D: gl.constexpr,
):  # fmt: skip
    """Start copying a tile of keys or values, block by block; `full` completes once all of it has arrived.

    Args:
        cache: TMA descriptor of the cache as a matrix [num_blocks * block_size, Hkv * D].
        buffers: shared memory, [STAGES, BLOCK_N, BLOCK_D]. stage: index of the buffer to write.
        table: pointer to the sequence's blocks. Entries after `last_block` may be garbage: that block is fetched again.
        column: first column of the KV head in a row of the cache.
    """
    BLOCKS: gl.constexpr = BLOCK_N // BLOCK_SIZE
    PANELS: gl.constexpr = BLOCK_D // WIDTH
    pieces = as_pieces(buffers, BLOCK_SIZE)
    mbarrier.expect(full, BLOCK_N * BLOCK_D * 2)
    for i in gl.static_range(BLOCKS):
        block = gl.load(table + gl.minimum(first_block + i, last_block))
        for panel in gl.static_range(PANELS):
            piece = pieces.index((stage * PANELS + panel) * BLOCKS + i)
            tma.async_copy_global_to_shared(cache, [block * BLOCK_SIZE, column + panel * WIDTH], full, piece)


@gluon.jit
def as_pieces(buffers, BLOCK_SIZE: gl.constexpr):
    """View shared memory [STAGES, BLOCK_N, BLOCK_D] as [pieces, BLOCK_SIZE, WIDTH], in storage order."""
    ELEMENTS: gl.constexpr = buffers.shape[0] * buffers.shape[1] * buffers.shape[2]
    return buffers._reinterpret(buffers.dtype, [ELEMENTS // (BLOCK_SIZE * WIDTH), BLOCK_SIZE, WIDTH], PANEL)


@gluon.jit
def produce(loads, BLOCK_SIZE: gl.constexpr, BLOCK_N: gl.constexpr, BLOCK_D: gl.constexpr, STAGES: gl.constexpr):
    """The producer: fetch the tiles, last first, each into the next buffer of the ring."""
    k_cache, v_cache, k_buffers, v_buffers, barriers, table, last_block, num_tiles, column = loads
    k_full, k_empty, v_full, v_empty = barriers
    for i in range(num_tiles):
        stage, used = i % STAGES, i // STAGES & 1
        first_block = (num_tiles - 1 - i) * (BLOCK_N // BLOCK_SIZE)
        mbarrier.wait(k_empty.index(stage), used ^ 1)  # passes at first: the phase before the first is complete
        fetch_tile(
            k_cache, k_buffers, stage, k_full.index(stage), table, first_block, last_block, column, BLOCK_SIZE,
            BLOCK_N, BLOCK_D,
        )  # fmt: skip
        mbarrier.wait(v_empty.index(stage), used ^ 1)
        fetch_tile(
            v_cache, v_buffers, stage, v_full.index(stage), table, first_block, last_block, column, BLOCK_SIZE,
            BLOCK_N, BLOCK_D,
        )  # fmt: skip


@gluon.jit
def softmax_of_tile(scores, scale, row_max, row_sum, position, last_visible, MASKED: gl.constexpr):
    """`paged_flash.unmasked_softmax`, or with `MASKED` `online_softmax`, except that `acc` is still in use.

    Returns:
        the weights, the new maximum, the new sum, and the factor [rows] to rescale `acc` by.
    """
    if MASKED:
        scores = gl.where(position[None, :] <= last_visible[:, None], scores, float("-inf"))
    new_max = gl.maximum(row_max, gl.max(scores, axis=1) * scale)
    reference = new_max
    if MASKED:
        reference = gl.where(new_max == float("-inf"), 0.0, new_max)
    weights = gl.exp2(scores * scale - reference[:, None])
    rescale = gl.exp2(row_max - reference)
    return weights, new_max, row_sum * rescale + gl.sum(weights, axis=1), rescale


@gluon.jit
def next_tile(
    i, state, tile, MASKED: gl.constexpr, BLOCK_N: gl.constexpr, STAGES: gl.constexpr, SCORES: gl.constexpr,
    ACC: gl.constexpr,
):  # fmt: skip
    """Compute the scores and weights of tile i during the product of tile i - 1.

    Args:
        state: weights of tile i - 1; maximum, sum and weighted sum of the tiles before.
    """
    weights, row_max, row_sum, acc = state
    queries, k_buffers, v_buffers, barriers, num_tiles, scale, last_visible = tile
    k_full, k_empty, v_full, v_empty = barriers
    stage, before = i % STAGES, (i - 1) % STAGES
    mbarrier.wait(k_full.index(stage), i // STAGES & 1)
    zeros = gl.zeros([ROWS, BLOCK_N], gl.float32, SCORES)
    keys = k_buffers.index(stage).permute((1, 0))
    scores = warpgroup_mma(queries, keys, zeros, use_acc=False, is_async=True)
    mbarrier.wait(v_full.index(before), (i - 1) // STAGES & 1)
    acc = warpgroup_mma(weights, v_buffers.index(before), acc, is_async=True)
    scores = warpgroup_mma_wait(1, deps=(scores,))  # one product may still run: the second
    mbarrier.arrive(k_empty.index(stage))
    position = (num_tiles - 1 - i) * BLOCK_N + gl.arange(0, BLOCK_N, gl.SliceLayout(0, SCORES))
    new_weights, row_max, row_sum, rescale = softmax_of_tile(
        scores, scale, row_max, row_sum, position, last_visible, MASKED
    )
    acc, weights = warpgroup_mma_wait(0, deps=(acc, weights))
    mbarrier.arrive(v_empty.index(before))
    acc = acc * gl.convert_layout(rescale, gl.SliceLayout(1, ACC))[:, None]
    weights = gl.convert_layout(new_weights.to(queries.dtype), gl.DotOperandLayout(0, ACC, 2))
    return weights, row_max, row_sum, acc


@gluon.jit
def clear_values(v_buffers, first_unused, BLOCK_SIZE: gl.constexpr, BLOCK_N: gl.constexpr, BLOCK_D: gl.constexpr):
    """Zero the first buffer's values from `first_unused` on: slots without a token may hold NaN, and 0 * NaN is NaN.

    Every consumer writes the same zeros, since it can't wait for the others.
    """
    LAYOUT: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0])
    BLOCKS: gl.constexpr = BLOCK_N // BLOCK_SIZE
    pieces = as_pieces(v_buffers, BLOCK_SIZE)
    slot = gl.arange(0, BLOCK_SIZE, gl.SliceLayout(1, LAYOUT))
    for i in range(first_unused // BLOCK_SIZE, BLOCKS):
        for panel in gl.static_range(BLOCK_D // WIDTH):
            piece = pieces.index(panel * BLOCKS + i)
            values = piece.load(LAYOUT)
            piece.store(gl.where((i * BLOCK_SIZE + slot < first_unused)[:, None], values, 0.0))
    fence_async_shared()  # make the stores visible to the tensor cores
    tl.debug_barrier()


@gluon.jit
def consume(
    tensors, INDEX: gl.constexpr, GROUP: gl.constexpr, BLOCK_SIZE: gl.constexpr, BLOCK_N: gl.constexpr,
    HEAD_DIM: gl.constexpr, BLOCK_D: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """A consumer: attention of ROWS rows of the query tile, from row INDEX * ROWS on. See `hopper_prefill_kernel`."""
    (
        q, out, q_buffers, k_buffers, v_buffers, barriers, begin, first_token, q_len, context_len, num_tiles,
        first_masked_tile, kv_head, scale, stride_q, stride_q_head, stride_out, stride_out_head,
    ) = tensors  # fmt: skip
    k_full, k_empty, v_full, _ = barriers
    SCORES: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_N, 16])
    ACC: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_D, 16])
    MEMORY: gl.constexpr = gl.BlockedLayout([1, 8], [256 // BLOCK_D, BLOCK_D // 8], [4, 1], [1, 0])
    TOKENS: gl.constexpr = ROWS // GROUP

    first = first_token + INDEX * TOKENS
    row, dim = gl.arange(0, ROWS, gl.SliceLayout(1, MEMORY)), gl.arange(0, BLOCK_D, gl.SliceLayout(0, MEMORY))
    token, head = first + row // GROUP, kv_head * GROUP + row % GROUP
    in_out = ((row < TOKENS * GROUP) & (token < q_len))[:, None] & (dim < HEAD_DIM)[None, :]
    packed = (begin + token).to(gl.int64)
    queries = q_buffers.index(INDEX)
    queries.store(gl.load(q + (packed * stride_q + head * stride_q_head)[:, None] + dim[None, :], in_out, other=0.0))
    fence_async_shared()

    # Start with the last tile, which needs the mask; keys visible to every row come before it.
    last_visible = context_len - q_len + first + gl.arange(0, ROWS, gl.SliceLayout(1, SCORES)) // GROUP
    position = (num_tiles - 1) * BLOCK_N + gl.arange(0, BLOCK_N, gl.SliceLayout(0, SCORES))
    zeros = gl.zeros([ROWS, BLOCK_N], gl.float32, SCORES)
    mbarrier.wait(k_full.index(0), 0)
    scores = warpgroup_mma(queries, k_buffers.index(0).permute((1, 0)), zeros, use_acc=False, is_async=True)
    scores = warpgroup_mma_wait(0, deps=(scores,))
    mbarrier.arrive(k_empty.index(0))
    row_max = gl.full([ROWS], float("-inf"), gl.float32, gl.SliceLayout(1, SCORES))
    row_sum = gl.full([ROWS], 0.0, gl.float32, gl.SliceLayout(1, SCORES))
    weights, row_max, row_sum, _ = softmax_of_tile(scores, scale, row_max, row_sum, position, last_visible, True)
    weights = gl.convert_layout(weights.to(queries.dtype), gl.DotOperandLayout(0, ACC, 2))
    acc = gl.zeros([ROWS, BLOCK_D], gl.float32, ACC)
    mbarrier.wait(v_full.index(0), 0)
    first_unused = context_len - (num_tiles - 1) * BLOCK_N
    if first_unused < BLOCK_N:
        clear_values(v_buffers, first_unused, BLOCK_SIZE, BLOCK_N, BLOCK_D)

    state = (weights, row_max, row_sum, acc)
    tile = (queries, k_buffers, v_buffers, barriers, num_tiles, scale, last_visible)
    first_unmasked = gl.maximum(num_tiles - first_masked_tile, 1)
    for i in range(1, first_unmasked):
        state = next_tile(i, state, tile, True, BLOCK_N, STAGES, SCORES, ACC)
    for i in range(first_unmasked, num_tiles):
        state = next_tile(i, state, tile, False, BLOCK_N, STAGES, SCORES, ACC)
    weights, row_max, row_sum, acc = state
    last = num_tiles - 1
    mbarrier.wait(v_full.index(last % STAGES), last // STAGES & 1)
    acc = warpgroup_mma(weights, v_buffers.index(last % STAGES), acc, is_async=True)
    acc, weights = warpgroup_mma_wait(0, deps=(acc, weights))

    result = acc / gl.convert_layout(row_sum, gl.SliceLayout(1, ACC))[:, None]
    queries.store(result.to(queries.dtype))  # through shared memory, so that threads write 16 bytes each
    places = out + (packed * stride_out + head * stride_out_head)[:, None] + dim[None, :]
    gl.store(places, queries.load(MEMORY), in_out)


@gluon.jit(do_not_specialize=["num_seqs", "stride_table"])
def hopper_prefill_kernel(
    q, k_cache, v_cache, block_tables, context_lens, cu_seqlens_q, out, scale, num_seqs,
    stride_q, stride_q_head, stride_out, stride_out_head, stride_table,
    GROUP: gl.constexpr, HEAD_DIM: gl.constexpr, BLOCK_D: gl.constexpr, BLOCK_SIZE: gl.constexpr,
    BLOCK_N: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """Causal attention of the sequences with several new tokens, on a Hopper GPU.

    The grid and the arguments are those of `prefill_kernel`, except: k_cache and v_cache are TMA descriptors (see
    `fetch_tile`), the query tile has CONSUMERS * ROWS rows, and STAGES tiles each of keys and values are in flight.
    """
    BLOCK_Q: gl.constexpr = CONSUMERS * (ROWS // GROUP)
    kv_head, tile = gl.program_id(0), longest_first()
    seq = find_seq_idx(tile, cu_seqlens_q, num_seqs, BLOCK_Q)
    begin = gl.load(cu_seqlens_q + seq)
    q_len = gl.load(cu_seqlens_q + seq + 1) - begin
    first_token = (tile - begin // BLOCK_Q - seq) * BLOCK_Q
    if (first_token < q_len) & (not has_own_kernel(q_len)):
        context_len = gl.load(context_lens + seq)
        first_position = context_len - q_len + first_token
        num_tiles = gl.cdiv(gl.minimum(first_position + BLOCK_Q, context_len), BLOCK_N)
        first_masked_tile = first_masked_key(first_position, BLOCK_N) // BLOCK_N
        q_buffers = gl.allocate_shared_memory(k_cache.dtype, [CONSUMERS, ROWS, BLOCK_D], PANEL)
        k_buffers = gl.allocate_shared_memory(k_cache.dtype, [STAGES, BLOCK_N, BLOCK_D], PANEL)
        v_buffers = gl.allocate_shared_memory(k_cache.dtype, [STAGES, BLOCK_N, BLOCK_D], PANEL)
        k_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
        k_empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
        v_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
        v_empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
        for stage in gl.static_range(STAGES):
            mbarrier.init(k_full.index(stage), count=1)  # the producer's copies
            mbarrier.init(v_full.index(stage), count=1)
            mbarrier.init(k_empty.index(stage), count=CONSUMERS)
            mbarrier.init(v_empty.index(stage), count=CONSUMERS)
        fence_async_shared()
        barriers = (k_full, k_empty, v_full, v_empty)
        table, last_block = block_tables + seq.to(gl.int64) * stride_table, (context_len - 1) // BLOCK_SIZE
        loads = (k_cache, v_cache, k_buffers, v_buffers, barriers, table, last_block, num_tiles, kv_head * HEAD_DIM)
        tensors = (
            q, out, q_buffers, k_buffers, v_buffers, barriers, begin, first_token, q_len, context_len, num_tiles,
            first_masked_tile, kv_head, scale, stride_q, stride_q_head, stride_out, stride_out_head,
        )  # fmt: skip
        gl.warp_specialize(
            [
                (consume, (tensors, 0, GROUP, BLOCK_SIZE, BLOCK_N, HEAD_DIM, BLOCK_D, STAGES)),
                (consume, (tensors, 1, GROUP, BLOCK_SIZE, BLOCK_N, HEAD_DIM, BLOCK_D, STAGES)),
                (consume, (tensors, 2, GROUP, BLOCK_SIZE, BLOCK_N, HEAD_DIM, BLOCK_D, STAGES)),
                (produce, (loads, BLOCK_SIZE, BLOCK_N, BLOCK_D, STAGES)),
            ],
            [4, 4, 1],
            [CONSUMER_REGISTERS, CONSUMER_REGISTERS, PRODUCER_REGISTERS],
        )


def launch_hopper_prefill(q, k_cache, v_cache, block_tables, context_lens, cu_seqlens_q, out, scale) -> None:
    """Launch the kernel without validation. Limits: `launch.has_hopper_kernel`; arguments: `launch_prefill`."""
    (tokens, q_heads, head_dim), (num_blocks, block_size, kv_heads, _) = q.shape, k_cache.shape
    shape, block = [num_blocks * block_size, kv_heads * head_dim], [block_size, WIDTH.value]
    caches = [TensorDescriptor(cache, shape, [cache.stride(1), 1], block, PANEL.value) for cache in (k_cache, v_cache)]
    num_seqs, group = len(context_lens), q_heads // kv_heads
    keys, stages = (128, 2) if head_dim <= 64 else (64, 4)  # the fastest of a sweep on an H200
    block_q = CONSUMERS.value * (ROWS.value // group)
    hopper_prefill_kernel[(kv_heads, tokens // block_q + num_seqs)](
        q, *caches, block_tables, context_lens, cu_seqlens_q, out, scale * LOG2_E.value, num_seqs, *q.stride()[:2],
        *out.stride()[:2], block_tables.stride(0), GROUP=group, HEAD_DIM=head_dim,
        BLOCK_D=64 if head_dim <= 64 else 128, BLOCK_SIZE=block_size, BLOCK_N=keys, STAGES=stages, num_warps=4,
        maxnreg=REGISTERS,
    )  # fmt: skip
