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
    """The k-th forward pass raises. Returns a list in which the ids of its requests are found afterwards."""
    concerned, calls, forward = [], [], engine.runner.forward

    def broken(scheduler_output):
        calls.append(scheduler_output)
        if len(calls) == k:
            concerned.extend(sequence.id for sequence in scheduler_output.num_scheduled_tokens)
            raise Broken("the model")
        return forward(scheduler_output)

    engine.runner.forward = broken
    return concerned


def check_answers(outputs, failed, kind=Broken, expected=PROMPTS.keys()):
    """Those who failed have the error and a right beginning; all others are answered in full."""
    assert outputs.keys() == expected, "a request was lost"
    for name, output in outputs.items():
        answer = alone("qwen2", PROMPTS[name], CAP, ignore_eos=True)
        if name in failed:
            assert isinstance(output.error, kind), name
            assert output.finish_reason == ("error" if len(output.token_ids) < CAP else "length"), name
            assert output.token_ids == answer[: len(output.token_ids)]
        else:
            assert output.error is None and output.token_ids == answer, name


@pytest.mark.parametrize("k", [1, 2, 3, 4])
def test_moving_that_raises_fails_those_who_may_have_lost_their_cache(k):
    engine = an_engine_at_work(num_swap_blocks=12)
    schedule, move, outputs, calls = engine.scheduler.schedule, engine.core.copy_blocks, [], []
    concerned = []

    def noting():
        outputs.append(schedule())
        return outputs[-1]

    def broken(block_copies):
        calls.extend([1] if block_copies else [])
        if block_copies and len(calls) == k:
            concerned.extend(sequence.id for sequence in outputs[-1].num_scheduled_tokens)
            move(block_copies[:1])  # half-way
            raise Broken("moving")
        return move(block_copies)

    engine.scheduler.schedule, engine.core.copy_blocks = noting, broken
    answers = run_out(engine)
    assert concerned, "nothing was moved so often"
    check_answers(answers, set(concerned))
    check_that_nothing_is_left(engine)


def test_who_was_swapped_out_in_peace_goes_on_after_an_error(monkeypatch):
    engine = an_engine_at_work(num_swap_blocks=12)
    forward, swapped = engine.runner.forward, []
    schedule = engine.scheduler.schedule

    def noting():
        scheduler_output = schedule()
        swapped[:] = [sequence.id for sequence in scheduler_output.preempted if sequence.swapped]
        return scheduler_output

    def broken(scheduler_output):
        if swapped and engine.runner.forward is broken:
            engine.runner.forward = forward
            spared.extend(swapped)
            raise Broken
        return forward(scheduler_output)

    spared = []
    engine.scheduler.schedule, engine.runner.forward = noting, broken
    outputs = run_out(engine)
    assert spared and all(outputs[name].error is None for name in spared)
    check_answers(outputs, {name for name, output in outputs.items() if output.error})


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
    check_answers(outputs, ())
    check_that_nothing_is_left(engine)


def test_log_probabilities_that_cannot_be_computed_fail_those_who_asked_for_them(monkeypatch):
    engine = an_engine_at_work({"r2": greedy(CAP, ignore_eos=True, logprobs=1)})
    monkeypatch.setattr("lessons_lib.engine.output_processor.rows_of_logprobs", lambda *args: 1 / 0)
    check_answers(run_out(engine), {"r2"}, ZeroDivisionError)
    check_that_nothing_is_left(engine)


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
    forward = engine.runner.forward

    def with_a_bad_row(scheduler_output):
        logits = forward(scheduler_output).clone()
        for row, request in enumerate(scheduler_output.num_scheduled_tokens):
            if request.id == "r2" and request.num_output_tokens == 3:
                logits[row, 5] = bad
        return logits

    engine.runner.forward = with_a_bad_row
    outputs = run_out(engine)
    assert len(outputs["r2"].token_ids) == 3 and "not finite numbers" in str(outputs["r2"].error)
    outputs["r2"].completions[0].token_ids[:] = alone("qwen2", PROMPTS["r2"], 3, ignore_eos=True)
    check_answers(outputs, {"r2"}, FloatingPointError)
    check_that_nothing_is_left(engine)


