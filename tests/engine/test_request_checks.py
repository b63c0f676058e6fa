"""Abuse of a request's arguments: each is served right, or refused with a BadRequest, before anything changes and at no
other request's cost."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
from engine_cases import KINDS, alone, an_engine, check_that_nothing_is_left, engine_of_kind, greedy, run_out
from hypothesis import given, settings
from hypothesis import strategies as st

from lessons_lib.engine.input_processor import MAX_NAME_CHARACTERS, MAX_TIER
from lessons_lib.engine.sampling_params import MAX_N, MAX_STOP_CHARACTERS, MAX_VALUES, SamplingParams
from lessons_lib.kv_cache.block_pool import OutOfBlocks
from lessons_lib.models.tiny_models import VOCAB_SIZE
from lessons_lib.models.validate import BadRequest
from lessons_lib.scheduling.policies import BalancedLengths, PriorityWithAgeing, ShortestJobFirst, StrictPriority

OTHERS = {"a": [1, 2, 3], "b": [9, 8], "c": [4, 4, 4]}


def at_work(engine):
    """An engine with three requests."""
    for name, prompt in OTHERS.items():
        engine.add_request(prompt, greedy(12), request_id=name)
    engine.step()
    return engine


def state(engine):
    scheduler = engine.scheduler
    places = [list(place) for place in (scheduler.running, scheduler.waiting, scheduler.pool.free_queue)]
    return list(engine.requests), places, engine._num_added, dict(engine.core.num_ended)


BAD_ARGUMENTS = {
    "prompt": [
        None,
        5,
        b"hello",
        [1.0, 2.0],
        [True],
        [[1]],
        [-1],
        [VOCAB_SIZE],
        [],
        {},
        [1] * 100_000,
        ["a"],
        [10**30],
    ],
    "params": [{"max_tokens": 3}, 5, "greedy", [greedy()], SimpleNamespace(max_tokens=3), SamplingParams],
    "request_id": [5, b"x", "", ("a",), [], "x" * (MAX_NAME_CHARACTERS + 1), "a"],
    "tier": ["x", None, 1.0, True, -1, MAX_TIER + 1, 10**400, math.nan],
    "expected_tokens": ["9", True, -1, math.nan, math.inf, 10**400, [3], 1j],
    "is_interactive": ["yes", 1, None],
    "on_token": ["print", 5],
    "cache_salt": [5, b"salt", "", "x" * (MAX_NAME_CHARACTERS + 1)],
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", BAD_ARGUMENTS)
def test_a_bad_argument_changes_nothing_for_anyone(name, kind):
    engine = at_work(engine_of_kind(kind, policy=BalancedLengths(target=20), block_size=4, num_blocks=64))
    for value in BAD_ARGUMENTS[name]:
        before = state(engine)
        arguments = {"prompt": [4, 5], "params": greedy(5), name: value}
        with pytest.raises(BadRequest) as refused:
            engine.add_request(**arguments)
        assert name.split("_")[0] in str(refused.value) or name in ("prompt", "request_id")
        assert len(str(refused.value)) < 500
        if name != "on_token":  # `stream` has its own
            with pytest.raises(BadRequest):
                engine.stream(**arguments)
        assert state(engine) == before
    outputs = run_out(engine)
    assert {name: output.token_ids for name, output in outputs.items()} == {
        name: alone("qwen2", prompt, 12) for name, prompt in OTHERS.items()
    }
    check_that_nothing_is_left(engine)


GOOD_ARGUMENTS = {
    "prompt": [[1, 2], (1, 2), np.array([1, 2])],
    "tier": [0, MAX_TIER, np.int64(3)],
    "expected_tokens": [None, 0, 2.5, np.float64(7), np.int32(7), 10**15],
    "request_id": ["x", "ünïcode", "x" * MAX_NAME_CHARACTERS, "\ud800"],
    "cache_salt": [None, "x", "\ud800", "x" * MAX_NAME_CHARACTERS],
    "params": [None, SamplingParams()],
}


@pytest.mark.parametrize(
    "policy", [BalancedLengths(20), PriorityWithAgeing(2.0, 1.0), ShortestJobFirst(), StrictPriority()]
)
def test_good_arguments_are_served(policy):
    engine = an_engine(policy=policy, num_blocks=200)
    for name, values in GOOD_ARGUMENTS.items():
        for value in values:
            arguments = {"prompt": [1, 2], "params": greedy(4, ignore_eos=True), name: value}
            tokens = [token.token for token in engine.stream(**arguments)]
            assert tokens[:4] == alone("qwen2", [1, 2], 4, ignore_eos=True)
    check_that_nothing_is_left(engine)


ANYTHING = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=4), st.binary(max_size=4),
    st.lists(st.integers(-2, 100), max_size=4), st.just(object()), st.just({}), st.sampled_from([10**400, "a", "0"]),
)  # fmt: skip


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    arguments=st.dictionaries(
        st.sampled_from(["prompt", "request_id", "tier", "expected_tokens", "is_interactive", "cache_salt"]), ANYTHING
    )
)
def test_any_arguments_are_served_or_refused(arguments):
    engine = at_work(an_engine(policy=BalancedLengths(target=20)))
    before = state(engine)
    try:
        added = engine.add_request(**{"prompt": [4, 5], "params": greedy(5), **arguments})
    except BadRequest:
        added = None
        assert state(engine) == before
    outputs = run_out(engine)
    for name, prompt in OTHERS.items():
        assert outputs[name].token_ids == alone("qwen2", prompt, 12)
    if added is not None:
        assert outputs[added].token_ids == alone("qwen2", list(arguments.get("prompt", [4, 5])), 5)


# Limits


LIMITED = {
    "stop": lambda count: SamplingParams(max_tokens=3, stop=tuple(f"never {n}" for n in range(count))),
    "stop_token_ids": lambda count: SamplingParams(max_tokens=3, stop_token_ids=tuple([96] * count)),
}


@pytest.mark.parametrize("name", LIMITED)
def test_lists_have_a_length(name):
    engine, most = an_engine(), MAX_VALUES[name]
    engine.generate([[1, 2]], LIMITED[name](most))
    for count in (most + 1, 10_000):
        with pytest.raises(BadRequest, match=f"^{name} has {count} values; a request may have {most}"):
            engine.add_request([1, 2], LIMITED[name](count))


def test_a_stop_string_has_a_length():
    engine = an_engine()
    engine.generate([[1, 2]], greedy(3, stop=("x" * MAX_STOP_CHARACTERS,)))
    with pytest.raises(BadRequest, match=f"stop is .*; it must be strings of at most {MAX_STOP_CHARACTERS} characters"):
        engine.add_request([1, 2], greedy(3, stop=("y", "x" * (MAX_STOP_CHARACTERS + 1))))


def test_a_prompt_has_a_number_of_completions():
    engine = an_engine(num_blocks=400)
    (output,) = engine.generate([[1, 2]], SamplingParams(max_tokens=2, temperature=1.0, n=MAX_N))
    assert len(output.completions) == MAX_N
    for n in (MAX_N + 1, 10**9):
        with pytest.raises(BadRequest, match=f"n is {n}; it must be a whole number from 1 to {MAX_N}"):
            engine.add_request([1, 2], SamplingParams(n=n))


def test_log_probabilities_have_a_limit_that_an_engine_can_raise():
    engine = an_engine()
    assert len(engine.generate([[1, 2]], greedy(1, logprobs=20))[0].completions[0].logprobs[0].top) == 20
    with pytest.raises(BadRequest, match=r"logprobs is 21; this engine returns 20 .*EngineConfig.max_logprobs"):
        engine.add_request([1, 2], greedy(1, logprobs=21))
    roomy = an_engine(max_logprobs=-1)
    (output,) = roomy.generate([[1, 2]], greedy(1, logprobs=10**6))
    assert len(output.completions[0].logprobs[0].top) == VOCAB_SIZE


# Several prompts at once


@pytest.mark.parametrize(
    "prompts, params, error, says",
    [
        ([[1], [2], [3.0]], None, BadRequest, "prompt 2 contains 3.0"),
        ([[1], [], [3]], None, BadRequest, "prompt 1 is empty"),
        ([[1], [2]], [greedy(), {"n": 1}], BadRequest, "params is"),
        ([[1], [2]], [greedy(), greedy(logprobs=21)], BadRequest, "logprobs is 21"),
        ([[1], [1] * 300], None, BadRequest, "prompt 1 has 300 tokens"),
        ([[1], [1] * 230], greedy(20), OutOfBlocks, "'prompt 1' may need 63 blocks"),
        ([[1], [2]], 5, BadRequest, "params is 5; it must be one SamplingParams"),
        ([[1], [2]], {"max_tokens": 3}, BadRequest, "params is"),
        ([[1], [2]], [greedy()] * 3, BadRequest, "3 sampling parameters for 2 prompts"),
        ("text", None, BadRequest, "a list of prompts"),
        (None, None, BadRequest, "prompts is None"),
        ({"a": [1]}, None, BadRequest, "prompts is"),
        ([1, 2, 3], None, BadRequest, "prompt 0 is 1; give a str"),
    ],
)
def test_generate_adds_all_prompts_or_none(prompts, params, error, says):
    engine = at_work(an_engine(num_blocks=60))
    before = state(engine)
    with pytest.raises(error, match=says):
        engine.generate(prompts, params)
    assert state(engine) == before, "nothing was added, not even for a moment"
    assert run_out(engine).keys() == OTHERS.keys()


def test_each_prompt_has_its_own_parameters():
    engine = an_engine()
    prompts, limits = [[1, 2], [3], [4, 5, 6]], [2, None, 7]
    params = [None if limit is None else greedy(limit) for limit in limits]
    outputs = engine.generate(np.array([[1, 2], [4, 5]]), greedy(3))
    assert [output.token_ids for output in outputs] == [alone("qwen2", prompt, 3) for prompt in ([1, 2], [4, 5])]
    outputs = engine.generate(prompts, tuple(params))
    for output, prompt, limit in zip(outputs, prompts, limits):
        assert output.token_ids[:40] == alone("qwen2", prompt, limit or 40)


def test_short_requests_by_the_thousand_leave_nothing_behind():
    engine = an_engine(num_blocks=60)
    for start in range(0, 300, 100):
        outputs = engine.generate([[(start + n) % VOCAB_SIZE] for n in range(100)], greedy(1))
        assert all(len(output.token_ids) == 1 for output in outputs)
        check_that_nothing_is_left(engine)
        assert not engine.core.ended
