"""Joined projections: one product instead of several, and the model stays what it was."""

import copy
from unittest import mock

import pytest
import torch
from overlap_cases import BLOCK, SPARE, random_plan, with_the_same_past
from torch._decomp import core_aten_decompositions
from torch._functorch.aot_autograd import aot_module_simplified

from lessons_lib.attention.custom_op import operator_logits
from lessons_lib.attention.hf_backend import paged_attention_in
from lessons_lib.engine.cuda_graphs import rerun
from lessons_lib.engine.equal_products import ShareEqualProducts
from lessons_lib.engine.gpu_model_runner import GPUModelRunner, compiled_logits
from lessons_lib.engine.input_batch import forward_batch
from lessons_lib.engine.joined_projections import JoinedLinear, join_projections
from lessons_lib.engine.model_runner import ModelRunner
from lessons_lib.models import tiny_models


def tiny_model(family):
    """One of its own: these tests change it."""
    return copy.deepcopy(tiny_models.tiny_model(family))


@pytest.mark.parametrize("family", ["llama", "qwen2"])  # without and with biases
def test_a_joined_model_has_the_same_weights_and_outputs(family):
    model, before = tiny_model(family), tiny_model(family).state_dict()
    tokens = torch.arange(1, 12)[None]
    expected = model(tokens).logits
    joined = join_projections(model)
    assert len(joined) == 2 * model.config.num_hidden_layers
    torch.testing.assert_close(model(tokens).logits, expected)
    assert model.state_dict().keys() == before.keys()
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    for each in joined:
        each.separate()
    assert not any(isinstance(module, JoinedLinear) for module in model.modules())
    memory = [parameter.untyped_storage().data_ptr() for parameter in model.parameters()]
    assert len(memory) == len(set(memory))
    torch.testing.assert_close(model(tokens).logits, expected)
    model.requires_grad_(True)(tokens).logits.sum().backward()  # it can be trained, as before


def test_the_compiled_model_computes_each_group_once():
    model, counts = tiny_model("qwen2"), []
    plain = ModelRunner(tiny_model("qwen2"), SPARE + 1, BLOCK)
    join_projections(model)
    torch._dynamo.reset()
    runner = GPUModelRunner(model, SPARE, BLOCK, max_num_seqs=5, max_model_len=64, compiled=False, graphs=False)
    with_the_same_past(runner, plain)

    def count(lowered, example_inputs):
        """How many matrix products the compiler is left with."""
        ShareEqualProducts()(lowered.graph)
        lowered.graph.lint()
        lowered.recompile()
        counts.append(sum("mm" in str(node.target) for node in lowered.graph.nodes))
        return lowered.forward

    def backend(graph_module, inputs):
        compilers = dict(fw_compiler=count, inference_compiler=count)
        return aot_module_simplified(graph_module, inputs, **compilers, decompositions=core_aten_decompositions())

    compiled = compiled_logits(runner.cache, backend=backend, options=None)
    for seed in range(2):
        step = random_plan(seed)
        batch = forward_batch(step, runner.tables, BLOCK, None, 5)
        with torch.inference_mode(), paged_attention_in(model):
            logits = compiled(model, runner.cache, batch, runner.previous_tokens)
        expected = plain.forward(step)
        torch.testing.assert_close(logits[: len(expected)], expected, rtol=1e-4, atol=1e-4)
    runner.close()
    assert counts == [4 * model.config.num_hidden_layers + 1]  # 7 of a layer, if each were computed alone


def test_what_is_no_plain_product_is_left_alone():
    class Adapter(torch.nn.Linear):
        pass

    model = tiny_model("llama")
    first, second = model.model.layers[0], model.model.layers[1]
    first.self_attn.k_proj.__class__ = Adapter
    first.mlp.up_proj.to(torch.float64)
    second.self_attn.q_proj.bias = torch.nn.Parameter(torch.zeros(len(second.self_attn.q_proj.weight)))
    joined = join_projections(model)
    assert [each.parts[0] for each in joined] == [second.mlp.gate_proj]
    assert not join_projections(tiny_model("gpt2")) and not join_projections(model)


def joined_logits(cache):
    """In place of the compiler: the joined products, without sharing them."""

    def call(*inputs):
        with mock.patch.object(torch.compiler, "is_compiling", return_value=True):
            return operator_logits(*inputs)

    return call


# function (the projection, its new weights)
CHANGES = {
    "another parameter": lambda own, new: setattr(own, "weight", torch.nn.Parameter(new.clone())),
    "other memory": lambda own, new: setattr(own.weight, "data", new.clone()),
    "written into": lambda own, new: own.weight.data.copy_(new),
}


@pytest.mark.parametrize("way", [*CHANGES, "load_state_dict"])
def test_weights_that_change_are_put_where_the_model_reads_them(way, monkeypatch):
    """As after a step of reinforcement learning: the next step computes with the new weights."""
    monkeypatch.setitem(GPUModelRunner.__init__.__globals__, "compiled_logits", joined_logits)
    model, plain = tiny_model("qwen2"), ModelRunner(tiny_model("qwen2"), SPARE + 1, BLOCK)
    runner = GPUModelRunner(model, SPARE, BLOCK, max_num_seqs=5, max_model_len=64, capture=rerun)
    with_the_same_past(runner, plain)
    step = random_plan(4)
    torch.testing.assert_close(runner.forward(step), plain.forward(step), rtol=1e-4, atol=1e-4)
    own, other = (each.model.layers[1].mlp.up_proj for each in (model, plain.model))
    other.weight.data *= -3
    if way == "load_state_dict":
        model.load_state_dict(plain.model.state_dict())
    else:
        CHANGES[way](own, other.weight.data)
    for _ in range(2):
        torch.testing.assert_close(runner.forward(step), plain.forward(step), rtol=1e-4, atol=1e-4)
    runner.close()
    assert type(own) is torch.nn.Linear and torch.equal(own.weight, other.weight)
