"""Lesson 13: decode steps captured as CUDA graphs, one for each of a ladder of sizes, found by everything that they were captured with."""

from collections.abc import Callable
from dataclasses import dataclass

import torch


def captured_batch_sizes(max_rows: int) -> list[int]:
    """The sizes that are captured: 2, 4, 8, then every multiple of 16, up to `max_rows`.

    A step is filled up to the next size. Not 1: `torch.compile` treats a size of 1 as a case of its own.
    """
    return sorted({*(size for size in (2, 4, 8) if size < max_rows), *range(16, max_rows, 16), max(2, max_rows)})


def next_size(num_rows: int, sizes: list[int]) -> int:
    """The smallest size with room for so many.

    Raises:
        ValueError: none has.
    """
    for size in sizes:
        if num_rows <= size:
            return size
    raise ValueError(
        f"{num_rows} sequences, and the largest captured size is {sizes[-1]}; give the runner the scheduler's max_num_seqs."
    )


@dataclass(frozen=True)
class GraphKey:
    """What a graph was captured with. It launches the same kernels on the same addresses for ever, whatever has become of them.

    Attributes:
        addresses: of each tensor that the step reads or writes: inputs, caches and weights.
        identities: the `id` of each input and cache. The same tensor has the same shape, strides and dtype as ever. No other can get its `id`
            while the graph keeps it.
        settings: whatever else decides which kernels run.
    """

    addresses: list[int]
    identities: list[int]
    settings: tuple

    @classmethod
    def of(cls, inputs: list[torch.Tensor], weights: list[torch.Tensor], settings: tuple) -> "GraphKey":
        addresses = list(map(torch.Tensor.data_ptr, [*inputs, *weights]))
        return cls(addresses, list(map(id, inputs)), settings)


@dataclass(frozen=True)
class Graph:
    """One captured step.

    Attributes:
        key: what it was captured with.
        keeps: the tensors of the key: of weights, the memory; inputs and caches themselves. While the graph lives they are not freed, so that
            an address or an `id` can't come to mean something else.
        replay: starts it.
        output: where its result lies afterwards, until the next graph is replayed: all share their memory.
    """

    key: GraphKey
    keeps: tuple
    replay: Callable[[], None]
    output: torch.Tensor


class GraphStore:
    """The graphs that there are, one for each size.

    Attributes:
        graphs: sequences of the row, the filling included -> Graph.
        capture: function (step) -> (replay, output); on a GPU `CudaCapture()`.
        num_captured: how often a graph was captured.
    """

    def __init__(self, capture: Callable):
        self.capture = capture
        self.graphs: dict[int, Graph] = {}
        self.num_captured = 0

    def run(
        self, num_rows: int, key: GraphKey, step: Callable[[], torch.Tensor], keeps: Callable[[], tuple] = tuple
    ) -> torch.Tensor:
        """Replay the graph of this size. If there is none, or if it was captured with anything else than what is there now, capture `step` first.

        Args:
            key: of what `step` reads, looked up for this call.
            step: the work, without arguments: its inputs lie in fixed places.
            keeps: () -> the tensors of the key.

        Returns:
            the output of the graph; it is valid until the next call.
        """
        graph = self.graphs.get(num_rows)
        if graph is None or graph.key != key:
            graph = self.graphs[num_rows] = Graph(key, keeps(), *self.capture(step))
            self.num_captured += 1
        graph.replay()
        return graph.output


class CudaCapture:
    """Captures steps on a GPU; all its graphs share one pool of memory, since only one runs at a time."""

    def __init__(self):
        self.pool = None

    def __call__(self, step: Callable[[], torch.Tensor]) -> tuple[Callable[[], None], torch.Tensor]:
        # What is compiled or allocated at a first call can't be captured.
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(2):
                step()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self.pool):
            output = step()
        self.pool = graph.pool()
        return graph.replay, output


def rerun(step: Callable[[], torch.Tensor]) -> tuple[Callable[[], None], torch.Tensor]:
    """In place of a capture where there is no GPU: runs the step again, with the tensors of the first time. For tests."""
    output = step().clone()
    return lambda: output.copy_(step()), output
