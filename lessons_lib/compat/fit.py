"""Lesson 12: determine how to serve a model, or refuse it."""

import warnings
from dataclasses import replace
from functools import partial
from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from lessons_lib.compat.gathered_runner import GatheredRunner
from lessons_lib.compat.generation_defaults import GenerationDefaults
from lessons_lib.compat.pool_size import checked_num_blocks
from lessons_lib.compat.probe import GATHERED, probe
from lessons_lib.engine.config import EngineConfig
from lessons_lib.engine.logits_processors import rules_of
from lessons_lib.engine.model_fit import ModelFit
from lessons_lib.engine.model_runner import ModelRunner
from lessons_lib.engine.rules_state import RulesState
from lessons_lib.models.configuration import UnsupportedModel, text_config
from lessons_lib.models.support import check_context, checked_context


def fit(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, config: EngineConfig) -> ModelFit:
    """Determine how to serve a model: by a probe, unless the config turns it off, and by its generation_config.

    Raises:
        UnsupportedModel: the engine would return other tokens than the model's `generate`.
        ValueError, MemoryError: see `checked_num_blocks`.
    """
    measured: dict[str, Any] = {}
    if config.probe:
        served = probe(model)
        check_context(model.config, config.max_model_len)
        measured["layer_shapes"] = served.layer_shapes
        if served.way == GATHERED:
            measured["make_runner"] = make_gathered
    num_blocks = checked_num_blocks(replace(config, layer_shapes=measured.get("layer_shapes")), model)
    context = checked_context(model, config.max_model_len)
    defaults = GenerationDefaults.of(model, tokenizer, config.generation_config)
    vocab_size = text_config(model.config).vocab_size
    make_rules = partial(rules_of, tokenizer=tokenizer, vocab_size=vocab_size, memory=RulesState())
    return ModelFit(defaults, num_blocks, make_rules, context, **measured)


def make_gathered(model: PreTrainedModel, num_blocks: int, config: EngineConfig) -> ModelRunner:
    """Make the runner of a model that needs a GatheredRunner.

    Raises:
        UnsupportedModel: the config asks for another runner.
    """
    name, reason = type(model).__name__, probe(model).reason
    if config.make_runner or config.overlap:
        raise UnsupportedModel(
            f"make_runner and overlap can't serve {name}: {reason}. LLMEngine can, one sequence at a time; leave out "
            "make_runner and overlap."
        )
    warnings.warn(f"{name} is served slowly, one sequence at a time: {reason}.", stacklevel=3)
    return GatheredRunner(model, num_blocks, config.block_size, layer_shapes=config.layer_shapes)
