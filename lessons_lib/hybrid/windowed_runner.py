"""Lesson 19: runners whose layers with a window have a cache of their own, which is smaller."""

from dataclasses import replace
from functools import partial
from typing import Any

import torch
from transformers import AttentionInterface, PretrainedConfig, PreTrainedModel

from lessons_lib.attention.custom_op import OperatorCache
from lessons_lib.attention.hf_backend import Attend, Backend, ForwardBatch, plan_attention
from lessons_lib.attention.score_terms import ScoreTerms, score_terms
from lessons_lib.engine.gpu_model_runner import GPUModelRunner
from lessons_lib.engine.model_runner import ModelRunner
from lessons_lib.hybrid.window_blocks import WindowBlocks
from lessons_lib.kv_cache.paged_kv_cache import PagedKVCache
from lessons_lib.models.configuration import KVShape, kv_shapes, text_config
from lessons_lib.scheduling.scheduler import SchedulerOutput

RECORDING = "record_windows"
NULL_BLOCK = 0  # of the layers with a window: padding is written there


@torch.inference_mode()
def windows_of(model: PreTrainedModel) -> list[int | None]:
    """Run a model on one token to find out how many tokens each layer sees; None for all.

    A layer that sees chunks (Llama 4) reads no more than the tokens of one.
    """
    config: Any = text_config(model.config)
    names = ("sliding_window", "attention_chunk_size", "layer_types")
    if not any(getattr(config, name, None) for name in names):
        return [None] * config.num_hidden_layers
    found: dict[int, int | None] = {}

    def attend(
        module: Any, query: Any, key: Any, value: Any, attention_mask: Any, scaling: Any = None, **kwargs: Any
    ) -> Any:  # fmt: skip
        terms = score_terms(module, attention_mask, kwargs) or ScoreTerms()
        found[module.layer_idx] = terms.window or terms.chunk
        return value.repeat_interleave(query.shape[1] // value.shape[1], dim=1).transpose(1, 2), None

    attention = model.config._attn_implementation
    AttentionInterface.register(RECORDING, attend)
    try:
        model.config._attn_implementation = RECORDING
        model(torch.zeros(1, 1, dtype=torch.int64, device=model.device), use_cache=False)
    finally:
        model.config._attn_implementation = attention
    return [found.get(layer) for layer in range(len(found))]


class WindowedCache(PagedKVCache):
    """A PagedKVCache whose layers with a window have other blocks than the rest.

    Attributes:
        own_block: block of the pool -> its block in the layers with a window, int64 [num_blocks], on their device.
            Valid for blocks that the next tokens read or write.
    """

    def __init__(
        self, config: PretrainedConfig, num_blocks: int, block_size: int, dtype: torch.dtype,
        device: torch.device, layer_shapes: list[KVShape] | None, *, num_own_blocks: int, windows: list[int | None],
    ):  # fmt: skip
        self.num_blocks, self.block_size, self.windows = num_blocks, block_size, windows
        shapes = kv_shapes(config) if layer_shapes is None else layer_shapes
        caches = [
            PagedKVCache(config, 1 + num_own_blocks if window else num_blocks, block_size, dtype, device, [shape])
            for shape, window in zip(shapes, windows)
        ]
        self.keys = [cache.keys[0] for cache in caches]
        self.values = [cache.values[0] for cache in caches]
        self.own_block = torch.full((num_blocks,), NULL_BLOCK, dtype=torch.int64, device=device)

    def write(self, layer: int, keys: torch.Tensor, values: torch.Tensor, slot_mapping: torch.Tensor) -> None:
        """See PagedKVCache."""
        super().write(layer, keys, values, self.slots_in(layer, slot_mapping))

    def slots_in(self, layer: int, slot_mapping: torch.Tensor) -> torch.Tensor:
        """The cache slots of a layer, for those of the pool."""
        if not self.windows[layer]:
            return slot_mapping
        size = self.block_size
        return self.own_block[slot_mapping // size] * size + slot_mapping % size

    def in_windows(self, batch: ForwardBatch) -> ForwardBatch:
        """The batch as layers with a window see it."""
        return replace(batch, block_tables=self.own_block[batch.block_tables].to(batch.block_tables.dtype))

    def note(self, new: dict[int, int]) -> None:
        """Enter new blocks into the map, behind all work that was started."""
        if new:
            pairs = torch.tensor([*new.items()], pin_memory=self.own_block.is_cuda)
            blocks, own = pairs.to(self.own_block.device, non_blocking=True).unbind(1)
            self.own_block[blocks] = own + 1  # behind NULL_BLOCK


def by_window(attend_all: Attend, attend_windows: Attend) -> Attend:
    """Attention over the blocks that a layer has."""

    def attend(*tensors: Any, terms: ScoreTerms | None = None) -> torch.Tensor:
        if terms is None:
            return attend_all(*tensors)
        return (attend_windows if terms.window or terms.chunk else attend_all)(*tensors, terms=terms)

    return attend


class WindowedOperatorCache(WindowedCache, OperatorCache):
    """A WindowedCache written and read by operators."""

    def plan(self, batch: ForwardBatch) -> Attend:
        """See OperatorCache."""
        return by_window(super().plan(batch), super().plan(self.in_windows(batch)))


class WindowedRunner(ModelRunner):
    """A ModelRunner over a WindowedCache.

    Attributes:
        blocks: the WindowBlocks of the scheduler.
    """

    cache: WindowedCache
    kind_of_cache = WindowedCache

    def __init__(self, *arguments: Any, blocks: WindowBlocks, windows: list[int | None], **options: Any):
        self.blocks = blocks
        self.cache_type = partial(self.kind_of_cache, num_own_blocks=blocks.pool.num_blocks, windows=windows)  # type: ignore[assignment]
        super().__init__(*arguments, **options)
        self.backend = partial(self.plan, plan_attention(self.backend, self.model.device))

    def plan(self, backend: Backend, batch: ForwardBatch, block_tables: torch.Tensor, block_size: int) -> Attend:
        """Attention of a batch by a backend, see `plan_attention`."""
        own = self.cache.in_windows(batch)
        return by_window(backend(batch, block_tables, block_size), backend(own, own.block_tables, block_size))

    def forward(self, scheduler_output: SchedulerOutput) -> torch.Tensor:
        """See ModelRunner."""
        self.cache.note(self.blocks.launch(scheduler_output.num_scheduled_tokens))
        return super().forward(scheduler_output)

    def reset(self) -> None:
        """See ModelRunner."""
        super().reset()
        self.blocks.reset()


class GPUWindowedRunner(WindowedRunner, GPUModelRunner):
    """A GPUModelRunner over a WindowedCache."""

    cache: WindowedOperatorCache
    kind_of_cache = WindowedOperatorCache
