"""Lesson 13: computes a scheduled step on a GPU without waiting for it: compiled, all but the largest from CUDA graphs,
tokens kept on the device."""

from collections.abc import Callable
from typing import Any

import torch
import torch._dynamo.config as dynamo_config
import torch.fx.experimental._config as shape_config
from transformers import PreTrainedModel

from lessons_lib.attention.custom_op import OperatorCache, operator_logits
from lessons_lib.attention.hf_backend import ForwardBatch, paged_attention_in
from lessons_lib.engine.config import EngineConfig
from lessons_lib.engine.cuda_graphs import (
    VERIFYING,
    Capture,
    CudaCapture,
    GraphSize,
    GraphStore,
    captured_batch_sizes,
    captured_token_counts,
    next_size,
)
from lessons_lib.engine.input_batch import BlockTables, forward_batch
from lessons_lib.engine.input_buffers import InputBuffers
from lessons_lib.engine.joined_projections import join_projections
from lessons_lib.engine.model_runner import InFlight, ModelRunner
from lessons_lib.kv_cache.block_pool import blocks_for
from lessons_lib.models.configuration import KVShape, context_length
from lessons_lib.scheduling.scheduler import SchedulerOutput
from lessons_lib.scheduling.sequence import Sequence

# Launching the kernels of a step takes the host many milliseconds. More tokens than this take the GPU longer.
MAX_CAPTURED_TOKENS = 2048


