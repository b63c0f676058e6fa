"""Blocks in one piece: keys and values of all layers of a block in one row of bytes."""

import torch

from lessons_lib.kv_cache.paged_kv_cache import PagedKVCache


class HostCache(PagedKVCache):
    """Blocks like those of another cache, in CPU memory. A row can be read, written and sent as it is.

    Attributes:
        rows: uint8 [num_blocks, bytes of a block].
        keys, values: the same memory, as in PagedKVCache.
    """

    def __init__(self, like: PagedKVCache, num_blocks: int, device: "torch.device | str" = "cpu"):
        self.num_blocks, self.block_size = num_blocks, like.block_size
        self.rows = torch.zeros(num_blocks, bytes_of_block(like), dtype=torch.uint8, device=device)
        self.keys, self.values = [], []
        end = 0
        for views, layers in ((self.keys, like.keys), (self.values, like.values)):
            for layer in layers:
                start, end = end, end + layer[0].nbytes
                views.append(self.rows[:, start:end].view(layer.dtype).unflatten(1, layer.shape[1:]))


def bytes_of_block(cache: PagedKVCache) -> int:
    """Size of one block of a cache, with the keys and values of all layers."""
    return sum(layer[0].nbytes for layer in (*cache.keys, *cache.values))
