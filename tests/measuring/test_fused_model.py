"""The model in fewer operations: the same logits, the same tokens, the same memory."""

import pytest
import torch

from lessons_lib.engine.model_runner import ModelRunner
from lessons_lib.measuring.fused_llama import FEW_TOKENS, FusedModel, FusedRunner, NotFusible, product
from lessons_lib.measuring.operations import CountOperations
from lessons_lib.models.loading import load_model
from lessons_lib.models.tiny_models import tiny_model
from lessons_lib.scheduling.scheduler import SchedulerOutput
from lessons_lib.scheduling.sequence import Sequence


@pytest.fixture(params=["llama", "qwen2"])
def model(request):
    return tiny_model.__wrapped__(request.param)  # one of its own: its weights are joined


def a_plan():
    """A prompt, a chunk in the middle of another, a decode."""
    prompt = Sequence("A", list(range(1, 8)), 4, blocks=[0, 1])
    chunk = Sequence("B", list(range(30, 50)), 4, num_computed_tokens=5, blocks=[2, 3, 4])
    decode = Sequence("C", [9, 8, 7], 4, output_ids=[6], num_computed_tokens=3, blocks=[5])
    return SchedulerOutput({decode: 1, chunk: 6, prompt: 7})


def test_the_logits_are_those_of_the_model(model):
    scheduler_output = a_plan()
    plain = ModelRunner(model, 6, 4).forward(scheduler_output)
    torch.testing.assert_close(FusedRunner(model, 6, 4).forward(scheduler_output), plain, rtol=1e-4, atol=1e-4)


def test_a_product_is_the_same_either_way_round():
    generator = torch.Generator().manual_seed(0)
    weight, bias = torch.randn(24, 12, generator=generator), torch.randn(24, generator=generator)
    for tokens in (0, 1, 2, FEW_TOKENS, FEW_TOKENS + 1):
        hidden = torch.randn(tokens, 12, generator=generator)
        for added in (None, bias):
            got = product(hidden, weight, added)
            torch.testing.assert_close(got, torch.nn.functional.linear(hidden, weight, added))
            assert got.is_contiguous()


def test_it_takes_fewer_operations():
    model, _ = load_model(device="cpu")
    counts = []
    for runner in (ModelRunner(model, 6, 4), FusedRunner(model, 6, 4)):
        with CountOperations() as operators:
            runner.forward(a_plan())
        counts.append(operators.count)
    assert counts[1] < 0.9 * counts[0], counts


def test_other_models_are_refused():
    with pytest.raises(NotFusible, match="'gpt2'. Use it as it is"):
        FusedModel(tiny_model("gpt2"))


def test_unknown_biases_are_refused_and_the_model_stays_as_it_was():
    model = tiny_model.__wrapped__("llama")
    projection = model.model.layers[0].mlp.down_proj
    projection.bias = torch.nn.Parameter(torch.ones(projection.out_features), requires_grad=False)
    ids = torch.tensor([[5, 6, 7]])
    before = model(ids).logits
    with pytest.raises(NotFusible, match="bias"):
        FusedModel(model)
    torch.testing.assert_close(model(ids).logits, before)
