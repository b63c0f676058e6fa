"""Lesson 09: record a scheduler's steps as a trace like those of the earlier lessons, for any runner."""

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from lessons_lib.recording.trace import RowWork, Step, Trace
from lessons_lib.scheduling.scheduler import Scheduler, SchedulerOutput
from lessons_lib.scheduling.sequence import Sequence


@contextmanager
def record_schedule(scheduler: Scheduler[Any], block_bytes: int = 0) -> Iterator[Trace]:
    """Context manager that records each scheduled step as a step of the trace, with one row per scheduled sequence.

    Tokens recomputed after a preemption don't count as useful.

    Args:
        block_bytes: bytes per block, to count the bytes of block copies.

    >>> with record_schedule(scheduler) as trace:
    ...     serve_greedily(runner, scheduler, sequences)
    """
    trace, update, last = Trace(), scheduler.update, time.perf_counter()
    furthest: dict[Sequence, int] = {}

    def recorded(scheduler_output: SchedulerOutput, next_tokens: Iterable[int]) -> list[Sequence]:
        nonlocal last
        rows, used = [], sum(sequence.num_computed_tokens for sequence in scheduler.running)
        for sequence, count in scheduler_output.num_scheduled_tokens.items():
            end = sequence.num_computed_tokens + count
            useful = max(0, end - max(furthest.get(sequence, 0), sequence.num_computed_tokens))
            phase = "decode" if sequence.num_computed_tokens >= len(sequence.prompt_ids) else "prefill"
            rows.append(RowWork(sequence.id, phase, count, useful))
            furthest[sequence] = max(furthest.get(sequence, 0), end)
        reserved = len(scheduler.pool.used) * scheduler.pool.block_size
        waiting = tuple(sequence.id for sequence in scheduler.waiting)
        finished = update(scheduler_output, next_tokens)
        now = time.perf_counter()
        bytes_copied = len(getattr(scheduler_output, "block_copies", ())) * block_bytes
        trace.steps.append(
            Step(tuple(rows), now - last, waiting, 1, reserved, used + scheduler_output.num_tokens, bytes_copied)
        )
        last = now
        return finished

    scheduler.update = recorded  # type: ignore[method-assign]
    try:
        yield trace
    finally:
        del scheduler.update
