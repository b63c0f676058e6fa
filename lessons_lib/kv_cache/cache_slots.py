"""Lesson 03: the cache slots of many positions at once, as a tensor."""

import torch


def slot_mapping(blocks: list[int], block_size: int, start: int, end: int) -> torch.Tensor:
    """Compute the cache slots of the tokens at positions start to end - 1, all at once.

    Args:
        blocks: list of int, the ids of the request's blocks in the order of its tokens.
        block_size: tokens per block.
        start, end: a range of positions, as in `range(start, end)`; it may be empty.

    Returns:
        int64 tensor of shape [end - start].

    Raises:
        IndexError: a position has no slot, or `end` is less than `start`.
    """
    if not 0 <= start <= end <= len(blocks) * block_size:
        raise IndexError(f"need 0 <= start <= end <= {len(blocks) * block_size}, got {start}, {end}; `append` first.")
    positions = torch.arange(start, end)
    table = torch.tensor(blocks, dtype=torch.int64)
    return table[positions // block_size] * block_size + positions % block_size
