"""Lesson 14: when requests arrive, in seconds from the start, whatever the server does. The same for the same seed."""

import json
import math
from pathlib import Path

import numpy as np


def constant_arrivals(rate: float, count: int) -> list[float]:
    """`rate` requests per second, evenly spaced; the last one at `count / rate`."""
    _check(rate, count)
    return [number / rate for number in range(1, count + 1)]


def gamma_arrivals(rate: float, count: int, burstiness: float = 1.0, seed: int = 0) -> list[float]:
    """`rate` requests per second on average, with gaps from a gamma distribution, as `vllm bench serve` draws them.

    The gaps are scaled so that the last request arrives at `count / rate`: the offered rate is exact in a short run
    too.

    Args:
        burstiness: shape of the distribution. 1 is a Poisson process; below 1, requests come in bursts with pauses
            between; above 1, more evenly; infinity is constant.

    Returns:
        list of `count` times, rising.

    Raises:
        ValueError: the rate or the burstiness is not above 0, or the count is negative.
    """
    _check(rate, count)
    if not burstiness > 0:
        raise ValueError(f"burstiness is {burstiness}; it must be above 0. 1 is a Poisson process, 0.25 is bursty.")
    if math.isinf(burstiness):
        return constant_arrivals(rate, count)
    times = np.random.default_rng(seed).gamma(burstiness, 1 / burstiness, count).cumsum()
    return [float(time) for time in times * (count / rate / times[-1])] if count else []


def poisson_arrivals(rate: float, count: int, seed: int = 0) -> list[float]:
    """`rate` requests per second on average, each independent of the others."""
    return gamma_arrivals(rate, count, 1.0, seed)


def trace_arrivals(path: str | Path) -> list[float]:
    """The times in a file: one JSON object per line with "timestamp" in milliseconds, as in Mooncake's traces, or one
    number of seconds per line. They start at 0.

    Raises:
        ValueError: a line is neither, or times go backwards.
    """
    times: list[float] = []
    for number, line in enumerate(Path(path).read_text(encoding="utf-8").splitlines(), start=1):
        if not line.strip():
            continue
        try:
            entry = json.loads(line)
            time = float(entry["timestamp"]) / 1000 if isinstance(entry, dict) else float(entry)
        except (ValueError, TypeError, KeyError):
            raise ValueError(
                f"line {number} of {path} is {line!r}; write a number of seconds, or a JSON object with a timestamp in "
                "milliseconds."
            ) from None
        if not math.isfinite(time) or (times and time < times[-1]):
            raise ValueError(f"line {number} of {path} has the time {time} s; times are finite and rise.")
        times.append(time)
    return [time - times[0] for time in times]


def _check(rate: float, count: int) -> None:
    if not rate > 0 or math.isinf(rate):
        raise ValueError(f"the rate is {rate} requests per second; it must be above 0 and finite.")
    if count < 0:
        raise ValueError(f"the count is {count} requests; it must be 0 or more.")
