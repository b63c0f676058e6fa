"""Lesson 12: the sizes of an engine, and the parts of it that can be replaced."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from lessons_lib.attention.hf_backend import Backend
from lessons_lib.models.configuration import KVShape
from lessons_lib.models.validate import flag, is_real, must, shortened, whole
from lessons_lib.scheduling.policies import FirstComeFirstServed, Policy, StrictPriority
from lessons_lib.scheduling.scheduler import Admission, optimistic

POLICIES: dict[str, Callable[[], Policy]] = {
    "fcfs": FirstComeFirstServed,
    "priority": StrictPriority,
}  # by their names in vLLM
MakeRunner = Callable[[Any, int, Any], Any]
# The smallest value of each field that is a whole number, and whether it may be None.
WHOLE_NUMBERS = {
    "max_num_seqs": (1, False),
    "max_num_batched_tokens": (1, False),
    "max_model_len": (2, True),
    "block_size": (1, False),
    "num_blocks": (1, True),
    "cache_bytes": (1, False),
    "num_swap_blocks": (0, False),
    "max_logprobs": (-1, False),
}


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
        share_prefixes: whether sequences with the same beginning share blocks.
        policy: which request is served next, see `policies`; or "fcfs" or "priority".
        admission: see `scheduler.optimistic`.
        backend: how attention is computed, see `hf_backend.plan_attention`.
        probe: whether the engine compares its own logits with those of `generate` before the first request, see
            `compat.probe`. It takes a few short passes, once per model. Without it, a model that the engine doesn't
            support gives wrong tokens.
        overlap: whether a step is launched before the tokens of the last one are read, so that a GPU never waits for
            the host (lesson 13).
        make_runner: function (model, num_blocks, config) -> ModelRunner; if None, the engine chooses one.
        max_logprobs: for how many of the likeliest tokens a request may ask log-probabilities; -1 for any number.
        generation_config: whether the model's `generation_config` counts, see `compat.generation_defaults`; without it,
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
        for name, (least, may_be_none) in WHOLE_NUMBERS.items():
            value, or_none = getattr(self, name), ", or None" if may_be_none else ""
            if value is not None or not may_be_none:
                wanted = f"a whole number from {least} on{or_none}"
                object.__setattr__(self, name, whole(name, value, wanted, least, 2**63 - 1, ValueError))
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise ValueError(
                f"max_num_batched_tokens is {self.max_num_batched_tokens} and max_num_seqs {self.max_num_seqs}; a step "
                "must have room for a token of each sequence. Raise the first or lower the second."
            )
        if not (is_real(self.watermark) and 0 <= self.watermark <= 1):
            raise ValueError(f"watermark is {shortened(self.watermark)}; it is a share of the blocks, 0 to 1.")
        for name in ("share_prefixes", "overlap", "generation_config"):
            flag(name, getattr(self, name), ValueError)
        wanted = "a function (scheduler, sequence) -> bool, such as `scheduler.optimistic`"
        must(callable(self.admission), "admission", self.admission, wanted, ValueError)
        wanted = "a function (model, num_blocks, config) -> ModelRunner, or None"
        is_maker = self.make_runner is None or callable(self.make_runner)
        must(is_maker, "make_runner", self.make_runner, wanted, ValueError)
        object.__setattr__(self, "policy", known_policy(self.policy))


def known_policy(policy: Any) -> Policy:
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
    must(can_rank, "policy", policy, wanted, ValueError)
    checked: Policy = policy
    return checked
