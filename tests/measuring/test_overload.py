"""The scoreboard of admission rules: its server is the simulated one, and its reference is AdmissionControl's rule."""

import pytest

from lessons_lib.measuring import overload
from lessons_lib.measuring.load.goodput import goodput
from lessons_lib.measuring.simulated_server import SimulatedServer, simulate
from lessons_lib.serving.admission import AdmissionControl

SEED = overload.SEEDS[0]


def same(log, other):
    return [record.token_times for record in log.records] == [record.token_times for record in other.records]


def test_a_rule_that_takes_all_is_a_server_without_admission_control():
    rate = overload.LOAD * overload.knee_of(SEED)[0]
    assert same(
        overload.overload_run(overload.take_all, SEED), simulate(rate, num_requests=overload.NUM_REQUESTS, seed=SEED)
    )


@pytest.mark.parametrize(
    "limits", [{"max_requests": 20}, {"max_prompt_tokens": 1500}, {"max_requests": 24, "max_prompt_tokens": 2048}]
)
def test_the_reference_rule_refuses_what_admission_control_refuses(limits):
    rate = overload.LOAD * overload.knee_of(SEED)[0]
    log = overload.overload_run(overload.bounded(**limits), SEED)
    server = SimulatedServer(admission=AdmissionControl(**{"max_requests": None, **limits}))
    assert same(log, simulate(rate, num_requests=overload.NUM_REQUESTS, seed=SEED, server=server))


def test_a_rule_sees_what_is_in_the_server():
    seen = []

    def rule(prompt_tokens, state):
        assert prompt_tokens > 0 and state.prompt_tokens == sum(state.waiting) + sum(state.running)
        assert len(state.running) <= 16
        assert [when for when, _ in state.first_tokens] == sorted(when for when, _ in state.first_tokens)
        assert all(seconds > 0 for _, seconds in state.first_tokens) and len(state.first_tokens) <= 32
        seen.append(state.now)
        return len(state.waiting) < 3

    log = overload.overload_run(rule, SEED)
    assert seen == [record.send_time for record in log.records]


def test_refusing_early_keeps_most_of_the_goodput_and_taking_all_does_not():
    _, at_knee = overload.knee_of(SEED)
    bounded, all_taken = (
        goodput(overload.overload_run(rule, SEED), overload.TARGET)
        for rule in (overload.bounded(32, 2048), overload.take_all)
    )
    assert bounded >= 0.9 * at_knee and all_taken < 0.5 * at_knee
