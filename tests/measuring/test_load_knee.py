"""The knee of servers of which it is known."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lessons_lib.measuring.load.goodput import Target
from lessons_lib.measuring.load.knee import find_knee
from lessons_lib.measuring.load.records import LoadLog, LoadRecord

TARGET = Target(ttft=0.2, tpot=0.02)


def server(knee):
    """Everything is in time up to this rate, nothing beyond it."""

    def run(rate):
        seconds = 0.1 if rate <= knee else 1.0
        return LoadLog([LoadRecord("", 0, 0, 1, 1, [seconds], 1, seconds, 200, "stop")], 1 / rate, 1.0)

    return run


@settings(max_examples=200, derandomize=True)
@given(st.floats(0.1, 900), st.floats(0.05, 900), st.sampled_from([0.01, 0.05, 0.3]))
def test_a_sharp_knee_is_found_to_the_precision(knee, start, precision):
    if not start / 400 < knee < start * 400:
        return
    found = find_knee(server(knee), TARGET, start, precision=precision)
    assert found.rate <= knee < found.beyond <= found.rate * (1 + precision)
    assert found.log.offered_rate == pytest.approx(found.rate)


@pytest.mark.parametrize("knee", [0, float("inf")])
def test_a_search_that_finds_nothing_says_so(knee):
    with pytest.raises(ValueError, match="the search began at 5 requests per second and found no knee up to"):
        find_knee(server(knee), TARGET, 5)
