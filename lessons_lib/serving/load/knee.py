"""Lesson 14: the knee: the highest rate at which a server still keeps its promise."""

from collections.abc import Callable
from dataclasses import dataclass, field
from math import sqrt

import numpy as np

from lessons_lib.serving.load.goodput import Target, goodput
from lessons_lib.serving.load.records import LoadLog

Holds = Callable[[LoadLog], bool]


def keeps_goodput(target: Target, share: float = 0.9) -> Holds:
    """Whether at least `share` of the requests that were offered met their targets."""

    def holds(log: LoadLog) -> bool:
        return goodput(log, target) >= share * log.offered_rate

    return holds


def keeps_percentile(target: Target, percentile: float = 99) -> Holds:
    """Whether this percentile of each promised latency is within its target. A request that failed took infinitely
    long."""

    def holds(log: LoadLog) -> bool:
        for name, limit in vars(target).items():
            seconds = [getattr(record, name) if record.succeeded else float("inf") for record in log.records]
            if limit is not None and np.percentile(seconds, percentile, method="higher") > limit:
                return False
        return True

    return holds


@dataclass
class Knee:
    """What a search found.

    Attributes:
        rate: requests per second, the highest rate that held.
        beyond: the lowest rate that did not.
        log: a run at `rate`, one that held.
        runs: (rate, whether it held) of every run, in order.
    """

    rate: float
    beyond: float
    log: LoadLog
    runs: list[tuple[float, bool]] = field(default_factory=list)


def find_knee(
    run: Callable[[float], LoadLog],
    holds: Holds,
    start: float,
    *,
    precision: float = 0.05,
    votes: int = 1,
    range_factor: float = 1024,
) -> Knee:
    """The highest rate that holds, by doubling or halving from `start`, then bisection.

    Runs of a real server differ. With `votes` above 1, a rate is run again until one verdict has this many votes: with
    2, one lucky or unlucky run does not decide. A rate above one that failed is never tried, nor one below a rate that
    held, so the verdicts rise and fall only once.

    Args:
        run: offers requests at this rate (per second), such as `simulate`.
        holds: such as `keeps_goodput(target)`.
        precision: the knee is between `rate` and `rate * (1 + precision)`.
        range_factor: how far from `start` to look for it.

    Raises:
        ValueError: a parameter is out of range, no rate down to `start / range_factor` holds, or all up to
            `start * range_factor` do.
    """
    if not start > 0 or not precision > 0 or votes < 1:
        raise ValueError(
            f"start is {start}, precision {precision} and votes {votes}; start and precision must be above 0, votes 1 "
            "or more."
        )
    runs: list[tuple[float, bool]] = []
    held: dict[float, LoadLog] = {}

    def verdict(rate: float) -> bool:
        counts = {True: 0, False: 0}
        while max(counts.values()) < votes:
            log = run(rate)
            good = holds(log)
            runs.append((rate, good))
            counts[good] += 1
            if good:
                held[rate] = log
        return counts[True] >= votes

    low = high = start
    if verdict(start):
        while verdict(high := 2 * low):
            low = high
            if low >= start * range_factor:
                raise ValueError(f"{low:g} requests per second still hold; start the search higher, or promise more.")
    else:
        while not verdict(low := high / 2):
            high = low
            if high <= start / range_factor:
                raise ValueError(
                    f"even {high:g} requests per second don't hold; does the server run, and can it meet these targets "
                    "at all?"
                )
    while high > low * (1 + precision):
        middle = sqrt(low * high)  # rates are compared by ratio
        if verdict(middle):
            low = middle
        else:
            high = middle
    return Knee(low, high, held[low], runs)
