"""Compiled steps, CUDA graphs and overlapped steps on an NVIDIA GPU; without one, all is skipped."""

import contextlib
from dataclasses import replace
from importlib.util import find_spec

from lessons_lib.kernels.triton_setup import kernel_device

import pytest
import torch
from engine_cases import run_out
from overlap_cases import CHANGES, answers, mover, ragged, sharing_scheduler
from paged_cases import without_synchronizing

from lessons_lib.engine.gpu_model_runner import GPUModelRunner
from lessons_lib.engine.greedy_loop import serve_greedily
from lessons_lib.engine.llm_engine import EngineConfig, LLMEngine
from lessons_lib.engine.sampling import SamplingParams
from lessons_lib.engine.structured_outputs import StructuredOutputsParams
from lessons_lib.engine.warm_up import warm_up
from lessons_lib.kv_cache.invariants import audit
from lessons_lib.models.loading import load_model
from lessons_lib.scheduling.scheduler import SchedulerOutput
from lessons_lib.scheduling.sequence import Sequence
from tools.gpu_bench import models, workloads

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(kernel_device() != "cuda", reason="there is no NVIDIA GPU here, or kernels are interpreted"),
]

MODES = {"eager": (False, False), "graphs": (False, True), "compiled": (True, False), "compiled, graphs": (True, True)}


@pytest.fixture(scope="module")
def model():
    torch.backends.cuda.matmul.allow_tf32 = False
    return load_model(device="cuda", dtype=torch.float32)[0]


@pytest.fixture(scope="module")
def runners(model):
    """One for each mode: compiling takes a while."""
    made = {}

    def get(mode):
        if mode not in made:
            compiled, graphs = MODES[mode]
            made[mode] = GPUModelRunner(
                model, 500, 16, max_num_seqs=20, max_model_len=256, compiled=compiled, graphs=graphs
            )
            warm_up(made[mode])
        return made[mode]

    yield get
    for runner in made.values():
        runner.close()


def requests(model, seed=0):
    return ragged(seed, count=40, vocabulary=model.config.vocab_size, stops=60, longest=80)


@pytest.fixture(scope="module")
def expected(model):
    return answers(model, requests(model), max_num_seqs=16, num_blocks=2000, block_size=16)


def scheduler_of(num_blocks, **options):
    options = dict(block_size=16, max_num_seqs=16, max_num_batched_tokens=100) | options
    return sharing_scheduler(num_blocks, **options)


@pytest.mark.parametrize("num_blocks", [500, 10])
@pytest.mark.parametrize("overlapped", [False, True])
@pytest.mark.parametrize("mode", MODES)
def test_greedy_tokens_are_those_of_the_plain_runner(model, runners, expected, mode, overlapped, num_blocks):
    runner, scheduler = runners(mode), scheduler_of(num_blocks, swap_blocks=20)
    outputs = serve_greedily(runner, scheduler, requests(model), int(overlapped), mover(runner, scheduler))
    for number, (own, other) in enumerate(zip(outputs, expected)):
        assert own == other, f"request {number}"
    assert {len(output) for output in outputs} > {1, 2, 7}
    assert bool(scheduler.num_preempted) == (num_blocks == 10)
    audit(scheduler)
    assert not scheduler.pool.ref_count


