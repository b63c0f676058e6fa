"""Lesson 09: writes down what a scheduler's plans did, as the trace of the earlier lessons, whoever carries the plans out."""

import time
from contextlib import contextmanager

from lessons_lib.recording.trace import RowWork, Step, Trace
from lessons_lib.scheduling.scheduler import Scheduler


@contextmanager
def record_schedule(scheduler: Scheduler, block_bytes: int = 0):
    """Inside, every plan that is carried out becomes a step of the trace. A row of it is a sequence of the plan.

    Tokens that are computed once more, because their sequence lost its cache, are not useful.

    Args:
        block_bytes: bytes of a block, for what is copied.

    >>> with record_schedule(scheduler) as trace:
    ...     serve_greedily(runner, scheduler, sequences)
    """
    trace, update, last = Trace(), scheduler.update, time.perf_counter()
    furthest = {}

    def recorded(scheduler_output, next_tokens):
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
        moved = len(getattr(scheduler_output, "block_copies", ())) * block_bytes
        trace.steps.append(
            Step(tuple(rows), now - last, waiting, 1, reserved, used + scheduler_output.num_tokens, moved)
        )
        last = now
        return finished

    scheduler.update = recorded
    try:
        yield trace
    finally:
        del scheduler.update