def test_one_bad_answer_of_several_fails_the_whole_request():
    engine, told = an_engine(num_blocks=60), []
    params = SamplingParams(max_tokens=9, temperature=1.0, n=3, seed=0, ignore_eos=True, logprobs=1)
    engine.add_request([1, 2, 3], params, request_id="three")
    completions = engine.core.find("three").completions
    engine.step()
    # Its row is behind those that fail.
    engine.add_request([4, 5], greedy(9, ignore_eos=True), request_id="one", on_token=told.append)
    forward = engine.runner.forward

    def with_a_bad_row(scheduler_output):
        logits = forward(scheduler_output).clone()
        for row, sequence in enumerate(scheduler_output.num_scheduled_tokens):
            if sequence.id in ("three/1", "three/2") and len(sequence.output_ids) == 4:
                logits[row] = float("nan")
        return logits

    engine.runner.forward = with_a_bad_row
    outputs = run_out(engine)
    assert isinstance(outputs["three"].error, FloatingPointError) and len(outputs["three"].completions) == 3
    for each in completions:  # none of them got a token in the step that failed
        assert len(each.token_times) == len(each.logprobs) == len(each.output_ids)
    assert outputs["one"].token_ids == [token.token for token in told] == alone("qwen2", [4, 5], 9, ignore_eos=True)
    check_that_nothing_is_left(engine)


# Callbacks


@pytest.mark.parametrize("kind", ["raises", "aborts itself", "aborts another", "aborts all", "adds", "steps"])
@pytest.mark.parametrize("after", [1, 4, CAP])
@pytest.mark.parametrize("config", [{}, {"num_blocks": 100}])
def test_whatever_a_callback_does_concerns_whom_it_names(kind, after, config):
    told, gone = [], {}

    def callback(token):
        told.append(token.token)
        if len(told) != after:
            return
        if kind == "raises":
            raise Broken("callback")
        if kind == "steps":
            engine.step()
        for name in {"aborts itself": ["r1"], "aborts another": ["r0", "r4"], "aborts all": list(engine.requests)}.get(
            kind, []
        ):
            gone[name] = engine.abort(name)
        if kind == "adds":
            engine.add_request([9, 8, 7], greedy(5), request_id="new")

    engine = an_engine_at_work(on_token=callback, **config)
    outputs = run_out(engine)
    assert told == alone("qwen2", PROMPTS["r1"], len(told), ignore_eos=True)
    assert len(told) == (CAP if kind in ("adds", "aborts another") else after)
    if kind == "adds":
        assert outputs.pop("new").token_ids == alone("qwen2", [9, 8, 7], 5)
    gone = {name: output for name, output in gone.items() if output}
    assert not outputs.keys() & gone.keys(), "told twice"
    for output in gone.values():
        assert output.finish_reason in ("abort", "length")
        assert output.token_ids == alone("qwen2", output.prompt_ids, CAP, ignore_eos=True)[: len(output.token_ids)]
    failed = {"r1"} if kind in ("raises", "steps") else set()
    check_answers(outputs, failed, RuntimeError, expected=PROMPTS.keys() - gone.keys())
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


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, asyncio.CancelledError, GeneratorExit])
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
    check_answers(run_out(engine), {"r1"}, error)
    check_that_nothing_is_left(engine)


def test_a_callback_may_abort_its_request_and_then_raise():
    gone = []

    def callback(token):
        gone.append(engine.abort("r1"))
        raise Broken("callback")

    engine = an_engine_at_work(on_token=callback)
    check_answers(run_out(engine), (), expected=PROMPTS.keys() - {"r1"})
    assert gone[0].token_ids == alone("qwen2", PROMPTS["r1"], 1, ignore_eos=True) and gone[0].error is None
    check_that_nothing_is_left(engine)


@pytest.mark.parametrize("calls", ["from the first", "from the 20th"])
@pytest.mark.parametrize("watched", [True, False])
def test_a_tokenizer_that_raises_fails_its_request_alone(calls, watched):
    engine, decoded = an_engine_at_work(), []
    decode = engine.tokenizer.decode

    def broken(token_ids, **options):
        if answer[0] in token_ids:
            decoded.append(token_ids)
            if calls == "from the first" or len(decoded) >= 20:
                raise Broken("decode")
        return decode(token_ids, **options)

    others = {token for prompt in PROMPTS.values() for token in alone("qwen2", prompt, CAP, ignore_eos=True)}
    prompts = ([50, 51, last] for last in range(97))
    prompt = next(each for each in prompts if alone("qwen2", each, CAP, ignore_eos=True)[0] not in others)
    answer = alone("qwen2", prompt, CAP, ignore_eos=True)
    engine.tokenizer.decode = broken
    told = []
    on_token = told.append if watched else None
    engine.add_request(prompt, greedy(CAP, ignore_eos=True), request_id="bad", on_token=on_token)
    outputs = run_out(engine)
    bad = outputs.pop("bad")
    assert bad.token_ids == answer[: len(bad.token_ids)]
    assert [token.token for token in told] == answer[: len(told)]
    if calls == "from the first":
        assert isinstance(bad.error, Broken) and (watched or bad.token_ids == answer)
        assert engine.metrics.requests == {"error": 1, "length": 6}
    check_answers(outputs, ())
    check_that_nothing_is_left(engine)
    assert engine.abort("bad") is None


