"""A capture without a GPU that counts, and what a key depends on, which can be moved, replaced and changed."""

import weakref
from collections.abc import Callable
from typing import Any

import torch

from lessons_lib.checks.diagnosis import mistakes
from lessons_lib.checks.diagnosis.mistakes import changes


class CaptureRefused(RuntimeError):  # PyTorch's own errors are RuntimeErrors
    """A capture has failed."""


class FakeCapture:
    """In place of `CudaCapture`: nothing is computed before the first replay."""

    def __init__(self) -> None:
        self.attempts = self.captures = self.replays = 0
        self.runs_step = self.is_broken = False

    def __call__(self, step: Callable[[], torch.Tensor]) -> tuple[Callable[[], None], torch.Tensor]:
        self.attempts += 1
        if self.is_broken:
            raise CaptureRefused("no graph was captured")
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
    """A store, its capture, and what the keys depend on. What is replaced stays alive, so that no address and no `id`
    comes up again, except for caches, which are only in the hands of the engine and of the store."""

    def __init__(self, attempt: Any) -> None:
        self.capture = FakeCapture()
        self.store = attempt(self.capture)
        self.buffer, self.rows, self.joined = torch.arange(8.0), torch.ones(4, 2), torch.arange(12.0)
        self.inputs = [self.buffer[:4], self.rows[:2]]
        # Three weights in the same memory, as if one product computed all.
        self.weights = [self.parameter(self.joined[start : start + 2]) for start in (2, 4, 6)]
        self.settings: tuple[Any, ...] = (2, 4, [1, 64])
        self.gone: list[Any] = []
        self.own_calls = self.needless_keeps = 0
        self.values: dict[str, torch.Tensor] = {}
        self.caches: dict[str, Any] = {}
        self.cache = torch.ones(3)

    def change(self, name: str) -> None:
        exec(str(CHANGES[name][0]), {"torch": torch, "bench": self} | {each: getattr(self, each) for each in dir(self)})

    def key(self) -> Any:
        lists = list(self.inputs), list(self.weights)
        self.gone.append((lists, self.settings))
        return self.store.key_of(*lists, self.settings)

    def parameter(self, memory: torch.Tensor) -> torch.Tensor:
        return torch.nn.Parameter(memory, requires_grad=False)

    def put(self, index: int, new: torch.Tensor, tensors: list[torch.Tensor] | None = None) -> None:
        tensors = tensors or self.inputs
        self.gone.append(tensors[index])
        tensors[index] = new

    def move(self, tensor: torch.Tensor, memory: torch.Tensor | None = None) -> None:
        self.gone.append(tensor.detach())
        tensor.data = tensor.data.clone() if memory is None else memory

    def replace_cache(self, name: str) -> None:
        self.caches[name] = weakref.ref(self.cache)
        self.cache = torch.ones(3)

    def run(self, size: int, key: Any, value: torch.Tensor) -> Any:
        attempts, kept = self.capture.attempts, []

        def step() -> torch.Tensor:
            self.own_calls += not self.capture.runs_step
            return value * 1.0

        def keeps() -> tuple[torch.Tensor, ...]:
            kept.append(1)
            return (self.cache,)

        try:
            return self.store.run(size, key, step, keeps)
        finally:
            self.needless_keeps += len(kept) if self.capture.attempts == attempts else 0


# What happens between two keys, and what a key misses that takes no notice of it, or too much.
IDEAS = """
Replays read the values that are there at that time, so new values need no new graph.
~ new values in `inputs[0]`, at the same address => buffer.add_(1.0)
~ new values in all weights, at the same addresses => joined.add_(1.0)
Settings are new objects at each call: compare them as values.
~ the settings are another object, with equal values => bench.settings = (2, 4, [1, 64])
Settings decide which kernels run, and a graph always runs the same ones. Are all of them in your key?
~ a setting changes, from 64 to 128 => bench.settings = (2, 4, [1, 128])
~ the first two settings, 2 and 4, are now 4 and 2 => bench.settings = (4, 2, [1, 64])
It may get other memory, and a graph would go on reading the old one. Is the `data_ptr()` of every input and of every
weight in your key?
~ `inputs[1]`, the cache, is replaced by another tensor of this shape => put(1, torch.full((2, 2), 5.0))
~ `inputs[0]` is replaced by another tensor of this shape => put(0, torch.arange(3.0, 7.0))
~ there is one more weight => weights.append(joined[:2])
~ `weights[1]` is replaced by another Parameter => put(1, parameter(torch.ones(2)), weights)
The same object may get other memory: a weight's `data`, for instance. Only its `data_ptr()` tells.
~ `weights[1]` is moved: the same Parameter, in other memory => move(weights[1])
~ `inputs[1]` is moved: the same tensor object, in other memory => move(inputs[1])
A view begins somewhere in its storage: its `data_ptr()` says where, not that of the storage.
~ `inputs[0]`, which was `buffer[:4]`, is now `buffer[4:]` => put(0, buffer[4:])
~ `weights[1]` is moved within the storage that it shares => move(weights[1], joined[8:10])
The order counts: a graph would use each in place of the other.
~ the first and the last weight are swapped => weights.reverse()
~ the two inputs are swapped => inputs.reverse()
Another view may begin at the same address, with another shape, other strides or another dtype. What in your key tells
one input from another at the same address? Its `id` does (as long as the graph holds on to it).
~ `inputs[0]`, which was `buffer[:4]`, is now `buffer[:2]`, at the same address => put(0, buffer[:2])
~ `inputs[1]` is replaced by its transpose: the same address and shape => put(1, inputs[1].t())
~ `inputs[1]` is replaced by `rows[::2]`: the same address and shape => put(1, rows[::2])
~ `inputs[1]`, which was `rows[:2]`, is now `rows[:, :1]`, [4, 1]: the same address and strides => put(1, rows[:, :1])
~ `inputs[1]` is replaced by a view of it as int32 => put(1, inputs[1].view(torch.int32))
"""
CHANGES = {name: (code, each.why) for each in mistakes(IDEAS) for name, code in changes(each.patch)}
STRIDED = [name for name in CHANGES if name.endswith("the same address and shape")]
