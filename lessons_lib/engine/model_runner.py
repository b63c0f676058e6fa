"""Lesson 09: computes a scheduled step: one packed batch of all its tokens, one forward pass, logits for every
sequence."""

from collections import deque
from collections.abc import Callable
from typing import Any

import torch
from transformers import PreTrainedModel

from lessons_lib.attention.hf_backend import Backend, paged_forward
from lessons_lib.engine.in_flight import InFlightTokens, overlapped_step
from lessons_lib.engine.input_batch import BlockTables, forward_batch
from lessons_lib.kv_cache.paged_kv_cache import PagedKVCache
from lessons_lib.models.configuration import KVShape
from lessons_lib.scheduling.scheduler import SchedulerBase, SchedulerOutput
from lessons_lib.scheduling.sequence import Sequence


class ModelRunner:
    """A model and its paged cache.

    Attributes:
        cache: as many blocks as the scheduler's pool, of the same size.
        backend: see `hf_backend.plan_attention`.
        tables: the block tables of the running sequences.

    `layer_shapes` says how large the keys and values of each layer are, if the layers differ; see PagedKVCache.
    """

    cache_type = PagedKVCache
    can_overlap = False  # a step may be launched before the host has the tokens of the last one

    def __init__(
        self, model: PreTrainedModel, num_blocks: int, block_size: int, backend: str | Backend | None = None,
        layer_shapes: list[KVShape] | None = None,
    ):  # fmt: skip
        self.model = model
        self.cache = self.cache_type(model.config, num_blocks, block_size, model.dtype, model.device, layer_shapes)
        self.backend = backend
        self.tables = BlockTables()
        self._attention = model.config._attn_implementation

    def forward(self, scheduler_output: SchedulerOutput) -> torch.Tensor:
        """Compute the tokens of a scheduled step.

        Returns:
            tensor [N, vocabulary]: for each scheduled sequence, the logits after the last token that was computed. More
            rows follow for sequences with `prompt_logits`, see `input_batch.num_prompt_logits`.
        """
        batch = forward_batch(scheduler_output, self.tables, self.cache.block_size)
        return paged_forward(self.model, batch, self.cache, self.backend)

    def keep_tokens(self, scheduler_output: SchedulerOutput, tokens: torch.Tensor) -> InFlightTokens:
        """Take the tokens that were chosen for a step, int64 [N] on the device of the logits: the next step may compute
        them before the host has seen them. A negative one is no token."""
        return InFlightTokens(tokens)

    def reset(self) -> None:
        """After a pass that was interrupted: forget the block tables, and let the model call its own attention."""
        self.tables.reset()
        self.model.config._attn_implementation = self._attention

    def close(self) -> None:
        """Leave the model as it was before the runner was made."""


class GreedyLoop:
    """Drives a scheduler and a runner; the likeliest token comes next.

    Attributes:
        depth: how many steps may be in flight while the next one is scheduled (lesson 13).
        copy_blocks: function (scheduler_output): carries out its block copies; None if there are none.
        in_flight: (scheduler output, InFlightTokens) of each step that was launched and not processed, oldest first.
    """

    def __init__(
        self, scheduler: SchedulerBase, runner: ModelRunner, depth: int = 0,
        copy_blocks: Callable[[Any], None] | None = None,
    ):  # fmt: skip
        self.scheduler, self.runner, self.depth, self.copy_blocks = scheduler, runner, depth, copy_blocks
        self.in_flight: deque[tuple[Any, InFlightTokens]] = deque()

    def host_must_see_tokens(self) -> bool:
        return False

    def schedule(self) -> Any:
        return self.scheduler.schedule()

    def launch(self, scheduler_output: Any) -> tuple[Any, InFlightTokens] | None:
        """Start a step. None if there is nothing to compute."""
        if self.copy_blocks:
            self.copy_blocks(scheduler_output)
        if not scheduler_output.num_scheduled_tokens:
            return None
        tokens = self.runner.forward(scheduler_output).argmax(dim=-1)
        step = scheduler_output, self.runner.keep_tokens(scheduler_output, tokens)
        self.scheduler.update_after_launch(scheduler_output)
        return step

    def process(self, depth: int) -> None:
        """Wait for the tokens of all steps in flight but the last `depth`, and append them to their sequences."""
        while len(self.in_flight) > depth:
            scheduler_output, tokens = self.in_flight.popleft()
            self.scheduler.update_from_output(scheduler_output, tokens.wait())


def serve_greedily(
    runner: ModelRunner, scheduler: SchedulerBase, sequences: list[Sequence], depth: int = 0,
    copy_blocks: Callable[[Any], None] | None = None,
) -> list[list[int]]:  # fmt: skip
    """Generate the completions of all sequences; see GreedyLoop.

    Returns:
        the completions, in the order of the sequences.
    """
    loop = GreedyLoop(scheduler, runner, depth, copy_blocks)
    for sequence in sequences:
        scheduler.add(sequence)
    while scheduler.has_unfinished():
        overlapped_step(loop)
    loop.process(0)
    return [sequence.output_ids for sequence in sequences]
