"""Models with layers that keep states, served in one packed batch, against `generate`."""

import copy

import pytest
import torch
from hybrid_workloads import HybridWorkload
from served_architectures import NoText, check_architecture, generate
from tiny_architectures import tiny_model

from lessons_lib.compat.fit import fit
from lessons_lib.compat.probe import HYBRID, probe
from lessons_lib.engine.llm_engine import EngineConfig, LLMEngine
from lessons_lib.engine.sampling import SamplingParams
from lessons_lib.hybrid.find_states import find_states
from lessons_lib.hybrid.packed_states import StatefulLayer
from lessons_lib.hybrid.sequence_states import SequenceStates
from lessons_lib.models.configuration import UnsupportedModel

PROMPT = [3 + 7 * place % 90 for place in range(37)]


@pytest.mark.parametrize(
    "model_type", ["qwen3_next", "jamba", "recurrent_gemma", "zamba2", "zaya", "minimax", "diffllama"]
)
def test_a_hybrid_is_served_in_one_packed_batch(model_type):
    outcome = check_architecture(model_type)
    assert outcome.verdict == "equal", outcome.reason
    assert probe(tiny_model(model_type)).way == HYBRID


@pytest.mark.parametrize("seed", range(12))
def test_random_workloads(seed):
    HybridWorkload(seed).play()


def engine_of(model_type, **sizes):
    sizes = dict(block_size=4, num_blocks=60, max_num_batched_tokens=14, max_num_seqs=4) | sizes
    return LLMEngine(tiny_model(model_type), NoText(), EngineConfig(**sizes))


def answer(engine, prompt):
    """The tokens, and how many tokens of the prompt were found in the cache."""
    (output,) = engine.generate([prompt], SamplingParams(max_tokens=8, temperature=0, ignore_eos=True))
    assert not output.error, output.error
    return output.token_ids, output.num_cached_tokens


@pytest.mark.parametrize("model_type", ["qwen3_5_text", "lfm2", "mamba2"])
def test_a_conversation_that_comes_back_is_computed_from_its_last_full_block(model_type):
    engine = engine_of(model_type)
    first, _ = answer(engine, PROMPT)
    turn = [*PROMPT, *first, 5, 9, 4]
    assert answer(engine, turn) == (generate(engine.model, turn).token_ids, 40), (
        "44 tokens were computed, but the state after them was gone"
    )


def test_a_shared_beginning_is_found_from_the_third_prompt_on():
    engine, rest = engine_of("qwen3_5_text"), iter(range(10, 90, 2))
    prompts = [[*PROMPT[:24], *(next(rest) for _ in range(9))] for _ in range(3)]
    cached = [answer(engine, prompt)[1] for prompt in prompts]
    assert cached == [0, 0, 24], "the second one notices the branch, and leaves a checkpoint there"


def test_without_checkpoints_nothing_is_shared_and_all_is_right():
    engine = engine_of("lfm2", num_checkpoints=0)
    assert [answer(engine, PROMPT) for _ in range(2)] == [(generate(engine.model, PROMPT).token_ids, 0)] * 2


def test_an_interrupted_pass_is_computed_again(monkeypatch):
    engine = engine_of("qwen3_5_text")
    wanted = generate(engine.model, PROMPT).token_ids
    compute, calls = StatefulLayer.compute, []

    def interrupted(self, *arguments):
        calls.append(1)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return compute(self, *arguments)

    engine.add_request(PROMPT, SamplingParams(max_tokens=8, temperature=0, ignore_eos=True))
    monkeypatch.setattr(StatefulLayer, "compute", interrupted)
    outputs = []
    while engine.has_unfinished():
        try:
            outputs += engine.step()
        except KeyboardInterrupt:
            pass
    assert outputs[0].token_ids == wanted
    assert all("forward" not in vars(module) for module in engine.model.modules())


def write_once(self, key, slots, states):
    if key not in self.tensors:
        self.tensors[key] = states.new_zeros((self.num_slots, *states.shape[1:]))
    if not self.tensors[key][slots].any():
        self.tensors[key][slots] = states.to(self.tensors[key].dtype)


FAULTS = {"slot_of": lambda self, sequence: 1, "write": write_once}  # a neighbor's state; a write is lost


@pytest.mark.parametrize("name", FAULTS)
def test_the_probe_finds_a_fault(name, monkeypatch):
    monkeypatch.setattr(SequenceStates, name, FAULTS[name])
    assert probe(copy.deepcopy(tiny_model("qwen3_5_text"))).way != HYBRID


def test_states_count_against_the_memory_of_the_cache():
    model, config = tiny_model("qwen3_5_text"), EngineConfig(max_num_seqs=2, num_checkpoints=1, cache_bytes=2**20)
    states = find_states(model, 16).states
    with_states, without = (
        fit(model, NoText(), each).num_blocks
        for each in (config, EngineConfig(max_num_seqs=2, num_checkpoints=0, cache_bytes=2**20))
    )
    per_block = 2**20 // (without + 1)
    assert 0 < without - with_states <= states.bytes_per_slot // per_block + 1
    with pytest.raises(ValueError, match="cache_bytes is 4096, and the states of 2 sequences and 1 checkpoints take"):
        fit(model, NoText(), EngineConfig(max_num_seqs=2, num_checkpoints=1, cache_bytes=4096))


def test_what_a_hybrid_cannot_have_is_refused():
    config = EngineConfig(num_blocks=8, make_runner=lambda model, num_blocks, config: None)
    with pytest.raises(UnsupportedModel, match="make_runner and overlap can't serve Qwen3_5ForCausalLM: its layers"):
        LLMEngine(tiny_model("qwen3_5_text"), NoText(), config)
    with pytest.raises(ValueError, match="max_num_batched_tokens is 5 and max_num_seqs 4; a step of this model"):
        engine_of("zamba2", max_num_batched_tokens=5)


def test_the_model_is_as_before():
    model = copy.deepcopy(tiny_model("falcon_h1"))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with LLMEngine(model, NoText(), EngineConfig(num_blocks=20, max_num_seqs=2)) as engine:
        answer(engine, PROMPT)
    assert all("forward" not in vars(module) for module in model.modules())
    assert model.config._attn_implementation != "paged_by_calls"
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
