"""The kernels of gated delta nets, on Triton's interpreter, against Hugging Face's layer; and both ways on a GPU."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from served_architectures import NoText, generate
from tiny_architectures import tiny_model

import lessons_lib.hybrid.gpu_hybrid_runner as gpu_hybrid_runner
from lessons_lib.engine.cuda_graphs import rerun
from lessons_lib.engine.gpu_model_runner import gpu_model_runner
from lessons_lib.engine.llm_engine import EngineConfig, LLMEngine
from lessons_lib.engine.sampling import SamplingParams
from lessons_lib.hybrid.find_states import find_states
from lessons_lib.hybrid.gated_delta import gated_delta
from lessons_lib.hybrid.gated_delta_layer import GatedDeltaLayer, agrees, takes_rows, waves_of
from lessons_lib.hybrid.packed_states import Piece
from lessons_lib.kernels.gated_delta import packed_delta


@pytest.fixture(scope="module")
def packed():
    packed = find_states(tiny_model("qwen3_5_text"), 4)
    packed.states.resize(6)
    return packed


@settings(max_examples=8, deadline=None, derandomize=True)
@given(
    lengths=st.lists(st.lists(st.integers(1, 12), min_size=1, max_size=3), min_size=1, max_size=4), seed=st.integers()
)
@torch.inference_mode()
def test_pieces_of_several_sequences_equal_the_layer_on_each(packed, lengths, seed):
    """A sequence is cut into pieces of these lengths; those of the second and third wave start from its slot."""
    module, states = packed.layers[0].module, packed.states
    hidden = module.in_proj_z.in_features
    generator = torch.Generator().manual_seed(seed % 2**32)
    inputs = [torch.randn(1, sum(each), hidden, generator=generator) for each in lengths]
    pieces, row = [], 0
    for slot, each in enumerate(lengths, 1):
        for index, length in enumerate(each):
            pieces.append(Piece(row, length, slot, index == 0, False, None))
            row += length
    for tensor in states.tensors.values():
        tensor.fill_(torch.nan)
    found = GatedDeltaLayer(module, states).forward(torch.cat(inputs, dim=1), waves_of(pieces, torch.device("cpu")))
    expected = torch.cat([module(each) for each in inputs], dim=1)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


def test_a_state_is_copied_after_its_piece(packed):
    layer = GatedDeltaLayer(packed.layers[0].module, packed.states)
    states = packed.states.tensors[layer.recurrent]
    pieces = [Piece(0, 3, 1, True, False, 4), Piece(3, 2, 1, False, False, None)]
    with torch.inference_mode():
        layer.forward(torch.randn(1, 5, layer.module.in_proj_z.in_features), waves_of(pieces, torch.device("cpu")))
        kept = states[4].clone()
        layer.forward(torch.randn(1, 3, layer.module.in_proj_z.in_features), waves_of(pieces[:1], torch.device("cpu")))
    assert kept.any() and not torch.equal(kept, states[1])


def test_a_module_that_computes_something_else_keeps_its_own_forward(packed, monkeypatch):
    module = packed.layers[0].module
    assert agrees(module, packed.states) and not takes_rows(module, packed.states), "on a CPU the kernels are too slow"
    own = module.norm.forward
    monkeypatch.setattr(module.norm, "forward", lambda *args: own(*args) * 1.5)
    assert agrees(module, packed.states), "both call it"
    own_whole = module.forward
    monkeypatch.setattr(module, "forward", lambda *args: own_whole(*args) * 1.1)
    assert not agrees(module, packed.states)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("is_fast", [True, False])
def test_a_hybrid_on_a_gpu_answers_as_generate(is_fast, monkeypatch):
    if not is_fast:
        monkeypatch.setattr(gpu_hybrid_runner, "takes_rows", lambda module, states: False)
    model = tiny_model("qwen3_5_text").cuda()
    config = EngineConfig(block_size=4, num_blocks=90, max_num_seqs=4, max_num_batched_tokens=40, overlap=True,
                          make_runner=gpu_model_runner())  # fmt: skip
    engine = LLMEngine(model, NoText(), config)
    assert len(engine.runner.fast) == 2 * is_fast
    prompts = [[3 + 7 * place % 90 for place in range(length)] for length in (1, 5, 17, 40, 41)]
    outputs = engine.generate(prompts, SamplingParams(max_tokens=8, temperature=0, ignore_eos=True))
    assert [each.token_ids for each in outputs] == [generate(model.cpu(), prompt).token_ids for prompt in prompts]


def test_the_whole_engine_takes_the_kernels(monkeypatch):
    """On the interpreter, so only a few tokens."""
    model = tiny_model("qwen3_5_text")
    monkeypatch.setattr(gpu_hybrid_runner, "takes_rows", lambda module, states: True)
    runner = gpu_model_runner(compiled=False, capture=rerun)
    config = EngineConfig(block_size=4, num_blocks=30, max_num_seqs=2, overlap=True, make_runner=runner)
    engine = LLMEngine(model, NoText(), config)
    prompts = [[3 + 7 * place % 90 for place in range(length)] for length in (9, 17)]
    outputs = engine.generate(prompts, SamplingParams(max_tokens=3, temperature=0, ignore_eos=True))
    assert [each.token_ids for each in outputs] == [generate(model, prompt).token_ids[:3] for prompt in prompts]


@torch.inference_mode()
def test_the_kernel_and_the_plain_loop_agree():
    """Each head is a sequence of its own to the loop, which takes keys, decays and betas as the kernel makes them."""
    lengths, fresh, heads, dim = [3, 1, 5], [1, 0, 0], 2, 16
    row = sum(lengths)
    mixed, a, b = (torch.randn(row, size) for size in (3 * heads * dim, heads, heads))
    a_log, dt_bias, states = torch.randn(heads), torch.randn(heads), torch.randn(5, heads, dim, dim)
    loop_states, out = states.clone(), torch.empty(row, heads, dim)
    starts = torch.tensor([0, 3, 4], dtype=torch.int32)
    where = starts, torch.tensor(lengths, dtype=torch.int32), torch.tensor([4, 1, 2]), torch.tensor(fresh)
    packed_delta(mixed, a, b, a_log, dt_bias, states, *where, out)
    query, key, value = mixed.view(row, 3, heads, dim).unbind(1)
    query, key = (each * torch.rsqrt((each**2).sum(-1, keepdim=True) + 1e-6) for each in (query, key))
    decays = torch.exp(-a_log.exp() * torch.nn.functional.softplus(a + dt_bias))
    segments = list(zip(lengths, [4, 1, 2], map(bool, fresh)))
    for head in range(heads):
        one = (query[:, head] * dim**-0.5, key[:, head], value[:, head], decays[:, head], b[:, head].sigmoid())
        found = gated_delta(*one, loop_states[:, head], segments)
        torch.testing.assert_close(out[:, head], found, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(states, loop_states, rtol=1e-4, atol=1e-4)
