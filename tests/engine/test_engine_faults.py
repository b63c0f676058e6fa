"""Faults of the model and of callbacks: the requests concerned fail with the error, all others get the right
tokens, nothing is lost."""

import asyncio
import weakref

import pytest
from engine_cases import (
    KINDS,
    Broken,
    alone,
    an_engine,
    check_that_nothing_is_left,
    engine_of_kind,
    greedy,
    run_out,
    run_out_with_an_observer_that_raises,
)

from lessons_lib.engine.output_processor import TokenReader
from lessons_lib.engine.sampling import SamplingParams
from lessons_lib.kv_cache.invariants import audit

PROMPTS = {f"r{n}": [n + 1, 2 * n + 3, 5] * (n % 3 + 1) for n in range(6)}
TIGHT = dict(num_blocks=12, max_num_seqs=5, max_num_batched_tokens=12)
CAP = 14


def an_engine_at_work(params=None, kind="waits", on_token=None, **config):
    """Six requests in a pool that is too small for them; `params`: id -> other parameters; `on_token`: of r1."""
    engine = engine_of_kind(kind, **{"block_size": 4, **TIGHT, **config})
    for name, prompt in PROMPTS.items():
        own = (params or {}).get(name, greedy(CAP, ignore_eos=True))
        engine.add_request(prompt, own, request_id=name, on_token=on_token if name == "r1" else None)
    return engine


def break_forward(engine, k):
    """The k-th forward pass raises."""
    calls, forward = [], engine.runner.forward

    def broken(scheduler_output):
        calls.append(scheduler_output)
        if len(calls) == k:
            raise Broken("the model")
        return forward(scheduler_output)

    engine.runner.forward = broken


def check_answers(engine, outputs, failed, kind=Broken, expected=PROMPTS.keys()):
    """Failed requests have the error and a right beginning; all others are complete. Nothing is left."""
    assert outputs.keys() == expected, "a request was lost"
    for name, output in outputs.items():
        answer = alone("qwen2", PROMPTS[name], CAP, ignore_eos=True)
        if name in failed:
            assert isinstance(output.error, kind), name
            assert output.finish_reason == ("error" if len(output.token_ids) < CAP else "length"), name
            assert output.token_ids == answer[: len(output.token_ids)]
        else:
            assert output.error is None and output.token_ids == answer, name
    check_that_nothing_is_left(engine)


class Lost:
    """Tokens that never arrive."""

    def wait(self):
        raise Broken("arrival")


@pytest.mark.parametrize("engine_kind", KINDS)
@pytest.mark.parametrize("config", [dict(num_blocks=150), dict(num_blocks=16, num_swap_blocks=20)])
@pytest.mark.parametrize("where", ["launch", "choose", "arrival"])
@pytest.mark.parametrize("k", [1, 2, 7, 16])
def test_an_error_fails_the_requests_of_its_step(where, k, config, engine_kind):
    engine = an_engine_at_work(kind=engine_kind, **config, max_num_seqs=4, max_num_batched_tokens=24)
    runner, core, calls, failed = engine.runner, engine.core, [], set()
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
    check_answers(engine, outputs, failed)
    assert engine.metrics.requests == {"error": len(failed), "length": 6 - len(failed)}
    assert engine.generate([[1, 2]], greedy())[0].token_ids == alone("qwen2", [1, 2], 12)


def test_an_aborted_request_is_not_ended_again_by_the_step_that_it_was_in():
    engine = engine_of_kind("overlaps", block_size=4, num_blocks=60)
    keep_tokens = engine.runner.keep_tokens
    engine.runner.keep_tokens = lambda *step: keep_tokens(*step) and Lost()
    for name in "ab":
        engine.add_request([1, 2], greedy(5), request_id=name)
    assert engine.step() == []
    aborted = engine.abort("a")
    (failed,) = engine.step()
    assert failed.request_id == "b" and isinstance(failed.error, Broken)
    assert aborted.finish_reason == "abort" and engine.core.num_ended == {"abort": 1, "error": 1}


@pytest.mark.parametrize("k", [1, 3])
def test_moving_that_raises_fails_those_who_may_have_lost_their_cache(k):
    engine = an_engine_at_work(num_swap_blocks=12)
    outputs, move, calls, concerned = noted_outputs(engine), engine.core.copy_blocks, [], []

    def broken(block_copies):
        calls.extend([1] if block_copies else [])
        if block_copies and len(calls) == k:
            concerned.extend(sequence.id for sequence in outputs[-1].num_scheduled_tokens)
            move(block_copies[:1])  # half-way
            raise Broken("moving")
        return move(block_copies)

    engine.core.copy_blocks = broken
    answers = run_out(engine)
    assert concerned, "nothing was moved so often"
    check_answers(engine, answers, set(concerned))


