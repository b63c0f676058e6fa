"""The overlapped engine: the answers of LLMEngine, whatever happens, one step late; nothing is left behind."""

import random
from functools import partial

import engine_cases
import pytest
from engine_cases import Broken, alone, check_that_nothing_is_left, greedy, letter

from lessons_lib.engine.sampling import SamplingParams
from lessons_lib.kv_cache.invariants import audit
from lessons_lib.models.tiny_models import VOCAB_SIZE

ROOMY = dict(num_blocks=150, max_num_seqs=6, max_num_batched_tokens=24, block_size=4)
TIGHT = {**ROOMY, "num_blocks": 16}
CONFIGS = {
    "roomy": ROOMY,
    "tight": TIGHT,
    "swapping": {**TIGHT, "num_swap_blocks": 20},
    "no sharing": {**ROOMY, "share_prefixes": False},
}


def run_out(engine):
    """See `engine_cases.run_out`; nothing is left behind."""
    outputs = engine_cases.run_out(engine)
    check_that_nothing_is_left(engine)
    assert not engine.core.in_flight
    return outputs


def an_engine(**config):
    return engine_cases.engine_of_kind("overlaps", **{**ROOMY, **config})


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
            audit(engine.scheduler)
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
def test_answers_are_those_of_the_engine_that_waits(seed, kind, looked_at):
    workload = a_workload(seed, looked_at)
    engine, told = an_engine(**CONFIGS[kind]), {}
    outputs = serve(engine, workload, seed, told)
    plain, plainly_told = engine_cases.an_engine(**CONFIGS[kind]), {}
    expected = serve(plain, workload, seed, plainly_told)
    assert outputs.keys() == expected.keys() and told == plainly_told
    for name in expected:
        assert told_alike(outputs[name]) == told_alike(expected[name]), name
        for own, other in zip(outputs[name].completions, expected[name].completions):
            for one, two in zip(own.logprobs or [], other.logprobs or [], strict=True):
                assert one.token == two.token and one.logprob == pytest.approx(two.logprob, abs=1e-4)
    for name in ("requests", "new_tokens"):
        assert getattr(engine.metrics, name) == getattr(plain.metrics, name)
    assert bool(engine.scheduler.num_preempted) == (kind in ("tight", "swapping"))
    assert engine.metrics.ttft.count == plain.metrics.ttft.count and engine.metrics.itl.count == plain.metrics.itl.count


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("config", ["roomy", "swapping"])
@pytest.mark.parametrize("engine_kind", engine_cases.KINDS)
def test_aborts_at_any_time_disturb_nobody(engine_kind, config, seed):
    """Of requests that wait, run, were preempted or swapped out, or have forks."""
    engine, rng = engine_cases.engine_of_kind(engine_kind, **CONFIGS[config]), random.Random(seed)
    for n in range(9):
        engine.add_request([n + 1, 2 * n + 3, 5] * (n % 4 + 1), greedy(14, ignore_eos=True, n=1 + (n % 3 == 0)))
    outputs, aborted = {}, {}
    while engine.has_unfinished():
        if engine.requests and rng.random() < 0.4:
            name = rng.choice(list(engine.requests))
            so_far = [list(completion.output_ids) for completion in engine.requests[name].completions]
            aborted[name] = engine.abort(name)
            assert all(own.finish_reason in ("abort", "length") for own in aborted[name].completions)
            if engine_kind == "waits":
                assert [own.token_ids for own in aborted[name].completions] == so_far
            assert engine.abort(name) is None, "the second time it is not there"
            audit(engine.scheduler)
        outputs |= {output.request_id: output for output in engine.step()}
        audit(engine.scheduler)
    outputs |= run_out(engine)
    assert len(aborted) > 1 and not aborted.keys() & outputs.keys() and len(aborted) + len(outputs) == 9
    for output in (outputs | aborted).values():
        expected = alone("qwen2", output.prompt_ids, 14, ignore_eos=True)
        for own in output.completions:
            cut = len(own.token_ids) if output.request_id in aborted else 14
            assert own.token_ids == expected[:cut] and output.error is None


@pytest.mark.parametrize("params", [greedy(9, logprobs=1), SamplingParams(max_tokens=9, n=2, temperature=1.0, seed=3)])
def test_only_while_somebody_looks_at_logits_one_step_waits_for_the_other(params):
    engine, kinds = an_engine(max_num_seqs=2), []
    core, schedule = engine.core, engine.scheduler.schedule
    engine.scheduler.schedule = lambda: kinds.append("overlapped" if core.in_flight else "alone") or schedule()
    engine.add_request([1, 2], greedy(6, ignore_eos=True))
    engine.add_request([1, 2], greedy(4, ignore_eos=True))
    engine.add_request([5, 6, 7], params)  # it waits for a slot
    run_out(engine)
    assert kinds[:4] == ["alone", *["overlapped"] * 3]
    assert ("alone" in kinds[4:]) == (kinds[-1] == "alone") == (params.logprobs is not None)


# Faults


def at_work(engine):
    """Six greedy requests. Returns id -> prompt."""
    prompts = {f"r{n}": [n + 1, 2 * n + 3, 5] * (n % 3 + 1) for n in range(6)}
    for name, prompt in prompts.items():
        engine.add_request(prompt, greedy(14, ignore_eos=True), request_id=name)
    return prompts


def check_failed(outputs, prompts, failed):
    assert outputs.keys() == prompts.keys()
    for name, output in outputs.items():
        expected = alone("qwen2", prompts[name], 14, ignore_eos=True)
        assert output.token_ids == expected[: len(output.token_ids)], name
        assert isinstance(output.error, Broken if name in failed else type(None)), name
        assert name in failed or output.token_ids == expected, name


class Lost:
    """Tokens that never arrive."""

    def wait(self):
        raise Broken("arrival")


@pytest.mark.parametrize("engine_kind", engine_cases.KINDS)
@pytest.mark.parametrize("config", ["roomy", "swapping"])
@pytest.mark.parametrize("where", ["launch", "choose", "arrival"])
@pytest.mark.parametrize("k", [1, 2, 7, 16])
def test_an_error_fails_the_requests_of_its_step(where, k, config, engine_kind):
    engine = engine_cases.engine_of_kind(engine_kind, **{**CONFIGS[config], "max_num_seqs": 4})
    prompts, runner, core, calls, failed = at_work(engine), engine.runner, engine.core, [], set()
    forward, sampler, keep_tokens = runner.forward, core.sampler, runner.keep_tokens

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
    failed -= {name for name in failed if outputs[name].finish_reason == "length"}  # its last token was under way
    check_failed(outputs, prompts, failed)
    assert engine.metrics.requests == {"error": len(failed), "length": 6 - len(failed)}
    assert engine.generate([[1, 2]], greedy())[0].token_ids == alone("qwen2", [1, 2], 12)


def test_an_aborted_request_is_not_ended_again_by_the_step_that_it_was_in():
    engine = an_engine()
    keep_tokens = engine.runner.keep_tokens
    engine.runner.keep_tokens = lambda *step: keep_tokens(*step) and Lost()
    for name in "ab":
        engine.add_request([1, 2], greedy(5), request_id=name)
    assert engine.step() == []
    aborted = engine.abort("a")
    (failed,) = engine.step()
    assert failed.request_id == "b" and isinstance(failed.error, Broken)
    assert aborted.finish_reason == "abort" and engine.core.num_ended == {"abort": 1, "error": 1}
