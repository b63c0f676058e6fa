"""A model in two parts computes what the whole one computes, and an engine over two processes gives the same tokens."""

import copy
from functools import partial

import pytest
import torch
from engine_cases import LetterTokenizer, measured
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
    Olmo2Config,
    Olmo2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from lessons_lib.engine.config import EngineConfig
from lessons_lib.engine.llm_engine import LLMEngine, Parts
from lessons_lib.engine.sampling_params import SamplingParams
from lessons_lib.kv_cache.invariants import audit
from lessons_lib.measuring.fused_llama import FusedModel, NotFusible
from lessons_lib.models.tiny_models import tiny_model
from lessons_lib.models.validate import BadRequest
from lessons_lib.scheduling.scheduler import SchedulerOutput
from lessons_lib.scheduling.sequence import Sequence
from lessons_lib.serving.all_reduce import all_reduce
from lessons_lib.serving.follower import RankedCore
from lessons_lib.serving.parallel_engine import parallel_engine
from lessons_lib.serving.ranks import Ranks, RanksDiffer
from lessons_lib.serving.tensor_parallel import CannotCut, cut_model
from lessons_lib.serving.workers import run_workers

# --- One model -------------------------------------------------------------------------------------------------------


def logits_in_parts(model, world_size, input_ids):
    models = [copy.deepcopy(model) for _ in range(world_size)]

    def work(worker):
        cut_model(models[worker.rank], worker.rank, world_size, partial(all_reduce, worker=worker))
        with torch.inference_mode():
            return models[worker.rank](input_ids).logits

    return models, run_workers(work, world_size)[0]


SIZES = dict(vocab_size=97, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4)
SIZES |= dict(initializer_range=0.6, bos_token_id=None, eos_token_id=None, pad_token_id=None)


def random_model(model_type, config_type, **more):
    torch.manual_seed(1)
    model = model_type(config_type(**SIZES | dict(num_key_value_heads=2) | more)).eval().requires_grad_(False)
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            parameter.data.normal_()  # they are created as zeros
    return model


MODELS = {
    "llama": lambda: tiny_model("llama"),
    "qwen2": lambda: tiny_model("qwen2"),
    "all biases": lambda: random_model(LlamaForCausalLM, LlamaConfig, attention_bias=True, mlp_bias=True),
    "norms of heads": lambda: random_model(Qwen3ForCausalLM, Qwen3Config, head_dim=16),
    "four parts": lambda: random_model(LlamaForCausalLM, LlamaConfig, num_key_value_heads=4),
}


@pytest.mark.parametrize("name", MODELS)
def test_a_model_in_parts_computes_the_same_logits(name):
    model, world_size = MODELS[name](), 4 if name == "four parts" else 2
    input_ids = torch.randint(0, 97, (2, 9), generator=torch.Generator().manual_seed(0))
    whole = model(input_ids).logits
    parts, logits = logits_in_parts(model, world_size, input_ids)
    for each in logits:
        torch.testing.assert_close(each, whole, rtol=1e-4, atol=1e-4)
        assert torch.equal(each, logits[0])
    attention = parts[1].model.layers[0].self_attn
    assert attention.k_proj.weight.shape[0] * world_size == model.model.layers[0].self_attn.k_proj.weight.shape[0]
    assert parts[1].config.num_key_value_heads == 1