def noted_outputs(engine):
    """A list to which each step's SchedulerOutput is added."""
    outputs, schedule = [], engine.scheduler.schedule
    engine.scheduler.schedule = lambda: outputs.append(schedule()) or outputs[-1]
    return outputs


@pytest.mark.parametrize("unranked", ["bad", "bad/1"])
def test_a_request_that_its_policy_cannot_rank_fails_alone(unranked):
    class Policy:
        name = "of learners"

        def rank(self, sequence):
            if sequence.id == unranked:
                raise Broken("the policy")
            return sequence.arrival_time

    engine = an_engine_at_work(policy=Policy())
    engine.add_request([1, 2], greedy(CAP, n=2), request_id="bad")
    outputs = run_out(engine)
    failed = outputs.pop("bad")
    assert isinstance(failed.error, Broken) and len(failed.token_ids) == unranked.count("/")
    check_answers(engine, outputs, ())


def spoil_rows(engine, is_bad, value=float("nan")):
    """A logit of the sequences for which `is_bad` isn't a number."""
    forward = engine.runner.forward

    def spoiled(scheduler_output):
        logits = forward(scheduler_output).clone()
        logits[[is_bad(sequence) for sequence in scheduler_output.num_scheduled_tokens], 5] = value
        return logits

    engine.runner.forward = spoiled


def test_log_probabilities_that_cannot_be_computed_fail_those_who_asked_for_them(monkeypatch):
    engine = an_engine_at_work({"r2": greedy(CAP, ignore_eos=True, logprobs=1)})
    monkeypatch.setattr("lessons_lib.engine.step_logprobs.logprobs_table", lambda *args: 1 / 0)
    check_answers(engine, run_out(engine), {"r2"}, ZeroDivisionError)


def test_a_completion_whose_text_cannot_be_rebuilt_fails_with_its_siblings():
    engine = an_engine()
    engine.add_request([1, 2, 3], SamplingParams(max_tokens=9, temperature=1.0, n=3, stop="?"), request_id="three")
    for _ in range(3):
        engine.step()
    engine.tokenizer.decode = lambda *args, **kwargs: 1 / 0
    engine.core.is_whole = False  # as an interrupt leaves it
    assert isinstance(run_out(engine)["three"].error, ZeroDivisionError)
    check_that_nothing_is_left(engine)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_logits_that_are_no_numbers_fail_their_own_request(bad, temperature, kind):
    params = {"r2": SamplingParams(max_tokens=CAP, ignore_eos=True, temperature=temperature, seed=0)}
    engine = an_engine_at_work(params, kind)
    spoil_rows(engine, lambda sequence: sequence.id == "r2" and sequence.num_output_tokens == 3, bad)
    outputs = run_out(engine)
    assert len(outputs["r2"].token_ids) == 3 and "not finite numbers" in str(outputs["r2"].error)
    outputs["r2"].completions[0].token_ids[:] = alone("qwen2", PROMPTS["r2"], 3, ignore_eos=True)
    check_answers(engine, outputs, {"r2"}, FloatingPointError)


def test_one_bad_answer_of_several_fails_the_whole_request():
    engine, told = an_engine(num_blocks=60), []
    params = SamplingParams(max_tokens=9, temperature=1.0, n=3, seed=0, ignore_eos=True, logprobs=1)
    engine.add_request([1, 2, 3], params, request_id="three")
    completions = engine.core.find("three").completions
    engine.step()
    # Its row is behind those that fail.
    engine.add_request([4, 5], greedy(9, ignore_eos=True), request_id="one", on_token=told.append)
    spoil_rows(engine, lambda sequence: sequence.id in ("three/1", "three/2") and len(sequence.output_ids) == 4)
    outputs = run_out(engine)
    assert isinstance(outputs["three"].error, FloatingPointError) and len(outputs["three"].completions) == 3
    for each in completions:  # none of them got a token in the step that failed
        assert len(each.token_times) == len(each.logprobs) == len(each.output_ids)
    assert outputs["one"].token_ids == [token.token for token in told] == alone("qwen2", [4, 5], 9, ignore_eos=True)
    check_that_nothing_is_left(engine)


# Callbacks


ABORTS = {
    "aborts itself": lambda engine: ["r1"],
    "aborts itself and raises": lambda engine: ["r1"],
    "aborts another": lambda engine: ["r0", "r4"],
    "aborts all": lambda engine: list(engine.requests),
}


