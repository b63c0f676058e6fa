"""Two real servers behind the balancer, one killed by SIGKILL while it streams: every client gets what it gets from a
server that lives."""

import asyncio

import pytest
from replicas_under_load import kill_under_load, requests_of


@pytest.mark.nightly
def test_streams_survive_a_kill_and_a_stop():
    bodies = requests_of(10, 40, seed=3)
    rounds, continued = asyncio.run(kill_under_load(bodies))
    assert [dict(outcomes) for outcomes in rounds] == [{"complete": 10}] * 3
    assert continued[0] == 0 < continued[1]
