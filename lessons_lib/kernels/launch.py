"""Lesson 08: the two attention kernels behind two functions that check what they are given and choose how to cut up the work."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import torch
import triton

from lessons_lib.kernels.paged_flash import decode_kernel, merge_kernel, prefill_kernel
from lessons_lib.kernels.validation import check_contents, check_decode, check_inputs, check_varlen

LOG2_E = 1.4426950408889634  # exp(x) is exp2(x * log2(e)), and the GPU has an instruction for exp2
MOST_KEYS_A_SPLIT = (
    2048  # a longer sequence is cut, so that the longest of a ragged batch does not keep all others waiting
)
FEWEST_KEYS_A_SPLIT = 512  # shorter ones spend their time on beginning and on being merged


@dataclass(frozen=True)
class Tiles:
    """How a kernel cuts up its work.

    Attributes:
        rows: query rows of a program (prefill only); a row is one query head of one token.
        keys: keys that a program looks at in one turn of its loop.
        warps: groups of 32 threads of a program.
        stages: turns whose keys are under way at the same time.
    """

    rows: int
    keys: int
    warps: int
    stages: int


def decode_tiles(head_bytes: int) -> Tiles:
    """For heads of so many bytes: the best of those tried on an H200 over all cases of the benchmark.

    What is under way must fit in the shared memory of a processor: the longer the heads, the fewer keys.
    """
    if head_bytes <= 256:
        return Tiles(rows=16, keys=128, warps=4, stages=2)
    return (
        Tiles(rows=16, keys=64, warps=4, stages=3) if head_bytes <= 512 else Tiles(rows=16, keys=32, warps=4, stages=2)
    )


def prefill_tiles(head_bytes: int, dtype: torch.dtype) -> Tiles:
    """The fastest of those tried on an H200 with heads of 128 numbers in bfloat16; smaller ones where these do not fit."""
    if dtype is torch.float32:  # no tensor cores: float32 is for exact comparisons, and small tiles compile sooner
        return Tiles(rows=32, keys=32, warps=4, stages=2)
    return (
        Tiles(rows=64, keys=32, warps=4, stages=2) if head_bytes > 256 else Tiles(rows=256, keys=64, warps=8, stages=3)
    )


def decode(q, k_cache, v_cache, block_tables, context_lens, scale) -> torch.Tensor:
    """Attention of sequences with one new token each.

    Args:
        q: [B, Hq, D], float32, float16 or bfloat16, D up to 256; sequence i's token in line i.
        k_cache, v_cache: [num_blocks, block_size, Hkv, D], of the dtype of q. The new tokens' keys and values are in them already.
        block_tables: int32 [B, M], the blocks of each sequence in the order of its tokens; what stands beyond them is not read.
        context_lens: int32 [B], tokens of each sequence, the new one included, 1 or more.
        scale: what the scores are multiplied by.

    Returns:
        tensor of the shape and dtype of q.

    Raises:
        ValueError: a shape, dtype, device or layout is wrong; on a CPU also: a length or a block number is out of bounds. On a GPU
            nobody looks at those, since that would mean to wait for it.
    """
    check_inputs(q, k_cache, v_cache, block_tables, context_lens)
    check_decode(q, context_lens)
    if not q.is_cuda:
        check_contents(len(q), k_cache, None, context_lens, block_tables)
    out = torch.empty_like(q)
    longest = block_tables.shape[1] * k_cache.shape[1]
    launch_decode(q, k_cache, v_cache, block_tables, context_lens, None, out, scale, longest)
    return out


def varlen(
    q, k_cache, v_cache, cu_seqlens_q, context_lens, block_tables, scale, *, max_seqlen_q=None, max_context_len=None
) -> torch.Tensor:
    """Attention of a packed row: sequences with any number of new tokens, prefills, chunks and decodes mixed.

    Every token sees its own sequence up to itself.

    Args:
        q: [T, Hq, D], the new tokens of all sequences, one sequence behind the other.
        cu_seqlens_q: int32 [B + 1], where each sequence begins in the row, and at the end T.
        context_lens: int32 [B], tokens of each sequence in the cache, the new ones included.
        max_seqlen_q, max_context_len: the most new tokens and the longest context of any sequence. Given both, nothing waits
            for the GPU, and the call may be captured in a CUDA graph.
        The others: see `decode`.

    Returns:
        tensor of the shape and dtype of q.

    Raises:
        ValueError: a shape, dtype, device or layout is wrong; on a CPU, or if one of the maxima is not given, also: a length or a
            block number is out of bounds.
    """
    check_inputs(q, k_cache, v_cache, block_tables, context_lens)
    check_varlen(cu_seqlens_q, context_lens)
    if not q.is_cuda or max_seqlen_q is None or max_context_len is None:
        check_contents(len(q), k_cache, cu_seqlens_q, context_lens, block_tables)
    out = torch.empty_like(q)
    if not len(q):
        return out
    if max_seqlen_q is None:
        max_seqlen_q = int(cu_seqlens_q.diff().max())
    if max_context_len is None:
        max_context_len = int(context_lens.max())
    if max_seqlen_q > 1:
        launch_prefill(q, k_cache, v_cache, block_tables, context_lens, cu_seqlens_q, out, scale)
    # Without a look at the lengths, any sequence may be a decode; the kernel passes the others over.
    if len(q) < len(context_lens) * max_seqlen_q or max_seqlen_q == 1:
        launch_decode(q, k_cache, v_cache, block_tables, context_lens, cu_seqlens_q, out, scale, max_context_len)
    return out


def plan_triton(packed, block_tables, block_size) -> Callable:
    """The Triton backend of `paged_model.paged_forward`: what computes attention in every layer of one pass.

    Args:
        packed: the PackedBatch; block_tables: int [B, M], both on the device of the model.

    Returns:
        function (query, keys, values, scale) -> tensor [T, Hq, D].
    """
    bounds, lens, tables = (
        tensor.to(torch.int32).contiguous() for tensor in (packed.cu_seqlens_q, packed.context_lens, block_tables)
    )
    maxima = dict(max_seqlen_q=int(packed.cu_seqlens_q.diff().max()), max_context_len=int(packed.context_lens.max()))
    return lambda query, keys, values, scale: varlen(
        query.contiguous(), keys, values, bounds, lens, tables, scale, **maxima
    )


def keys_a_split(num_seqs, num_kv_heads, longest, num_processors):
    """How many keys of a sequence one program takes: few enough for eight programs a processor, if the keys suffice.

    A processor has several programs under way at a time, and with several rounds of them the last round matters less.

    Args:
        longest: keys of the longest sequence.

    Returns:
        int: a multiple of `FEWEST_KEYS_A_SPLIT`, and at most `MOST_KEYS_A_SPLIT`.
    """
    wanted = max(1, 8 * num_processors // (num_seqs * num_kv_heads))
    even = triton.cdiv(triton.cdiv(longest, wanted), FEWEST_KEYS_A_SPLIT) * FEWEST_KEYS_A_SPLIT
    return min(max(even, FEWEST_KEYS_A_SPLIT), MOST_KEYS_A_SPLIT)


def launch_decode(
    q, k_cache, v_cache, block_tables, context_lens, cu_seqlens_q, out, scale, longest,
    *, tiles: Tiles | None = None, split: int | None = None, kernel=decode_kernel, merge=merge_kernel,
) -> None:  # fmt: skip
    """Start the decode kernel, and the merge where sequences are cut; `cu_seqlens_q` is None if every sequence has one token.

    `tiles` and `split` (keys a split) are chosen here if not given; the benchmark gives others, and other kernels.
    """
    (tokens, q_heads, head_dim), (_, block_size, kv_heads, _) = q.shape, k_cache.shape
    num_seqs = len(context_lens)
    if not num_seqs:
        return
    split = split or keys_a_split(num_seqs, kv_heads, longest, _processors(q.device))
    num_splits = triton.cdiv(longest, split)
    group, dim = q_heads // kv_heads, _padded(head_dim)
    tiles = tiles or decode_tiles(dim * q.element_size())
    partial_out = partial_lse = out
    if num_splits > 1:
        partial_out = torch.empty(tokens, q_heads, num_splits, head_dim, dtype=torch.float32, device=q.device)
        partial_lse = torch.empty(tokens, q_heads, num_splits, dtype=torch.float32, device=q.device)
    is_ragged = cu_seqlens_q is not None
    starts = cu_seqlens_q if is_ragged else context_lens
    kernel[(kv_heads, num_seqs, num_splits)](
        q, k_cache, v_cache, block_tables, context_lens, starts, out, partial_out, partial_lse, scale * LOG2_E,
        *q.stride()[:2], *out.stride()[:2], *k_cache.stride()[:3], block_tables.stride(0),
        GROUP=group, BLOCK_M=_padded(group), HEAD_DIM=head_dim, DIM=dim, BLOCK_SIZE=block_size, BLOCK_N=tiles.keys,
        SPLIT=split, NUM_SPLITS=num_splits, RAGGED=is_ragged, USE_INT64=_use_int64(k_cache),
        num_warps=tiles.warps, num_stages=tiles.stages,
    )  # fmt: skip
    if num_splits > 1:
        merge[(q_heads, num_seqs)](
            partial_out, partial_lse, context_lens, starts, out, *out.stride()[:2], HEAD_DIM=head_dim, DIM=dim, SPLIT=split,
            NUM_SPLITS=num_splits, SPLITS=triton.next_power_of_2(num_splits), RAGGED=is_ragged,
        )  # fmt: skip


def launch_prefill(
    q, k_cache, v_cache, block_tables, context_lens, cu_seqlens_q, out, scale,
    *, tiles: Tiles | None = None, use_int64: bool | None = None, kernel=prefill_kernel,
) -> None:  # fmt: skip
    """Start the prefill kernel. `tiles` and `use_int64` are chosen here if not given."""
    (tokens, q_heads, head_dim), (_, block_size, kv_heads, _) = q.shape, k_cache.shape
    num_seqs, group, dim = len(context_lens), q_heads // kv_heads, _padded(head_dim)
    use_int64 = _use_int64(k_cache) if use_int64 is None else use_int64
    tiles = tiles or prefill_tiles(dim * q.element_size(), q.dtype)
    tokens_a_tile = max(1, tiles.rows // group)
    kernel[(kv_heads, tokens // tokens_a_tile + num_seqs)](
        q, k_cache, v_cache, block_tables, context_lens, cu_seqlens_q, out, scale * LOG2_E, num_seqs,
        *q.stride()[:2], *out.stride()[:2], *k_cache.stride()[:3], block_tables.stride(0),
        GROUP=group, BLOCK_M=max(tiles.rows, _padded(group)), TOKENS=tokens_a_tile, HEAD_DIM=head_dim, DIM=dim,
        BLOCK_SIZE=block_size, BLOCK_N=tiles.keys, USE_INT64=use_int64, num_warps=tiles.warps, num_stages=tiles.stages,
    )  # fmt: skip


def _padded(count: int) -> int:
    """Tensor cores work on pieces of 16 and more, and Triton on powers of two."""
    return max(16, triton.next_power_of_2(count))


def _use_int64(cache) -> bool:
    """Whether places in the cache need more than 32 bits. A view of a larger tensor has places further apart than its own size says."""
    return sum((size - 1) * stride for size, stride in zip(cache.shape, cache.stride())) > 2**31 - 1


@lru_cache(maxsize=None)
def _processors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1
