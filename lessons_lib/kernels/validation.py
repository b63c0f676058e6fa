"""Lessons 07 and 08: validation of the attention functions' arguments. Kernels don't check them: they would read out of
bounds.
"""

from itertools import pairwise

import torch

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
MAX_HEAD_DIM = 256  # the tiles of larger heads don't fit into a processor's shared memory


def check_inputs(q, k_cache, v_cache, block_tables, context_lens, cu_seqlens_q, terms) -> None:
    """Check shapes, dtypes, devices and layouts.

    Raises:
        ValueError: names the first mismatch.
    """
    if q.dim() != 3 or k_cache.dim() != 4:
        raise ValueError(
            f"q has shape {list(q.shape)} and k_cache {list(k_cache.shape)}; they must be [tokens, query heads, head "
            "size] and [blocks, block size, KV heads, head size]."
        )
    check_alike(k_cache, v_cache)
    if q.shape[2] != k_cache.shape[3] or q.shape[1] % k_cache.shape[2]:
        raise ValueError(
            f"q has {q.shape[1]} heads of size {q.shape[2]}, the cache {k_cache.shape[2]} of size {k_cache.shape[3]}; "
            "the sizes must be equal, and the query heads a multiple of the KV heads."
        )
    largest = max(q.shape[2], v_cache.shape[3])
    if largest > MAX_HEAD_DIM:
        raise ValueError(f"the head size is {largest}; the kernels take up to {MAX_HEAD_DIM}. Use the PyTorch backend.")
    if q.dtype not in DTYPES or {k_cache.dtype, v_cache.dtype} != {q.dtype}:
        raise ValueError(
            f"q is {q.dtype}, the caches {k_cache.dtype} and {v_cache.dtype}; all must have the same dtype, float32, "
            "float16 or bfloat16."
        )
    if q.dtype is torch.bfloat16 and q.device.type == "cpu":
        raise ValueError("Triton's interpreter reads bfloat16 as integers; on a CPU, use float32 or float16.")
    if q.stride(2) != 1 or k_cache.stride(3) != 1 or v_cache.stride(3) != 1:
        raise ValueError("the elements of one head must be contiguous in q and in the caches: call `.contiguous()`.")
    if block_tables.dim() != 2 or len(block_tables) != len(context_lens) or context_lens.dim() != 1:
        raise ValueError(
            f"block_tables has shape {list(block_tables.shape)} and context_lens {list(context_lens.shape)}; they must "
            "be [sequences, blocks per table] and [sequences]."
        )
    if {block_tables.dtype, context_lens.dtype} != {torch.int32} or block_tables.stride(1) != 1:
        raise ValueError(
            f"block_tables is {block_tables.dtype}, context_lens {context_lens.dtype}; both must be torch.int32, and "
            "tables contiguous."
        )
    devices = {tensor.device for tensor in (q, k_cache, v_cache, block_tables, context_lens)}
    if len(devices) > 1:
        raise ValueError(f"the tensors are on {', '.join(sorted(map(str, devices)))}; move them to one device.")
    wanted = (len(context_lens) + 1,)
    if cu_seqlens_q.shape != wanted or cu_seqlens_q.dtype != torch.int32 or cu_seqlens_q.device != q.device:
        raise ValueError(
            f"cu_seqlens_q is {cu_seqlens_q.dtype} of shape {list(cu_seqlens_q.shape)} on {cu_seqlens_q.device}; "
            f"for {len(context_lens)} sequences it must be torch.int32 of shape {list(wanted)} on {q.device}."
        )
    if terms is not None:
        check_terms(q, terms)


def check_alike(k_cache, v_cache) -> None:
    """Check that both caches have the same layout, but for the head size: kernels compute one offset for both."""
    key_dim, value_dim = k_cache.shape[-1], v_cache.shape[-1]
    strides = [(k * value_dim, v * key_dim) for k, v in zip(k_cache.stride()[:-1], v_cache.stride()[:-1])]
    is_scaled = key_dim == value_dim or all(stride % key_dim == 0 for stride in k_cache.stride()[:-1])
    if k_cache.shape[:-1] != v_cache.shape[:-1] or any(k != v for k, v in strides) or not is_scaled:
        raise ValueError(
            f"k_cache has shape {list(k_cache.shape)} and strides {list(k_cache.stride())}, v_cache "
            f"{list(v_cache.shape)} and {list(v_cache.stride())}; both must be the same, except for the head size."
        )


def check_terms(q, terms) -> None:
    """Check that each tensor has one element per query head, and that there is a window or a chunk but not both."""
    for name in ("sinks", "alibi_slopes"):
        tensor = getattr(terms, name)
        if tensor is not None and (tensor.shape != q.shape[1:2] or tensor.device != q.device or tensor.stride(0) != 1):
            raise ValueError(
                f"{name} has shape {list(tensor.shape)} on {tensor.device}; it must have one element for each of "
                f"{q.shape[1]} query heads, contiguous, on {q.device}."
            )
    sizes = [size for size in (terms.window, terms.chunk) if size is not None]
    if len(sizes) > 1 or min(sizes, default=1) < 1:
        raise ValueError(
            f"window is {terms.window} and chunk {terms.chunk}; the kernels take one of them, at least 1. Use the "
            "PyTorch backend."
        )


def check_contents(num_tokens, k_cache, cu_seqlens_q, context_lens, block_tables) -> None:
    """Check ranges in the packed batch, lengths and block ids, and name the first that is out of bounds: ValueError.

    This synchronizes with the GPU.
    """
    num_blocks, block_size = k_cache.shape[:2]
    contexts = context_lens.tolist()
    bounds = cu_seqlens_q.tolist()
    q_lens = [end - start for start, end in pairwise(bounds)]
    if bounds[0] != 0 or bounds[-1] != num_tokens or min(q_lens, default=1) < 1:
        raise ValueError(
            f"cu_seqlens_q is {bounds}; it must rise from 0 to {num_tokens}, the tokens in q, by 1 or more per "
            "sequence."
        )
    most = block_tables.shape[1] * block_size
    for index, (context, q_len) in enumerate(zip(contexts, q_lens)):
        if not q_len <= context <= most:
            raise ValueError(
                f"context_lens[{index}] is {context}; sequence {index} has {q_len} new tokens, and its table has room "
                f"for {most}, so it must be {q_len} to {most}."
            )
    is_used = torch.arange(block_tables.shape[1], device=block_tables.device) * block_size < context_lens[:, None]
    is_wrong = is_used & ((block_tables < 0) | (block_tables >= num_blocks))
    if is_wrong.any():
        index, column = is_wrong.nonzero()[0].tolist()
        raise ValueError(
            f"block_tables[{index}, {column}] is {int(block_tables[index, column])}; the cache has blocks 0 to "
            f"{num_blocks - 1}."
        )