class GPUModelRunner(ModelRunner):
    """A model and its paged cache, for a scheduler that may schedule the next step before this one is done.

    Attributes:
        cache: one block more than the scheduler's pool: padding is written to the last one, the null block.
        store: GraphStore, or None if nothing is captured.
        sizes: batches of decodes are padded to one of these.
        token_counts: batches with several tokens of a sequence are padded to one of these, and to the largest of
            `sizes`. Larger ones aren't captured.
        verifying: the graphs of steps with guesses.
        previous_tokens: the tokens of the step in flight, int64 [largest size], on the device.
    """

    cache: OperatorCache
    cache_type = OperatorCache
    can_overlap = True

    def __init__(
        self, model: PreTrainedModel, num_blocks: int, block_size: int, *, max_num_seqs: int,
        max_model_len: int | None = None, compiled: bool = True, graphs: bool = True, capture: Capture | None = None,
        max_captured_tokens: int = MAX_CAPTURED_TOKENS, layer_shapes: list[KVShape] | None = None,
    ):  # fmt: skip
        """
        Args:
            max_num_seqs: as the scheduler's.
            max_model_len: the most tokens of a sequence; if None, as many as the model has positions for.
            compiled: the model is compiled, once for batches of any length.
            graphs: steps are captured and replayed.
            max_captured_tokens: larger steps are launched kernel by kernel. With 0, all steps that aren't decodes only.
            capture: see GraphStore; if None, CUDA graphs.
            layer_shapes: see PagedKVCache.
        """
        longest = max_model_len or context_length(model.config)
        if longest is None:
            raise ValueError(f"{model.config.model_type!r} models have no longest sequence; set max_model_len.")
        super().__init__(model, num_blocks + 1, block_size, layer_shapes=layer_shapes)
        self.null_block = num_blocks
        width = blocks_for(longest, block_size)
        self.sizes = captured_batch_sizes(max_num_seqs)
        self.tables = BlockTables(self.null_block, max_num_seqs, width)
        self.token_counts = captured_token_counts(max_captured_tokens) if graphs else []
        num_tokens = max([self.sizes[-1], *self.token_counts])
        self.buffers = InputBuffers(self.sizes[-1], num_tokens, width, block_size, model.device)
        self.previous_tokens = torch.zeros(self.sizes[-1], dtype=torch.int64, device=model.device)
        self.verifying = [
            size._replace(num_seqs=min(size.num_seqs, self.sizes[-1]))
            for size in VERIFYING
            if graphs and size.num_extra <= num_tokens
        ]
        self.compiled = compiled
        self._logits = compiled_logits(self.cache) if compiled else operator_logits
        self.joined = join_projections(model) if compiled else []
        self.store = GraphStore(capture or CudaCapture()) if graphs else None
        self.is_in_buffers = False  # the last step's batch
        self._previous_rows: dict[Sequence, int] = {}
        self._parameters = [module._parameters for module in model.modules() if module._parameters]

    def forward(self, scheduler_output: SchedulerOutput) -> torch.Tensor:
        """Compute the tokens of a scheduled step.

        Returns:
            see `ModelRunner.forward`; valid until the next step is launched.
        """
        return self.forward_with(self.graph_size(scheduler_output), scheduler_output)

    @torch.inference_mode()
    def forward_with(self, size: GraphSize | None, scheduler_output: SchedulerOutput) -> torch.Tensor:
        """`forward`, from the graph of this size, or without one."""
        batch = self.prepare(scheduler_output, size)
        store, device = self.store, self.model.device
        self.is_in_buffers = bool(store and size)
        logits = self.replay(store, size, batch) if store and size else self.compute(batch.to(device))
        num_seqs, padded = len(scheduler_output.num_scheduled_tokens), len(batch.context_lens)
        if len(logits) == padded:
            return logits[:num_seqs]
        return torch.cat([logits[:num_seqs], logits[padded:]])

    def decode_again(self, scheduler_output: SchedulerOutput) -> torch.Tensor:
        """See ModelRunner. The device makes the inputs of the step, so the host has nearly nothing to do."""
        size = self.graph_size(scheduler_output)
        if not (self.is_in_buffers and self.store and size):
            return self.forward(scheduler_output)
        self.buffers.advance(size, self.previous_tokens)
        return self.run(self.store, size)[: len(scheduler_output.num_scheduled_tokens)]

    def graph_size(self, scheduler_output: SchedulerOutput) -> GraphSize | None:
        """The graph with room for a step; None if the step isn't captured: it is too large, or logits of prompts are
        wanted."""
        scheduled, num_tokens = scheduler_output.num_scheduled_tokens, scheduler_output.num_tokens
        if not self.store or scheduler_output.drafts:
            return next((s for s in self.verifying if s.num_seqs >= len(scheduled) and s.num_extra >= num_tokens), None)
        if num_tokens == len(scheduled):
            return GraphSize(next_size(num_tokens, self.sizes))
        if num_tokens > max(self.token_counts, default=0) or any(sequence.prompt_logits for sequence in scheduled):
            return None
        return GraphSize(self.sizes[-1], next_size(num_tokens, self.token_counts))

    def prepare(self, scheduler_output: SchedulerOutput, size: GraphSize | None = None) -> ForwardBatch:
        """The batch of a scheduled step, on the host, padded to the size of its graph."""
        # Without a graph: a batch of one sequence would be compiled as a special case.
        padded = size or GraphSize(max(2, len(scheduler_output.num_scheduled_tokens)))
        return forward_batch(scheduler_output, self.tables, self.cache.block_size, self._previous_rows, *padded)

    @torch.inference_mode()
    def keep_tokens(self, scheduler_output: SchedulerOutput, tokens: torch.Tensor) -> InFlight:
        """See `ModelRunner.keep_tokens`. The host doesn't wait for them."""
        torch.clamp(tokens, min=0, out=self.previous_tokens[: len(tokens)])
        self._previous_rows = {sequence: row for row, sequence in enumerate(scheduler_output.num_scheduled_tokens)}
        return InFlight.of(tokens)

    def compute(self, batch: ForwardBatch) -> torch.Tensor:
        """The logits of a batch on the device of the model."""
        self.gather_weights()
        with paged_attention_in(self.model):
            return self._logits(self.model, self.cache, batch, self.previous_tokens)

    def replay(self, store: GraphStore, size: GraphSize, batch: ForwardBatch) -> torch.Tensor:
        """The logits of a batch on the host, which has the size of a graph."""
        self.buffers.fill(batch)
        return self.run(store, size)

    def run(self, store: GraphStore, size: GraphSize) -> torch.Tensor:
        """The logits of the batch in the buffers."""
        inputs = self.buffers.of_size(size)
        key = self.key(store, inputs)
        if not store.has(size, key):
            self.gather_weights()
            key = self.key(store, inputs)
        return store.run(size, key, lambda: self.compute(inputs), lambda: self.read_by_graph(inputs))

    def key(self, store: GraphStore, inputs: ForwardBatch) -> Any:
        """Everything that a graph of this batch depends on, looked up now."""
        tensors = [*vars(inputs).values(), self.previous_tokens, *self.cache.keys, *self.cache.values]
        return store.key_of(tensors, self.weights(), (self.compiled, inputs.max_lens.tolist(), self.cache.block_size))

    def read_by_graph(self, inputs: ForwardBatch) -> tuple[Any, ...]:
        """The tensors that a graph reads, to be kept alive with it."""
        # `detach`: a parameter may get other memory, and this must hold on to what it has now.
        weights = [weight.detach() for weight in self.weights()]
        return inputs, self.previous_tokens, *self.cache.keys, *self.cache.values, *weights

    def weights(self) -> list[torch.Tensor]:
        """All weights of the model, as they are now."""
        # Not `model.parameters()`, which takes half a millisecond to find out that none occurs twice.
        return [weight for parameters in self._parameters for weight in parameters.values() if weight is not None]

    def gather_weights(self) -> None:
        """Put weights that were replaced where the compiled model reads them."""
        for joined in self.joined:
            joined.gather()

    def close(self) -> None:
        """Drop the graphs, and with them what they keep of the model, and leave the model as it was."""
        if self.store:
            self.store.graphs.clear()
        for joined in self.joined:
            joined.separate()
        self.joined = []


