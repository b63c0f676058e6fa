"""Lesson 00: the KV cache of one sequence. It makes room for new tokens by copying the old ones."""

import torch


class ModelCache:
    """Answers the other questions of a Hugging Face model to its cache, all from `num_tokens`."""

    num_tokens: int

    def get_seq_length(self, layer: int = 0) -> int:
        return self.num_tokens

    get_query_offset = get_seq_length

    def get_mask_sizes(self, new_tokens: int, layer: int) -> tuple[int, int]:
        return self.num_tokens + new_tokens, 0


class KVCache(ModelCache):
    """The keys and values of one sequence's tokens, in every layer of a model; empty at first."""

    def __init__(self) -> None:
        self.keys: dict[int, torch.Tensor] = {}  # of each layer
        self.values: dict[int, torch.Tensor] = {}

    def update(self, key: torch.Tensor, value: torch.Tensor, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Add the keys and values of new tokens to one layer. In each pass, every layer calls this once, in order.

        Args:
            key, value: of the new tokens, each [1, KV heads, new tokens, head size].
            layer: index of the layer, from 0.

        Returns:
            (keys, values): of all tokens so far in this layer, in the order of the text; each [1, KV heads, tokens,
            head size].
        """
        if layer in self.keys:
            key = torch.cat([self.keys[layer], key], dim=2)
            value = torch.cat([self.values[layer], value], dim=2)
        self.keys[layer], self.values[layer] = key, value
        return key, value

    @property
    def num_tokens(self) -> int:  # type: ignore[override]
        """The number of tokens whose keys and values are in the cache."""
        return self.keys[0].shape[2] if self.keys else 0

    @property
    def num_bytes(self) -> int:
        """The bytes of all keys and values, in all layers."""
        return sum(tensor.nbytes for tensor in (*self.keys.values(), *self.values.values()))
