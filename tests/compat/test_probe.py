"""The probe accepts models that the engine serves right, and names what is wrong with the others."""

import copy
import functools
import types

import pytest
import served_architectures as served
import torch
from engine_cases import run_out
from oracle import generate_alone, ragged_requests
from served_architectures import NoText, generate
from tiny_architectures import randomize, tiny_config
from transformers import AutoModelForCausalLM, GenerationConfig
from transformers.models.llama.modeling_llama import LlamaAttention

import lessons_lib.compat.probe as probing
import lessons_lib.compat.shallow as shallow
from lessons_lib.compat.alone_runner import AloneRunner
from lessons_lib.compat.probe import ALONE, HYBRID, PAGED, RECOMPUTED, probe
from lessons_lib.engine.cuda_graphs import rerun
from lessons_lib.engine.gpu_model_runner import gpu_model_runner
from lessons_lib.engine.llm_engine import EngineConfig, LLMEngine
from lessons_lib.engine.sampling import SamplingParams
from lessons_lib.models.configuration import KVShape, UnsupportedModel
from lessons_lib.models.tiny_models import VOCAB_SIZE, tiny_model
from lessons_lib.recording.forward_passes import watch_forwards


def fresh(family="llama"):
    """A tiny model that nothing else has seen."""
    return copy.deepcopy(tiny_model(family))


def model_of(model_type, **fields):
    """A random model of a family with these fields in its configuration."""
    config = tiny_config(model_type)
    for name, value in fields.items():
        own = getattr(config, name, None)
        setattr(config, name, own | value if isinstance(own, dict) else value)
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval().requires_grad_(False)


def mistral(window, layers=2):
    model = model_of("mistral", sliding_window=window, num_hidden_layers=layers)
    randomize(model, 0)
    return model


def gptj():
    return model_of("gptj")


def llama4(length):
    return model_of("llama4_text", floor_scale=length, attention_chunk_size=6)


def ministral(length):
    changes = dict(llama_4_scaling_beta=1.0, original_max_position_embeddings=length)
    return model_of("ministral3", rope_parameters=changes)


def windowed(family, length):
    return model_of(family, sliding_window=length)


@pytest.mark.parametrize(
    "family, dtype", [("gpt2", torch.float16), ("llama", torch.float32), ("qwen2", torch.bfloat16)]
)
def test_tiny_models_are_accepted(family, dtype):
    model = fresh(family).to(dtype)
    result = probe(model)
    kv_heads = 4 if family == "gpt2" else 2
    assert result.way == PAGED and result.reason == "" and result.layer_shapes == [KVShape(kv_heads, 8, 8)] * 2
    assert probing.lengths_of(model) == [], "sizes are not taken for lengths"


def test_positions_that_are_numbered_differently_without_a_cache_are_no_false_alarm():
    assert probe(model_of("roberta")).way == PAGED


def without_window(model, layer):
    """A model whose layer relies on its mask for its window, and doesn't tell the engine."""
    attention = model.model.layers[layer].self_attn
    original, config = attention.forward, model.config

    def forward(*args, **kwargs):
        if config._attn_implementation.startswith("paged"):
            attention.config = copy.copy(config)
            attention.config.sliding_window = None
        try:
            return original(*args, **kwargs)
        finally:
            attention.config = config

    attention.forward = forward
    return model


@pytest.mark.parametrize("layers, wrong", [(2, 1), (6, 4)])
def test_a_layer_that_ignores_its_window_is_found_however_deep(layers, wrong):
    result = probe(without_window(mistral(window=4096, layers=layers), layer=wrong))
    assert result.way == ALONE
    assert "its logits differ by" in result.reason and "if sequences share a batch" in result.reason


def layers_called(model):
    """The layers that the probe of a model runs."""
    called = set()
    for index, layer in enumerate(model.model.layers):
        layer.self_attn.register_forward_hook(lambda *_, index=index: called.add(index))
    assert probe(model).way == PAGED
    return called


def test_layers_that_differ_in_nothing_but_weights_are_probed_once():
    model = mistral(window=4096, layers=6)
    layers = model.model.layers
    assert layers_called(model) == {0, 1}
    assert model.model.layers is layers and len(layers) == 6
    assert probe(model).layer_shapes == [KVShape(2, 16, 16)] * 6