def decodes(runner, count, context):
    """A plan of decodes in blocks whose contents are random."""
    each = -(-context // 16)
    scheduler_output = SchedulerOutput()
    for number in range(count):
        blocks = list(range(number * each, (number + 1) * each))
        sequence = Sequence(str(number), [number + 1] * context, 9, num_computed_tokens=context - 1, blocks=blocks)
        scheduler_output.num_scheduled_tokens[sequence] = 1
    generator = torch.Generator("cuda").manual_seed(count)
    for cache in (*runner.cache.keys, *runner.cache.values):
        cache.normal_(generator=generator)
    return scheduler_output


@pytest.mark.parametrize("count", [1, 3, 5, 13, 17, 20])
@pytest.mark.parametrize("mode", ["graphs", "compiled, graphs"])
def test_rows_that_fill_up_a_graph_harm_nobody(runners, mode, count):
    graphed, plain = runners(mode), runners("eager")
    expected = plain.forward(decodes(plain, count, 30)).clone()
    scheduler_output = decodes(graphed, count, 30)
    torch.testing.assert_close(graphed.forward(scheduler_output), expected, rtol=1e-3, atol=1e-3)
    for own, other in zip([*graphed.cache.keys, *graphed.cache.values], [*plain.cache.keys, *plain.cache.values]):
        torch.testing.assert_close(own[:-1], other[:-1], rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("change", CHANGES)
def test_a_cuda_graph_is_never_replayed_with_a_stale_key(model, change):
    runner = GPUModelRunner(model, 100, 16, max_num_seqs=4, max_model_len=256, compiled=False)
    scheduler_output = decodes(runner, 4, 40)
    before = runner.forward(scheduler_output).clone()
    change(runner)
    # A graph that went on reading the old tensors would see the old contents.
    for cache in (*runner.cache.keys, *runner.cache.values):
        cache.mul_(0.5)
    fresh = runner.forward(scheduler_output).clone()
    assert runner.store.num_captured == 2 and not torch.allclose(fresh, before, atol=1e-2)
    runner.store = None
    torch.testing.assert_close(fresh, runner.forward(scheduler_output), rtol=1e-3, atol=1e-3)
    runner.close()


def test_what_is_written_into_a_weight_counts_at_the_next_replay(model):
    runner = GPUModelRunner(model, 100, 16, max_num_seqs=4, max_model_len=256, compiled=False)
    scheduler_output, weight = decodes(runner, 4, 40), model.model.norm.weight
    before = runner.forward(scheduler_output).clone()
    weight.mul_(2)
    torch.testing.assert_close(runner.forward(scheduler_output), 2 * before)
    weight.div_(2)
    assert runner.store.num_captured == 1
    runner.close()


@pytest.mark.parametrize("mode", ["graphs", "compiled, graphs"])
def test_starting_a_step_waits_for_nothing(runners, mode):
    runner = runners(mode)
    scheduler_output = decodes(runner, 16, 30)
    launch = lambda: runner.keep_tokens(scheduler_output, runner.forward(scheduler_output).argmax(dim=-1))
    launch().wait()
    with without_synchronizing():
        in_flight = [launch() for _ in range(4)]
    assert len({tuple(each.wait()) for each in in_flight}) == 1


def test_after_warming_up_nothing_is_captured_or_compiled_any_more(model, runners):
    runner, compiled = runners("compiled, graphs"), torch._dynamo.utils.counters["stats"]
    warm_up(runner)  # the tests above have given the model other weights
    captured, graphs = runner.store.num_captured, compiled["unique_graphs"]
    serve_greedily(runner, scheduler_of(500, max_num_batched_tokens=103), requests(model, 5), 1)
    assert (runner.store.num_captured, compiled["unique_graphs"]) == (captured, graphs)
    assert len(runner.store.graphs) == len(runner.sizes) + len(runner.token_counts)


RULES = [
    dict(repetition_penalty=1.3),
    dict(presence_penalty=1.0, frequency_penalty=-0.5, logit_bias={5: 3.0}),
    dict(allowed_token_ids=range(200), min_tokens=9, repetition_penalty=0.8),
    dict(bad_words=["the", "once upon"]),
]
if find_spec("llguidance"):
    RULES.append(dict(structured_outputs=StructuredOutputsParams(regex="[a-z ]{5,200}")))


@contextlib.contextmanager
def nothing_compiles():
    """Whatever Triton compiles in here, or loads as compiled by another process, is an error; or Dynamo traces."""
    import triton

    compiled, stats = [], torch._dynamo.utils.counters["stats"]
    before, graphs = triton.knobs.runtime.jit_post_compile_hook, stats["unique_graphs"]
    triton.knobs.runtime.jit_post_compile_hook = lambda **found: compiled.append(found["fn"].name)
    try:
        yield
    finally:
        triton.knobs.runtime.jit_post_compile_hook = before
    assert not compiled and stats["unique_graphs"] == graphs, compiled


KINDS = sorted({(each.shape, each.max_model_len) for each in workloads.WORKLOADS})


@pytest.mark.parametrize("shape, max_model_len", KINDS)
def test_after_warming_up_no_workload_of_the_benchmark_compiles_anything(monkeypatch, shape, max_model_len):
    """With two layers: each layer has the same kernels. What rules and `logprobs` need is PyTorch's, and not compiled."""
    config, hidden_size, _, *sizes = models.SHAPES[shape]
    monkeypatch.setitem(models.SHAPES, shape, (config, hidden_size, 2, *sizes))
    kind = [
        each
        for each in workloads.WORKLOADS
        if (each.shape, each.max_model_len, each.runner) == (shape, max_model_len, {})
    ]
    loads = [(each, each.requests()) for each in kind]
    own_model = models.random_model(shape, max_model_len)
    runner = GPUModelRunner(
        own_model, max(workloads.num_blocks_for(requests) for _, requests in loads), workloads.BLOCK_SIZE,
        max_num_seqs=workloads.MAX_NUM_SEQS, max_model_len=max_model_len,
    )  # fmt: skip
    warm_up(runner)
    captured = runner.store.num_captured
    with nothing_compiles():
        for load, requests in loads:
            short = replace(load, arrivals_per_s=None)
            workloads.serve(runner, short, short.arrivals([replace(each, answer=4) for each in requests]))
    assert runner.store.num_captured == captured
    runner.close()
    torch._dynamo.reset()


def engine_workload(model):
    """Prompts and rules, of which some are drawn, some stop early, and a few have to be looked at."""
    prompts = [request.prompt_ids for request in requests(model)]
    rules = [
        SamplingParams(
            max_tokens=20,
            temperature=0.8 * (number % 2),
            top_k=(0, 40)[number % 3 == 0],
            seed=number,
            stop=("the",) if number % 5 == 0 else (),
            logprobs=1 if number % 6 == 5 else None,
            prompt_logprobs=2 if number == 17 else None,
            n=2 if number == 23 else 1,
            **(RULES[number % len(RULES)] if number % 4 == 3 else {}),
        )
        for number in range(len(prompts))
    ]
    return prompts, rules


def engine_on(runner, model, **options):
    limits = dict(num_blocks=500, max_num_seqs=16, max_num_batched_tokens=100, max_model_len=256, overlap=True)
    config = EngineConfig(**limits | options, make_runner=runner and (lambda *_: runner))
    return LLMEngine(model, load_model()[1], config)


@pytest.fixture(scope="module")
def expected_of_engine(model):
    return told(engine_on(None, model, overlap=False).generate(*engine_workload(model)))


def told(outputs):
    return [[(own.token_ids, own.text, own.finish_reason) for own in output.completions] for output in outputs]


@pytest.mark.parametrize("num_blocks", [500, 40])
@pytest.mark.parametrize("overlap", [False, True])
def test_engines_answer_alike(model, runners, expected_of_engine, overlap, num_blocks):
    options = dict(num_blocks=num_blocks, num_swap_blocks=20, overlap=overlap)
    engine = engine_on(runners("compiled, graphs"), model, **options)
    assert told(engine.generate(*engine_workload(model))) == expected_of_engine
    audit(engine.scheduler)
    assert not engine.scheduler.pool.ref_count and engine.core.num_ended.keys() == {"length", "stop"}


@pytest.mark.parametrize(
    "rules",
    [
        {},
        dict(logit_bias={5: 2.0}, allowed_token_ids=range(900), min_tokens=5, min_p=0.01, bad_words=["!"]),
        dict(repetition_penalty=1.1, presence_penalty=0.5, frequency_penalty=0.5, top_k=9, top_p=0.9, logprobs=5),
    ],
    ids=["plain", "biases", "penalties and log-probabilities"],
)
def test_a_step_of_the_engine_waits_for_nothing_but_the_tokens_of_the_last_one(model, runners, rules):
    engine = engine_on(runners("compiled, graphs"), model)
    for number, prompt in enumerate(engine_workload(model)[0][:16]):
        params = dict(max_tokens=40, temperature=0.8 * (number % 2), seed=number, ignore_eos=True, **rules)
        engine.add_request(prompt, SamplingParams(**params))
    completions = [request.completions[0] for request in engine.requests.values()]
    while not all(completion.output_ids for completion in completions):
        engine.step()
    with without_synchronizing():
        for _ in range(6):
            engine.step()
    assert engine.core.in_flight and all(len(completion.token_ids) >= 6 for completion in completions)
    for name in list(engine.requests):
        engine.abort(name)
    engine.step()


def test_logits_that_are_no_numbers_do_not_break_the_step_that_follows(model, runners, monkeypatch):
    """By the time the host sees that there was no token, the next step has looked it up in the embedding."""
    runner, steps = runners("compiled, graphs"), []
    forward, engine = runner.forward, engine_on(runner, model)
    for prompt in ([5, 6, 7], [8, 9]):
        engine.add_request(prompt, SamplingParams(max_tokens=8, ignore_eos=True))

    def with_a_bad_row(scheduler_output):
        steps.append(scheduler_output)
        logits = forward(scheduler_output)
        return torch.cat([logits[:1] * float("nan"), logits[1:]]) if len(steps) == 3 else logits

    monkeypatch.setattr(runner, "forward", with_a_bad_row)
    outputs = run_out(engine)
    torch.cuda.synchronize()
    assert isinstance(outputs["0"].error, FloatingPointError) and len(outputs["0"].token_ids) == 2
    assert outputs["1"].error is None and len(outputs["1"].token_ids) == 8
