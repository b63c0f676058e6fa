"""Lesson 12: the sizes of an engine, and the parts of it that can be replaced."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from lessons_lib.attention.hf_backend import Backend
from lessons_lib.models.configuration import KVShape
from lessons_lib.models.validate import check_fields, flag, function, must, number, shortened, whole
from lessons_lib.scheduling.policies import StrictPriority
from lessons_lib.scheduling.scheduler import Admission, optimistic
from lessons_lib.scheduling.sequence import FirstComeFirstServed, Policy

POLICIES: dict[str, Callable[[], Policy]] = {
    "fcfs": FirstComeFirstServed,
    "priority": StrictPriority,
}  # by their names in vLLM
MakeRunner = Callable[[Any, int, Any], Any]


@dataclass(frozen=True)
class EngineConfig:
    """The sizes of an engine.

    Attributes:
        max_num_seqs: the most sequences that run at a time: the number of batch slots.
        max_num_batched_tokens: the most tokens of a step, at least `max_num_seqs`.
        max_model_len: the most tokens of a sequence, prompt and completion together; if None, as many as the model has
            positions for.
        block_size: tokens of a block.
        num_blocks: size of the pool; if None, as many blocks as fit in `cache_bytes`.
        cache_bytes: memory of the KV cache, in bytes.
        num_swap_blocks: size of the swap space; without one, preempted sequences are recomputed.
        watermark: share of the blocks that admission leaves free for running sequences, 0 to 1.
        share_prefixes: sequences with the same beginning share blocks.
        policy: decides which request is served next, see `policies`; or "fcfs" or "priority".
        admission: see `scheduler.optimistic`.
        backend: computes attention, see `hf_backend.plan_attention`.
        probe: the engine compares its own logits with those of `generate` before the first request, see
            `compat.probe`. It takes a few short passes, once per model. Without it, a model that the engine doesn't
            support gives wrong tokens.
        overlap: each step is launched before the tokens of the last one are read, so that a GPU never waits for
            the host (lesson 13).
        make_runner: function (model, num_blocks, config) -> ModelRunner; if None, the engine chooses one.
        max_logprobs: for how many of the likeliest tokens a request may ask log-probabilities; -1 for any number.
        generation_config: the model's `generation_config` counts, see `compat.generation_defaults`; without it,
            only the tokenizer's end token ends a completion.
        layer_shapes: of each layer's keys and values. The engine fills in what the probe measured, for runners; None
            for those of the model's configuration.

    Raises:
        ValueError: a value makes no sense, whatever the model.
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
    policy: Policy | str = field(default_factory=FirstComeFirstServed)
    admission: Admission = optimistic
    backend: str | Backend | None = None
    probe: bool = True
    overlap: bool = False
    make_runner: MakeRunner | None = None
    max_logprobs: int = 20
    generation_config: bool = True
    layer_shapes: list[KVShape] | None = None

    def __post_init__(self) -> None:
        check_fields(self, CHECKS, MAY_BE_NONE)
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise ValueError(
                f"max_num_batched_tokens is {self.max_num_batched_tokens} and max_num_seqs {self.max_num_seqs}; a step "
                "must have room for a token of each sequence. Raise the first or lower the second."
            )


def known_policy(name: str, policy: Any) -> Policy:
    """A policy, or the one of that name.

    Raises:
        ValueError: there is no such policy, or it can't rank.
    """
    if isinstance(policy, str):
        if policy not in POLICIES:
            raise ValueError(
                f"there is no policy {shortened(policy)}; there are {', '.join(map(repr, POLICIES))}, and the classes "
                "of lessons_lib.scheduling.policies."
            )
        return POLICIES[policy]()
    can_rank = not isinstance(policy, type) and callable(getattr(policy, "rank", None))
    wanted = "an object with a method `rank(sequence)`, such as `FirstComeFirstServed()`"
    must(can_rank, name, policy, wanted)
    checked: Policy = policy
    return checked


MOST = 2**63 - 1
CHECKS: dict[str, tuple[Any, ...]] = {
    "max_num_seqs": (whole, "a whole number from 1 on", 1, MOST),
    "max_num_batched_tokens": (whole, "a whole number from 1 on", 1, MOST),
    "max_model_len": (whole, "a whole number from 2 on, or None", 2, MOST),
    "block_size": (whole, "a whole number from 1 on", 1, MOST),
    "num_blocks": (whole, "a whole number from 1 on, or None", 1, MOST),
    "cache_bytes": (whole, "a whole number from 1 on", 1, MOST),
    "num_swap_blocks": (whole, "a whole number from 0 on", 0, MOST),
    "watermark": (number, "a share of the blocks, 0 to 1", lambda value: 0 <= value <= 1),
    "share_prefixes": (flag,),
    "policy": (known_policy,),
    "admission": (function, "a function (scheduler, sequence) -> bool, such as `scheduler.optimistic`"),
    "overlap": (flag,),
    "make_runner": (function, "a function (model, num_blocks, config) -> ModelRunner, or None"),
    "max_logprobs": (whole, "a whole number from -1 on", -1, MOST),
    "generation_config": (flag,),
}
MAY_BE_NONE = {"max_model_len", "num_blocks", "make_runner"}
