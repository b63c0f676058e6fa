"""The overlapped engine: the answers of LLMEngine, whatever happens, one step late; nothing is left behind."""

import copy
import random
import time
from functools import partial

import engine_cases
import pytest
import torch
from engine_cases import Broken, alone, check_that_nothing_is_left, greedy, letter, run_out_with_an_observer_that_raises

from lessons_lib.engine.cuda_graphs import rerun
from lessons_lib.engine.gpu_model_runner import gpu_model_runner
from lessons_lib.engine.llm_engine import EngineConfig, LLMEngine
from lessons_lib.engine.model_runner import ModelRunner
from lessons_lib.engine.sampling import SamplingParams
from lessons_lib.kv_cache.invariants import audit
from lessons_lib.models.tiny_models import VOCAB_SIZE
from lessons_lib.models.validate import BadRequest

ROOMY = dict(num_blocks=150, max_num_seqs=6, max_num_batched_tokens=24, block_size=4)
CONFIGS = {
    "roomy": ROOMY,
    "tight": {**ROOMY, "num_blocks": 18},
    "swapping": {**ROOMY, "num_blocks": 18, "num_swap_blocks": 20},
    "no sharing": {**ROOMY, "share_prefixes": False},
    "now and then": {**ROOMY, "num_blocks": 40, "max_num_batched_tokens": 60},
}


@pytest.fixture(scope="module")
def model():
    """One of its own: a GPUModelRunner gives the model another attention."""
    return copy.deepcopy(engine_cases.a_model())


@pytest.fixture
def an_engine(model):
    def make(clock=time.perf_counter, **config):
        make_runner = gpu_model_runner(compiled=False, capture=rerun)
        config = EngineConfig(**{**ROOMY, "make_runner": make_runner, "overlap": True, **config})
        return engine_cases.measured(LLMEngine(model, engine_cases.LetterTokenizer(), config, clock))

    return make


def plain_engine(**config):
    return engine_cases.an_engine(**{**ROOMY, **config})


def check_books(engine):
    audit(engine.scheduler)


def run_out(engine, most_steps=2000):
    """See `engine_cases.run_out`."""
    outputs = {}
    for _ in range(most_steps):
        if not engine.has_unfinished():
            check_that_nothing_is_left(engine)
            assert not engine.core.in_flight
            return outputs
        for output in engine.step():
            assert output.request_id not in outputs, f"{output.request_id} has ended twice"
            outputs[output.request_id] = output
        check_books(engine)
    raise AssertionError(f"not done after {most_steps} steps")


def a_workload(seed, looked_at=0.1, count=30):
    """(prompt, params, kind of callback) of many requests, of which many begin alike."""
    rng = random.Random(seed)
    words = [rng.randrange(VOCAB_SIZE) for _ in range(60)]
    requests = []
    for _ in range(count):
        prompt = words[: rng.choice([0, 4, 8, 20])] + [rng.randrange(VOCAB_SIZE) for _ in range(rng.randint(1, 18))]
        temperature = rng.choice([0.0, 0.0, 1.0])
        params = SamplingParams(
            max_tokens=rng.choice([1, 2, 5, 12, 20]),
            temperature=temperature,
            top_k=rng.choice([0, 5]),
            top_p=rng.choice([1.0, 0.9]),
            seed=rng.randrange(1000),
            stop=tuple(letter(rng.randrange(VOCAB_SIZE)) for _ in range(4)) if rng.random() < 0.3 else (),
            stop_token_ids=tuple(rng.sample(range(VOCAB_SIZE), 8)) if rng.random() < 0.3 else (),
            ignore_eos=rng.random() < 0.5,
            logprobs=2 if rng.random() < looked_at else None,
            n=rng.choice([2, 3]) if temperature and rng.random() < 2 * looked_at else 1,
        )
        requests.append((prompt, params, rng.choice([None, None, None, "listens", "raises", "aborts itself"])))
    return requests


def serve(engine, workload, seed, told):
    """Requests that come bit by bit, and callbacks that do something at their third token."""

    def on_token(name, kind, token):
        told.setdefault(name, []).append((token.index, token.token, token.text, token.finish_reason))
        if len(told[name]) == 3 and kind == "raises":
            raise Broken
        if len(told[name]) == 3 and kind == "aborts itself":
            aborted[name] = engine.abort(name)

    rng, outputs, aborted = random.Random(seed), {}, {}
    for number, (prompt, params, kind) in enumerate(workload):
        name = f"r{number}"
        engine.add_request(prompt, params, request_id=name, on_token=partial(on_token, name, kind) if kind else None)
        for _ in range(rng.choice([0, 0, 1, 3])):
            outputs |= {output.request_id: output for output in engine.step()}
            check_books(engine)
    return outputs | run_out(engine) | aborted