@pytest.mark.parametrize("engine_kind", KINDS)
@pytest.mark.parametrize("kind", ["raises", *ABORTS, "adds", "steps"])
@pytest.mark.parametrize("after", [1, 4, CAP])
def test_whatever_a_callback_does_concerns_whom_it_names(kind, after, engine_kind):
    told, gone = [], {}

    def callback(token):
        told.append(token.token)
        if len(told) != after:
            return
        for name in ABORTS.get(kind, lambda engine: [])(engine):
            gone[name] = engine.abort(name)
        if kind.endswith("raises"):
            raise Broken("callback")
        if kind == "steps":
            engine.step()
        if kind == "adds":
            engine.add_request([9, 8, 7], greedy(5), request_id="new")

    engine = an_engine_at_work(kind=engine_kind, on_token=callback)
    outputs = run_out(engine)
    assert told == alone("qwen2", PROMPTS["r1"], len(told), ignore_eos=True)
    assert len(told) == (CAP if kind in ("adds", "aborts another") else after)
    if kind == "adds":
        assert outputs.pop("new").token_ids == alone("qwen2", [9, 8, 7], 5)
    gone = {name: output for name, output in gone.items() if output}
    assert not outputs.keys() & gone.keys(), "told twice"
    for output in gone.values():
        assert output.finish_reason in ("abort", "length") and output.error is None
        assert output.token_ids == alone("qwen2", output.prompt_ids, CAP, ignore_eos=True)[: len(output.token_ids)]
    failed = {"r1"} - gone.keys() if kind.endswith(("raises", "steps")) else set()
    check_answers(engine, outputs, failed, RuntimeError, expected=PROMPTS.keys() - gone.keys())
    if kind == "steps":
        assert "called inside a step or an on_token" in str(outputs["r1"].error)
    check_that_nothing_is_left(engine)


def test_a_callback_that_aborts_itself_and_comes_again_under_its_name():
    engine, told = an_engine(**TIGHT), []

    def callback(token):
        told.append(token.token)
        if len(told) == 3:
            engine.abort("me")
            engine.add_request([7, 7], greedy(4, ignore_eos=True), request_id="me", on_token=told.append)

    engine.add_request([1, 2], greedy(9), request_id="me", on_token=callback)
    output = run_out(engine)["me"]
    assert output.token_ids == alone("qwen2", [7, 7], 4, ignore_eos=True)
    assert [token.token for token in told[3:]] == output.token_ids
    check_that_nothing_is_left(engine)


@pytest.mark.parametrize("error", [KeyboardInterrupt, asyncio.CancelledError])
def test_a_callback_that_is_interrupted_fails_its_request_alone(error):
    told = []

    def callback(token):
        told.append(token.token)
        if len(told) == 4:
            raise error

    engine = an_engine_at_work(on_token=callback)
    with pytest.raises(error):
        run_out(engine)
    audit(engine.scheduler)
    assert engine.core.is_whole, "the step was completed; there is nothing to recover from"
    check_answers(engine, run_out(engine), {"r1"}, error)


@pytest.mark.parametrize("first", [1, 20])
@pytest.mark.parametrize("watched", [True, False])
def test_a_tokenizer_that_raises_fails_its_request_alone(first, watched):
    """It raises at the first call, or the 20th, with a token that only this request has."""
    others = {token for prompt in PROMPTS.values() for token in alone("qwen2", prompt, CAP, ignore_eos=True)}
    answers = (([50, 51, last], alone("qwen2", [50, 51, last], CAP, ignore_eos=True)) for last in range(97))
    prompt, answer = next((prompt, answer) for prompt, answer in answers if answer[0] not in others)
    engine, decoded, told = an_engine_at_work(), [], []
    decode = engine.tokenizer.decode

    def broken(token_ids, **options):
        decoded.extend([1] * (answer[0] in token_ids))
        if answer[0] in token_ids and len(decoded) >= first:
            raise Broken("decode")
        return decode(token_ids, **options)

    engine.tokenizer.decode = broken
    params = greedy(CAP, ignore_eos=True)
    engine.add_request(prompt, params, request_id="bad", on_token=told.append if watched else None)
    outputs = run_out(engine)
    bad = outputs.pop("bad")
    assert bad.token_ids == answer[: len(bad.token_ids)] and [token.token for token in told] == answer[: len(told)]
    if first == 1:
        assert isinstance(bad.error, Broken) and (watched or bad.token_ids == answer)
        assert engine.metrics.requests == {"error": 1, "length": 6}
    check_answers(engine, outputs, ())
    assert engine.abort("bad") is None


