"""The engine without a model, whose host time is measured, serves as the engine with one does."""

import pytest

from tools.host_bench import ENGINES, churn, profiled, run


@pytest.mark.parametrize("kind", ENGINES)
def test_a_run_says_where_the_time_of_a_step_goes(kind):
    requests = [(prompt, min(answer, 12)) for prompt, answer in churn()[:20]]
    seconds, parts = run(kind, requests)
    steps = parts.pop("steps")
    assert seconds > 0 and steps == pytest.approx(12, abs=1)
    assert {"all", "schedule", "forward", "sample", "update", "generate"} <= set(parts)
    assert sum(parts.values()) == pytest.approx(2 * parts["all"])


def test_a_profile_names_functions():
    assert "schedule_running" in profiled("LLMEngine", churn()[:3])
