"""The partial sums of each worker during an all-reduce, recorded from a real run.

Worker r starts with bit (i, r) set in its element i. So the bits of a sum identify its element and its workers.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from lessons_lib.serving.workers import Worker, run_workers

Holds = tuple[frozenset[int], ...]  # of one worker: for each part, the workers in its sum


@dataclass(frozen=True)
class ReduceStep:
    """After each has received once more: worker -> part -> the workers in its sum, or the worker that just sent it."""

    holds: tuple[Holds, ...]
    received: tuple[dict[int, int], ...]


def record_all_reduce(all_reduce: Callable[[torch.Tensor, Worker], torch.Tensor], world_size: int) -> list[ReduceStep]:
    """The states of an all-reduce of one element for each worker: first, and after each has received once more."""
    if not 1 <= world_size <= 7:
        raise ValueError(f"can't record {world_size} workers; record 1 to 7.")
    received: list[list[tuple[int, dict[int, frozenset[int]]]]] = [[] for _ in range(world_size)]

    def watched(worker: Worker) -> torch.Tensor:
        receive = worker.receive

        def receive_and_note(source: int) -> torch.Tensor:
            got = receive(source)
            received[worker.rank].append((source, _read(got, world_size)))
            return got

        worker_to_watch: Any = worker
        worker_to_watch.receive = receive_and_note
        places = torch.arange(world_size, dtype=torch.float64) * world_size + worker.rank
        return all_reduce(2.0**places, worker)

    results, _ = run_workers(watched, world_size)
    complete = {part: frozenset(range(world_size)) for part in range(world_size)}
    if any(_read(result, world_size) != complete for result in results):
        raise ValueError("a sum isn't complete; let the check of all_reduce pass first.")

    holds = [[frozenset({rank})] * world_size for rank in range(world_size)]
    steps = [ReduceStep(tuple(map(tuple, holds)), ({},) * world_size)]
    for step in range(max(map(len, received))):
        news: list[dict[int, int]] = [{} for _ in range(world_size)]
        for rank in range(world_size):
            if step < len(received[rank]):
                source, sums = received[rank][step]
                for part, contains in sums.items():
                    holds[rank][part] |= contains  # added to the worker's own sum, or final
                    news[rank][part] = source
        steps.append(ReduceStep(tuple(map(tuple, holds)), tuple(news)))
    return steps


def _read(tensor: torch.Tensor, world_size: int) -> dict[int, frozenset[int]]:
    """Part -> the workers in its sum."""
    sums: dict[int, frozenset[int]] = {}
    for element in tensor.flatten().tolist():
        places = [place for place in range(world_size**2) if int(element) >> place & 1]
        if places:  # a zero is padding
            sums[places[0] // world_size] = frozenset(place % world_size for place in places)
    return sums
