"""The soak in small; `make soak` runs the whole of it."""

import pytest

from tools import soak
from tools.soak import Soak


def test_a_hundred_requests_leave_nothing_behind(capsys):
    soak.main(["--requests", "100", "--seed", "2"])
    told = capsys.readouterr().out
    figures = dict(line.rsplit(maxsplit=1) for line in told.splitlines())
    ended = sum(int(count) for what, count in figures.items() if what.startswith("ended by"))
    assert ended == int(figures["requests"]) == 100
    wanted = [
        "interrupts",
        "answers compared",
        "of them whole",
        "preemptions",
        "by swap",
        "tokens found in the cache",
        "blocks evicted",
    ]
    for what in [*wanted, "ended by abort", "ended by error"]:
        assert int(figures[what].replace(",", "")) > 0, f"no {what}: this soak proves less than it says"


def test_a_wrong_answer_is_found():
    run = Soak(40, 0)
    forward = run.forward
    run.forward = lambda scheduler_output: forward(scheduler_output).roll(1, dims=-1)
    with pytest.raises(AssertionError, match="alone"):
        run.run()


def test_a_lost_request_is_found():
    run = Soak(40, 0)
    forget, lost = run.engine.core.forget, []

    def lose(group):
        forget(group)
        if not lost and group in run.engine.core.ended:
            lost.append(run.engine.core.ended.pop(group))

    run.engine.core.forget = lose
    with pytest.raises(AssertionError):
        run.run()
