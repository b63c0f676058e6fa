"""A capture without a GPU that counts, and what steps read, which can be moved, replaced and changed."""

import weakref
from collections.abc import Callable
from typing import Any

import torch


class NoRoomForGraph(MemoryError):
    """A capture has failed."""


class CaptureRefused(RuntimeError):  # PyTorch's own errors are RuntimeErrors
    """A capture has failed."""


class FakeCapture:
    """In place of `CudaCapture`: nothing is computed before the first replay."""

    def __init__(self) -> None:
        self.attempts = self.captures = self.replays = 0
        self.runs_step = False
        self.failure: type[Exception] | None = None

    def __call__(self, step: Callable[[], torch.Tensor]) -> tuple[Callable[[], None], torch.Tensor]:
        self.attempts += 1
        if self.failure is not None:
            raise self.failure("no graph was captured")
        self.captures += 1
        output = torch.full_like(self.run(step), float("nan"))

        def replay() -> None:
            self.replays += 1
            output.copy_(self.run(step))

        return replay, output

    def run(self, step: Callable[[], torch.Tensor]) -> torch.Tensor:
        self.runs_step = True
        try:
            return step()
        finally:
            self.runs_step = False


class Bench:
    """A store, its capture, and what the steps read. What is replaced stays alive, so that no address and no `id` comes
    up again, except for caches, which are only in the hands of the engine and of the store."""

    def __init__(self, attempt: Any) -> None:
        self.capture = FakeCapture()
        self.store = attempt(self.capture)
        self.buffer, self.rows, self.joined = torch.arange(8.0), torch.ones(4, 2), torch.arange(8.0)
        self.inputs = [self.buffer[:4], self.rows[:2]]
        # Two weights in the same memory, as if one product computed both.
        self.weights: list[torch.Tensor] = [
            torch.nn.Parameter(self.joined[2 * i : 2 * i + 2], requires_grad=False) for i in (0, 1)
        ]
        self.settings: tuple[Any, ...] = (True, [1, 64])
        self.gone: list[Any] = []
        self.own_calls: list[int] = []  # of a step by the store: how many captures were tried before each
        self.values: dict[str, torch.Tensor] = {}
        self.caches: dict[str, Any] = {}
        self.cache = torch.ones(3)

    def key(self) -> Any:
        lists = list(self.inputs), list(self.weights)
        self.gone.append((lists, self.settings))
        return self.store.key_of(*lists, self.settings)

    def put(self, tensors: list[torch.Tensor], index: int, new: torch.Tensor) -> None:
        self.gone.append(tensors[index])
        tensors[index] = new

    def move(self, tensor: torch.Tensor, memory: torch.Tensor | None = None) -> None:
        self.gone.append(tensor.detach())
        tensor.data = tensor.data.clone() if memory is None else memory

    def replace_cache(self, name: str) -> None:
        self.caches[name] = weakref.ref(self.cache)
        self.cache = torch.ones(3)

    def run(self, size: int, key: Any, compute: Callable[[], torch.Tensor]) -> Any:
        def step() -> torch.Tensor:
            if not self.capture.runs_step:
                self.own_calls.append(self.capture.attempts)
            return compute()

        return self.store.run(
            size, key, step, lambda: (self.cache, *self.inputs, *map(torch.Tensor.detach, self.weights))
        )

    def step(self, size: int) -> Any:
        """A step of the engine: its key is computed first."""
        first, second = self.inputs
        weights = [weight.detach() for weight in self.weights]
        factor = len(self.settings[1]) + self.settings[1][-1]

        def compute() -> torch.Tensor:
            shift = first[0] + 10 * second.flatten()[-1] + 100 * weights[0].sum() + 1000 * weights[1].sum()
            return (shift * factor + size).float()

        return self.run(size, self.key(), compute)


CHANGES: dict[str, Callable[[Bench], object]] = {
    "new values in `inputs[0]`, at the same address": lambda bench: bench.buffer.add_(1.0),
    "`inputs[1]`, the cache, is replaced by another tensor of this shape": lambda bench: bench.put(
        bench.inputs, 1, torch.full((2, 2), 5.0)
    ),
    "`inputs[0]` is replaced by another tensor of this shape": lambda bench: bench.put(
        bench.inputs, 0, torch.arange(3.0, 7.0)
    ),
    "`weights[1]` is replaced by another Parameter": lambda bench: bench.put(
        bench.weights, 1, torch.nn.Parameter(torch.ones(2), requires_grad=False)
    ),
    "`weights[1]` is moved: the same Parameter, in other memory": lambda bench: bench.move(bench.weights[1]),
    "`inputs[1]` is moved: the same tensor object, in other memory": lambda bench: bench.move(bench.inputs[1]),
    "a setting changes, from 64 to 128": lambda bench: setattr(bench, "settings", (True, [1, 128])),
    "the settings are another object, with equal values": lambda bench: setattr(bench, "settings", (True, [1, 64])),
    "the two weights are swapped": lambda bench: bench.weights.reverse(),
    "`inputs[0]`, which was `buffer[:4]`, is now `buffer[4:]`": lambda bench: bench.put(
        bench.inputs, 0, bench.buffer[4:]
    ),
    "`weights[1]` is moved within the storage that it shares": lambda bench: bench.move(
        bench.weights[1], bench.joined[4:6]
    ),
    "`inputs[0]`, which was `buffer[:4]`, is now `buffer[:2]`, at the same address": lambda bench: bench.put(
        bench.inputs, 0, bench.buffer[:2]
    ),
    "`inputs[1]` is replaced by its transpose: the same address and shape": lambda bench: bench.put(
        bench.inputs, 1, bench.inputs[1].t()
    ),
    "`inputs[1]` is replaced by `rows[::2]`: the same address and shape": lambda bench: bench.put(
        bench.inputs, 1, bench.rows[::2]
    ),
    "`inputs[1]`, which was `rows[:2]`, is now `rows[:, :1]`, [4, 1]: the same address and strides": lambda bench: (
        bench.put(bench.inputs, 1, bench.rows[:, :1])
    ),
    "`inputs[1]` is replaced by a view of it as int32": lambda bench: bench.put(
        bench.inputs, 1, bench.inputs[1].view(torch.int32)
    ),
    "the two inputs are swapped": lambda bench: bench.inputs.reverse(),
    "there is one more weight": lambda bench: bench.weights.append(torch.ones(2)),
}
STRIDED = [name for name in CHANGES if name.endswith("the same address and shape")]
OFTEN = list(CHANGES)[:9]  # what may happen between two steps of the same shape
