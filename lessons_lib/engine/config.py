"""Lesson 12: the sizes of an engine, and what may be put in the place of its parts."""

from collections.abc import Callable
from dataclasses import dataclass, field

from lessons_lib.scheduling.policies import FirstComeFirstServed
from lessons_lib.scheduling.scheduler import optimistic


@dataclass(frozen=True)
class EngineConfig:
    """The sizes of an engine.

    Attributes:
        max_num_seqs: the most sequences that run at a time.
        max_num_batched_tokens: the most tokens of a step.
        max_model_len: the most tokens of a sequence, prompt and answer together; if None, as many as the model has positions for.
        block_size: tokens of a block.
        num_blocks: size of the pool; if None, as many blocks as fit in `cache_bytes`.
        cache_bytes: memory of the KV cache.
        num_swap_blocks: size of the swap space; without one, preempted sequences are computed again.
        watermark: share of the blocks that admission leaves free for those who run.
        share_prefixes: whether sequences with the same beginning share blocks.
        policy: who goes next, see `policies`.
        admission: see `scheduler`.
        backend: how attention is computed, see `paged_model.plan_attention`.
        make_runner: function (model, num_blocks, config) -> what carries out the plans; if None, the engine's own, see `new_runner`.
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
    policy: object = field(default_factory=FirstComeFirstServed)
    admission: Callable = optimistic
    backend: str | Callable | None = None
    make_runner: Callable | None = None
