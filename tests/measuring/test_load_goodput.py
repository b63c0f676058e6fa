"""Requests that count as good."""

from dataclasses import replace

import pytest

from lessons_lib.measuring.load.goodput import Target, goodput
from lessons_lib.measuring.load.records import LoadLog, LoadRecord

GOOD = LoadRecord("0", 1.0, 1.0, 4, 3, [1.5, 2.0, 2.5], 3, 2.5, 200, "length")


@pytest.mark.parametrize(
    "change, good",
    [
        ({}, True),
        ({"finish_reason": None}, False),
        ({"error": "the engine died"}, False),
        ({"status": 429, "token_times": [], "output_tokens": 0, "finish_reason": None}, False),
        ({"end_time": None, "finish_reason": None}, False),
        ({"token_times": [], "output_tokens": 0}, False),
        ({"send_time": 0.875}, False),
        ({"output_tokens": 2}, False),
        ({"token_times": [1.5], "output_tokens": 1}, True),
    ],
)
def test_a_request_is_good_if_it_ended_as_it_should_in_time(change, good):
    target = Target(ttft=0.5, tpot=0.5, e2el=1.5)  # exactly what it took
    assert goodput(LoadLog([replace(GOOD, **change)], 1.0, 3.0), target) == good


def test_requests_that_end_after_the_window_count_and_those_refused_are_not_left_out():
    late = replace(GOOD, arrival_time=3.9, send_time=3.9, token_times=[4.1, 4.2, 4.3], end_time=4.3)
    refused = replace(GOOD, token_times=[], output_tokens=0, finish_reason=None, status=429, error="full")
    log = LoadLog([GOOD, late, refused, refused], window=4.0, duration=4.3)
    assert goodput(log, Target(ttft=0.5)) == 0.5
    assert log.offered_rate == 1.0


@pytest.mark.parametrize("seconds", [-1, float("nan")])
def test_targets_that_are_refused(seconds):
    with pytest.raises(ValueError, match=f"the target of ttft is {seconds} s"):
        Target(ttft=seconds)
