"""Lesson 02: a dense KV cache with one row per batch slot, and the mask that hides stale keys."""

from dataclasses import dataclass
from typing import Any

import torch
from transformers import Cache, PreTrainedModel
from transformers.cache_utils import DynamicLayer

from lessons_lib.models.loading import kv_head_size


@dataclass(frozen=True)
class SlotView:
    """The part of the cache that the next forward pass reads and writes.

    Attributes:
        rows: the batch slots of the pass, as a slice.
        positions: where the new keys and values go, int64 [rows, new tokens].
        num_keys: how many cache columns the pass reads.
    """

    rows: slice
    positions: torch.Tensor
    num_keys: int


class SlotLayer(DynamicLayer):
    """One layer's keys and values, each [num_slots, kv_heads, max_seq_len, head_dim], reserved once.

    In every layer, the model calls `update` with the keys and values of the new tokens, and computes attention over
    what `update` returns.
    """

    def __init__(self, keys: torch.Tensor, values: torch.Tensor):
        super().__init__()  # type: ignore[no-untyped-call]
        self.lazy_initialization(keys, values)
        self.keys: torch.Tensor = keys
        self.values: torch.Tensor = values
        self.view: SlotView | None = None

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        view = self.view
        assert view is not None, "call SlotCache.look_at before the forward pass"
        rows = torch.arange(view.rows.start, view.rows.stop, device=self.keys.device)[:, None]
        # This indexing gives [rows, new tokens, kv_heads, head_dim]: heads and tokens are transposed.
        self.keys[rows, :, view.positions] = key_states.transpose(1, 2)
        self.values[rows, :, view.positions] = value_states.transpose(1, 2)
        return self.keys[view.rows, :, : view.num_keys], self.values[view.rows, :, : view.num_keys]


class SlotCache(Cache):
    """The cache of a whole model. All of it is reserved at the start, used or not."""

    def __init__(self, model: PreTrainedModel, num_slots: int, max_seq_len: int):
        kv_heads, head_dim = kv_head_size(model.config)
        shape = (num_slots, kv_heads, max_seq_len, head_dim)

        def reserve() -> torch.Tensor:
            return torch.zeros(shape, dtype=model.dtype, device=model.device)

        super().__init__(layers=[SlotLayer(reserve(), reserve()) for _ in range(model.config.num_hidden_layers)])
        self.num_slots, self.max_seq_len = num_slots, max_seq_len

    def look_at(self, view: SlotView) -> None:
        """Choose the part of the cache that the next forward pass reads and writes."""
        for layer in self.layers:
            layer.view = view  # type: ignore[union-attr]


def cache_mask(positions: torch.Tensor, num_keys: int) -> torch.Tensor:
    """Which cached keys each new token may attend to: those at its own position and before.

    A request's own tokens are in columns 0, 1, 2, ... What is beyond a token's own
    position is a later token of the same chunk, was left by an earlier request, or is empty.

    Args:
        positions: int64 tensor [rows, new tokens], the position of each new token in its own sequence.
        num_keys: how many cache columns the pass reads.

    Returns:
        bool tensor [rows, 1, new tokens, num_keys], True where the token may attend. The 1 stands for all heads.
    """
    columns = torch.arange(num_keys, device=positions.device)
    return (columns <= positions[:, :, None])[:, None]
