"""Lesson 02: a dense KV cache with one row a slot, and the mask that hides what a row does not own."""

from dataclasses import dataclass

import torch
from transformers import Cache
from transformers.cache_utils import DynamicLayer

from lessons_lib.models.loading import kv_head_size


@dataclass(frozen=True)
class SlotView:
    """Which part of the cache the next forward pass works on.

    Attributes:
        rows: the slots that take part, as a slice.
        positions: where the new keys and values go, int64 [rows, new tokens].
        num_keys: how many cache columns the pass looks at.
    """

    rows: slice
    positions: torch.Tensor
    num_keys: int


class SlotLayer(DynamicLayer):
    """One layer's keys and values, each [num_slots, kv_heads, max_seq_len, head_dim], reserved once.

    A model calls `update` in every layer with the keys and values of the new tokens, and computes attention over what
    `update` returns.
    """

    def __init__(self, keys: torch.Tensor, values: torch.Tensor):
        super().__init__()
        self.lazy_initialization(keys, values)
        self.keys, self.values = keys, values
        self.view: SlotView | None = None

    def update(self, key_states, value_states, *args, **kwargs):
        view = self.view
        rows = torch.arange(view.rows.start, view.rows.stop, device=self.keys.device)[:, None]
        # Indexed like this, the places are laid out as [rows, new tokens, kv_heads, head_dim]: heads and tokens change places.
        self.keys[rows, :, view.positions] = key_states.transpose(1, 2)
        self.values[rows, :, view.positions] = value_states.transpose(1, 2)
        return self.keys[view.rows, :, : view.num_keys], self.values[view.rows, :, : view.num_keys]


class SlotCache(Cache):
    """The cache of a whole model. All of it is reserved from the start, used or not."""

    def __init__(self, model, num_slots: int, max_seq_len: int):
        kv_heads, head_dim = kv_head_size(model.config)
        shape = (num_slots, kv_heads, max_seq_len, head_dim)

        def reserve() -> torch.Tensor:
            return torch.zeros(shape, dtype=model.dtype, device=model.device)

        super().__init__(layers=[SlotLayer(reserve(), reserve()) for _ in range(model.config.num_hidden_layers)])
        self.num_slots, self.max_seq_len = num_slots, max_seq_len

    def look_at(self, view: SlotView) -> None:
        for layer in self.layers:
            layer.view = view


def cache_mask(positions, num_keys):
    """Which cached keys each new token may see: those at its own position and before.

    A row's own tokens lie in columns 0, 1, 2, ... What lies beyond them was left by an earlier request.

    Args:
        positions: int64 tensor [rows, new tokens], the position of each new token in its own sequence.
        num_keys: how many cache columns the pass looks at.

    Returns:
        bool tensor [rows, 1, new tokens, num_keys], True where the token may look. The 1 stands for all heads.
    """
    columns = torch.arange(num_keys, device=positions.device)
    return (columns <= positions[:, :, None])[:, None]
