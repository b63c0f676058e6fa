"""Lesson 12: the size of an engine's pool: it must fit in memory, and hold the longest sequence."""

import psutil
import torch
from transformers import PreTrainedModel

from lessons_lib.engine.config import EngineConfig
from lessons_lib.kv_cache.block_memory import block_bytes
from lessons_lib.kv_cache.block_pool import blocks_for
from lessons_lib.models.configuration import context_length

BYTES_COUNTED = 1024  # for a token of a model that keeps no keys: its blocks only count


def checked_num_blocks(config: EngineConfig, model: PreTrainedModel, state_bytes: int = 0) -> int:
    """Compute the number of blocks of an engine's pool, before any memory is allocated for them.

    Args:
        state_bytes: the part of `cache_bytes` that states take.

    Raises:
        ValueError: the cache has no block, or can't hold one sequence of `max_model_len` tokens, or the model has fewer
            positions than that.
        MemoryError: the cache doesn't fit in memory. With `config.make_runner`, only the swap blocks are counted: the
            runner may have allocated its blocks already.
    """
    size = block_bytes(model.config, config.block_size, model.dtype.itemsize, config.layer_shapes)
    size = size or BYTES_COUNTED * config.block_size
    num_blocks = config.num_blocks
    if num_blocks is None:
        num_blocks = (config.cache_bytes - state_bytes) // size
        if num_blocks < 1:
            raise ValueError(
                f"cache_bytes is {config.cache_bytes}, of which states take {state_bytes}, and one block of "
                f"{config.block_size} tokens of this model takes {size} bytes. Raise cache_bytes or lower block_size."
            )
    _check_max_model_len(config, context_length(model.config), num_blocks)
    swap_device = torch.device("cpu")
    needed = {model.device: 0 if config.make_runner else num_blocks * size}
    needed[swap_device] = needed.get(swap_device, 0) + config.num_swap_blocks * size + config.host_cache_bytes
    for device, num_bytes in needed.items():
        available = available_memory(device)
        if available is not None and num_bytes > available:
            raise MemoryError(
                f"{num_blocks} blocks and {config.num_swap_blocks} swap blocks of {size} bytes need "
                f"{num_bytes / 2**30:.1f} GiB on {device.type}; {available / 2**30:.1f} GiB are available. Lower "
                "num_blocks, cache_bytes, num_swap_blocks or host_cache_bytes."
            )
    return num_blocks


def _check_max_model_len(config: EngineConfig, context: int | None, num_blocks: int) -> None:
    # Only on request: a pool that is too small for the model's longest sequence serves shorter ones well.
    longest = config.max_model_len
    if longest is None:
        return
    if context is not None and longest > context:
        raise ValueError(
            f"max_model_len is {longest}; the model has positions for {context} tokens. Lower it to {context} or less."
        )
    needed = blocks_for(longest - 1, config.block_size)  # the last token of a completion is never computed
    if needed > num_blocks:
        raise ValueError(
            f"max_model_len is {longest}: a sequence of that length needs {needed} blocks of {config.block_size} "
            f"tokens, and the pool has {num_blocks}. Lower max_model_len to {num_blocks * config.block_size + 1} or "
            f"less, or raise {'cache_bytes' if config.num_blocks is None else 'num_blocks'}."
        )


def available_memory(device: torch.device) -> int | None:
    """Bytes that can still be allocated on a device; None if unknown."""
    if device.type == "cuda":
        unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return int(torch.cuda.mem_get_info(device)[0]) + unused
    return psutil.virtual_memory().available if device.type == "cpu" else None
