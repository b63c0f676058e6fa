"""Lesson 09: statistics of a simulated run: means, tails and fairness."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from lessons_lib.scheduling.arrivals import Arrival
from lessons_lib.scheduling.simulator import Simulation, StepCost

TIMES = ("ttft", "tpot", "latency", "queue_time")


@dataclass(frozen=True)
class Spread:
    """Mean, 99th percentile and maximum of many values."""

    mean: float
    p99: float
    worst: float


def times_of(run: Simulation, what: str) -> list[float]:
    """One of the TIMES of each finished request, in seconds, in order of arrival."""
    return [getattr(times, what) for times in run.times.values()]


def spread(values: Iterable[float]) -> Spread:
    """Compute the Spread of one or more values."""
    array = np.asarray(list(values), dtype=float)
    return Spread(float(array.mean()), float(np.percentile(array, 99)), float(array.max()))


def summary(run: Simulation) -> dict[str, Spread]:
    """The Spread of each of the TIMES of a run, in seconds."""
    return {what: spread(times_of(run, what)) for what in TIMES}


def seconds_alone(request: Arrival, cost: StepCost) -> float:
    """Latency of a request on an idle machine, in seconds: the prompt in one step, then a step per further token."""
    steps = request.answer_tokens
    # The prefill attends to its prompt, and each later step to one token more than the step before.
    context = steps * request.prompt_tokens + steps * (steps - 1) // 2
    return cost.base * steps + cost.per_token * (request.prompt_tokens + steps - 1) + cost.per_context_token * context


def slowdowns(run: Simulation, requests: Iterable[Arrival], cost: StepCost) -> list[float]:
    """Slowdown of each finished request compared with running alone, in the order of `requests`."""
    return [
        run.times[request.id].latency / seconds_alone(request, cost) for request in requests if request.id in run.times
    ]


def jain_index(values: Iterable[float]) -> float:
    """Fairness of a distribution: (sum)² / (count × sum of squares).

    1 if all values are equal; 1 / count if one has everything.
    """
    array = np.asarray(list(values), dtype=float)
    return float(array.sum()) ** 2 / (len(array) * float((array**2).sum()))
