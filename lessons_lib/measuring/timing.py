"""Times pieces of work in turns, so that a moment in which the machine is busy with something else hits all of them alike."""

import statistics
import time
from collections.abc import Callable, Sequence

import torch


@torch.inference_mode()
def times_in_turns(functions: Sequence[Callable[[], object]], repeat: int, device="cpu") -> list[list[float]]:
    """Seconds of each function, `repeat` times each. One more turn at the beginning warms up and is not counted."""
    times = [[] for _ in functions]
    for turn in range(repeat + 1):
        for function, seconds in zip(functions, times):
            started = _now(device)
            function()
            if turn:
                seconds.append(_now(device) - started)
    return times


def median_ms(functions: Sequence[Callable[[], object]], repeat: int = 5, device="cpu") -> list[float]:
    """Median milliseconds of each function."""
    return [1000 * statistics.median(times) for times in times_in_turns(functions, repeat, device)]


def _now(device) -> float:
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()
