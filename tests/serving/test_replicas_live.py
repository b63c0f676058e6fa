"""Two real servers behind the balancer, one killed by SIGKILL while it streams: every client gets what it gets from a
server that lives."""

import asyncio

import pytest

from tools.replicas import kill_under_load, requests_of


@pytest.mark.nightly
def test_streams_survive_a_kill_and_a_stop():
    bodies = requests_of(10, 40, seed=3)
    runs, _ = asyncio.run(kill_under_load(bodies, "round-robin"))
    assert [dict(run.outcomes) for run in runs] == [{"complete": 10}] * 3
    assert runs[0].continued == 0
    assert runs[1].continued > 0 and runs[2].continued >= 0
