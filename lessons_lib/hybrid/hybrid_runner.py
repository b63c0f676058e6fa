"""Lesson 19: computes a scheduled step of a model whose layers aren't all alike, in one packed row."""

from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from transformers import AttentionInterface, PreTrainedModel

from lessons_lib.attention.hf_backend import Attend, Backend, ForwardBatch, PagedPass, plan_attention
from lessons_lib.attention.score_terms import score_terms
from lessons_lib.engine.input_batch import forward_batch
from lessons_lib.engine.model_runner import ModelRunner
from lessons_lib.hybrid.find_states import call_with
from lessons_lib.hybrid.packed_states import EMPTY, Forward, Group, PackedStates, groups_of, pieces_of
from lessons_lib.kv_cache.paged_kv_cache import PagedKVCache
from lessons_lib.models.configuration import KVShape
from lessons_lib.scheduling.scheduler import SchedulerOutput

COUNTED = "paged_by_calls"


@dataclass
class CountedPass:
    """A PagedPass in which a layer's cache is found by counting the calls of attention: a layer that keeps a state has
    none, and a layer that attends twice (DiffLlama), or an attention block that the model uses twice (Zamba), has
    two."""

    paged: PagedPass
    num_calls: int = 0


# Not an argument of the model, as in `paged_forward`: some models pass none on to their layers.
current_pass: ContextVar[CountedPass] = ContextVar("current_pass")


def attention_by_calls(
    module: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attention_mask: None,
    scaling: float | None = None, **kwargs: Any,
) -> tuple[torch.Tensor, None]:  # fmt: skip
    """See `attention_of_layer`."""
    counted = current_pass.get()
    if getattr(module, "layer_idx", None) is None:  # Zamba's shared block
        kwargs.setdefault("sliding_window", None)
    terms = score_terms(module, attention_mask, kwargs)
    layer, cache, attend = counted.num_calls, counted.paged.cache, counted.paged.attend
    counted.num_calls += 1
    cache.write(layer, key[0].transpose(0, 1), value[0].transpose(0, 1), counted.paged.slot_mapping)
    attend = attend if terms is None else partial(attend, terms=terms)
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    return attend(query[0].transpose(0, 1), cache.keys[layer], cache.values[layer], scale)[None], None


AttentionInterface.register(COUNTED, attention_by_calls)


def hybrid_logits(
    model: PreTrainedModel, batch: ForwardBatch, input_ids: torch.Tensor, cache: PagedKVCache, attend: Attend,
    packed: PackedStates, groups: list[Group], own_forwards: Mapping[Any, Forward] = EMPTY,
) -> torch.Tensor:  # fmt: skip
    """Run one forward pass over a packed row of these groups, on the device of the model.

    Returns:
        tensor [len(batch.logits_index), vocabulary].
    """
    attention = model.config._attn_implementation
    token = current_pass.set(CountedPass(PagedPass(cache, batch.slot_mapping, attend)))
    model.config._attn_implementation = COUNTED
    try:
        with packed.split(groups, own_forwards):
            logits = call_with(
                model, input_ids[None], position_ids=batch.positions[None], use_cache=False,
                logits_to_keep=batch.logits_index,
            )[0]  # fmt: skip
    finally:
        model.config._attn_implementation = attention
        current_pass.reset(token)
    return logits if len(logits) == len(batch.logits_index) else logits[batch.logits_index]


class HybridRunner(ModelRunner):
    """A ModelRunner for models whose layers keep states, or attend less or more often than once.

    Attributes:
        packed: takes the place of the stateful layers in a pass.
    """

    can_verify = False

    def __init__(
        self, model: PreTrainedModel, num_blocks: int, block_size: int, backend: str | Backend | None = None,
        layer_shapes: list[KVShape] | None = None, *, packed: PackedStates,
    ):  # fmt: skip
        super().__init__(model, num_blocks, block_size, backend, layer_shapes)
        self.packed = packed

    @torch.inference_mode()
    def forward(self, scheduler_output: SchedulerOutput) -> torch.Tensor:
        """See `ModelRunner.forward`."""
        groups = groups_of(pieces_of(scheduler_output, self.packed.states), self.model.device)
        batch = forward_batch(scheduler_output, self.tables, self.cache.block_size).to(self.model.device)
        attend = plan_attention(self.backend, self.model.device)(batch, batch.block_tables, self.cache.block_size)
        return hybrid_logits(self.model, batch, batch.input_ids, self.cache, attend, self.packed, groups)

    def reset(self) -> None:
        """See `ModelRunner.reset`. All states are lost: a pass that was interrupted may have changed some of them."""
        super().reset()
        self.packed.reset()
