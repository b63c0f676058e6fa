"""The knee of servers of which it is known: sharp ones, noisy ones, and the simulated one."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lessons_lib.serving.load.goodput import Target, goodput
from lessons_lib.serving.load.knee import find_knee, keeps_goodput, keeps_percentile
from lessons_lib.serving.load.records import LoadLog, LoadRecord
from lessons_lib.serving.load.simulated import simulate

TARGET = Target(ttft=0.2, tpot=0.02)


def run(rate):
    return LoadLog([], 1.0, 1.0, rate)


@settings(max_examples=200)
@given(st.floats(0.1, 900), st.floats(0.05, 900), st.sampled_from([0.01, 0.05, 0.3]), st.integers(1, 3))
def test_a_sharp_knee_is_found_to_the_precision(knee, start, precision, votes):
    if not start / 1000 < knee < start * 1000:
        return
    found = find_knee(run, lambda log: log.rate <= knee, start, precision=precision, votes=votes)
    assert found.rate <= knee < found.beyond <= found.rate * (1 + precision)
    assert found.log.rate == found.rate
    rates = [rate for rate, _ in found.runs]
    assert all(rates.count(rate) == votes for rate in rates)
    assert all(held == (rate <= knee) for rate, held in found.runs)


@settings(max_examples=100)
@given(st.integers(0, 10_000), st.integers(1, 3))
def test_the_verdict_about_a_rate_is_that_of_the_majority_and_is_asked_for_once(seed, votes):
    luck = random.Random(seed)

    def holds(log):
        return luck.random() < (0.8 if log.rate <= 40 else 0.2)

    found = find_knee(run, holds, 10, votes=votes, range_factor=2**40)
    by_rate = {}
    for rate, held in found.runs:
        by_rate.setdefault(rate, []).append(held)
    for rate, verdicts in by_rate.items():
        assert sorted([verdicts.count(True), verdicts.count(False)])[1] == votes, "it stops at a majority"
        assert verdicts[-1] == (rate <= found.rate), "what is below the knee held, and nothing above it did"
    assert found.log.rate == found.rate


def test_more_votes_find_a_knee_in_noise_more_often():
    def hits(votes):
        count = 0
        for seed in range(100):
            luck = random.Random(seed)
            found = find_knee(
                run, lambda log: (log.rate <= 40) == (luck.random() < 0.85), 10, votes=votes, range_factor=2**40
            )
            count += 35 <= found.rate <= 45
        return count

    assert hits(4) > 1.5 * hits(1)


def test_a_search_that_finds_nothing_says_so():
    with pytest.raises(ValueError, match="even 0.0390625 requests per second don't hold"):
        find_knee(run, lambda log: False, 5, range_factor=128)
    with pytest.raises(ValueError, match="640 requests per second still hold"):
        find_knee(run, lambda log: True, 5, range_factor=128)


@pytest.mark.parametrize("change", [{"start": 0}, {"start": -1}, {"precision": 0}, {"votes": 0}])
def test_parameters_that_are_refused(change):
    with pytest.raises(ValueError, match="must be above 0, votes 1 or more"):
        find_knee(run, lambda log: True, **({"start": 1.0} | change))


def logged(seconds, failures=0):
    """A log of requests with these TTFTs."""
    records = [LoadRecord("", 0, 0, 1, 1, [time], 1, time, 200, "stop") for time in seconds]
    return LoadLog(records + [LoadRecord("", 0, 0, 1, 1, status=429, error="full")] * failures, 10, 10)


def test_what_it_means_to_hold():
    target = Target(ttft=1.0)
    assert keeps_goodput(target)(logged([1.0] * 9, failures=1))
    assert not keeps_goodput(target)(logged([1.0] * 89 + [1.1], failures=10))
    assert keeps_percentile(target)(logged([1.0] * 199 + [9.0]))
    assert not keeps_percentile(target)(logged([1.0] * 97 + [9.0] * 3))
    assert keeps_percentile(target, 90)(logged([1.0] * 95 + [9.0] * 5))
    assert keeps_percentile(target)(logged([1.0] * 199, failures=1))
    assert not keeps_percentile(target)(logged([1.0] * 90, failures=10))


def test_the_knee_of_the_simulated_server():
    knee = find_knee(simulate, keeps_goodput(TARGET), 10)
    for rate, held in knee.runs:
        assert held == (goodput(simulate(rate), TARGET) >= 0.9 * rate)
    assert knee.runs and max(rate for rate, held in knee.runs if held) == knee.rate
    assert min(rate for rate, held in knee.runs if not held) == knee.beyond <= 1.05 * knee.rate