def told_alike(output):
    completions = output.completions
    return (
        [(each.index, each.token_ids, each.text, each.finish_reason) for each in completions],
        type(output.error),
        output.prompt_ids,
    )


@pytest.mark.parametrize("looked_at", [0.0, 0.1])
@pytest.mark.parametrize("kind", CONFIGS)
@pytest.mark.parametrize("seed", range(2))
def test_answers_are_those_of_the_engine_that_waits(an_engine, seed, kind, looked_at):
    workload = a_workload(seed, looked_at)
    engine, told = an_engine(**CONFIGS[kind]), {}
    outputs = serve(engine, workload, seed, told)
    plain, plainly_told = plain_engine(**CONFIGS[kind]), {}
    expected = serve(plain, workload, seed, plainly_told)
    assert outputs.keys() == expected.keys() and told == plainly_told
    for name in expected:
        assert told_alike(outputs[name]) == told_alike(expected[name]), name
        for own, other in zip(outputs[name].completions, expected[name].completions):
            assert [each.token for each in own.logprobs or []] == [each.token for each in other.logprobs or []]
            assert [each.logprob for each in own.logprobs or []] == pytest.approx(
                [each.logprob for each in other.logprobs or []], abs=1e-4
            )
    for name in ("requests", "new_tokens"):
        assert getattr(engine.metrics, name) == getattr(plain.metrics, name)
    assert bool(engine.scheduler.num_preempted) == (kind in ("tight", "swapping"))
    assert engine.metrics.ttft.count == plain.metrics.ttft.count and engine.metrics.itl.count == plain.metrics.itl.count


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("kind", ["roomy", "swapping"])
def test_aborts_at_any_time_disturb_nobody(an_engine, seed, kind):
    engine, rng = an_engine(**CONFIGS[kind]), random.Random(seed)
    prompts = {
        engine.add_request([n + 1, 2 * n + 3, 5] * (n % 4 + 1), greedy(14, ignore_eos=True)): n for n in range(9)
    }
    outputs, aborted = {}, {}
    while engine.has_unfinished():
        if engine.requests and rng.random() < 0.4:
            name = rng.choice(list(engine.requests))
            aborted[name] = engine.abort(name)
            check_books(engine)
        outputs |= {output.request_id: output for output in engine.step()}
        check_books(engine)
    outputs |= run_out(engine)
    assert len(aborted) > 1 and not aborted.keys() & outputs.keys() and len(aborted) + len(outputs) == len(prompts)
    for output in (outputs | aborted).values():
        expected = alone("qwen2", output.prompt_ids, 14, ignore_eos=True)
        assert output.token_ids == (expected[: len(output.token_ids)] if output.request_id in aborted else expected)


def test_the_next_step_is_started_before_the_last_one_is_waited_for(an_engine):
    engine, log = an_engine(), []
    keep_tokens = engine.runner.keep_tokens

    class Noted:
        def __init__(self, tokens, number):
            self.tokens, self.number = tokens, number

        def wait(self):
            log.append(f"tokens {self.number}")
            return self.tokens.wait()

    def noting(scheduler_output, tokens):
        number = sum(entry.startswith("launch") for entry in log)
        log.append(f"launch {number}")
        return Noted(keep_tokens(scheduler_output, tokens), number)

    engine.runner.keep_tokens = noting
    told = []
    engine.add_request(
        [1, 2, 3], greedy(4, ignore_eos=True), on_token=lambda token: told.append((token.token, len(log)))
    )
    run_out(engine)
    assert log == [
        "launch 0",
        "launch 1",
        "tokens 0",
        "launch 2",
        "tokens 1",
        "launch 3",
        "tokens 2",
        "tokens 3",
    ]
    assert told == list(zip(alone("qwen2", [1, 2, 3], 4, ignore_eos=True), [3, 5, 7, 8]))


@pytest.mark.parametrize("params", [greedy(9, logprobs=1), SamplingParams(max_tokens=9, n=2, temperature=1.0, seed=3)])
def test_only_while_somebody_looks_at_logits_one_step_waits_for_the_other(an_engine, params):
    engine, kinds = an_engine(max_num_seqs=2), []
    core, schedule = engine.core, engine.scheduler.schedule
    engine.scheduler.schedule = lambda: kinds.append("overlapped" if core.in_flight else "alone") or schedule()
    engine.add_request([1, 2], greedy(6, ignore_eos=True))
    engine.add_request([1, 2], greedy(4, ignore_eos=True))
    engine.add_request([5, 6, 7], params)
    run_out(engine)
    assert kinds[:4] == ["alone", *["overlapped"] * 3], (
        "in the first step there are seats; then the third waits for one"
    )
    assert ("alone" in kinds[4:]) == (kinds[-1] == "alone") == (params.logprobs is not None)


