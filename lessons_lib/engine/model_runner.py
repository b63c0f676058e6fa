"""Lesson 09: computes a scheduled step: one packed batch of all its tokens, one forward pass, logits for every
sequence."""

from dataclasses import dataclass
from typing import Any

import torch
from transformers import PreTrainedModel

from lessons_lib.attention.hf_backend import Backend, paged_forward
from lessons_lib.engine.input_batch import BlockTables, forward_batch
from lessons_lib.kv_cache.paged_kv_cache import PagedKVCache
from lessons_lib.models.configuration import KVShape
from lessons_lib.scheduling.scheduler import SchedulerOutput


@dataclass(frozen=True)
class InFlight:
    """A tensor of a step that was launched, on its way to the host.

    Attributes:
        on_device: the tensor. Later work on the device may read it at once.
        on_host: a copy, valid once `arrived` has happened.
        arrived: torch.cuda.Event, or None if there is nothing to wait for.
    """

    on_device: torch.Tensor
    on_host: torch.Tensor
    arrived: Any = None

    @classmethod
    def of(cls, tensor: torch.Tensor) -> "InFlight":
        """Start to send a tensor to the host, without waiting for it."""
        on_host, arrived = tensor.to("cpu", non_blocking=True), None  # page-locked, if it comes from a GPU
        if tensor.is_cuda:
            arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]
            arrived.record()
        return cls(tensor, on_host, arrived)

    def wait(self) -> list[Any]:
        """Wait for the step, and return the tensor as a list. Of tokens, that is one for each of its sequences."""
        if self.arrived is not None:
            self.arrived.synchronize()
        return self.on_host.tolist()


class ModelRunner:
    """A model and its paged cache.

    Attributes:
        cache: as many blocks as the scheduler's pool, of the same size.
        backend: see `hf_backend.plan_attention`.
        tables: the block tables of the running sequences.

    `layer_shapes` says how large the keys and values of each layer are, if the layers differ; see PagedKVCache.
    """

    cache_type = PagedKVCache
    can_overlap = False  # True if a step may be launched before the host has the last one's tokens, as GPUModelRunner's
    can_verify = True  # False if there are no logits in front of guesses (lesson 18)

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
            rows follow for some sequences, see `input_batch.num_extra_logits`.
        """
        batch = forward_batch(scheduler_output, self.tables, self.cache.block_size)
        return paged_forward(self.model, batch, self.cache, self.backend)

    def decode_again(self, scheduler_output: SchedulerOutput) -> torch.Tensor:
        """`forward` of one more token of each sequence of the last step, whose blocks have room (lesson 18)."""
        return self.forward(scheduler_output)

    def keep_tokens(self, scheduler_output: SchedulerOutput, tokens: torch.Tensor) -> InFlight:
        """Start to send the tokens that were chosen for a step to the host. A runner that can overlap also keeps them
        on the device, where the next step reads them.

        Args:
            tokens: int64 [N], on the device of the logits. A negative one is no token.
        """
        return InFlight.of(tokens)

    def reset(self) -> None:
        """Clean up after an interrupted pass: forget the block tables, and give the model its own attention back."""
        self.tables.reset()
        self.model.config._attn_implementation = self._attention

    def close(self) -> None:
        """Leave the model as it was before the runner was made."""
