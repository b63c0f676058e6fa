"""Lesson 19: a HybridRunner for a GPU. Decodes are replayed from CUDA graphs, and overlap with the host."""

from functools import partial
from typing import Any

import torch
from transformers import PreTrainedModel

from lessons_lib.attention.custom_op import replace_placeholders
from lessons_lib.attention.hf_backend import ForwardBatch
from lessons_lib.engine.cuda_graphs import GraphSize, GraphStore
from lessons_lib.engine.gpu_model_runner import GPUModelRunner
from lessons_lib.engine.input_batch import forward_batch
from lessons_lib.hybrid.gated_delta_layer import GatedDeltaLayer, Wave, takes_rows, waves_of
from lessons_lib.hybrid.hybrid_runner import hybrid_logits
from lessons_lib.hybrid.packed_states import Group, PackedStates, groups_of, pieces_of
from lessons_lib.hybrid.sequence_states import PADDING
from lessons_lib.scheduling.scheduler import SchedulerOutput

SMALL_PARTS = ("RMSNorm", "RMSNormGated", "MLP")  # how the names of Hugging Face's classes end


class GPUHybridRunner(GPUModelRunner):
    """A GPUModelRunner for models whose layers keep states. Steps with prompts are launched kernel by kernel.

    Attributes:
        packed: takes the place of the stateful layers in a pass.
        fast: of those, the layers that take a whole row.
        parts: modules that are compiled, each on its own: dozens of small kernels become a few.
        slots: of the states of a captured step, int64 [largest size]; PADDING for sequences that are none.
        rows: of its tokens, int64 [largest size]; `ones` and `zeros` are the lengths and `fresh` of its pieces.
    """

    can_verify = False

    def __init__(
        self, model: PreTrainedModel, num_blocks: int, block_size: int, *, packed: PackedStates, compiled: bool = True,
        **sizes: Any,
    ):  # fmt: skip
        super().__init__(model, num_blocks, block_size, **sizes | dict(compiled=False, max_captured_tokens=0))
        self.packed, self.verifying = packed, []
        self.slots = torch.full((self.sizes[-1],), PADDING, dtype=torch.int64, device=model.device)
        self.rows = torch.arange(self.sizes[-1], device=model.device)
        self.ones, self.zeros = torch.ones_like(self.rows), torch.zeros_like(self.rows)
        modules = [layer.module for layer in packed.layers if takes_rows(layer.module, packed.states)]
        self.fast = [GatedDeltaLayer(module, packed.states) for module in modules]
        self.parts = [part for part in model.modules() if compiled and type(part).__name__.endswith(SMALL_PARTS)]
        for part in self.parts:
            part.compile(dynamic=True)
        self._groups: list[Group] = []
        self._waves: list[Wave] = []

    def graph_size(self, scheduler_output: SchedulerOutput) -> GraphSize | None:
        """See GPUModelRunner. A sequence without a state begins outside of a graph."""
        if not all(sequence.num_computed_tokens for sequence in scheduler_output.num_scheduled_tokens):
            return None
        return super().graph_size(scheduler_output)

    @torch.inference_mode()
    def forward_with(self, size: GraphSize | None, scheduler_output: SchedulerOutput) -> torch.Tensor:
        """See GPUModelRunner."""
        pieces, device = pieces_of(scheduler_output, self.packed.states), self.model.device
        if size:
            self._decodes = [piece.slot for piece in pieces]
        else:
            self._waves = waves_of(pieces, device) if self.fast else []
            self._groups = groups_of(pieces, device) if len(self.fast) < len(self.packed.layers) else []
        return super().forward_with(size, scheduler_output)

    def replay(self, store: GraphStore, size: GraphSize, batch: ForwardBatch) -> torch.Tensor:
        """See GPUModelRunner."""
        buffers = (self.rows, self.ones, self.slots, self.zeros)
        rows, ones, slots, zeros = (tensor[: size.num_seqs] for tensor in buffers)
        self._groups, self._waves = [Group(rows, slots, 1)], [Wave(rows, ones, slots, zeros)]
        slots.fill_(PADDING)
        if not store.has(size, self.key(store, self.buffers.of_size(size))):
            super().replay(store, size, batch)  # a capture runs the step several times, so it must change no state
        slots[: len(self._decodes)] = torch.tensor(self._decodes, device=slots.device)
        return super().replay(store, size, batch)

    def prepare(self, scheduler_output: SchedulerOutput, size: GraphSize | None = None) -> ForwardBatch:
        """See GPUModelRunner. Only a captured step is padded."""
        return forward_batch(scheduler_output, self.tables, self.cache.block_size, self._previous_rows, *(size or ()))

    def compute(self, batch: ForwardBatch) -> torch.Tensor:
        """See GPUModelRunner."""
        input_ids = replace_placeholders(batch.input_ids, self.previous_tokens)
        attend = self.cache.plan(batch)
        own = {layer.module: partial(self.forward_fast, layer) for layer in self.fast}
        return hybrid_logits(self.model, batch, input_ids, self.cache, attend, self.packed, self._groups, own)

    def forward_fast(self, layer: GatedDeltaLayer, hidden_states: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        """The forward of a layer that takes a whole row."""
        return layer.forward(hidden_states, self._waves)

    def read_by_graph(self, inputs: ForwardBatch) -> tuple[Any, ...]:
        """See GPUModelRunner."""
        own = self.rows, self.ones, self.slots, self.zeros
        return *super().read_by_graph(inputs), *own, *self.packed.states.tensors.values()

    def close(self) -> None:
        """See GPUModelRunner."""
        super().close()
        for part in self.parts:
            part._compiled_call_impl = None

    def reset(self) -> None:
        """See `HybridRunner.reset`."""
        super().reset()
        self.packed.reset()
