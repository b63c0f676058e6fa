"""Lesson 12: determine how to serve a model, or refuse it."""

import inspect
import warnings
from dataclasses import replace
from functools import partial
from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from lessons_lib.compat.alone_runner import AloneRunner
from lessons_lib.compat.generation_defaults import GenerationDefaults
from lessons_lib.compat.pool_size import checked_num_blocks
from lessons_lib.compat.probe import ALONE, HYBRID, PAGED, probe
from lessons_lib.engine.config import EngineConfig, MakeRunner
from lessons_lib.engine.gpu_model_runner import gpu_model_runner
from lessons_lib.engine.logits_processors import rules_of
from lessons_lib.engine.model_fit import ModelFit
from lessons_lib.engine.model_runner import ModelRunner
from lessons_lib.engine.rules_state import RulesState
from lessons_lib.hybrid.find_states import find_states
from lessons_lib.hybrid.gpu_hybrid_runner import GPUHybridRunner
from lessons_lib.hybrid.hybrid_runner import HybridRunner
from lessons_lib.hybrid.packed_states import PackedStates
from lessons_lib.hybrid.sequence_states import SequenceStates
from lessons_lib.hybrid.window_blocks import WindowBlocks, blocks_in_windows
from lessons_lib.hybrid.windowed_runner import GPUWindowedRunner, WindowedRunner, windows_of
from lessons_lib.kv_cache.block_memory import block_bytes
from lessons_lib.models.configuration import UnsupportedModel, kv_shapes, text_config
from lessons_lib.models.support import check_context, checked_context

KEPT = 4  # layers with a window have blocks for a quarter of what the others keep, so that prefixes can be shared
MOST_CHECKPOINTS = 128  # unless the config asks for more: enough for 60 conversations that come back


def fit(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, config: EngineConfig) -> ModelFit:
    """Determine how to serve a model: by a probe, unless the config turns it off, and by its generation_config.

    Raises:
        UnsupportedModel: the engine would return other tokens than the model's `generate`.
        ValueError, MemoryError: see `checked_num_blocks`.
    """
    measured: dict[str, Any] = {}
    state_bytes = 0
    has_windows = False
    if config.probe:
        served = probe(model)
        check_context(model.config, config.max_model_len)
        measured["layer_shapes"] = served.layer_shapes
        if served.way == HYBRID:
            packed = find_states(model, config.block_size)
            state_bytes = resize_states(packed.states, config)
            measured |= dict(make_runner=partial(make_hybrid, packed=packed), states=packed.states)
        elif served.way != PAGED:
            measured |= dict(make_runner=make_alone, states=SequenceStates(config.block_size))
        has_windows = served.way == PAGED
    sized = replace(config, layer_shapes=measured.get("layer_shapes"))
    num_blocks = checked_num_blocks(sized, model, state_bytes)
    if has_windows and (windowed := fit_windows(model, sized, num_blocks)):
        num_blocks, measured["states"], measured["make_runner"] = windowed
    context = checked_context(model, config.max_model_len)
    defaults = GenerationDefaults.of(model, tokenizer, config.generation_config)
    vocab_size = text_config(model.config).vocab_size
    make_rules = partial(rules_of, tokenizer=tokenizer, vocab_size=vocab_size, memory=RulesState())
    return ModelFit(defaults, num_blocks, make_rules, context, **measured)


def most_sequences(config: EngineConfig) -> int:
    """The most sequences that have blocks at a time. With a step in flight, a sequence whose last token it computes has
    left its batch slot to another."""
    return config.max_num_seqs * (2 if config.overlap else 1)