# Faults


def at_work(engine):
    """Six greedy requests. Returns id -> prompt."""
    prompts = {f"r{n}": [n + 1, 2 * n + 3, 5] * (n % 3 + 1) for n in range(6)}
    for name, prompt in prompts.items():
        engine.add_request(prompt, greedy(14, ignore_eos=True), request_id=name)
    return prompts


def check_failed(outputs, prompts, failed, kind=Broken):
    assert outputs.keys() == prompts.keys()
    for name, output in outputs.items():
        expected = alone("qwen2", prompts[name], 14, ignore_eos=True)
        assert output.token_ids == expected[: len(output.token_ids)]
        assert (
            isinstance(output.error, kind) if name in failed else output.token_ids == expected and output.error is None
        ), name


@pytest.mark.parametrize("config", ["roomy", "swapping"])
@pytest.mark.parametrize("where", ["launch", "choose", "arrival"])
@pytest.mark.parametrize("k", [1, 2, 3, 7, 15, 16])
def test_an_error_fails_the_requests_of_its_step(an_engine, where, k, config):
    engine = an_engine(**{**CONFIGS[config], "max_num_seqs": 4})
    prompts, runner, core, calls, failed = at_work(engine), engine.runner, engine.core, [], set()
    forward, sampler, keep_tokens = runner.forward, core.sampler, runner.keep_tokens

    class Lost:
        def wait(self):
            raise Broken("arrival")

    def broken_forward(scheduler_output):
        calls.append(scheduler_output)
        if len(calls) == k:
            failed.update(each.id for each in scheduler_output.num_scheduled_tokens)
            if where == "launch":
                raise Broken("launch")
        return forward(scheduler_output)

    def broken_sampler(*args):
        if len(calls) == k and where == "choose":
            raise Broken("choose")
        return sampler(*args)

    def broken_keep(scheduler_output, tokens):
        kept = keep_tokens(scheduler_output, tokens)
        return Lost() if len(calls) == k and where == "arrival" else kept

    runner.forward, core.sampler, runner.keep_tokens = broken_forward, broken_sampler, broken_keep
    outputs = run_out(engine)
    assert failed
    failed -= {
        name for name in failed if outputs[name].finish_reason == "length"
    }  # its last token was under way, and good
    check_failed(outputs, prompts, failed)
    assert engine.generate([[1, 2]], greedy())[0].token_ids == alone("qwen2", [1, 2], 12)


def test_an_interrupt_is_passed_on_and_the_engine_goes_on(an_engine):
    for where in ("launch", "arrival"):
        engine = an_engine()
        prompts, keep_tokens, calls = at_work(engine), engine.runner.keep_tokens, []

        class Interrupted:
            def wait(self):
                raise KeyboardInterrupt

        def broken(scheduler_output, tokens):
            calls.append(scheduler_output)
            if len(calls) == 4 and where == "launch":
                raise KeyboardInterrupt
            return Interrupted() if len(calls) == 4 else keep_tokens(scheduler_output, tokens)

        engine.runner.keep_tokens = broken
        with pytest.raises(KeyboardInterrupt):
            run_out(engine)
        engine.core.settle()
        check_books(engine)
        check_failed(run_out(engine), prompts, set())


def test_moving_that_raises(an_engine):
    engine, prompt = an_engine(), list(range(1, 9))
    engine.generate([prompt], greedy(2, ignore_eos=True))
    engine.add_request([50], greedy(14, ignore_eos=True), request_id="other")
    for _ in range(3):
        engine.step()
    engine.add_request(prompt, greedy(5), request_id="copied")

    def broken(block_copies):
        raise Broken("moving")

    engine.core.copy_blocks = broken
    outputs = run_out(engine)
    assert isinstance(outputs["copied"].error, Broken) and isinstance(outputs["other"].error, Broken)
    assert outputs["other"].token_ids == alone("qwen2", [50], 2, ignore_eos=True), "the third was in flight"


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_logits_that_are_no_numbers_fail_their_own_request(an_engine, temperature):
    engine = an_engine()
    prompts = at_work(engine)
    engine.add_request(
        [1, 2], SamplingParams(max_tokens=14, temperature=temperature, seed=1, ignore_eos=True), request_id="bad"
    )
    forward, told = engine.runner.forward, []

    def with_a_bad_row(scheduler_output):
        logits = forward(scheduler_output).clone()
        for row, request in enumerate(scheduler_output.num_scheduled_tokens):
            if request.id == "bad" and request.num_output_tokens == 3:
                logits[row, 5] = float("nan")
                told.append(row)
        return logits

    engine.runner.forward = with_a_bad_row
    outputs = run_out(engine)
    bad = outputs.pop("bad")
    assert told and len(bad.token_ids) == 3 and "not finite numbers" in str(bad.error)
    check_failed(outputs, prompts, set())


