"""Time functions in rounds, so that background load affects them all alike."""

import statistics
import time
from collections.abc import Callable, Sequence

import torch


@torch.inference_mode()
def times_in_rounds(functions: Sequence[Callable[[], object]], repeat: int) -> list[list[float]]:
    """Seconds of each function, on the CPU, in each of `repeat` rounds, after a warm-up round."""
    times: list[list[float]] = [[] for _ in functions]
    for round_index in range(repeat + 1):
        for function, seconds in zip(functions, times):
            started = time.perf_counter()
            function()
            if round_index:
                seconds.append(time.perf_counter() - started)
    return times


def median_ms(functions: Sequence[Callable[[], object]], repeat: int = 5) -> list[float]:
    """Median milliseconds of each function, on the CPU."""
    return [1000 * statistics.median(times) for times in times_in_rounds(functions, repeat)]
