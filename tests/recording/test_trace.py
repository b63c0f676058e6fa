import pytest

from lessons_lib.recording.trace import RowWork, Step, Trace


def step(*rows, waiting="", reserved=0, used=0, calls=1, copied=0):
    return Step(tuple(rows), 0.5, tuple(waiting), calls, reserved, used, copied)


TRACE = Trace(
    [
        step(RowWork("A", "prefill", 4, 3), RowWork("B", "prefill", 4, 4), waiting="C", reserved=16, used=7),
        step(RowWork("A", "decode", 1, 1), RowWork("B", "finished", 1, 0), waiting="C", reserved=16, used=8, copied=5),
        step(RowWork("C", "prefill", 2, 2), calls=2, reserved=8, used=2),
    ]
)


def test_sums():
    assert (TRACE.tokens_computed, TRACE.tokens_useful, TRACE.forward_calls, TRACE.bytes_copied) == (12, 10, 4, 5)
    assert (TRACE.cache_waste, TRACE.seconds) == pytest.approx((1 - 17 / 40, 1.5))
    assert TRACE.slots == 2
    assert (TRACE.steps[0].tokens_computed, TRACE.steps[0].tokens_useful, TRACE.steps[1].rows[1].wasted) == (8, 7, 1)


def test_requests_in_order_of_first_mention():
    assert TRACE.requests == ("A", "B", "C")
    assert Trace([step(RowWork(None, "idle", 0, 0), waiting="XA")]).requests == ("X", "A")