def test_a_layer_with_another_setting_is_probed():
    model = mistral(window=4096, layers=6)
    model.model.layers[3].self_attn.scaling *= 2
    assert layers_called(model) == {0, 1, 2, 3}


@pytest.mark.parametrize("failing", ["shallow model", "no layers"])
def test_a_model_whose_first_layers_cannot_run_alone_is_probed_as_a_whole(failing, monkeypatch):
    model = mistral(window=4096, layers=6)
    if failing == "no layers":
        monkeypatch.setattr(shallow, "decoder_layers", lambda model: None)
    else:
        model.model.register_forward_pre_hook(lambda module, args: module.layers[5] and None)
    assert layers_called(model) == set(range(6))


def test_a_layer_that_calls_attention_twice_is_served_by_counting_its_calls():
    model = fresh()
    attention = model.model.layers[1].self_attn
    original = attention.forward

    def forward(*args, **kwargs):
        if kwargs.get("past_key_values") is None:
            original(*args, **kwargs)
        return original(*args, **kwargs)

    attention.forward = forward
    result = probe(model)
    assert result.way == HYBRID and result.layer_shapes == [KVShape(2, 8, 8)] * 3


def test_a_state_that_is_in_no_cache_is_recomputed():
    """A layer that adds its own output of the token before, and keeps the last one for the next pass."""
    model = fresh()
    layer = model.model.layers[1]
    original, state = layer.forward, {}

    def forward(hidden, *args, **kwargs):
        out = original(hidden, *args, **kwargs)
        if kwargs["position_ids"][0, 0] == 0:
            state["last"] = torch.zeros_like(out[:, :1])
        shifted = torch.cat([state["last"], out[:, :-1]], dim=1)
        state["last"] = out[:, -1:]
        return out + shifted

    layer.forward = forward
    assert probe(model).way == RECOMPUTED


def test_positions_counted_inside_the_attention_module_are_served_alone():
    """Without a cache, the layer numbers the row from 0, whatever position_ids say."""
    model = fresh()
    rotary = model.model.rotary_emb
    original = rotary.forward

    def forward(hidden, position_ids):
        if model.config._attn_implementation.startswith("paged"):
            position_ids = torch.arange(hidden.shape[1])[None]
        return original(hidden, position_ids)

    rotary.forward = forward
    result = probe(model)
    assert result.way == ALONE and "logits differ by" in result.reason


def test_a_model_that_calls_no_attention_of_ours_is_served_alone_and_right():
    model, sizes = gptj(), dict(block_size=4, num_blocks=22, max_num_batched_tokens=9, max_num_seqs=4)
    with pytest.warns(UserWarning, match="GPTJForCausalLM is served slowly.*compute attention themselves"):
        engine = LLMEngine(model, NoText(), EngineConfig(**sizes, num_swap_blocks=8, watermark=0))
    assert isinstance(engine.runner, AloneRunner)
    prompts, limits = ragged_requests(7, seed=3, max_tokens_each=(5, 16, 20))
    asked = [*zip(prompts, limits), (prompts[-1] + [5, 6, 7], 20)]  # a shared beginning
    for index, (prompt, limit) in enumerate(asked):
        engine.add_request(prompt, SamplingParams(max_tokens=limit, ignore_eos=True), request_id=str(index))
    outputs = run_out(engine)
    for index, (prompt, limit) in enumerate(asked):
        assert outputs[str(index)].token_ids == generate_alone(model, prompt, limit, None), index
    assert engine.scheduler.num_preempted > 0


def test_the_gpu_engine_refuses_what_only_single_sequences_can_serve():
    runner = gpu_model_runner(compiled=False, capture=rerun)
    with pytest.raises(UnsupportedModel, match="make_runner and overlap can't serve GPTJForCausalLM.*LLMEngine can"):
        LLMEngine(gptj(), NoText(), EngineConfig(overlap=True, make_runner=runner, num_blocks=8))


def state_of(model):
    """All settings of the model and of its modules."""
    plain = int | float | str | bool | None
    modules = {
        name: {key: value for key, value in vars(module).items() if isinstance(value, plain)}
        for name, module in model.named_modules()
    }
    return dict(vars(model.config)), modules


