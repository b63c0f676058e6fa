"""Lesson 06: keys and values of all layers in blocks of one pool, written by slot mapping and read by block table."""

import torch

from lessons_lib.models.loading import kv_head_size


class PagedKVCache:
    """The cache of a whole model, in blocks that may belong to any request.

    Attributes:
        keys, values: one tensor a layer, [num_blocks, block_size, kv_heads, head_dim].
    """

    def __init__(self, config, num_blocks, block_size, dtype=torch.float32, device="cpu"):
        if num_blocks < 1 or block_size < 1:
            raise ValueError(
                f"{num_blocks} blocks of {block_size} tokens; a cache has at least 1 block of at least 1 token."
            )
        shape = (num_blocks, block_size, *kv_head_size(config))
        layers = range(config.num_hidden_layers)
        self.num_blocks, self.block_size = num_blocks, block_size
        self.keys = [torch.zeros(shape, dtype=dtype, device=device) for _ in layers]
        self.values = [torch.zeros(shape, dtype=dtype, device=device) for _ in layers]

    def write(self, layer, keys, values, slot_mapping):
        """Put the new tokens' keys and values of one layer in their places, for all sequences at once. Nothing else is touched.

        Args:
            layer: number of the layer, from 0.
            keys, values: [T, kv_heads, head_dim].
            slot_mapping: int64 [T], the place of each token: block x block_size + offset.
        """
        self.keys[layer].flatten(0, 1)[slot_mapping] = keys
        self.values[layer].flatten(0, 1)[slot_mapping] = values

    def read(self, layer, blocks, num_tokens):
        """Gather what one sequence has cached in one layer: a copy of its blocks, one behind the other.

        Args:
            layer: number of the layer, from 0.
            blocks: list of int, the blocks of the sequence in the order of its tokens.
            num_tokens: how many tokens it has; the rest of its last block is left out.

        Returns:
            (keys, values), each [num_tokens, kv_heads, head_dim].
        """
        return tuple(cache[blocks].flatten(0, 1)[:num_tokens] for cache in (self.keys[layer], self.values[layer]))
