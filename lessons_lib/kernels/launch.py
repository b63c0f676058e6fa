"""Lesson 08: launchers of the attention kernels, which validate arguments and choose tiles and splits. On a Hopper GPU,
most prefills use a third kernel (hopper_prefill.py).

Shapes: see paged_flash.py.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import torch
import triton

from lessons_lib.kernels import paged_flash
from lessons_lib.kernels.paged_flash import decode_kernel, prefill_kernel
from lessons_lib.kernels.validation import check_contents, check_inputs

LOG2_E = paged_flash.LOG2_E.value  # exp(x) is exp2(x * log2(e)), and the GPU has an instruction for exp2
# Sequences of so many keys are split until each processor of the GPU has so many programs.
USUAL_CONTEXT, PROGRAMS_PER_PROCESSOR = 2048, 4
MIN_KEYS_PER_SPLIT, MAX_KEYS_PER_SPLIT = 128, 2048  # with fewer, starting programs and merging results dominate
MIN_SPLITS, MAX_SPLITS = 16, 64  # of a sequence that is long enough, so that it doesn't delay the others of its batch
MERGED_ELEMENTS = 2048  # of splits that the decode kernel merges at the same time: more would need more registers
MIN_HOPPER_TOKENS, MIN_SHORT_HEAD_TOKENS = 1024, 4096  # see `hopper_pays`


@dataclass(frozen=True)
class Tiles:
    """Tile sizes and launch options of a kernel.

    Attributes:
        rows: rows of the query tile (prefill only); a row is one query head of one token.
        keys: keys per iteration of the loop.
        warps: warps per program, 32 threads each.
        stages: iterations with loads in flight at the same time.
    """

    rows: int
    keys: int
    warps: int
    stages: int


def decode_tiles(head_bytes: int) -> Tiles:
    """Tiles for heads of `head_bytes` bytes, chosen on an H200 over all decode cases of the benchmark.

    The tiles in flight must fit into a processor's shared memory: the longer the heads, the fewer keys.
    """
    if head_bytes <= 256:
        return Tiles(rows=16, keys=128, warps=4, stages=2)
    if head_bytes <= 512:
        return Tiles(rows=16, keys=64, warps=4, stages=3)
    return Tiles(rows=16, keys=32, warps=4, stages=2)


def prefill_tiles(head_bytes: int, dtype: torch.dtype) -> Tiles:
    """The fastest tiles of sweeps on an H200 with head sizes 64 and 128 in bfloat16, or smaller ones that fit."""
    if dtype is torch.float32:  # no tensor cores: float32 is for exact comparisons, and small tiles compile faster
        return Tiles(rows=32, keys=32, warps=4, stages=2)
    if head_bytes <= 128:
        return Tiles(rows=128, keys=64, warps=8, stages=2)
    if head_bytes > 256:
        return Tiles(rows=64, keys=32, warps=4, stages=2)
    return Tiles(rows=256, keys=64, warps=8, stages=3)


def varlen(
    q, k_cache, v_cache, cu_seqlens_q, context_lens, block_tables, scale, terms=None,
    *, max_seqlen_q=None, max_context_len=None,
) -> torch.Tensor:  # fmt: skip
    """Causal attention of a packed batch: prefills, chunks and decodes mixed, with any number of new tokens.

    Args:
        q: [T, Hq, D], float32, float16 or bfloat16, D up to 256: the new tokens of all sequences, one sequence after
            another.
        k_cache, v_cache: [num_blocks, block_size, Hkv, D], of the dtype of q, with the new tokens' keys and values.
            Values may have another head size, V, in the same layout.
        cu_seqlens_q: int32 [N + 1], where each sequence starts in the packed batch; the last entry is T.
        context_lens: int32 [N], tokens of each sequence in the cache, the new ones included.
        block_tables: int32 [N, M], each sequence's blocks; entries past the last block in use aren't read.
        scale: factor of the scores.
        terms: ScoreTerms of the layer, or None.
        max_seqlen_q, max_context_len: upper bounds on any sequence's new tokens and context. If both are given, nothing
            synchronizes with the GPU, and the call can be captured in a CUDA graph.

    Returns:
        tensor [T, Hq, V] of the dtype of q.

    Raises:
        ValueError: a shape, dtype, device or layout is wrong; on a CPU, or if a maximum is missing, also if a length or
            a block id is out of bounds. On a GPU, checking those synchronizes.
    """
    check_inputs(q, k_cache, v_cache, block_tables, context_lens, cu_seqlens_q, terms)
    if not q.is_cuda or max_seqlen_q is None or max_context_len is None:
        check_contents(len(q), k_cache, cu_seqlens_q, context_lens, block_tables)
    out = q.new_empty(*q.shape[:2], v_cache.shape[3])
    if not len(q):
        return out
    if max_seqlen_q is None:
        max_seqlen_q = int(cu_seqlens_q.diff().max())
    if max_context_len is None:
        max_context_len = int(context_lens.max())
    if max_seqlen_q > 1:
        batch = (q, k_cache, v_cache, block_tables, context_lens, cu_seqlens_q)
        launch_prefill(*batch, out, scale, terms=terms, max_seqlen_q=max_seqlen_q)
    # The lengths are unknown here, so any sequence may be a decode; the kernel skips the others.
    if len(q) < len(context_lens) * max_seqlen_q or max_seqlen_q == 1:
        cache = (k_cache, v_cache, block_tables, context_lens)
        launch_decode(q, *cache, cu_seqlens_q, out, scale, max_context_len, terms=terms)
    return out


def plan_triton(packed, block_tables, block_size) -> Callable[..., torch.Tensor]:
    """The Triton backend of lesson 06's `paged_forward`; see `paged_attention.plan_torch`."""
    bounds, lens, tables = (
        tensor.to(torch.int32).contiguous() for tensor in (packed.cu_seqlens_q, packed.context_lens, block_tables)
    )
    maxima = dict(max_seqlen_q=int(packed.cu_seqlens_q.diff().max()), max_context_len=int(packed.context_lens.max()))
    return lambda query, keys, values, scale, terms=None: varlen(
        query.contiguous(), keys, values, bounds, lens, tables, scale, terms, **maxima
    )


