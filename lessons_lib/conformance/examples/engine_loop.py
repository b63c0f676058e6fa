"""Lesson 12: an engine in one loop. If a step fails, all of it ends; `lessons_lib.engine.core` survives that."""

from collections import deque
from collections.abc import Callable, Iterator

from lessons_lib.scheduling.scheduler import SchedulerBase, SchedulerOutput
from lessons_lib.scheduling.sequence import Sequence


def engine_loop(
    scheduler: SchedulerBase, compute: Callable[[SchedulerOutput], list[int]], inbox: deque[Sequence]
) -> Iterator[tuple[str, int]]:
    """Serve requests together, and stream their tokens.

    Args:
        scheduler: decides what a step computes. No other code adds to it.
        compute: runs a step: function (scheduler_output) -> a token for each scheduled sequence, in order.
        inbox: sequences to serve. More may come while the loop waits at a `yield`.

    Yields:
        (sequence id, token) of each new token, once its step is counted and before the next one begins.
    """
    try:
        while inbox or scheduler.has_unfinished():
            while inbox:
                scheduler.add(inbox.popleft())
            output = scheduler.schedule()
            scheduler.update(output, compute(output))
            for sequence, gets_token in zip(output.num_scheduled_tokens, output.gets_token):
                if gets_token:
                    yield sequence.id, sequence.output_ids[-1]
    finally:
        for sequence in [*scheduler.running, *scheduler.waiting]:
            scheduler.remove(sequence)
