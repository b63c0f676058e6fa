"""Lesson 06: keys and values of all layers in blocks of one pool, written by slot mapping and read by block table."""

import torch

from lessons_lib.model import kv_head_size


class PagedKVCache:
    """The cache of a whole model, in blocks that may belong to any request.

    Attributes:
        keys, values: one tensor a layer, [num_blocks, block_size, kv_heads, head_dim].
    """

    def __init__(self, config, num_blocks: int, block_size: int, dtype=torch.float32, device="cpu"):
        if num_blocks < 1 or block_size < 1:
            raise ValueError(f"{num_blocks} blocks of {block_size} tokens; a cache has at least 1 block of at least 1 token.")
        shape = (num_blocks, block_size, *kv_head_size(config))
        layers = range(config.num_hidden_layers)
        self.num_blocks, self.block_size = num_blocks, block_size
        self.keys = [torch.zeros(shape, dtype=dtype, device=device) for _ in layers]
        self.values = [torch.zeros(shape, dtype=dtype, device=device) for _ in layers]

    def write(self, layer: int, keys: torch.Tensor, values: torch.Tensor, slot_mapping: torch.Tensor) -> None:
        """Put the new tokens' keys and values of one layer in their places. Nothing else is touched.

        Args:
            keys, values: [T, kv_heads, head_dim].
            slot_mapping: int64 [T], the place of each token: block x block_size + offset.
        """
        self.keys[layer].flatten(0, 1)[slot_mapping] = keys
        self.values[layer].flatten(0, 1)[slot_mapping] = values
