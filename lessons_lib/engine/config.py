"""Lesson 12: the sizes of an engine, and the parts of it that can be replaced."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from lessons_lib.attention.hf_backend import Backend
from lessons_lib.models.configuration import KVShape
from lessons_lib.models.validate import check_fields, checked, flag, function, must, number, whole
from lessons_lib.scheduling.scheduler import Admission, optimistic
from lessons_lib.scheduling.sequence import Policy

MakeRunner = Callable[[Any, int, Any], Any]
MOST = 2**63 - 1


def ranking(name: str, policy: Any) -> Any:
    """An object that can rank sequences."""
    can_rank = not isinstance(policy, type) and callable(getattr(policy, "rank", None))
    must(can_rank, name, policy, "an object with a method `rank(sequence)`, such as `StrictPriority()`, or None")
    return policy


def size(default: int | None, least: int, wanted: str) -> Any:
    """A field for a whole number from `least` on."""
    return checked(default, whole, wanted, least, MOST)


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
        host_cache_bytes: CPU memory for cached blocks that leave the pool; 0 for none. See `lessons_lib.floors`.
        disk_cache_bytes: size of a file for those that leave this memory; 0 for none.
        cache_dir: the folder of this file. A new engine finds what an earlier one left there.
        watermark: share of the blocks that admission leaves free for running sequences, 0 to 1.
        share_prefixes: sequences with the same beginning share blocks.
        num_checkpoints: copies of states that are kept for it, if the model has layers with states (lesson 19); if
            None, up to 128 in half of the memory that `cache_bytes` leaves.
        policy: decides which request is served next, see `scheduling.policies`; None for the order of arrival.
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
        ValueError: a value makes no sense for any model.
    """

    max_num_seqs: int = size(64, 1, "a whole number from 1 on")
    max_num_batched_tokens: int = size(512, 1, "a whole number from 1 on")
    max_model_len: int | None = size(None, 2, "a whole number from 2 on, or None")
    block_size: int = size(16, 1, "a whole number from 1 on")
    num_blocks: int | None = size(None, 1, "a whole number from 1 on, or None")
    cache_bytes: int = size(2**28, 1, "a whole number from 1 on")
    num_swap_blocks: int = size(0, 0, "a whole number from 0 on")
    host_cache_bytes: int = size(0, 0, "a whole number from 0 on")
    disk_cache_bytes: int = size(0, 0, "a whole number from 0 on")
    cache_dir: str | None = None
    watermark: float = checked(0.01, number, "a share of the blocks, 0 to 1", lambda value: 0 <= value <= 1)
    share_prefixes: bool = checked(True, flag)
    num_checkpoints: int | None = size(None, 0, "a whole number from 0 on, or None")
    policy: Policy | None = checked(None, ranking)
    admission: Admission = checked(
        optimistic, function, "a function (scheduler, sequence) -> bool, such as `scheduler.optimistic`"
    )
    backend: str | Backend | None = None
    probe: bool = True
    overlap: bool = checked(False, flag)
    make_runner: MakeRunner | None = checked(None, function, "a function (model, num_blocks, config), or None")
    max_logprobs: int = size(20, -1, "a whole number from -1 on")
    generation_config: bool = checked(True, flag)
    layer_shapes: list[KVShape] | None = None

    def __post_init__(self) -> None:
        check_fields(self)
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise ValueError(
                f"max_num_batched_tokens is {self.max_num_batched_tokens} and max_num_seqs {self.max_num_seqs}; a step "
                "must have room for a token of each sequence. Raise the first or lower the second."
            )