def test_an_aborted_request_whose_text_cannot_be_decoded_is_returned_with_the_error():
    engine = an_engine()
    engine.add_request([1, 2], greedy(9), request_id="bad")
    engine.step()
    engine.tokenizer.decode = lambda *args, **kwargs: 1 / 0
    output = engine.abort("bad")
    assert isinstance(output.error, ZeroDivisionError) and len(output.token_ids) == 1
    check_that_nothing_is_left(engine)


@pytest.mark.parametrize("call", ["step", "generate", "stream", "read"])
def test_a_step_inside_an_observer_is_refused(call):
    engine = an_engine_at_work()
    reader = TokenReader(engine.core.find("r0"), engine.core.outputs)
    engine.step()
    assert reader.has_news
    calls = dict(
        step=engine.step,
        generate=lambda: engine.generate([[1]], greedy(2)),
        stream=lambda: list(engine.stream([1], greedy(2))),
        read=lambda: engine.core.read(reader),
    )
    engine.core.observers.append(lambda step, requests: calls[call]())
    with pytest.raises(RuntimeError, match="called inside a step or an on_token"):
        engine.step()
    engine.core.observers.pop()
    outputs = run_out(engine)
    check_answers({name: outputs[name] for name in PROMPTS}, ())
    check_that_nothing_is_left(engine)


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
    check_answers(outputs, ())
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
    assert outputs and not any(reference() is not None for reference in activations)
    for output in outputs:
        assert output.error.__traceback__ is None and output.error.__cause__ is None
        (text,) = output.error.__notes__
        assert "in broken" in text and "ValueError: inner" in text and "Broken: the model" in text


def test_a_clock_that_runs_backwards_gives_no_negative_times():
    now = iter(range(10**6, 0, -1))
    engine = an_engine_at_work(clock=lambda: float(next(now)))
    check_answers(run_out(engine), ())
    metrics = engine.metrics
    histograms = [metrics.queue_time, metrics.ttft, metrics.tpot, metrics.itl, metrics.latency]
    assert all(histogram.count and histogram.total >= 0 for histogram in histograms)
    assert metrics.busy_seconds >= 0 and min(metrics.part_seconds.values()) >= 0


def test_outputs_of_generate_and_stream_do_not_pile_up():
    engine = an_engine()
    engine.add_request([1, 2], greedy(2), request_id="mine")
    for n in range(5):
        engine.generate([[n + 1]], greedy(2))
        list(engine.stream([n + 1], greedy(2)))
    assert [group.id for group in engine.core.ended] == ["mine"]
    assert [output.request_id for output in engine.step()] == ["mine"]
    check_that_nothing_is_left(engine)


def test_a_stream_raises_what_went_wrong_after_the_tokens_that_arrived():
    engine, tokens = an_engine(), []
    break_forward(engine, 4)
    with pytest.raises(Broken):
        for token in engine.stream([1, 2, 3], greedy(9, ignore_eos=True)):
            tokens.append(token.token)
    assert tokens == alone("qwen2", [1, 2, 3], 3, ignore_eos=True)
    check_that_nothing_is_left(engine)


def test_a_stream_raises_even_if_it_failed_in_the_steps_of_another():
    engine = an_engine()
    streams = [engine.stream([n + 1, 2], greedy(9, ignore_eos=True)) for n in range(2)]
    for _ in range(2):
        for stream in streams:
            next(stream)
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
    check_answers(outputs, ())
    check_that_nothing_is_left(engine)


def test_generate_says_who_failed():
    engine = an_engine()
    break_forward(engine, 3)
    good, bad = engine.generate([[1, 2], [3]], [greedy(1), greedy(5, ignore_eos=True)])
    assert good.error is None and isinstance(bad.error, Broken)
    assert bad.token_ids == alone("qwen2", [3], 2, ignore_eos=True)
    check_that_nothing_is_left(engine)


def test_nobody_finds_what_a_failed_request_has_cached(monkeypatch):
    engine = an_engine(num_blocks=20, block_size=4, max_num_batched_tokens=64)
    prompt = list(range(20, 32))
    engine.add_request(prompt, greedy(8, ignore_eos=True))
    engine.step()
    pool = engine.scheduler.pool
    assert pool.block_to_hash
    forward = engine.runner.forward
    monkeypatch.setattr(engine.runner, "forward", lambda scheduler_output: forward(scheduler_output) * float("nan"))
    (output,) = engine.step()
    assert isinstance(output.error, FloatingPointError) and not pool.block_to_hash and not pool.hash_to_block
    monkeypatch.setattr(engine.runner, "forward", forward)
    (again,) = engine.generate([prompt], greedy(8, ignore_eos=True))
    assert again.token_ids == alone("qwen2", prompt, 8, ignore_eos=True) and engine.metrics.cached_tokens == 0
    audit(engine.scheduler)
