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
from lessons_lib.scheduling.policies import BalancedLengths, PriorityWithAging

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


def check_others(outputs):
    for name, prompt in OTHERS.items():
        assert outputs[name].token_ids == alone("qwen2", prompt, 12)


BAD_ARGUMENTS = {
    "prompt": [None, b"hello", [1.0, 2.0], [-1], [VOCAB_SIZE], [], [1] * 100_000, [10**30]],
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
    before = state(engine)
    for value in BAD_ARGUMENTS[name]:
        arguments = {"prompt": [4, 5], "params": greedy(5), name: value}
        with pytest.raises(BadRequest) as refused:
            engine.add_request(**arguments)
        assert name.split("_")[0] in str(refused.value) or name in ("prompt", "request_id")
        assert len(str(refused.value)) < 500
        if name != "on_token":  # `stream` has its own
            with pytest.raises(BadRequest):
                engine.stream(**arguments)
        assert state(engine) == before
    check_others(run_out(engine))
    check_that_nothing_is_left(engine)


GOOD_ARGUMENTS = {
    "prompt": [[1, 2], (1, 2), np.array([1, 2])],
    "tier": [0, MAX_TIER, np.int64(3)],
    "expected_tokens": [None, 0, 2.5, np.float64(7), np.int32(7), 10**15],
    "request_id": ["x", "ünïcode", "x" * MAX_NAME_CHARACTERS, "\ud800"],
    "cache_salt": [None, "x", "\ud800", "x" * MAX_NAME_CHARACTERS],
    "params": [None, SamplingParams()],
}


@pytest.mark.parametrize("policy", [BalancedLengths(20), PriorityWithAging(2.0, 1.0)])
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


@settings(max_examples=30, deadline=None, derandomize=True)
@given(
    arguments=st.dictionaries(
        st.sampled_from(["prompt", "request_id", "tier", "expected_tokens", "is_interactive", "cache_salt"]), ANYTHING
    )
)
def test_any_arguments_are_served_or_refused(arguments):
    engine = at_work(an_engine(policy=BalancedLengths(target=20)))
    before, added = state(engine), None
    try:
        added = engine.add_request(**{"prompt": [4, 5], "params": greedy(5), **arguments})
    except BadRequest:
        assert state(engine) == before
    outputs = run_out(engine)
    check_others(outputs)
    if added is not None:
        assert outputs[added].token_ids == alone("qwen2", list(arguments.get("prompt", [4, 5])), 5)


# Limits


# the most that is taken; what is more; what the refusal says
LIMITED = {
    "stop": (
        dict(stop=tuple(f"never {n}" for n in range(MAX_VALUES["stop"]))),
        dict(stop=("a",) * 10_000),
        f"^stop has 10000 values; a request may have {MAX_VALUES['stop']}",
    ),
    "stop_token_ids": (
        dict(stop_token_ids=(96,) * MAX_VALUES["stop_token_ids"]),
        dict(stop_token_ids=(96,) * (MAX_VALUES["stop_token_ids"] + 1)),
        f"^stop_token_ids has {MAX_VALUES['stop_token_ids'] + 1} values; a request may have",
    ),
    "a stop string": (
        dict(stop=("x" * MAX_STOP_CHARACTERS,)),
        dict(stop=("y", "x" * (MAX_STOP_CHARACTERS + 1))),
        f"stop is .*; it must be strings of at most {MAX_STOP_CHARACTERS} characters",
    ),
    "n": (dict(n=MAX_N, temperature=1.0), dict(n=MAX_N + 1), f"n is {MAX_N + 1}; .* a whole number from 1 to {MAX_N}"),
    "logprobs": (dict(logprobs=20), dict(logprobs=21), "logprobs is 21; this engine returns 20 .*Config.max_logprobs"),
}


@pytest.mark.parametrize("most, more, says", LIMITED.values(), ids=LIMITED)
def test_what_is_asked_for_has_a_limit(most, more, says):
    engine = an_engine(num_blocks=400)
    (output,) = engine.generate([[1, 2]], greedy(2, **most))
    assert len(output.completions) == most.get("n", 1)
    assert len((output.completions[0].logprobs or [SimpleNamespace(top=())])[0].top) == most.get("logprobs", 0)
    with pytest.raises(BadRequest, match=says):
        engine.add_request([1, 2], greedy(2, **more))


def test_an_engine_can_raise_the_limit_of_log_probabilities():
    (output,) = an_engine(max_logprobs=-1).generate([[1, 2]], greedy(1, logprobs=10**6))
    assert len(output.completions[0].logprobs[0].top) == VOCAB_SIZE


@pytest.mark.parametrize(
    "error, words, prompt, params, kwargs",
    [
        (BadRequest, "request 'there' contains token id 97.*0 to 96", [1, 97], None, {"request_id": "there"}),
        (BadRequest, "250 tokens and asks for 7 more, 257.*is 256.*Ask for 6 or fewer", [1] * 250, greedy(7), {}),
        (OutOfBlocks, "may need 16 blocks of 4 tokens; the pool has 15", [1] * 50, greedy(12), {}),
        (OutOfBlocks, "may need 25 blocks of 4 tokens", [1] * 100, SamplingParams(max_tokens=None), {}),
        (BadRequest, "'a' is being served", [1], greedy(3), {"request_id": "a"}),
    ],
)
def test_what_can_never_be_served_is_refused_and_changes_nothing(error, words, prompt, params, kwargs):
    engine = at_work(an_engine(num_blocks=15))
    before = state(engine)
    for add in (engine.add_request, engine.stream):
        with pytest.raises(error, match=words):
            list(add(prompt, params, **kwargs))
        assert state(engine) == before


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
    outputs = engine.generate(np.array([[1, 2], [4, 5]]), greedy(3))
    assert [output.token_ids for output in outputs] == [alone("qwen2", prompt, 3) for prompt in ([1, 2], [4, 5])]
    prompts, limits = [[1, 2], [3], [4, 5, 6]], [2, None, 7]
    outputs = engine.generate(prompts, tuple(limit and greedy(limit) for limit in limits))
    for output, prompt, limit in zip(outputs, prompts, limits):
        assert output.token_ids[:40] == alone("qwen2", prompt, limit or 40)
