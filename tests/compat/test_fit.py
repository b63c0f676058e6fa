"""An engine asks how its model is served, and believes what it is told."""

import pytest
from engine_cases import LetterTokenizer, a_model

from lessons_lib.compat.fit import fit
from lessons_lib.compat.generation_defaults import GenerationDefaults
from lessons_lib.engine.config import EngineConfig
from lessons_lib.engine.llm_engine import LLMEngine, Parts
from lessons_lib.engine.model_fit import ModelFit
from lessons_lib.engine.model_runner import ModelRunner
from lessons_lib.models.configuration import KVShape, UnsupportedModel


class Own(ModelRunner):
    pass


def make_own(model, num_blocks, config):
    return Own(model, num_blocks, config.block_size, layer_shapes=config.layer_shapes)


def test_an_engine_takes_what_its_fit_says():
    shapes, asked = [KVShape(2, 8, 16)] * 2, []

    def told(model, tokenizer, config):
        asked.append((model, tokenizer, config))
        return ModelFit(GenerationDefaults(frozenset([3]), ("x",)), 8, lambda *_: None, None, shapes, make_own)

    model, tokenizer, config = a_model(), LetterTokenizer(), EngineConfig(num_blocks=8, num_swap_blocks=2)
    with LLMEngine(model, tokenizer, config, parts=Parts(fit=told)) as engine:
        assert asked == [(model, tokenizer, config)]
        assert isinstance(engine.runner, Own) and engine.inputs.fit.defaults.stop == ("x",)
        assert engine.core.swap_cache.values[0].shape[2:] == engine.runner.cache.values[0].shape[2:] == (2, 16)
    assert config.layer_shapes is None


def test_a_fit_can_refuse():
    def refuse(model, tokenizer, config):
        raise UnsupportedModel("no")

    with pytest.raises(UnsupportedModel, match="no"):
        LLMEngine(a_model(), LetterTokenizer(), EngineConfig(num_blocks=8), parts=Parts(fit=refuse))


def test_without_a_probe_nothing_is_measured():
    found = fit(a_model(), LetterTokenizer(), EngineConfig(probe=False))
    assert found.layer_shapes is None and found.make_runner is None
    found = fit(a_model(), LetterTokenizer(), EngineConfig())
    assert len(found.layer_shapes) == a_model().config.num_hidden_layers and found.make_runner is None
