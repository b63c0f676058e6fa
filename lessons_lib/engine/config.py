"""Lesson 12: the sizes of an engine, and the parts of it that can be replaced."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from lessons_lib.attention.hf_backend import Backend
from lessons_lib.scheduling.policies import FirstComeFirstServed, Policy
from lessons_lib.scheduling.scheduler import Admission, optimistic


@dataclass(frozen=True)
class EngineConfig:
    """The sizes of an engine.

    Attributes:
        max_num_seqs: the most sequences that run at a time: the number of batch slots.
        max_num_batched_tokens: the most tokens of a step.
        max_model_len: the most tokens of a sequence, prompt and completion together; if None, as many as the model has
            positions for.
        block_size: tokens of a block.
        num_blocks: size of the pool; if None, as many blocks as fit in `cache_bytes`.
        cache_bytes: memory of the KV cache, in bytes.
        num_swap_blocks: size of the swap space; without one, preempted sequences are recomputed.
        watermark: share of the blocks that admission leaves free for running sequences, 0 to 1.
        share_prefixes: whether sequences with the same beginning share blocks.
        policy: which request is served next, see `policies`.
        admission: see `scheduler.optimistic`.
        backend: how attention is computed, see `hf_backend.plan_attention`.
        probe: whether the engine compares its own logits with those of `generate` before the first request, see
            `probe`. It takes a few short passes, once per model. Without it, a model that the engine doesn't support
            gives wrong tokens.
        make_runner: function (model, num_blocks, config) -> ModelRunner; if None, the engine's `new_runner`.
    """

    max_num_seqs: int = 64
    max_num_batched_tokens: int = 512
    max_model_len: int | None = None
    block_size: int = 16
    num_blocks: int | None = None
    cache_bytes: int = 2**28
    num_swap_blocks: int = 0
    watermark: float = 0.01
    share_prefixes: bool = True
    policy: Policy = field(default_factory=FirstComeFirstServed)
    admission: Admission = optimistic
    backend: str | Backend | None = None
    probe: bool = True
    make_runner: Callable[[Any, int, Any], Any] | None = None