def gpu_model_runner(**options: Any) -> Callable[..., GPUModelRunner]:
    """For `EngineConfig.make_runner`: a GPUModelRunner with these options, and the sizes of the engine. The engine asks
    for another `kind` if the model needs it."""

    def make(model: Any, num_blocks: int, config: EngineConfig, kind: Any = GPUModelRunner, **more: Any) -> Any:
        sizes: dict[str, Any] = dict(
            max_num_seqs=config.max_num_seqs, max_model_len=config.max_model_len, layer_shapes=config.layer_shapes
        )
        # A step never has more tokens than the budget, so larger graphs would be captured for nothing.
        sizes["max_captured_tokens"] = min(MAX_CAPTURED_TOKENS, config.max_num_batched_tokens)
        return kind(model, num_blocks, config.block_size, **sizes | options | more)

    return make


# Compute values that several layers use, such as the cosines of the positions, once; the compiler would compute them
# again in each layer.
KEEP_WHAT_IS_SHARED: dict[str, Any] = {"realize_opcount_threshold": 0, "realize_reads_threshold": 0}


def compiled_logits(
    cache: OperatorCache, backend: str = "inductor", options: dict[str, Any] | None = KEEP_WHAT_IS_SHARED
) -> Callable[..., torch.Tensor]:
    """`operator_logits`, compiled at its first call: once for all lengths and numbers of sequences from 2 on, and for
    the shape of this cache."""
    for tensor in (*cache.keys, *cache.values):
        torch._dynamo.mark_static(tensor)
    if backend == "inductor":
        from lessons_lib.engine.equal_products import ShareEqualProducts  # takes seconds to import

        options = {**(options or {}), "post_grad_custom_pre_pass": ShareEqualProducts()}
    compiled = torch.compile(operator_logits, dynamic=True, fullgraph=True, backend=backend, options=options)

    def call(*inputs: Any) -> torch.Tensor:
        # Duck shapes: two sizes that are equal at the first call would be taken to be equal always. Floats: Dynamo
        # would take the scale of the scores for a variable, find out that it is none, and trace the model once more.
        with shape_config.patch(use_duck_shape=False), dynamo_config.patch(specialize_float=True):  # type: ignore[attr-defined]
            return compiled(*inputs)

    return call
