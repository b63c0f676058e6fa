"""Lesson 13: carries out a SchedulerOutput on a GPU without waiting for it: compiled, decodes from CUDA graphs, tokens kept on the device."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
import torch.fx.experimental._config as shape_config

from lessons_lib.attention.custom_op import PAGED_OPERATOR, RowInputs, row_logits
from lessons_lib.engine.cuda_graphs import CudaCapture, GraphKey, GraphStore, captured_batch_sizes, next_size
from lessons_lib.engine.input_buffers import InputBuffers, TableMirror, rounded_up, row_arrays, send_row
from lessons_lib.kv_cache.block_pool import blocks_for
from lessons_lib.kv_cache.paged_kv_cache import PagedKVCache
from lessons_lib.models.loading import context_length
from lessons_lib.scheduling.scheduler import SchedulerOutput
from lessons_lib.scheduling.sequence import Sequence


def greedy(logits: torch.Tensor) -> torch.Tensor:
    """The likeliest token of each line, int64 [B], on the device of the logits."""
    return logits.argmax(dim=-1)


@dataclass(frozen=True)
class Pending:
    """The tokens of a step that was started.

    Attributes:
        on_host: int64 [sequences of the plan]; valid when `arrived` has happened.
        arrived: torch.cuda.Event, or None where nothing is under way.
    """

    on_host: torch.Tensor
    arrived: object = None

    def tokens(self) -> list[int]:
        """Wait for the step, and return a token for each sequence of its plan."""
        if self.arrived is not None:
            self.arrived.synchronize()
        return self.on_host.tolist()


class GPUModelRunner:
    """A model and its paged cache, for a scheduler that may plan the next step before this one is done.

    The model calls `paged_operator` for its attention from the first step on, until `close`.

    Attributes:
        cache: one block more than the scheduler's pool: what fills up a row is written to the last one.
        store: GraphStore, or None where nothing is captured.
        sizes: rows of decodes are filled up to one of these.
    """

    def __init__(
        self, model, num_blocks: int, block_size: int, *,
        max_num_seqs: int, max_model_len: int | None = None, compiled: bool = True, graphs: bool = True, capture: Callable | None = None,
    ):  # fmt: skip
        """
        Args:
            max_num_seqs: as the scheduler's.
            max_model_len: the most tokens of a sequence; if None, as many as the model has positions for.
            compiled: whether the model is compiled, with one code for rows of any length.
            graphs: whether steps of decodes only are captured and replayed.
            capture: see GraphStore; if None, CUDA graphs.
        """
        self.model = model
        self.cache = PagedKVCache(model.config, num_blocks + 1, block_size, model.dtype, model.device)
        self.null_block = num_blocks
        width = blocks_for(max_model_len or context_length(model.config), block_size)
        self.sizes = captured_batch_sizes(max_num_seqs)
        self.mirror = TableMirror(max_num_seqs, width, self.null_block)
        self.static = InputBuffers(self.sizes[-1], width, block_size, model.device)
        self.previous = torch.zeros(self.sizes[-1], dtype=torch.int64, device=model.device)
        self.compiled = compiled
        self._row_logits = compiled_row_logits(self.cache) if compiled else row_logits
        self.store = GraphStore(capture or CudaCapture()) if graphs else None
        self._before = model.config._attn_implementation
        self._parameters = [module._parameters for module in model.modules() if module._parameters]

    def warm_up(self) -> None:
        """Compile and capture all that will be needed, on rows that belong to nobody, so that no request has to wait for it."""
        size = self.cache.block_size
        room = self.mirror.width * size

        def sequence(context: int, computed: int) -> Sequence:
            blocks = [self.null_block] * blocks_for(context, size)
            return Sequence("warm-up", [0] * context, 1, num_computed_tokens=computed, blocks=blocks)

        for num_rows in reversed(self.sizes):
            others = {sequence(1, 0): 1 for _ in range(min(num_rows, self.mirror.max_num_seqs) - 1)}
            # The kernels are compiled for each way in which a context may be cut.
            for context in {rounded_up(length, room) for length in range(1, room + 1, 512)}:
                self.forward(SchedulerOutput({sequence(context, context - 2): 2} | others))
            if self.store:
                self.forward(SchedulerOutput({sequence(1, 0): 1} | others))

    @torch.inference_mode()
    def forward(self, scheduler_output: SchedulerOutput) -> torch.Tensor:
        """Compute the tokens of a plan.

        Returns:
            tensor [sequences of the plan, vocabulary]: the logits after the last token of each; valid until the next step is started.
        """
        if self.model.config._attn_implementation != PAGED_OPERATOR:
            self.model.set_attn_implementation(PAGED_OPERATOR)
        arrays = self.prepare(scheduler_output)
        is_captured = self.store and len(arrays["input_ids"]) == len(arrays["context_lens"])  # one token of each
        logits = self.replay(arrays) if is_captured else self.compute(send_row(arrays, self.model.device))
        return logits[: len(scheduler_output.num_scheduled_tokens)]

    def prepare(self, scheduler_output: SchedulerOutput) -> dict[str, np.ndarray]:
        """The row of a plan, on the host, see `row_arrays`. Decodes are filled up to one of the captured sizes."""
        # A row of one sequence would be compiled as a case of its own.
        num_rows = max(2, len(scheduler_output.num_scheduled_tokens))
        if self.store and scheduler_output.num_tokens == len(scheduler_output.num_scheduled_tokens):
            num_rows = next_size(num_rows, self.sizes)
        return row_arrays(scheduler_output, self.mirror, self.cache.block_size, num_rows)

    @torch.inference_mode()
    def start(
        self, scheduler_output: SchedulerOutput, choose: Callable[[torch.Tensor], torch.Tensor] = greedy
    ) -> Pending:
        """Start a step, and return at once. The next one may be started before its tokens are asked for.

        Args:
            choose: from logits [B, vocabulary] to tokens, int64 [B], on the device. A negative one is no token; the host sees it, and the next
                step, which may have been started by then, computes something that nobody reads.
        """
        tokens = choose(self.forward(scheduler_output))
        torch.clamp(tokens, min=0, out=self.previous[: len(tokens)])
        if tokens.device.type != "cuda":
            return Pending(tokens)
        on_host = torch.empty(len(tokens), dtype=torch.int64, pin_memory=True)
        on_host.copy_(tokens, non_blocking=True)
        arrived = torch.cuda.Event()
        arrived.record()
        return Pending(on_host, arrived)

    def compute(self, row: RowInputs) -> torch.Tensor:
        return self._row_logits(self.model, self.cache, row, self.previous)

    def replay(self, arrays: dict[str, np.ndarray]) -> torch.Tensor:
        """A row of decodes, of one of the captured sizes."""
        self.static.fill(arrays)
        num_rows = len(arrays["context_lens"])
        inputs = self.static.of_size(num_rows)
        return self.store.run(
            num_rows, self.key(inputs), lambda: self.compute(inputs), lambda: self.read_by_graph(inputs)
        )

    def key(self, inputs: RowInputs) -> GraphKey:
        """Everything that a graph of this row depends on, looked up now."""
        tensors = [*vars(inputs).values(), self.previous, *self.cache.keys, *self.cache.values]
        settings = (
            self.compiled,
            inputs.maxima.tolist(),
            self.cache.block_size,
            self.model.config._attn_implementation,
        )
        return GraphKey.of(tensors, self.weights(), settings)

    def read_by_graph(self, inputs: RowInputs) -> tuple:
        # `detach`: a parameter may be given other memory, and this must hold on to what it has now.
        return (
            inputs,
            self.previous,
            *self.cache.keys,
            *self.cache.values,
            *(weight.detach() for weight in self.weights()),
        )

    def weights(self) -> list[torch.Tensor]:
        # Not `model.parameters()`, which takes half a millisecond to find out that none occurs twice.
        return [weight for parameters in self._parameters for weight in parameters.values() if weight is not None]

    def close(self) -> None:
        """Give the model back the attention that it had, and drop the graphs."""
        self.model.set_attn_implementation(self._before)
        if self.store:
            self.store.graphs.clear()


# What several layers use, such as the cosines of the positions, is computed once and kept; the compiler would compute it again in each of them.
KEEP_WHAT_IS_SHARED = {"realize_opcount_threshold": 0, "realize_reads_threshold": 0}


def compiled_row_logits(
    cache: PagedKVCache, backend: str = "inductor", options: dict | None = KEEP_WHAT_IS_SHARED
) -> Callable:
    """`row_logits`, compiled at its first call: once for all lengths and numbers of sequences from 2 on, and for the shape of this cache."""
    for tensor in (*cache.keys, *cache.values):
        torch._dynamo.mark_static(tensor)
    compiled = torch.compile(row_logits, dynamic=True, fullgraph=True, backend=backend, options=options)

    def call(*args):
        # Otherwise two sizes that happen to be equal at the first call are taken to be equal always.
        with shape_config.patch(use_duck_shape=False):
            return compiled(*args)

    return call
