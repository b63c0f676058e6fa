"""Lesson 06: keys and values of all layers in one pool of blocks, written by slot mapping and read by block table."""

import torch
from transformers import PretrainedConfig

from lessons_lib.models.configuration import KVShape, kv_shapes


class PagedKVCache:
    """The cache of a whole model, in blocks that any request can use.

    A block id stands for the same block in all layers.

    Attributes:
        keys, values: one tensor per layer, [num_blocks, block_size, kv_heads, head_dim].

    Raises:
        ValueError: `num_blocks` or `block_size` is below 1.
    """

    def __init__(
        self, config: "PretrainedConfig", num_blocks: int, block_size: int, dtype: torch.dtype = torch.float32,
        device: "torch.device | str" = "cpu", layer_shapes: "list[KVShape] | None" = None,
    ):  # fmt: skip
        if num_blocks < 1 or block_size < 1:
            raise ValueError(f"{num_blocks} blocks of {block_size} tokens; both must be at least 1.")
        # Heads and head sizes of each layer; in most models all are alike.
        layers = kv_shapes(config) if layer_shapes is None else layer_shapes
        pool = (num_blocks, block_size)
        self.num_blocks, self.block_size = pool
        self.keys = [torch.zeros(*pool, own.kv_heads, own.key_dim, dtype=dtype, device=device) for own in layers]
        self.values = [torch.zeros(*pool, own.kv_heads, own.value_dim, dtype=dtype, device=device) for own in layers]

    def write(self, layer: int, keys: torch.Tensor, values: torch.Tensor, slot_mapping: torch.Tensor) -> None:
        """Write the new tokens' keys and values of one layer to their cache slots, for all sequences at once.

        Args:
            layer: index of the layer, from 0.
            keys, values: [T, kv_heads, head_dim].
            slot_mapping: int64 [T], the slot of each token: block x block_size + offset.

        Raises:
            ValueError: a tensor has the wrong shape; nothing changes.
        """
        pairs = ((self.keys[layer], keys), (self.values[layer], values))
        for cache, new in pairs:
            # PyTorch would broadcast the keys of one token or head to all others.
            if new.shape != (len(slot_mapping), *cache.shape[2:]):
                raise ValueError(
                    f"{len(slot_mapping)} slots of [KV heads, head size] {list(cache.shape[2:])} can't hold "
                    f"a tensor of shape {list(new.shape)}."
                )
        for cache, new in pairs:
            cache.flatten(0, 1)[slot_mapping] = new

    def read(self, layer: int, blocks: list[int], num_tokens: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Gather one sequence's keys and values in one layer: a copy of its blocks, in order.

        Args:
            layer: index of the layer, from 0.
            blocks: the blocks of the sequence, in the order of its tokens.
            num_tokens: tokens of the sequence; the rest of its last block is omitted.

        Returns:
            (keys, values), each [num_tokens, kv_heads, head_dim].
        """
        keys, values = self.keys[layer][blocks], self.values[layer][blocks]
        return keys.flatten(0, 1)[:num_tokens], values.flatten(0, 1)[:num_tokens]
