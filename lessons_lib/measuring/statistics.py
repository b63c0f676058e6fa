"""Lesson 09: statistics of a simulated run: means and tails."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from lessons_lib.measuring.simulator import Simulation

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
