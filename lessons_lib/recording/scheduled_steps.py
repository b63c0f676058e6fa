"""Lesson 09: record a scheduler's steps as a trace like those of the earlier lessons, for any runner."""

import time
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from lessons_lib.recording.trace import RowWork, Step, Trace
from lessons_lib.scheduling.scheduler import SchedulerBase, SchedulerOutput
from lessons_lib.scheduling.sequence import Sequence


@contextmanager
def record_schedule(scheduler: SchedulerBase) -> Iterator[Trace]:
    """Context manager that records each scheduled step as a step of the trace, with one row per scheduled sequence.

    Tokens recomputed after a preemption don't count as useful.

    >>> with record_schedule(scheduler) as trace:
    ...     serve_greedily(runner, scheduler, sequences)
    """
    trace, last = Trace(), time.perf_counter()
    launched, update = scheduler.update_after_launch, scheduler.update_from_output
    in_flight: deque[tuple[Any, ...]] = deque()
    furthest: dict[Sequence, int] = {}

    def recorded_launch(scheduler_output: SchedulerOutput) -> None:
        rows, used = [], sum(sequence.num_computed_tokens for sequence in scheduler.running)
        for sequence, count in scheduler_output.num_scheduled_tokens.items():
            end = sequence.num_computed_tokens + count
            useful = max(0, end - max(furthest.get(sequence, 0), sequence.num_computed_tokens))
            phase = "decode" if sequence.num_computed_tokens >= len(sequence.prompt_ids) else "prefill"
            rows.append(RowWork(sequence.id, phase, count, useful))
            furthest[sequence] = max(furthest.get(sequence, 0), end)
        reserved = len(scheduler.pool.used) * scheduler.pool.block_size
        waiting = tuple(sequence.id for sequence in scheduler.waiting)
        in_flight.append((tuple(rows), waiting, reserved, used + scheduler_output.num_tokens))
        launched(scheduler_output)

    def recorded_update(scheduler_output: SchedulerOutput, next_tokens: Iterable[int]) -> list[Sequence]:
        nonlocal last
        finished = update(scheduler_output, next_tokens)
        now = time.perf_counter()
        rows, waiting, *sizes = in_flight.popleft()
        trace.steps.append(Step(rows, now - last, waiting, 1, *sizes))
        last = now
        return finished

    scheduler.update_after_launch = recorded_launch  # type: ignore[method-assign]
    scheduler.update_from_output = recorded_update  # type: ignore[method-assign]
    try:
        yield trace
    finally:
        del scheduler.update_after_launch, scheduler.update_from_output