def test_an_aborted_request_whose_text_cannot_be_decoded_is_returned_with_the_error():
    engine = an_engine()
    engine.add_request([1, 2], greedy(9), request_id="bad")
    engine.step()
    engine.tokenizer.decode = lambda *args, **kwargs: 1 / 0
    output = engine.abort("bad")
    assert isinstance(output.error, ZeroDivisionError) and len(output.token_ids) == 1
    check_that_nothing_is_left(engine)


CALLS = {
    "step": lambda engine, reader: engine.step(),
    "generate": lambda engine, reader: engine.generate([[1]], greedy(2)),
    "stream": lambda engine, reader: list(engine.stream([1], greedy(2))),
    "read": lambda engine, reader: engine.core.read(reader),
}


@pytest.mark.parametrize("call", CALLS)
def test_a_step_inside_an_observer_is_refused(call):
    engine = an_engine_at_work()
    reader = TokenReader(engine.core.find("r0"), engine.core.outputs)
    engine.step()
    assert reader.has_news
    engine.core.observers.append(lambda step, requests: CALLS[call](engine, reader))
    with pytest.raises(RuntimeError, match="called inside a step or an on_token"):
        engine.step()
    engine.core.observers.pop()
    outputs = run_out(engine)
    check_answers(engine, {name: outputs[name] for name in PROMPTS}, ())


@pytest.mark.parametrize("where", ["schedule", "add"])
def test_a_stream_that_ends_in_the_middle_of_a_change_is_aborted_after_it(where, monkeypatch):
    """The garbage collector may end it anywhere: in a step, or while a request is added."""
    engine = an_engine_at_work()
    streams, method = [engine.stream([7, 8], greedy(CAP, ignore_eos=True))], getattr(engine.scheduler, where)
    next(streams[0])

    def called_and_collected(*args):
        output = method(*args)
        streams.clear()
        return output

    monkeypatch.setattr(engine.scheduler, where, called_and_collected)
    engine.add_request([7, 9], greedy(1), request_id="last")
    outputs = run_out(engine)
    assert len(outputs.pop("last").token_ids) == 1
    check_answers(engine, outputs, ())
    assert engine.metrics.requests == {"abort": 1, "length": 7}
    check_that_nothing_is_left(engine)


def test_an_error_keeps_no_tensors_of_the_pass_that_failed():
    engine = an_engine_at_work()
    forward, activations = engine.runner.forward, []

    def broken(scheduler_output):
        logits = forward(scheduler_output).clone()
        activations.append(weakref.ref(logits))
        try:
            raise ValueError("inner")
        except ValueError as inner:
            raise Broken("the model") from inner

    engine.runner.forward = broken
    outputs = engine.step()
    assert outputs and activations[0]() is None
    for output in outputs:
        assert output.error.__traceback__ is None and output.error.__cause__ is None
        (text,) = output.error.__notes__
        assert "in broken" in text and "ValueError: inner" in text and "Broken: the model" in text


def test_a_clock_that_runs_backwards_gives_no_negative_times():
    now = iter(range(10**6, 0, -1))
    engine = an_engine_at_work(clock=lambda: float(next(now)))
    check_answers(engine, run_out(engine), ())
    metrics = engine.metrics
    histograms = [metrics.queue_time, metrics.ttft, metrics.tpot, metrics.itl, metrics.latency]
    assert all(histogram.count and histogram.total >= 0 for histogram in histograms)
    assert metrics.busy_seconds >= 0 and min(metrics.part_seconds.values()) >= 0


def test_a_stream_raises_after_its_tokens_even_if_it_failed_in_the_steps_of_another():
    engine = an_engine()
    streams = [engine.stream([n + 1, 2], greedy(9, ignore_eos=True)) for n in range(2)]
    tokens = [[next(stream).token for stream in streams] for _ in range(2)]
    assert list(zip(*tokens)) == [tuple(alone("qwen2", [n + 1, 2], 2, ignore_eos=True)) for n in range(2)]
    break_forward(engine, 1)
    for stream in streams:
        with pytest.raises(Broken):
            list(stream)
    check_that_nothing_is_left(engine)


@pytest.mark.parametrize("kind", KINDS)
def test_an_observer_that_raises_loses_no_answer(kind):
    engine = an_engine_at_work(kind=kind)
    outputs, errors = run_out_with_an_observer_that_raises(engine, lambda: audit(engine.scheduler))
    assert errors
    check_answers(engine, outputs, ())


def test_generate_says_who_failed():
    engine = an_engine()
    break_forward(engine, 3)
    good, bad = engine.generate([[1, 2], [3]], [greedy(1), greedy(5, ignore_eos=True)])
    assert good.error is None and isinstance(bad.error, Broken)
    assert bad.token_ids == alone("qwen2", [3], 2, ignore_eos=True)
    check_that_nothing_is_left(engine)
