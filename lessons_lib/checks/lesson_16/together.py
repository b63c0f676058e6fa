"""Runs an answer in several workers, which send each other tensors, in the same way each time."""

import threading
from collections.abc import Callable
from typing import Any

from lessons_lib.checks.exercise import Mistake
from lessons_lib.checks.sandbox import TimeLimit, _raise_in
from lessons_lib.serving.workers import Deadlock, Worker, run_workers


def together(work: Callable[[Worker], Any], world_size: int, why_stuck: Callable[[str], tuple[str, str]]) -> Any:
    """What `run_workers` returns. A worker that fails doesn't stop the others, so it doesn't matter which is faster.

    Args:
        why_stuck: function (the places of a Deadlock) -> what to tell, and the idea.

    Raises:
        Mistake: no worker can go on.
        Exception: that of the first worker, by rank, that failed.
    """
    errors: dict[int, Exception] = {}
    workers: list[Worker] = []
    before = set(threading.enumerate())

    def guarded(worker: Worker) -> Any:
        workers.append(worker)
        try:
            return work(worker)
        except Exception as error:  # noqa: BLE001 - a learner's code may raise anything
            errors[worker.rank] = error
            return None

    stuck = None
    try:
        results = run_workers(guarded, world_size)
    except Deadlock as error:
        what, idea = why_stuck(str(error))
        counts = sorted((worker.rank, worker.num_sent, worker.num_received) for worker in workers)
        stuck = keyed(Mistake(what, idea=idea), f"stuck after {counts}")
    except TimeLimit:
        for thread in set(threading.enumerate()) - before:
            _raise_in(thread, TimeLimit)
        raise
    if errors:
        raise errors[min(errors)]
    if stuck:
        raise stuck
    return results


def keyed(mistake: Mistake, key: str) -> Mistake:
    """Make a mistake equal to all of this key, whatever line or number its message tells."""
    mistake.args = (key,)
    return mistake
