"""Lesson 19: computes a scheduled step of a model whose layers aren't all alike, in one packed row."""

from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from transformers import AttentionInterface, PreTrainedModel

from lessons_lib.attention.hf_backend import Backend, PagedPass, plan_attention
from lessons_lib.attention.score_terms import score_terms
from lessons_lib.engine.input_batch import forward_batch
from lessons_lib.engine.model_runner import ModelRunner
from lessons_lib.hybrid.find_states import call_with
from lessons_lib.hybrid.packed_states import Group, PackedStates
from lessons_lib.models.configuration import KVShape
from lessons_lib.scheduling.scheduler import SchedulerOutput
from lessons_lib.scheduling.sequence import Sequence

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


class HybridRunner(ModelRunner):
    """A ModelRunner for models whose layers keep states, or attend less or more often than once.

    Attributes:
        states: of the sequences; the scheduler asks them which cached prefixes are of use.
        packed: takes the place of the stateful layers in a pass.
    """

    can_verify = False

    def __init__(
        self, model: PreTrainedModel, num_blocks: int, block_size: int, backend: str | Backend | None = None,
        layer_shapes: list[KVShape] | None = None, *, packed: PackedStates,
    ):  # fmt: skip
        super().__init__(model, num_blocks, block_size, backend, layer_shapes)
        self.packed, self.states = packed, packed.states

    @torch.inference_mode()
    def forward(self, scheduler_output: SchedulerOutput) -> torch.Tensor:
        """See `ModelRunner.forward`."""
        model, groups = self.model, self.groups_of(scheduler_output)
        batch = forward_batch(scheduler_output, self.tables, self.cache.block_size).to(model.device)
        attend = plan_attention(self.backend, model.device)(batch, batch.block_tables, self.cache.block_size)
        token = current_pass.set(CountedPass(PagedPass(self.cache, batch.slot_mapping, attend)))
        model.config._attn_implementation = COUNTED
        try:
            with self.packed.split(groups):
                logits = call_with(
                    model, batch.input_ids[None], position_ids=batch.positions[None], use_cache=False,
                    logits_to_keep=batch.logits_index,
                )[0]  # fmt: skip
        finally:
            model.config._attn_implementation = self._attention
            current_pass.reset(token)
        self.states.note_computed(scheduler_output.num_scheduled_tokens.items())
        return logits if len(logits) == len(batch.logits_index) else logits[batch.logits_index]

    def groups_of(self, scheduler_output: SchedulerOutput) -> list[Group]:
        """Split the row of a step: the decodes together, each chunk of a prompt alone, in several groups if a
        checkpoint is made in its midst."""
        scheduled = scheduler_output.num_scheduled_tokens
        slots = [self.states.slot_of(sequence) for sequence in scheduled]  # before checkpoints make room for others
        decodes: list[tuple[int, int]] = []
        copies: list[tuple[int, int]] = []
        chunks: list[Group] = []
        row = 0
        for (sequence, count), slot in zip(scheduled.items(), slots):
            start, end = sequence.num_computed_tokens, sequence.num_computed_tokens + count
            kept = {at: self.states.new_checkpoint(sequence, at) for at in self.states.cuts(sequence, end)}
            if count == 1 and start:
                decodes.append((row, slot))
                copies += [(slot, target) for target in kept.values()]
            else:
                ends = sorted({*kept, *self.lone_tokens(sequence, end), end})
                for begin, until in zip([start, *ends], ends):
                    pairs = [(slot, kept[until])] if until in kept else []
                    rows = range(row + begin - start, row + until - start)
                    chunks.append(self.group(rows, [slot], until - begin, begin == 0, pairs))
            row += count
        if decodes:
            rows_of_decodes, slots_of_decodes = zip(*decodes)
            chunks.append(self.group(rows_of_decodes, slots_of_decodes, 1, False, copies))
        return chunks

    def lone_tokens(self, sequence: Sequence, end: int) -> range:
        """Where a chunk is cut so that tokens of the completion are computed as they were the first time: alone."""
        first = max(len(sequence.prompt_ids), sequence.num_computed_tokens + 1)
        return range(first, end) if self.states.decodes_differ else range(0)

    def group(self, rows: Any, slots: Any, length: int, is_fresh: bool, copies: list[tuple[int, int]]) -> Group:
        """A Group on the device of the model."""
        place = partial(torch.tensor, dtype=torch.int64, device=self.model.device)
        return Group(place(rows), place(slots), length, is_fresh, place(copies).T if copies else None)

    def reset(self) -> None:
        """See `ModelRunner.reset`. All states are lost: a pass that was interrupted may have changed some of them."""
        super().reset()
        self.states.reset()
        for layer in self.packed.layers:
            vars(layer.module).pop("forward", None)
