import pytest

from lessons_lib.recording.trace import RowWork, Step, Trace


def step(*rows, waiting=(), reserved=0, used=0, calls=1, copied=0):
    return Step(tuple(rows), 0.5, tuple(waiting), calls, reserved, used, copied)


def small_trace():
    return Trace(
        [
            step(RowWork("A", "prefill", 4, 3), RowWork("B", "prefill", 4, 4), waiting=["C"], reserved=16, used=7),
            step(
                RowWork("A", "decode", 1, 1),
                RowWork("B", "finished", 1, 0),
                waiting=["C"],
                reserved=16,
                used=8,
                copied=5,
            ),
            step(RowWork("C", "prefill", 2, 2), calls=2, reserved=8, used=2),
        ]
    )


def test_sums():
    trace = small_trace()
    assert trace.tokens_computed == 12
    assert trace.tokens_useful == 10
    assert trace.waste == pytest.approx(2 / 12)
    assert trace.forward_calls == 4
    assert trace.seconds == pytest.approx(1.5)
    assert trace.bytes_copied == 5
    assert trace.cache_reserved == 16
    assert trace.cache_used == 8
    assert trace.cache_waste == pytest.approx(1 - 17 / 40)
    assert trace.slots == 2
    assert trace.steps[0].tokens_computed == 8
    assert trace.steps[0].tokens_useful == 7
    assert trace.steps[1].rows[1].wasted == 1


def test_requests_in_order_of_first_mention():
    assert small_trace().requests == ("A", "B", "C")
    assert Trace([step(RowWork(None, "idle", 0, 0), waiting="XA")]).requests == ("X", "A")