@pytest.mark.parametrize("make", [lambda: mistral(window=64), gptj], ids=["paged", "alone"])
def test_the_probe_leaves_no_trace(make):
    model = make()
    model.generation_config = generation_config = GenerationConfig(eos_token_id=list(range(VOCAB_SIZE)))
    before, weights = state_of(model), {name: weight.clone() for name, weight in model.state_dict().items()}
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    with watch_forwards(model) as passes:
        probe(model)
    assert torch.equal(torch.rand(3), expected), "the global random numbers are the user's"
    assert passes == [] and model.generation_config is generation_config and state_of(model) == before
    assert all(torch.equal(weight, weights[name]) for name, weight in model.state_dict().items())


class QueriesByPlace(LlamaAttention):
    """A family that nobody knows yet: queries grow behind a length, and places are counted within the pass."""

    def __init__(self, config, layer_idx):
        super().__init__(config, layer_idx)
        self.turning_point = config.turning_point

    def forward(self, hidden_states, past_key_values=None, **kwargs):
        seen = past_key_values.get_seq_length(self.layer_idx) if past_key_values is not None else 0
        place = torch.arange(hidden_states.shape[1]) + seen
        hidden_states = hidden_states * torch.where(place >= self.turning_point, 3.0, 1.0)[:, None]
        return super().forward(hidden_states, past_key_values=past_key_values, **kwargs)


def unknown(length):
    model = model_of("llama", turning_point=float(length))
    for index, layer in enumerate(model.model.layers):
        attention = QueriesByPlace(model.config, index)
        attention.load_state_dict(layer.self_attn.state_dict())
        layer.self_attn = attention
    return model.eval()


LENGTHS = {
    "llama4": (llama4, {"attention_chunk_size", "floor_scale"}, served.ALONE),
    "ministral": (ministral, {"sliding_window", "original_max_position_embeddings"}, served.PAGED),
    "gemma": (functools.partial(windowed, "gemma3_text"), {"sliding_window"}, served.PAGED),
    "gpt-oss": (functools.partial(windowed, "gpt_oss"), {"sliding_window"}, served.PAGED),
    "unknown": (unknown, {"turning_point"}, served.ALONE),
}


@pytest.mark.parametrize("make, names, way", LENGTHS.values(), ids=LENGTHS)
def test_what_begins_past_the_probe_is_found(make, names, way):
    model = make(29)
    before = str(model.config), {name: tensor.clone() for name, tensor in model.named_buffers()}
    prompts = [[3 + 7 * place % 90 for place in range(length)] for length in (5, 27, 40)]
    expected = [generate(model, prompt) for prompt in prompts]
    assert set(probing.lengths_of(model)) == names
    config = EngineConfig(num_blocks=60, block_size=4, max_num_batched_tokens=24, max_num_seqs=4)
    outcome = served.compare("", model, prompts, expected, config)
    assert outcome.verdict == way, outcome.reason
    assert str(model.config) == before[0]
    assert all(torch.equal(tensor, before[1][name]) for name, tensor in model.named_buffers())


def test_a_window_that_only_the_cache_has_is_found():
    """Moshi's masks have no window, but the cache that `generate` makes drops keys behind one."""
    model = windowed("moshi", 3000)
    assert probing.lengths_of(model) == ["sliding_window"]
    with pytest.raises(UnsupportedModel, match="would give wrong answers: its logits differ"):
        probe(model)


def test_a_failing_probe_restores_the_model():
    model = mistral(window=64)
    model.lm_head.forward = types.MethodType(lambda self, hidden: 1 / 0, model.lm_head)
    with pytest.raises(UnsupportedModel, match="its own `generate` fails with ZeroDivisionError"):
        probe(model)
    assert model.config.sliding_window == 64 and model.config._attn_implementation == "sdpa"


def test_a_model_is_probed_once(monkeypatch):
    model, calls = fresh(), []
    original = probing._probe
    monkeypatch.setattr(probing, "_probe", lambda model: calls.append(model) or original(model))
    for _ in range(3):
        LLMEngine(model, NoText(), EngineConfig(num_blocks=8))
    assert calls == [model]
    LLMEngine(fresh(), NoText(), EngineConfig(num_blocks=8, probe=False))
    assert calls == [model]