def split_limits(num_seqs: int, num_kv_heads: int, num_processors: int) -> tuple[int, int]:
    """Choose the fewest keys per split, and the most splits per sequence. See `paged_flash.split_of`.

    Neither depends on lengths: what a CUDA graph was captured for, and which other sequences are in a batch, changes
    no sequence's result. Without splits, there are num_seqs * num_kv_heads programs; num_processors is the GPU's
    streaming multiprocessors.
    """
    wanted = max(1, PROGRAMS_PER_PROCESSOR * num_processors // (num_seqs * num_kv_heads))  # splits of a usual context
    keys = triton.next_power_of_2(triton.cdiv(USUAL_CONTEXT, wanted))
    return max(MIN_KEYS_PER_SPLIT, min(keys, MAX_KEYS_PER_SPLIT)), max(MIN_SPLITS, min(wanted // 2, MAX_SPLITS))


def launch_decode(
    q, k_cache, v_cache, block_tables, context_lens, cu_seqlens_q, out, scale, max_context_len,
    *, terms=None, tiles: Tiles | None = None, split_size: int | None = None, kernel=decode_kernel,
) -> None:  # fmt: skip
    """Launch the decode kernel without validation.

    Launches on one device must run one after another.

    Args:
        q: [T, Hq, D]; out: [T, Hq, V], is written.
        k_cache, v_cache, block_tables, context_lens, cu_seqlens_q, scale, terms: see `varlen`.
        max_context_len: upper bound on context_lens. It decides how many programs start, but not what they compute.
        tiles, split_size: tiles, and keys per split, rounded up to whole tiles; chosen here if None.
        kernel: the kernel, or a replacement with the same arguments.
    """
    (_, q_heads, head_dim), (_, block_size, kv_heads, value_dim) = q.shape, v_cache.shape
    num_seqs = len(context_lens)
    if not num_seqs:
        return
    group, block_d, block_v = q_heads // kv_heads, _padded(head_dim), _padded(value_dim)
    tiles = tiles or decode_tiles(max(block_d, block_v) * q.element_size())
    limits = split_limits(num_seqs, kv_heads, _processors(q.device))
    min_keys, max_splits = (split_size, max_context_len) if split_size else limits
    own = _arguments_of(terms)
    num_splits = min(max_splits, triton.cdiv(min(max_context_len, own.get("WINDOW", max_context_len)), min_keys))
    partial_out = torch.empty(num_seqs, q_heads, num_splits, value_dim, dtype=torch.float32, device=q.device)
    partial_lse = torch.empty(num_seqs, q_heads, num_splits, dtype=torch.float32, device=q.device)
    finished = _counters(q.device, triton.next_power_of_2(num_seqs * kv_heads))
    block_group = triton.next_power_of_2(group)
    kernel[(kv_heads, num_seqs, num_splits)](
        q, k_cache, v_cache, block_tables, context_lens, cu_seqlens_q, out, partial_out, partial_lse,
        finished, scale * LOG2_E, triton.cdiv(min_keys, tiles.keys), max_splits,
        *q.stride()[:2], *out.stride()[:2], *k_cache.stride()[:3], block_tables.stride(0),
        GROUP=group, BLOCK_M=_padded(group), HEAD_DIM=head_dim, BLOCK_D=block_d, VALUE_DIM=value_dim, BLOCK_V=block_v,
        BLOCK_SIZE=block_size, BLOCK_N=tiles.keys, BLOCK_GROUP=block_group,
        BLOCK_PARTS=max(1, MERGED_ELEMENTS // (block_group * block_v)),
        USE_INT64=_use_int64(k_cache, v_cache), num_warps=tiles.warps, num_stages=tiles.stages, **own,
    )  # fmt: skip


def launch_prefill(
    q, k_cache, v_cache, block_tables, context_lens, cu_seqlens_q, out, scale,
    *, terms=None, max_seqlen_q: int | None = None, tiles: Tiles | None = None, use_int64: bool | None = None,
    kernel=None,
) -> None:  # fmt: skip
    """Launch the prefill kernel, or the one for Hopper GPUs, without validation.

    Args:
        q: [T, Hq, D]; out: [T, Hq, V], is written.
        k_cache, v_cache, block_tables, context_lens, cu_seqlens_q, scale, terms: see `varlen`.
        max_seqlen_q: upper bound on the new tokens of any sequence; T if None.
        tiles, use_int64: tiles and 64-bit cache offsets of `prefill_kernel`; chosen here if None.
        kernel: `prefill_kernel`, or another with the same arguments; chosen here if all three are None.
    """
    is_free = kernel is None and tiles is None and use_int64 is None
    pays = hopper_pays(len(q), q.shape[2], len(q) if max_seqlen_q is None else max_seqlen_q)
    if is_free and pays and has_hopper_kernel(q, k_cache, v_cache, terms):
        from lessons_lib.kernels.hopper_prefill import launch_hopper_prefill  # imports Gluon, which may be missing

        launch_hopper_prefill(q, k_cache, v_cache, block_tables, context_lens, cu_seqlens_q, out, scale)
        return
    kernel = kernel or prefill_kernel
    (tokens, q_heads, head_dim), (_, block_size, kv_heads, value_dim) = q.shape, v_cache.shape
    num_seqs, group = len(context_lens), q_heads // kv_heads
    block_d, block_v = _padded(head_dim), _padded(value_dim)
    use_int64 = _use_int64(k_cache, v_cache) if use_int64 is None else use_int64
    tiles = tiles or prefill_tiles(max(block_d, block_v) * q.element_size(), q.dtype)
    block_q = max(1, tiles.rows // group)
    kernel[(kv_heads, tokens // block_q + num_seqs)](
        q, k_cache, v_cache, block_tables, context_lens, cu_seqlens_q, out, scale * LOG2_E, num_seqs,
        *q.stride()[:2], *out.stride()[:2], *k_cache.stride()[:3], block_tables.stride(0),
        GROUP=group, BLOCK_M=max(tiles.rows, _padded(group)), BLOCK_Q=block_q, HEAD_DIM=head_dim, BLOCK_D=block_d,
        VALUE_DIM=value_dim, BLOCK_V=block_v, BLOCK_SIZE=block_size, BLOCK_N=tiles.keys, USE_INT64=use_int64,
        num_warps=tiles.warps, num_stages=tiles.stages, **_arguments_of(terms),
    )  # fmt: skip


def hopper_pays(tokens: int, head_dim: int, max_seqlen_q: int) -> bool:
    """True if `hopper_prefill_kernel` is faster for a batch of this size, by timings on an H200.

    Its programs are few and large, one per processor, and its launch takes more CPU time. With heads of 64 elements it
    gains less, so only large steps with a long prompt or chunk benefit.
    """
    if head_dim > 64:
        return tokens >= MIN_HOPPER_TOKENS
    return tokens >= MIN_SHORT_HEAD_TOKENS and max_seqlen_q >= MIN_HOPPER_TOKENS


def has_hopper_kernel(q, k_cache, v_cache, terms) -> bool:
    """True if `hopper_prefill_kernel` supports these tensors and runs on this GPU.

    It supports 16-bit heads of 64, 80, 96, 112 or 128 elements, up to 64 query heads per KV head, no terms, and
    contiguous blocks of 8 to 64 slots, a power of two, with the heads of a slot contiguous.
    """
    _, q_heads, head_dim = q.shape
    _, block_size, kv_heads, _ = k_cache.shape
    return (
        _is_hopper(q.device)
        and terms is None
        and q.element_size() == 2
        and head_dim in (64, 80, 96, 112, 128)
        and v_cache.shape == k_cache.shape
        and q_heads // kv_heads <= 64
        and block_size in (8, 16, 32, 64)
        and all(_is_matrix(cache) for cache in (k_cache, v_cache))
    )


def _is_matrix(cache) -> bool:
    """True if TMA, which needs 16-byte strides, can read the cache as a matrix with one row per slot."""
    (_, block_size, _, head_dim), (stride_block, stride_slot, stride_head, _) = cache.shape, cache.stride()
    is_even = cache.data_ptr() % 16 == 0 and stride_slot * cache.element_size() % 16 == 0
    return is_even and stride_block == block_size * stride_slot and stride_head == head_dim


@cache
def _is_hopper(device: torch.device) -> bool:
    """True for a Hopper GPU and a Triton with a known version of Gluon, which is experimental."""
    if device.type != "cuda" or not triton.__version__.startswith(("3.6.", "3.7.")):
        return False
    return torch.cuda.get_device_capability(device)[0] == 9


def _padded(size: int) -> int:
    """Pad a tile's side: tensor cores need at least 16, and Triton needs powers of two."""
    return max(16, triton.next_power_of_2(size))


def _use_int64(*caches) -> bool:
    """True if offsets in a cache, which may be a view of a larger tensor, can exceed 32 bits."""
    ends = (sum((size - 1) * stride for size, stride in zip(cache.shape, cache.stride())) for cache in caches)
    return max(ends) > 2**31 - 1


def _arguments_of(terms) -> dict[str, object]:
    """The kernels' arguments for a layer's terms; none for most layers."""
    if terms is None:
        return {}
    arguments = dict(sinks=terms.sinks, alibi_slopes=terms.alibi_slopes, WINDOW=terms.window, SOFTCAP=terms.softcap)
    if terms.chunk is not None:
        arguments |= dict(WINDOW=terms.chunk, CHUNKED=True)
    return {name: value for name, value in arguments.items() if value is not None}


@cache
def _processors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1


@cache
def _counters(device: torch.device, count: int) -> torch.Tensor:
    """Counters for `decode_kernel`, which resets them: clearing a fresh tensor would take another launch."""
    return torch.zeros(count, dtype=torch.int32, device=device)
