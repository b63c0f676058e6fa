"""Lesson 19: a HybridRunner for a GPU. Decodes are replayed from CUDA graphs, and overlap with the host."""

from typing import Any

import torch
from transformers import PreTrainedModel

from lessons_lib.attention.custom_op import plan_operator, replace_placeholders
from lessons_lib.attention.hf_backend import ForwardBatch
from lessons_lib.engine.cuda_graphs import GraphSize, GraphStore
from lessons_lib.engine.gpu_model_runner import GPUModelRunner
from lessons_lib.engine.input_batch import forward_batch
from lessons_lib.hybrid.hybrid_runner import hybrid_logits
from lessons_lib.hybrid.packed_states import Group, PackedStates, groups_of
from lessons_lib.hybrid.sequence_states import PADDING
from lessons_lib.scheduling.scheduler import SchedulerOutput


class GPUHybridRunner(GPUModelRunner):
    """A GPUModelRunner for models whose layers keep states. Steps with prompts are launched kernel by kernel.

    Attributes:
        packed: takes the place of the stateful layers in a pass.
        slots: of the states of a captured step, int64 [largest size]; PADDING for sequences that are none.
        rows: of its tokens, int64 [largest size].
    """

    can_verify = False

    def __init__(self, model: PreTrainedModel, num_blocks: int, block_size: int, *, packed: PackedStates, **sizes: Any):
        super().__init__(model, num_blocks, block_size, **sizes | dict(compiled=False, max_captured_tokens=0))
        self.packed, self.verifying = packed, []
        self.slots = torch.full((self.sizes[-1],), PADDING, dtype=torch.int64, device=model.device)
        self.rows = torch.arange(self.sizes[-1], device=model.device)
        self._groups: list[Group] = []

    def graph_size(self, scheduler_output: SchedulerOutput) -> GraphSize | None:
        """See GPUModelRunner. A sequence without a state begins outside of a graph."""
        if not all(sequence.num_computed_tokens for sequence in scheduler_output.num_scheduled_tokens):
            return None
        return super().graph_size(scheduler_output)

    @torch.inference_mode()
    def forward_with(self, size: GraphSize | None, scheduler_output: SchedulerOutput) -> torch.Tensor:
        """See GPUModelRunner."""
        self._groups = groups_of(scheduler_output, self.packed.states, self.model.device)
        return super().forward_with(size, scheduler_output)

    def replay(self, store: GraphStore, size: GraphSize, batch: ForwardBatch) -> torch.Tensor:
        """See GPUModelRunner."""
        (decodes,) = self._groups
        slots = self.slots[: size.num_seqs]
        slots.fill_(PADDING)
        self._groups = [Group(self.rows[: size.num_seqs], slots, 1)]
        if not store.has(size, self.key(store, self.buffers.of_size(size))):
            super().replay(store, size, batch)  # a capture runs the step several times, so it must change no state
        slots[: len(decodes.slots)] = decodes.slots
        return super().replay(store, size, batch)

    def prepare(self, scheduler_output: SchedulerOutput, size: GraphSize | None = None) -> ForwardBatch:
        """See GPUModelRunner. Only a captured step is padded."""
        return forward_batch(scheduler_output, self.tables, self.cache.block_size, self._previous_rows, *(size or ()))

    def compute(self, batch: ForwardBatch) -> torch.Tensor:
        """See GPUModelRunner."""
        input_ids = replace_placeholders(batch.input_ids, self.previous_tokens)
        attend = plan_operator(batch)
        return hybrid_logits(self.model, batch, input_ids, self.cache, attend, self.packed, self._groups)

    def read_by_graph(self, inputs: ForwardBatch) -> tuple[Any, ...]:
        """See GPUModelRunner."""
        return *super().read_by_graph(inputs), self.slots, self.rows, *self.packed.states.tensors.values()

    def reset(self) -> None:
        """See `HybridRunner.reset`."""
        super().reset()
        self.packed.reset()
