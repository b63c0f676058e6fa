"""Lesson 02: a dense KV cache with one row per batch slot, and the mask that hides stale keys."""

from typing import Any

import torch
from transformers import Cache, PreTrainedModel
from transformers.cache_utils import DynamicLayer

from lessons_lib.models.configuration import kv_head_size


class SlotLayer(DynamicLayer):
    """One layer's keys and values, each [num_slots, kv_heads, max_seq_len, head_dim], reserved once.

    In every layer, the model calls `update` with the new tokens' keys and values, and computes attention over its
    result.
    """

    def __init__(self, keys: torch.Tensor, values: torch.Tensor):
        super().__init__()  # type: ignore[no-untyped-call]
        self.lazy_initialization(keys, values)
        self.keys: torch.Tensor = keys
        self.values: torch.Tensor = values
        self.view: tuple[range, torch.Tensor, int] | None = None

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        assert self.view is not None, "call SlotCache.look_at before the forward pass"
        slots, positions, num_keys = self.view
        rows = torch.tensor(slots, device=self.keys.device)[:, None]
        # This indexing yields [rows, new tokens, kv_heads, head_dim], so transpose heads and tokens.
        self.keys[rows, :, positions] = key_states.transpose(1, 2)
        self.values[rows, :, positions] = value_states.transpose(1, 2)
        view = slice(slots.start, slots.stop), slice(None), slice(num_keys)
        return self.keys[view], self.values[view]


class SlotCache(Cache):
    """The cache of a whole model. All of it is reserved at the start, used or not."""

    def __init__(self, model: PreTrainedModel, num_slots: int, max_seq_len: int):
        kv_heads, head_dim = kv_head_size(model.config)
        shape = (num_slots, kv_heads, max_seq_len, head_dim)

        def reserve() -> torch.Tensor:
            return torch.zeros(shape, dtype=model.dtype, device=model.device)

        super().__init__(layers=[SlotLayer(reserve(), reserve()) for _ in range(model.config.num_hidden_layers)])
        self.num_slots, self.max_seq_len = num_slots, max_seq_len

    def look_at(self, slots: range, positions: torch.Tensor, num_keys: int) -> None:
        """Let the next forward pass write the columns `positions`, int64 [slots, new tokens], of these slots, and read
        their first `num_keys` columns."""
        for layer in self.layers:
            layer.view = slots, positions, num_keys  # type: ignore[union-attr]


def cache_mask(positions: torch.Tensor, num_keys: int) -> torch.Tensor:
    """Build the mask over cached keys: each new token attends to its own position and those before it.

    A request's tokens are in columns 0, 1, 2, ... Columns beyond a token's position hold later tokens of the same
    chunk or stale keys of an earlier request, or are empty.

    Args:
        positions: int64 tensor [rows, new tokens], the position of each new token in its own sequence.
        num_keys: number of cache columns that the pass reads.

    Returns:
        bool tensor [rows, 1, new tokens, num_keys], True where the token may attend. The 1 broadcasts over heads.
    """
    columns = torch.arange(num_keys, device=positions.device)
    return (columns <= positions[:, :, None])[:, None]
