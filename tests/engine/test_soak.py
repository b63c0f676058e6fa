"""The soak in small; `make soak` runs the whole of it."""

import pytest

from tools.random_workloads import run
from tools.soak import Soak


def test_a_hundred_requests_leave_nothing_behind():
    happened, failed = run(1, seed=23, kind=Soak)
    assert not failed and happened["requests"] == 100
    wanted = {"interrupts", "answers compared", "preemptions", "swaps", "cached tokens", "aborted", "failed"}
    assert wanted <= {what for what, count in happened.items() if count}, "this soak proves less than it says"


def test_a_wrong_answer_is_found():
    soak = Soak(23)
    forward = soak.forward
    soak.forward = lambda scheduler_output: forward(scheduler_output).roll(1, dims=-1)
    with pytest.raises(AssertionError, match="alone"):
        soak.play()


def test_a_lost_request_is_found():
    soak = Soak(23)
    forget, lost = soak.engine.core.forget, []

    def lose(group):
        forget(group)
        if not lost and group in soak.engine.core.ended:
            lost.append(soak.engine.core.ended.pop(group))

    soak.engine.core.forget = lose
    with pytest.raises(AssertionError):
        soak.play()
