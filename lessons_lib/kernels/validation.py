"""Lessons 07 and 08: what the attention functions refuse before a kernel sees it. A kernel checks nothing: it would read elsewhere."""

import torch

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
LARGEST_HEAD = 256  # for larger ones, no tile fits in the shared memory of a processor


def check_inputs(q, k_cache, v_cache, block_tables, context_lens) -> None:
    """Shapes, dtypes, devices and layouts.

    Raises:
        ValueError: the first that is wrong.
    """
    if q.dim() != 3 or k_cache.dim() != 4:
        raise ValueError(
            f"q has the shape {list(q.shape)} and k_cache {list(k_cache.shape)}; they must be [tokens, query heads, head size] and "
            "[blocks, block size, KV heads, head size]."
        )
    check_alike(k_cache, v_cache)
    if q.shape[2] != k_cache.shape[3] or q.shape[1] % k_cache.shape[2]:
        raise ValueError(
            f"q has {q.shape[1]} heads of size {q.shape[2]}, the cache {k_cache.shape[2]} of size {k_cache.shape[3]}; the sizes must be "
            "equal, and the query heads a multiple of the KV heads."
        )
    if q.shape[2] > LARGEST_HEAD:
        raise ValueError(
            f"heads have the size {q.shape[2]}; the kernels take up to {LARGEST_HEAD}. Use the PyTorch backend."
        )
    if q.dtype not in DTYPES or {k_cache.dtype, v_cache.dtype} != {q.dtype}:
        raise ValueError(
            f"q is {q.dtype}, the caches {k_cache.dtype} and {v_cache.dtype}; all must be one of float32, float16, bfloat16."
        )
    if q.dtype is torch.bfloat16 and q.device.type == "cpu":
        raise ValueError(
            "Triton's interpreter takes the bits of bfloat16 for integers; on a CPU, use float32 or float16."
        )
    if q.stride(2) != 1 or k_cache.stride(3) != 1:
        raise ValueError(
            "the numbers of one head must lie next to each other in q and in the caches: call `.contiguous()`."
        )
    if block_tables.dim() != 2 or len(block_tables) != len(context_lens) or context_lens.dim() != 1:
        raise ValueError(
            f"block_tables has the shape {list(block_tables.shape)} and context_lens {list(context_lens.shape)}; they must be "
            "[sequences, blocks a table] and [sequences]."
        )
    if {block_tables.dtype, context_lens.dtype} != {torch.int32} or block_tables.stride(1) != 1:
        raise ValueError(
            f"block_tables is {block_tables.dtype}, context_lens {context_lens.dtype}; both must be torch.int32, and tables contiguous."
        )
    devices = {tensor.device for tensor in (q, k_cache, v_cache, block_tables, context_lens)}
    if len(devices) > 1:
        raise ValueError(f"the tensors lie on {', '.join(sorted(map(str, devices)))}; move them to one device.")


def check_alike(k_cache, v_cache) -> None:
    """Kernels compute one place for both caches."""
    if k_cache.shape != v_cache.shape or k_cache.stride() != v_cache.stride():
        raise ValueError(
            f"k_cache has the shape {list(k_cache.shape)} and the strides {list(k_cache.stride())}, v_cache {list(v_cache.shape)} and "
            f"{list(v_cache.stride())}; both must be alike."
        )


def check_decode(q, context_lens) -> None:
    if len(context_lens) != len(q):
        raise ValueError(
            f"q has {len(q)} tokens and context_lens {len(context_lens)} sequences; a decode has one token for each sequence."
        )


def check_varlen(cu_seqlens_q, context_lens) -> None:
    wanted = (len(context_lens) + 1,)
    if cu_seqlens_q.shape != wanted or cu_seqlens_q.dtype != torch.int32 or cu_seqlens_q.device != context_lens.device:
        raise ValueError(
            f"cu_seqlens_q is {cu_seqlens_q.dtype} of shape {list(cu_seqlens_q.shape)} on {cu_seqlens_q.device}; for {len(context_lens)} "
            f"sequences it must be torch.int32 of shape {list(wanted)} on {context_lens.device}."
        )


def check_contents(num_tokens, k_cache, cu_seqlens_q, context_lens, block_tables) -> None:
    """What lengths and tables hold. Looking at them means to wait for the GPU.

    Args:
        num_tokens: tokens of the row; cu_seqlens_q: None if every sequence has one.

    Raises:
        ValueError: a piece of the row, a length or a block number is out of bounds.
    """
    num_blocks, block_size = k_cache.shape[:2]
    contexts = context_lens.tolist()
    bounds = list(range(len(contexts) + 1)) if cu_seqlens_q is None else cu_seqlens_q.tolist()
    q_lens = [end - start for start, end in zip(bounds, bounds[1:])]
    if bounds[0] != 0 or bounds[-1] != num_tokens or min(q_lens, default=1) < 1:
        raise ValueError(
            f"cu_seqlens_q is {bounds}; it must rise from 0 to {num_tokens}, the tokens in q, by 1 or more for each sequence."
        )
    most = block_tables.shape[1] * block_size
    for index, (context, q_len) in enumerate(zip(contexts, q_lens)):
        if not q_len <= context <= most:
            raise ValueError(
                f"context_lens[{index}] is {context}; sequence {index} has {q_len} new tokens, and its table has room for {most}, so it "
                f"must be {q_len} to {most}."
            )
    is_used = torch.arange(block_tables.shape[1], device=block_tables.device) * block_size < context_lens[:, None]
    is_wrong = is_used & ((block_tables < 0) | (block_tables >= num_blocks))
    if is_wrong.any():
        index, column = is_wrong.nonzero()[0].tolist()
        raise ValueError(
            f"block_tables[{index}, {column}] is {int(block_tables[index, column])}; the cache has the blocks 0 to {num_blocks - 1}."
        )
