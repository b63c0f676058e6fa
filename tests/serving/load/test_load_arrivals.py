"""Arrival times and request shapes: their statistics, their seeds, and what is refused."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lessons_lib.serving.load.arrivals import constant_arrivals, gamma_arrivals, poisson_arrivals, trace_arrivals
from lessons_lib.serving.load.shapes import random_requests, text_requests, trace_requests

rates = st.floats(0.01, 1000)


@given(rates, st.integers(0, 50), st.sampled_from([0.1, 0.25, 1.0, 4.0, math.inf]), st.integers(0, 5))
def test_arrivals_rise_and_the_last_one_is_at_count_by_rate(rate, count, burstiness, seed):
    times = gamma_arrivals(rate, count, burstiness, seed)
    assert len(times) == count and all(type(time) is float for time in times)
    assert times == sorted(times) and (not times or times[0] >= 0)
    assert not times or times[-1] == pytest.approx(count / rate)
    assert times == gamma_arrivals(rate, count, burstiness, seed)
    if burstiness == math.inf:
        assert times == constant_arrivals(rate, count)


@pytest.mark.parametrize("burstiness", [0.25, 1.0, 4.0])
def test_gaps_spread_as_those_of_a_gamma_distribution(burstiness):
    gaps = np.diff(gamma_arrivals(10, 20_000, burstiness, seed=1))
    assert gaps.std() / gaps.mean() == pytest.approx(1 / math.sqrt(burstiness), rel=0.05)
    assert gaps.mean() == pytest.approx(0.1, rel=0.01)


def test_gaps_are_those_of_vllm_up_to_their_generator():
    # get_request of vllm/benchmarks/serve.py, with the same draws
    rate, count, burstiness = 7.0, 30, 0.5
    delays = np.random.default_rng(3).gamma(shape=burstiness, scale=1 / (rate * burstiness), size=count).cumsum()
    assert gamma_arrivals(rate, count, burstiness, seed=3) == pytest.approx(delays * (count / rate / delays[-1]))


def test_poisson_is_a_burstiness_of_1_and_another_seed_is_another_run():
    assert poisson_arrivals(5, 20, seed=2) == gamma_arrivals(5, 20, 1.0, seed=2)
    assert poisson_arrivals(5, 20, seed=2) != poisson_arrivals(5, 20, seed=3)


@pytest.mark.parametrize("rate", [0, -1, math.inf, math.nan])
@pytest.mark.parametrize("arrivals", [constant_arrivals, poisson_arrivals])
def test_the_rate_must_be_above_0_and_finite(arrivals, rate):
    with pytest.raises(ValueError, match=f"the rate is {rate}"):
        arrivals(rate, 5)


@pytest.mark.parametrize("burstiness", [0, -1, math.nan])
def test_burstiness_must_be_above_0(burstiness):
    with pytest.raises(ValueError, match=f"burstiness is {burstiness}"):
        gamma_arrivals(1, 5, burstiness)


def test_the_count_must_not_be_negative():
    with pytest.raises(ValueError, match="the count is -1"):
        constant_arrivals(1, -1)


@pytest.mark.parametrize(
    "text, times",
    [
        ("0.5\n0.5\n\n2\n", [0, 0, 1.5]),
        ('{"timestamp": 1000, "input_length": 5}\n{"timestamp": 1250}\n', [0, 0.25]),
        ("", []),
    ],
)
def test_a_trace_is_read_and_starts_at_0(tmp_path, text, times):
    (tmp_path / "trace").write_text(text)
    assert trace_arrivals(tmp_path / "trace") == times


@pytest.mark.parametrize(
    "text, message",
    [
        ("1\nx\n", "line 2 of .* is 'x'"),
        ('{"time": 1}', "line 1"),
        ("[1]", "line 1"),
        ("null", "line 1"),
        ("2\n1\n", "line 2 of .* has the time 1.0 s"),
        ("NaN", "line 1 of .* has the time nan s"),
    ],
)
def test_a_trace_that_is_refused(tmp_path, text, message):
    (tmp_path / "trace").write_text(text)
    with pytest.raises(ValueError, match=message):
        trace_arrivals(tmp_path / "trace")


@settings(max_examples=50)
@given(st.integers(0, 20), st.integers(1, 40), st.integers(1, 40), st.floats(0, 0.99), st.integers(0, 3))
def test_random_requests_have_the_lengths_that_were_asked_for(count, prompt, output, ratio, seed):
    requests = random_requests(count, prompt, output, range_ratio=ratio, vocab_size=9, first_token=2, seed=seed)
    assert len(requests) == count
    for request in requests:
        assert len(request.prompt) == request.prompt_tokens and set(request.prompt) <= set(range(2, 9))
        for length, mean in ((request.prompt_tokens, prompt), (request.max_tokens, output)):
            assert max(1, math.floor(mean * (1 - ratio))) <= length <= math.ceil(mean * (1 + ratio))
    assert requests == random_requests(count, prompt, output, range_ratio=ratio, vocab_size=9, first_token=2, seed=seed)


@pytest.mark.parametrize(
    "change, message",
    [
        ({"prompt_tokens": 0}, "lengths are 0 and 5"),
        ({"output_tokens": 0}, "lengths are 5 and 0"),
        ({"range_ratio": 1}, "range_ratio is 1"),
        ({"range_ratio": -0.1}, "range_ratio is -0.1"),
        ({"vocab_size": 3}, r"no token id is in \[3, 3\)"),
    ],
)
def test_shapes_that_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        random_requests(**({"count": 2, "prompt_tokens": 5, "output_tokens": 5} | change))


def test_texts_come_in_turn():
    assert [request.prompt for request in text_requests(5, ["a", "b"], 7)] == ["a", "b", "a", "b", "a"]
    with pytest.raises(ValueError, match="there are 0 texts"):
        text_requests(5, [], 7)


def test_a_trace_has_lengths_or_gets_the_default(tmp_path):
    (tmp_path / "trace").write_text(
        '0.5\n\n{"timestamp": 1, "input_length": 5, "output_length": 2}\n{"timestamp": 2}\n'
    )
    requests = trace_requests(tmp_path / "trace", (3, 4), vocab_size=9, first_token=8, seed=1)
    assert [(r.prompt, r.prompt_tokens, r.max_tokens) for r in requests] == [
        ([8] * 3, 3, 4),
        ([8] * 5, 5, 2),
        ([8] * 3, 3, 4),
    ]