def fit_windows(
    model: PreTrainedModel, config: EngineConfig, num_blocks: int
) -> tuple[int, WindowBlocks, MakeRunner] | None:
    """Give layers with a window a smaller cache, and the others the memory that this saves.

    Args:
        num_blocks: size of the pool if all layers have all blocks.

    Returns:
        (size of the pool, blocks of the layers with a window, function that makes the runner); None if no layer has
        one, if nothing is saved, or if the config asks for a swap space or a runner of its own.
    """
    windows = windows_of(model)
    can_choose = config.make_runner is None or "kind" in inspect.signature(config.make_runner).parameters
    if config.num_swap_blocks or not can_choose or not any(windows):
        return None
    size, window = config.block_size, max(filter(None, windows))
    num_own = blocks_in_windows(most_sequences(config), config.max_num_batched_tokens, window, size)
    if num_own >= num_blocks:
        return None
    if config.num_blocks is None:
        shapes = config.layer_shapes or kv_shapes(model.config)
        groups = [[shape for shape, own in zip(shapes, windows) if bool(own) is slides] for slides in (False, True)]
        rest, own = (block_bytes(model.config, size, model.dtype.itemsize, group) for group in groups)
        num_blocks = int(config.cache_bytes / (rest + own / KEPT))
        if num_blocks < num_own * KEPT:
            num_blocks = (config.cache_bytes - num_own * own) // rest
    blocks = WindowBlocks(window, max(num_own, num_blocks // KEPT), size)
    return num_blocks, blocks, partial(make_windowed, blocks=blocks, windows=windows)


def make_windowed(model: PreTrainedModel, num_blocks: int, config: EngineConfig, **own: Any) -> ModelRunner:
    """Make the runner of a model whose layers with a window have a smaller cache."""
    make = config.make_runner or (gpu_model_runner() if config.overlap else None)
    if make:
        runner: ModelRunner = make(model, num_blocks, config, kind=GPUWindowedRunner, **own)  # type: ignore[call-arg]
        return runner
    return WindowedRunner(model, num_blocks, config.block_size, config.backend, config.layer_shapes, **own)


def resize_states(states: SequenceStates, config: EngineConfig) -> int:
    """Allocate the states of an engine's sequences, and their checkpoints. Return their size in bytes.

    Raises:
        ValueError: they don't fit in `cache_bytes`.
    """
    num_sequences = most_sequences(config)
    num_checkpoints = config.num_checkpoints if config.share_prefixes else 0
    if num_checkpoints is None:
        left = config.cache_bytes // max(1, states.bytes_per_slot) - 1 - num_sequences
        num_checkpoints = max(0, min(MOST_CHECKPOINTS, left // 2))
    num_bytes = (1 + num_sequences + num_checkpoints) * states.bytes_per_slot
    if num_bytes > config.cache_bytes:
        raise ValueError(
            f"cache_bytes is {config.cache_bytes}, and the states of {num_sequences} sequences and {num_checkpoints} "
            f"checkpoints take {num_bytes} bytes, {states.bytes_per_slot} each. Raise cache_bytes, or lower "
            "max_num_seqs or num_checkpoints."
        )
    states.resize(num_sequences, num_checkpoints)
    return num_bytes


def make_hybrid(model: PreTrainedModel, num_blocks: int, config: EngineConfig, packed: PackedStates) -> ModelRunner:
    """Make the runner of a model with stateful layers.

    Raises:
        UnsupportedModel: the config asks for a runner that can't be of another kind.
        ValueError: a step has too little room for a model whose decodes differ; see SequenceStates.
    """
    if packed.states.decodes_differ and config.max_num_batched_tokens < config.max_num_seqs + 2:
        raise ValueError(
            f"max_num_batched_tokens is {config.max_num_batched_tokens} and max_num_seqs {config.max_num_seqs}; a step "
            "of this model must have room for two tokens more than sequences. Raise the first or lower the second."
        )
    if config.make_runner and "kind" in inspect.signature(config.make_runner).parameters:
        runner: ModelRunner = config.make_runner(model, num_blocks, config, kind=GPUHybridRunner, packed=packed)  # type: ignore[call-arg]
        return runner
    refuse_other_runners(model, config, "its layers keep states, or don't attend once each")
    return HybridRunner(model, num_blocks, config.block_size, config.backend, config.layer_shapes, packed=packed)


def make_alone(model: PreTrainedModel, num_blocks: int, config: EngineConfig) -> ModelRunner:
    """Make the runner of a model that needs an AloneRunner.

    Raises:
        UnsupportedModel: the config asks for another runner.
    """
    served = probe(model)
    refuse_other_runners(model, config, served.reason)
    warnings.warn(f"{type(model).__name__} is served slowly, one sequence at a time: {served.reason}.", stacklevel=3)
    return AloneRunner(model, num_blocks, config.block_size, keeps_caches=served.way == ALONE)


def refuse_other_runners(model: PreTrainedModel, config: EngineConfig, reason: str) -> None:
    """Raise UnsupportedModel if the config asks for a runner that can't serve the model."""
    if config.make_runner or config.overlap:
        raise UnsupportedModel(
            f"make_runner and overlap can't serve {type(model).__name__}: {reason}. LLMEngine can; leave out "
            "make_runner and overlap."
        )
