"""What a run was like for those who were served."""

import pytest

from lessons_lib.kv_cache.block_pool import BlockPool
from lessons_lib.scheduling.arrivals import Arrival, traffic
from lessons_lib.scheduling.simulator import SequenceTimes, Simulation, StepCost, simulate
from lessons_lib.scheduling.stalling import Scheduler
from lessons_lib.scheduling.statistics import jain_index, seconds_alone, slowdowns, spread, summary, times_of

COST = StepCost(0.005, 2e-5, 2e-7)


def test_spread_of_known_numbers():
    found = spread(range(101))
    assert (found.mean, found.p99, found.worst) == (50, 99, 100)


def test_times_are_those_of_the_run():
    run = Simulation(
        times={
            "A": SequenceTimes(1.0, 2.0, 4.0, 10.0, answer_tokens=4),
            "B": SequenceTimes(3.0, 3.0, 5.0, 5.0, answer_tokens=1),
        }
    )
    assert times_of(run, "queue_time") == [1.0, 0.0]
    assert times_of(run, "ttft") == [3.0, 2.0]
    assert times_of(run, "latency") == [9.0, 2.0]
    assert times_of(run, "tpot") == [2.0, 0.0]
    assert summary(run)["latency"].mean == 5.5


def test_jain_index():
    assert jain_index([3, 3, 3]) == pytest.approx(1)
    assert jain_index([1, 0, 0, 0]) == pytest.approx(1 / 4)
    assert jain_index([1, 3]) == pytest.approx(16 / 20)


@pytest.mark.parametrize("prompt, answer", [(1, 1), (13, 1), (13, 2), (40, 17)])
def test_seconds_alone_are_those_of_a_simulated_run(prompt, answer):
    request = Arrival("A", 0.5, prompt, answer, answer)
    run = simulate(Scheduler(BlockPool(16, 16)), [request], COST)
    assert run.times["A"].latency == pytest.approx(seconds_alone(request, COST))


def test_nobody_is_faster_than_alone():
    requests = traffic(200, rate=300, most=60)
    run = simulate(Scheduler(BlockPool(200, 16)), requests, COST)
    factors = slowdowns(run, requests, COST)
    assert len(factors) == 200
    assert min(factors) > 0.999
    assert max(factors) > 1.5
