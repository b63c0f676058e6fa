"""A model that an engine was given is as before once the engine is closed."""

import copy
import gc
import weakref
from contextlib import suppress

import engine_cases
import pytest
import torch
from engine_cases import alone, greedy

from lessons_lib.engine.cuda_graphs import rerun
from lessons_lib.engine.gpu_model_runner import gpu_model_runner
from lessons_lib.engine.llm_engine import EngineConfig, LLMEngine
from lessons_lib.measuring.fused_llama import fused_runner

KINDS = {
    "plain": {},
    "fused": dict(make_runner=fused_runner),
    "on the GPU's path": dict(make_runner=gpu_model_runner(compiled=False, capture=rerun)),
    "overlapped": dict(overlap=True, make_runner=gpu_model_runner(compiled=False, capture=rerun)),
}


@pytest.fixture
def model():
    return copy.deepcopy(engine_cases.a_model())


def an_engine(kind, model):
    config = EngineConfig(num_blocks=60, block_size=4, max_num_seqs=8, max_num_batched_tokens=32, **KINDS[kind])
    return LLMEngine(model, engine_cases.LetterTokenizer(), config)


def state_of(model):
    """Everything that an engine may change: settings, hooks, which tensors there are, and which memory is whose."""
    config = {name: value for name, value in vars(model.config).items() if not isinstance(value, torch.dtype)}
    modules = [
        (name, type(module), vars(module).keys(), len(module._forward_hooks), len(module._forward_pre_hooks))
        for name, module in model.named_modules()
    ]
    memory = [
        (name, weight.shape, weight.stride(), weight.untyped_storage().nbytes())
        for name, weight in model.named_parameters()
    ]
    return copy.deepcopy(config), modules, memory


@pytest.mark.parametrize("how", ["served", "in the middle", "after an error"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_closed_engine_leaves_the_model_as_it_was(model, kind, how):
    ids = torch.tensor([[5, 6, 7]])
    before, weights, logits = state_of(model), copy.deepcopy(model.state_dict()), model(ids).logits
    attention = model.config._attn_implementation
    with suppress(KeyboardInterrupt), an_engine(kind, model) as engine:
        for prompt in ([1, 2, 3], [4, 5]):
            engine.add_request(prompt, greedy(6, ignore_eos=True))
        for _ in range(3):
            engine.step()
            assert model.config._attn_implementation == attention, "between two steps, too"
        while how == "served" and engine.has_unfinished():
            engine.step()
        if how == "after an error":
            raise KeyboardInterrupt
    assert state_of(model) == before and torch.equal(model(ids).logits, logits)
    assert all(torch.equal(weight, weights[name]) for name, weight in model.state_dict().items())
    assert not engine.requests and not engine.scheduler.pool.used
    assert getattr(engine.runner, "store", None) is None or not engine.runner.store.graphs


def test_two_engines_of_one_model_one_after_the_other_and_side_by_side(model):
    with an_engine("overlapped", model) as first, an_engine("plain", model) as second:
        outputs = [each.generate([[1, 2]], greedy(8, ignore_eos=True))[0] for each in (first, second, first)]
    with an_engine("on the GPU's path", model) as third:
        outputs += third.generate([[1, 2]], greedy(8, ignore_eos=True))
    assert all(output.token_ids == alone("qwen2", [1, 2], 8, ignore_eos=True) for output in outputs)


def test_a_closed_engine_takes_no_requests_and_can_be_closed_again(model):
    engine = an_engine("overlapped", model)
    with engine:
        name = engine.add_request([1, 2], greedy(6, ignore_eos=True))
        engine.step()
        request = engine.requests[name]
    assert request.output.finish_reason == "abort" and not engine.core.in_flight
    with pytest.raises(RuntimeError, match="the engine is closed"):
        engine.add_request([1, 2])
    engine.close()


def test_an_engine_that_is_no_longer_used_is_freed(model):
    engine = an_engine("plain", model)
    engine.generate([[5, 6, 7]], greedy(3))
    cache, seen = weakref.ref(engine.runner.cache.keys[0]), weakref.ref(engine)
    engine.close()
    del engine
    gc.collect()
    assert seen() is None and cache() is None
