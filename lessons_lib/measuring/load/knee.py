"""Lesson 14: the knee: the highest rate at which a server still keeps its promise."""

from collections.abc import Callable
from dataclasses import dataclass
from math import sqrt

from lessons_lib.measuring.load.goodput import Target, goodput
from lessons_lib.measuring.load.records import LoadLog


@dataclass
class Knee:
    """The highest rate that held, in requests per second, a run at that rate, and the lowest rate that did not hold."""

    rate: float
    log: LoadLog
    beyond: float


def find_knee(
    run: Callable[[float], LoadLog], target: Target, start: float, *, share: float = 0.9, precision: float = 0.05
) -> Knee:
    """Find the highest rate at which `share` of the offered requests meet the target.

    The rate is doubled or halved from `start`, then bisected.

    Args:
        run: offers requests at this rate (per second), such as `simulate`.
        precision: the knee is between `rate` and `rate * (1 + precision)`.

    Raises:
        ValueError: all rates up to `1000 * start` hold, or none down to `start / 1000`.
    """
    held: dict[float, LoadLog] = {}

    def holds(rate: float) -> bool:
        if not start / 1000 <= rate <= 1000 * start:
            raise ValueError(f"the search began at {start:g} requests per second and found no knee up to {rate:g}.")
        log = run(rate)
        if good := goodput(log, target) >= share * log.offered_rate:
            held[rate] = log
        return good

    low = high = start
    if holds(start):
        while holds(high := 2 * low):
            low = high
    else:
        while not holds(low := high / 2):
            high = low
    while high > low * (1 + precision):
        middle = sqrt(low * high)  # rates are compared by ratio
        if holds(middle):
            low = middle
        else:
            high = middle
    return Knee(low, held[low], high)