def test_an_observer_that_raises_loses_no_answer(an_engine):
    engine = an_engine()
    prompts = at_work(engine)
    outputs, errors = run_out_with_an_observer_that_raises(engine, lambda: check_books(engine))
    assert errors > 3
    check_failed(outputs | run_out(engine), prompts, set())


# Everything else


def test_streams_and_generate_do_as_ever(an_engine):
    engine = an_engine()
    streams = [engine.stream(prompt, greedy(6, ignore_eos=True)) for prompt in ([1, 2], [3, 4])]
    for prompt, tokens in zip(([1, 2], [3, 4]), zip(*zip(*streams))):
        assert [token.token for token in tokens] == alone("qwen2", prompt, 6, ignore_eos=True)
    for stream in streams:
        assert list(stream) == []
    for _ in engine.stream([1, 2, 3], greedy(9)):
        break
    assert engine.generate([[1, 2]], greedy(9, ignore_eos=True))[0].token_ids == alone(
        "qwen2", [1, 2], 9, ignore_eos=True
    )
    check_that_nothing_is_left(engine)
    assert not engine.core.in_flight


def test_a_step_inside_a_step_is_refused(an_engine):
    engine = an_engine()
    engine.add_request([1, 2], greedy(4), on_token=lambda token: engine.step())
    (output,) = run_out(engine).values()
    assert "step() was called by an on_token" in str(output.error)


def test_metrics_add_up(an_engine):
    clock = engine_cases.Clock()
    engine = an_engine(clock=clock)
    outputs = engine.generate([[n + 1] * 9 for n in range(8)], greedy(12, ignore_eos=True))
    metrics, steps = engine.metrics, engine.metrics.recent
    assert (
        metrics.steps == len(steps) and metrics.new_tokens == sum(len(output.token_ids) for output in outputs) == 8 * 12
    )
    assert metrics.tokens == metrics.prefill_tokens + 8 * 12 == 8 * (9 + 11), (
        "nothing is computed that could be known to be of no use"
    )
    assert (
        metrics.requests == {"length": 8} and metrics.tpot.count == metrics.ttft.count == metrics.queue_time.count == 8
    )
    assert metrics.itl.count == 8 * 11 and metrics.tpot.total * 11 == pytest.approx(metrics.itl.total)
    assert steps[3].seconds.keys() == {"schedule", "move", "sample", "forward", "update"}
    assert metrics.busy_seconds < clock.now, "no second counts twice"


def test_the_longest_sequence_is_what_the_runner_has_room_for(an_engine):
    engine = an_engine(max_model_len=20)
    with pytest.raises(BadRequest, match="15 tokens and asks for 6 more, 21 in all; the context is 20"):
        engine.add_request([1] * 15, greedy(6))
    (output,) = engine.generate([[1] * 15], SamplingParams(max_tokens=None, ignore_eos=True))
    assert output.token_ids == alone("qwen2", [1] * 15, 5, ignore_eos=True)


def test_the_runner_of_an_engine_can_be_chosen():
    made = []
    config = EngineConfig(num_blocks=9, make_runner=lambda *args: made.append(args))
    engine = LLMEngine(engine_cases.a_model(), engine_cases.LetterTokenizer(), config)
    assert made == [(engine.model, 9, engine.config)] and engine.runner is None


def test_an_aborted_request_is_not_ended_again_by_the_step_that_it_was_in():
    class NeverThere:
        def wait(self):
            raise RuntimeError("the device is gone")

    class Runner(ModelRunner):
        can_overlap = True

        def forward(self, scheduler_output):
            return torch.zeros(len(scheduler_output.num_scheduled_tokens), 97)

        def keep_tokens(self, scheduler_output, tokens):
            return NeverThere()

    config = EngineConfig(
        num_blocks=9, block_size=4, overlap=True, make_runner=lambda model, num_blocks, _: Runner(model, num_blocks, 4)
    )
    engine = LLMEngine(engine_cases.a_model(), engine_cases.LetterTokenizer(), config)
    for name in "ab":
        engine.add_request([1, 2], SamplingParams(max_tokens=5, temperature=0.0), request_id=name)
    assert engine.step() == []
    aborted = engine.abort("a")
    (failed,) = engine.step()
    assert failed.request_id == "b" and "the device is gone" in str(failed.error)
    assert aborted.finish_reason == "abort" and engine.core.num_ended == {"abort": 1, "error": 1}
