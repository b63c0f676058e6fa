"""The stretch task of lesson 16: an all-reduce, timed on links that only exist as numbers."""

from collections import defaultdict, deque
from collections.abc import Callable
from typing import Any

import torch

from lessons_lib.checks.scoreboards import Scored, scoreboard
from lessons_lib.serving.all_reduce import all_reduce as ring
from lessons_lib.serving.workers import Worker, run_workers
from lessons_lib.viz.tables.table import Table

WORLD_SIZE = 8
START, ARRIVE, BANDWIDTH = 2.0, 5.0, 50e3  # µs of the sender for each message; µs on the way; bytes per µs, 50 GB/s
SIZES = {"one decode, 8 KB": 2048, "a prefill, 2 MB": 524288}  # float32 elements


class TimedWorker:
    """A worker with a clock. What it sends leaves one message after the other; computing takes no time.

    Attributes:
        clock: µs since the start.
    """

    def __init__(self, worker: Worker, arrivals: dict[tuple[int, int], deque[float]]):
        self.rank, self.world_size = worker.rank, worker.world_size
        self.clock, self._worker, self._arrivals = 0.0, worker, arrivals

    def send(self, to: int, tensor: torch.Tensor) -> None:
        if to != self.rank:
            self.clock += START + tensor.numel() * tensor.element_size() / BANDWIDTH
        self._arrivals[self.rank, to].append(self.clock + (ARRIVE if to != self.rank else 0))
        self._worker.send(to, tensor)

    def receive(self, source: int) -> torch.Tensor:
        got = self._worker.receive(source)
        self.clock = max(self.clock, self._arrivals[source, self.rank].popleft())
        return got


def straight_to_the_owner(tensor: torch.Tensor, worker: Any) -> torch.Tensor:
    """The sum in two rounds: each part goes to the worker that adds it up, and from there to all others."""
    rank, size = worker.rank, worker.world_size
    parts = list(tensor.flatten().tensor_split(size))
    others = [(rank + distance) % size for distance in range(1, size)]
    for to in others:
        worker.send(to, parts[to])
    for source in others:
        parts[rank] = parts[rank] + worker.receive(source)
    for to in others:
        worker.send(to, parts[rank])
    for source in others:
        parts[source] = worker.receive(source)
    return torch.cat(parts).view(tensor.shape)


def microseconds(function: Callable[..., torch.Tensor], num_elements: int, world_size: int = WORLD_SIZE) -> float:
    """The time until the last worker has the sum.

    Raises:
        ValueError: a worker has another sum, or other bits than worker 0.
    """
    generator = torch.Generator().manual_seed(num_elements)
    tensors = [torch.randn(num_elements, generator=generator) for _ in range(world_size)]
    arrivals: dict[tuple[int, int], deque[float]] = defaultdict(deque)
    timed: list[Any] = [None] * world_size

    def work(worker: Worker) -> torch.Tensor:
        timed[worker.rank] = TimedWorker(worker, arrivals)
        return function(tensors[worker.rank], timed[worker.rank])

    expected = torch.stack(tensors).double().sum(0)
    results, _ = run_workers(work, world_size)
    for rank, got in enumerate(results):
        if got.shape != expected.shape or not torch.allclose(got.double(), expected, atol=1e-4):
            raise ValueError(f"worker {rank} doesn't return the sum of {num_elements:,} elements.")
        if not torch.equal(got, results[0]):
            raise ValueError(f"worker {rank} returns other bits than worker 0, for {num_elements:,} elements.")
    return max(worker.clock for worker in timed)


def all_reduce_scoreboard(function: Callable[..., torch.Tensor]) -> Table:
    """Score a function (tensor, worker) -> the sum, as in 16.2, next to the ring and to the way without one."""
    baselines = {"the ring": ring, "each part straight to its owner": straight_to_the_owner}
    known = {name: [microseconds(way, size) for size in SIZES.values()] for name, way in baselines.items()}

    def cells(times: list[float]) -> list[str]:
        return [f"{time:,.0f} µs" for time in times]

    def yours() -> Scored:
        times = [microseconds(function, size) for size in SIZES.values()]
        pairs = zip(SIZES, zip(*known.values()), times)
        ratios = (f"{name}: {min(before) / after:.1f} times as fast" for name, before, after in pairs)
        return cells(times), f"Yours against the faster of the two: {', '.join(ratios)}."

    caption = f"{WORLD_SIZE} workers; simulated: a message costs its sender {START:.0f} µs and its bytes at "
    return scoreboard(
        ["", *SIZES],
        {**{name: cells(times) for name, times in known.items()}, "yours": yours},
        f"{caption}{BANDWIDTH / 1e3:.0f} GB/s, and arrives {ARRIVE:.0f} µs later.",
    )