REFUSED = {
    "3 parts": (lambda: tiny_model("llama"), 3, "num_attention_heads is 4. It can be cut into 1 or 2"),
    "KV heads": (lambda: tiny_model("llama"), 4, "4 equal parts: num_key_value_heads is 2"),
    "MLP": (lambda: random_model(LlamaForCausalLM, LlamaConfig, intermediate_size=47), 2, "intermediate_size is 47"),
    "GPT-2": (lambda: tiny_model("gpt2"), 2, "no `model.layers`"),
    "experts": (lambda: random_model(MixtralForCausalLM, MixtralConfig), 2, "no linear layer 'mlp.gate_proj'"),
    "norm of all heads": (lambda: random_model(Olmo2ForCausalLM, Olmo2Config), 2, "'self_attn.q_norm.weight'"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_cut_is_refused_by_name(name):
    make, world_size, message = REFUSED[name]
    model = copy.deepcopy(make())
    before, config = {key: value.clone() for key, value in model.state_dict().items()}, model.config.to_dict()
    with pytest.raises(CannotCut, match=message):
        cut_model(model, 0, world_size, lambda tensor: tensor)
    assert model.config.to_dict() == config
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())


def test_a_cut_model_is_neither_cut_again_nor_fused_without_its_sums():
    model = copy.deepcopy(tiny_model("llama"))
    cut_model(model, 0, 2, lambda tensor: tensor)
    with pytest.raises(CannotCut, match="no linear layer 'self_attn.o_proj'"):
        cut_model(model, 0, 2, lambda tensor: tensor)
    with pytest.raises(NotFusible):
        FusedModel(model)


# --- One engine over two processes -----------------------------------------------------------------------------------

CONFIG = EngineConfig(max_num_seqs=4, max_num_batched_tokens=24, block_size=4, num_blocks=14)


def load_llama(device):
    return copy.deepcopy(tiny_model("llama", seed=3)), LetterTokenizer()


def load_qwen2(device):
    return copy.deepcopy(tiny_model("qwen2", seed=3)), LetterTokenizer()


def workload():
    """(request id, the step before which it arrives, prompt, params): common beginnings, all kinds of sampling, and
    more tokens than the pool holds."""
    base = list(range(5, 17))
    rows = [
        (0, base, dict(max_tokens=20, temperature=0, ignore_eos=True)),
        (0, [*base, 3, 4], dict(max_tokens=18, temperature=1.0, seed=1, ignore_eos=True)),
        (2, [*base[:8], 40], dict(max_tokens=16, temperature=0, presence_penalty=1.5, ignore_eos=True)),
        (3, [60] * 5, dict(max_tokens=6, temperature=0.8, seed=2, n=2)),
        (9, base, dict(max_tokens=12, temperature=0, stop=["!", "A"], logprobs=2)),
        (9, [*base, 70], dict(max_tokens=10, temperature=1.0, top_k=5, seed=5)),
        (6, [8] * 10, dict(max_tokens=3, temperature=0)),  # as the one that fails: its blocks must not be found
    ]
    rows.sort(key=lambda row: row[0])
    return [(str(i), at, prompt, SamplingParams(**params)) for i, (at, prompt, params) in enumerate(rows)]


def serve(engine):
    """Serve the workload; one more request is aborted, and the callback of another raises.

    Returns:
        (id -> the token ids and reasons of all completions, what was streamed of request 0).
    """

    def fail(token):
        raise RuntimeError("no reader")

    streamed, outputs, step, coming = [], {}, 0, workload()
    while coming or engine.has_unfinished():
        while coming and coming[0][1] <= step:
            name, _, prompt, params = coming.pop(0)
            engine.add_request(prompt, params, request_id=name, on_token=streamed.append if name == "0" else None)
        if step == 4:
            engine.add_request([9] * 6, SamplingParams(max_tokens=9), request_id="aborted")
            engine.add_request([8] * 9, SamplingParams(max_tokens=9), request_id="failed", on_token=fail)
        if step == 7:
            engine.abort("aborted")
        outputs |= {output.request_id: output for output in engine.step()}
        audit(engine.scheduler)
        step += 1
        assert step < 400
    assert isinstance(outputs.pop("failed").error, RuntimeError)
    outputs.pop("aborted", None)
    ended = {name: [(each.token_ids, each.finish_reason) for each in outputs[name].completions] for name in outputs}
    return ended, [token.token for token in streamed]


@pytest.fixture
def parallel(request):
    engine = parallel_engine(request.param, CONFIG)
    yield engine
    engine.close()


@pytest.mark.parametrize(
    "parallel",
    [pytest.param(load_llama, id="llama"), pytest.param(load_qwen2, id="qwen2", marks=pytest.mark.nightly)],
    indirect=True,
)
def test_an_engine_over_two_processes_gives_the_same_tokens(parallel, request):
    load = request.node.callspec.params["parallel"]
    measured(parallel)
    with measured(LLMEngine(*load("cpu"), CONFIG)) as whole:
        expected, expected_stream = serve(whole)
        assert whole.scheduler.num_preempted > 0
    outputs, streamed = serve(parallel)
    assert outputs == expected
    assert streamed == expected_stream
    # This process holds one of the two KV heads.
    assert parallel.runner.cache.keys[0].shape == (14, 4, 1, 8)
    assert parallel.scheduler.num_preempted == whole.scheduler.num_preempted
    assert parallel.metrics.cached_tokens == whole.metrics.cached_tokens > 0

    # Prefixes are forgotten everywhere; a request without a seed gets one, the same in both processes.
    parallel.reset_prefix_cache()
    parallel.add_request([7] * 9, SamplingParams(max_tokens=8, temperature=1.0, ignore_eos=True), request_id="free")
    seed = parallel.requests["free"].completions[0].seed
    (free,) = parallel.generate([[7] * 9], SamplingParams(max_tokens=8, temperature=1.0, seed=seed, ignore_eos=True))
    (other,) = parallel.step()
    assert free.token_ids == other.token_ids

    with pytest.raises(BadRequest, match="can't be sent"):
        parallel.add_request([1], SamplingParams(logits_processors=[lambda ids, logits: logits]))
    assert not parallel.has_unfinished()

    # The other process dies in the middle of a request.
    parallel.add_request([1, 2, 3], SamplingParams(max_tokens=50, ignore_eos=True))
    parallel.step()
    (follower,) = parallel.followers
    follower.kill()
    follower.join()
    with pytest.raises(RanksDiffer, match="another one has ended"):
        for _ in range(3):
            parallel.step()


@pytest.mark.parametrize("part", ["runner.forward", "scheduler.schedule"])
@pytest.mark.parametrize(
    "error, message", [(OSError("no memory"), "OSError: no memory. Close"), (KeyboardInterrupt(), "was interrupted")]
)
def test_after_a_step_that_failed_every_call_says_why(error, message, part):
    """Without processes: the first one, whose model or scheduler fails."""
    ranks = Ranks.__new__(Ranks)
    ranks.world_size, ranks.fingerprint, ranks.error = 2, 7, None
    engine = LLMEngine(*load_llama("cpu"), CONFIG, parts=Parts(core=partial(RankedCore, ranks=ranks)))

    def fail(*args):
        raise error

    engine.add_request([1, 2, 3], SamplingParams(max_tokens=9))
    owner, name = part.split(".")
    setattr(getattr(engine, owner), name, fail)
    with pytest.raises((RanksDiffer, type(error))):
        engine.step()
    for call in (engine.step, lambda: engine.add_request([4], SamplingParams(max_tokens=9))):
        with pytest.raises(RanksDiffer, match=message):
            call()


def test_processes_that_schedule_differently_say_so(monkeypatch):
    """Without processes: what the second one does with a fingerprint that isn't its own."""
    ranks = Ranks.__new__(Ranks)
    ranks.rank, ranks.fingerprint, ranks.messages, ranks.error = 1, 7, None, None

    def broadcast(sent, src, group):
        sent[0] = ("advance", {}, 8)

    monkeypatch.setattr(torch.distributed, "broadcast_object_list", broadcast)
    with pytest.raises(RanksDiffer, match="process 1 has scheduled other steps"):
        ranks.receive()
    sequence = Sequence("0", [1, 2, 3], 9, output_ids=[5])
    ranks.note_step(SchedulerOutput({sequence: 4}))
    first, ranks.fingerprint = ranks.fingerprint, 7
    sequence.output_ids[0] = 6
    ranks.note_step(SchedulerOutput({sequence: 4}))
    assert ranks.fingerprint != first
