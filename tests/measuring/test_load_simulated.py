"""The simulated server: against the simulator of lesson 09, and its own laws."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lessons_lib.kv_cache.block_pool import BlockPool
from lessons_lib.measuring import simulator
from lessons_lib.measuring.arrivals import Arrival
from lessons_lib.measuring.simulated_server import SimulatedServer, poisson_arrivals, simulate
from lessons_lib.measuring.simulator import StepCost
from lessons_lib.scheduling.stalling import Scheduler
from lessons_lib.serving.admission import AdmissionControl


def bounded(*limits):
    return SimulatedServer(admission=AdmissionControl(*limits))


@settings(max_examples=60, deadline=None)
@given(st.floats(1, 200), st.integers(1, 30), st.integers(1, 8), st.integers(0, 90), st.integers(0, 99))
def test_it_is_the_simulator_of_lesson_09(rate, count, max_num_seqs, more, seed):
    limits = {"max_num_seqs": max_num_seqs, "max_num_batched_tokens": max_num_seqs + more}
    cost = StepCost(4e-3, 50e-6, 0)
    server = SimulatedServer(cost, **limits)
    log = simulate(rate, num_requests=count, seed=seed, server=server)
    requests = [
        Arrival(record.request_id, record.arrival_time, record.prompt_tokens, record.max_tokens, record.max_tokens)
        for record in log.records
    ]
    run = simulator.simulate(Scheduler(BlockPool(4096, 16), **limits), requests, cost)
    for record in log.records:
        times = run.times[record.request_id]
        assert record.token_times[0] == pytest.approx(times.first_token)
        assert record.end_time == record.token_times[-1] == pytest.approx(times.finished)
        assert len(record.token_times) == record.output_tokens == times.answer_tokens
    assert log.duration == pytest.approx(run.seconds) and log.window == count / rate


@settings(max_examples=40, deadline=None)
@given(st.floats(1, 500), st.integers(1, 20), st.integers(30, 600), st.integers(0, 99))
def test_admission_bounds_what_is_in_the_server_and_refuses_at_once(rate, max_requests, max_prompt_tokens, seed):
    log = simulate(rate, num_requests=60, seed=seed, server=bounded(max_requests, max_prompt_tokens))
    assert log.offered_rate == pytest.approx(rate)
    changes = []
    for record in log.records:
        if record.status == 200:
            changes += [(record.send_time, 1, record.prompt_tokens), (record.end_time, -1, -record.prompt_tokens)]
            assert record.succeeded
        else:
            assert record.end_time == record.send_time and not record.token_times and not record.succeeded
            # only a prompt that never fits is the client's fault
            assert (record.status == 400) == (record.prompt_tokens > max_prompt_tokens)
            assert (record.status == 429) == record.error.startswith("the server is full")
    requests = tokens = 0
    for _, request, prompt in sorted(changes):
        requests, tokens = requests + request, tokens + prompt
        assert requests <= max_requests and tokens <= max_prompt_tokens


def test_the_same_arguments_give_the_same_log_and_another_seed_another():
    assert simulate(60, server=bounded(20)) == simulate(60, server=bounded(20)) != simulate(60, seed=1)


@settings(max_examples=60, derandomize=True)
@given(st.floats(0.1, 500), st.integers(1, 200), st.integers(0, 99))
def test_arrivals_rise_and_the_last_one_keeps_the_rate_exact(rate, count, seed):
    times = poisson_arrivals(rate, count, seed)
    assert times == sorted(times) and len(times) == count and times[0] > 0
    assert times[-1] == pytest.approx(count / rate)
