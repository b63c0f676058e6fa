"""Lesson 13: steps captured as CUDA graphs, one for each size of a batch, keyed by every input of the capture."""

import warnings
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

Step = Callable[[], torch.Tensor]
Capture = Callable[[Step], tuple[Callable[[], Any], torch.Tensor]]


class GraphSize(NamedTuple):
    """The room of a graph.

    Attributes:
        num_tokens: new tokens of all sequences; None in a step of decodes, where each sequence has one.
        num_extra: logits besides one of each sequence, in a step with guesses (lesson 18).
    """

    num_seqs: int
    num_tokens: int | None = None
    num_extra: int = 0


# Smallest first. A step with guesses reads all weights however few they are, so padding costs little.
VERIFYING = [GraphSize(seqs, n, n) for seqs, n in ((8, 8), (8, 16), (8, 40), (64, 64), (64, 128), (64, 320))]


def captured_batch_sizes(max_num_seqs: int) -> list[int]:
    """The batch sizes that are captured: 2, 4, 8, then every multiple of 16, up to `max_num_seqs`.

    A step is padded to the next size. Not 1: `torch.compile` treats a size of 1 as a special case.
    """
    return sorted(
        {*(size for size in (2, 4, 8) if size < max_num_seqs), *range(16, max_num_seqs, 16), max(2, max_num_seqs)}
    )


def captured_token_counts(most: int) -> list[int]:
    """The numbers of tokens of captured steps with prompts: 16, 32, 64, every multiple of 128 up to 1,024, then of 256,
    up to `most`. A step with few tokens spends its time reading the weights, so padding costs little.
    """
    counts = [16, 32, 64, *range(128, 1024, 128), *range(1024, most + 1, 256)]
    return sorted({*(count for count in counts if count < most), most}) if most else []


def next_size(num_seqs: int, sizes: list[int]) -> int:
    """The smallest size with room for `num_seqs` sequences.

    Raises:
        ValueError: there is none.
    """
    for size in sizes:
        if num_seqs <= size:
            return size
    raise ValueError(
        f"{num_seqs} sequences, and the largest captured size is {sizes[-1]}; it must be the scheduler's max_num_seqs."
    )


@dataclass(frozen=True)
class GraphKey:
    """Everything that a graph was captured with: a replay launches the same kernels on the same addresses.

    Attributes:
        addresses: of each tensor that the step reads or writes: inputs, caches and weights.
        identities: the `id` of each input and cache. The same tensor keeps its shape, strides and dtype. No other can
            get its `id` while the graph keeps it alive.
        settings: anything else that decides which kernels run.
    """

    addresses: list[int]
    identities: list[int]
    settings: tuple[Any, ...]


@dataclass(frozen=True)
class Graph:
    """One captured step.

    Attributes:
        key: see `GraphStore.key_of`.
        keeps: the tensors of the key: of weights, the memory; inputs and caches themselves. They aren't freed while the
            graph exists, so an address or an `id` can't come to mean something else.
        replay: starts it.
        output: its result, until the next graph is replayed: all graphs share their memory.
    """

    key: Any
    keeps: tuple[Any, ...]
    replay: Callable[[], Any]
    output: torch.Tensor


class GraphStore:
    """The captured graphs.

    Attributes:
        graphs: size of the batch, padding included -> Graph.
        capture: function (step) -> (replay, output); on a GPU `CudaCapture()`.
        num_captured: how many graphs were captured so far.
    """

    def __init__(self, capture: Capture):
        self.capture = capture
        self.graphs: dict[Hashable, Graph] = {}
        self.num_captured = 0

    def key_of(self, inputs: list[torch.Tensor], weights: list[torch.Tensor], settings: tuple[Any, ...]) -> Any:
        """Everything that a graph of a step depends on, as it is now.

        Args:
            inputs: the buffers and caches that the step reads or writes. One that isn't replaced is the same object at
                each call.
            weights: the tensors of the model. Each keeps its shape, strides and dtype, but may get other memory.
            settings: anything else that decides which kernels run; may contain lists.

        Returns:
            any object that `==` compares: equal as long as a graph may be replayed.
        """
        addresses = list(map(torch.Tensor.data_ptr, [*inputs, *weights]))
        return GraphKey(addresses, list(map(id, inputs)), settings)

    def has(self, size: Hashable, key: Any) -> bool:
        """True if there is a graph of this size that was captured with this key."""
        graph = self.graphs.get(size)
        return graph is not None and graph.key == key

    def run(self, size: Hashable, key: Any, step: Step, keeps: Callable[[], tuple[Any, ...]] = tuple) -> torch.Tensor:
        """Replay the graph of this size. If there is none with this key, capture `step` first; the new graph replaces
        the old one.

        Args:
            size: of the batch, padding included.
            key: see `key_of`, computed for this call.
            step: the work, without arguments: its inputs are at fixed addresses.
            keeps: function () -> the tensors of the key, for a new graph to keep alive.

        Returns:
            the output of the graph, valid until the next call.
        """
        if not self.has(size, key):
            self.graphs[size] = Graph(key, keeps(), *self.capture(step))
            self.num_captured += 1
        self.graphs[size].replay()
        return self.graphs[size].output


class CudaCapture:
    """Captures steps on a GPU; all its graphs share one memory pool, since only one runs at a time."""

    def __init__(self) -> None:
        self.pool: Any = None

    def __call__(self, step: Step) -> tuple[Callable[[], Any], torch.Tensor]:
        # Compiling and allocating, at a first call, can't be captured.
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(2):
                step()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph, pool=self.pool):
                output = step()
        except RuntimeError as error:  # such as experts that read their counts on the host
            warnings.warn(f"a step can't be captured, so its kernels are launched one by one: {error}", stacklevel=2)
            return rerun(step)
        self.pool = graph.pool()
        return graph.replay, output


def rerun(step: Step) -> tuple[Callable[[], Any], torch.Tensor]:
    """Stand in for a capture without a GPU: run the step again, with the tensors of the first time. For tests."""
    output = step().clone()
    return lambda: output.copy_(step()), output
