"""13.1, `GraphStore`: a graph is replayed as long as its key is the same, and no longer."""

import gc
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch

from lessons_lib.checks.diagnosis import Shown, Task, Watch, mistakes, without_one
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
EQUAL, OTHER, HELD, FREED = map(Shown, ("equal to the first", "another one", "alive", "freed"))
CAPTURES, REPLAYS, NUM = "the number of captures", "the number of replays", "store.num_captured"
OWN, KEEPS = "the number of your own calls of `step`", "the number of calls of `keeps` without a capture"
Case = list[str]
SCRIPTS = """
run 2 A 1
run 2 A 1; run 2 A 1
run 2 A 1; set 1 3; run 2 A 1
run 2 A 1; run 2 B 5; run 2 A 1
run 2 A 1; run 4 A 5; run 2 A 1
run 4 A 5; run 2 A 1
has 2 A; run 2 A 1; has 2 A; has 2 B; has 4 A
run 2 A 1; run 4 A 1; run 2 B 1; has 4 A; run 4 A 1
run 2 A 1; cache x; kept x
run 2 A 1; cache x; run 4 B 5; kept x; has 2 A
run 2 A 1; cache x; run 2 A 1; cache y; kept x
run 2 A 1; cache x; run 2 B 5; dropped x; has 2 A
run 2 A 1; fail; run 2 B 5; run 2 B 5; works; run 2 B 5
"""


def cases() -> Iterator[Case]:
    yield ["key", "key"]
    yield from (["key", change, "key"] for change in CHANGES)
    yield [STRIDED[0], "key", STRIDED[1], "key"]
    yield from (line.split("; ") for line in SCRIPTS.strip().split("\n"))


def run(attempt: Any, case: Case, watch: Watch) -> None:
    bench, keys = Bench(attempt), []

    def look() -> dict[str, Any]:
        counts = {OWN: bench.own_calls, CAPTURES: bench.capture.captures, REPLAYS: bench.capture.replays}
        return counts | {NUM: bench.store.num_captured, KEEPS: bench.needless_keeps}

    def number(got: Any) -> Any:
        return float(got) if isinstance(got, torch.Tensor) and got.numel() == 1 else got

    def key_named(name: str) -> list[str]:
        bench.gone.append([name])  # equal keys are other objects each time, and have no hash
        return bench.gone[-1]

    def make_key() -> Any:
        keys.append(bench.key())
        return keys[-1] if keys[-1] is None else Shown("a key")

    for operation in case:
        word, *rest = operation.split()
        told = told_of(operation)
        if operation in CHANGES:
            bench.change(operation)
        elif word == "key":
            watch(told, make_key)
            if len(keys) == 2:
                watch("then", lambda: EQUAL if keys[0] == keys[1] else OTHER, subject="the second key")
        elif word == "run":
            value = bench.values.setdefault(rest[2], torch.tensor(float(rest[2])))
            watch(told, bench.run, int(rest[0]), key_named(rest[1]), value, look=look, returns=number)
        elif word == "has":
            watch(told, bench.store.has, int(rest[0]), key_named(rest[1]), returns=bool)
        elif word == "set" and rest[0] in bench.values:
            bench.values[rest[0]].fill_(float(rest[1]))
        elif word == "cache":
            bench.replace_cache(rest[0])
        elif word in ("kept", "dropped") and rest[0] in bench.caches:
            old = bench.caches[rest[0]]
            if word == "dropped" and old() is not None:
                gc.collect(1)  # it may be part of a cycle
            watch("then", lambda: HELD if old() is not None else FREED, subject=f"the old cache {rest[0]}")
        elif word in ("fail", "works"):
            bench.capture.is_broken = word == "fail"


def told_of(operation: str) -> str:
    if operation in CHANGES:
        return operation
    word, *rest = operation.split()
    return {
        "key": "`key_of(inputs, weights, settings)`",
        "run": '`run({}, "{}", step, keeps)` with a step that returns {}',
        "has": '`has({}, "{}")`',
        "set": "the input of the step that returned {} changes, and now it returns {}",
        "cache": "the engine replaces its cache {}, which `keeps()` returned, by another",
        "fail": "from now on, captures raise CaptureRefused",
        "works": "captures work again",
    }.get(word, "").format(*rest)


def tell(case: Case) -> str:
    return "; ".join(text for operation in case if (text := told_of(operation))) + "."


def of_result(mine: dict[str, Any], want: dict[str, Any]) -> str:
    got, wanted = mine["returned"], want["returned"]
    if wanted in (EQUAL, OTHER):
        return next(
            (CHANGES[each][1] for each in reversed(want["case"]) if each in CHANGES),
            "Nothing has changed, but the lists are other objects at each call. A generator equals only itself: make a "
            "list or a tuple of what you find out about the tensors.",
        )
    if wanted == HELD:
        return (
            "Each graph holds on to what `keeps()` returned at its capture. Otherwise its address and `id` may be "
            "given to another tensor, and the key would fit by accident."
        )
    if wanted == FREED:
        return "When a new graph takes the place of an old one, nothing of that stays: a cache takes much memory."
    if isinstance(wanted, bool):
        return "Is there a graph of this size, captured with this key? A new graph replaces only that of its own size."
    if not isinstance(got, float):
        return "`run` returns the output, which `self.capture` returned: a tensor."
    if got != got:
        return (
            "What a capture computes isn't valid. Replay after it, too, and return the very tensor that "
            "`self.capture` returned: `replay()` writes to it."
        )
    return "The replayed graph has another key or size, so it computes another step. Compare both, and capture again."


def of_captures(mine: dict[str, Any], want: dict[str, Any]) -> str:
    if mine[CAPTURES] > want[CAPTURES]:
        return (
            "If the graph of this size has an equal key (`==`; it may be another object), a replay is all that's "
            "needed. It stays, whatever becomes of other sizes."
        )
    return "Capture if there is no graph of this size with this key. There is one for each size: the last captured."


def of_error(mine: dict[str, Any], want: dict[str, Any]) -> str:
    ideas = {
        "unhashable": "`settings` may contain lists, and a list has no hash. A key only needs `==`.",
        "Boolean value": "Tensors compare their elements, so a key can't contain them. It says where they are.",
        "'Tensor' object is": "`self.capture(step)` takes `step` itself, and returns (`replay`, `output`).",
    }
    return next((idea for text, idea in ideas.items() if text in mine["raised"]), "")


MISTAKES = """
`run` returns the output. `replay()` returns nothing: it writes to the tensor that `self.capture` returned.
~ return self.graphs[size].output => pass
"""

TASK = Task(
    reference="lessons_lib.engine.cuda_graphs:GraphStore",
    cases=cases,
    run=run,
    tell=tell,
    smaller=without_one,
    known=mistakes(MISTAKES),
    refusals=(CaptureRefused.__name__,),
    about={
        "returned": of_result,
        CAPTURES: of_captures,
        REPLAYS: "Every run replays one graph, once. That computes the output.",
        OWN: "Only `self.capture(step)` and `replay()` run the step: your call launches all its kernels, and writes to "
        "the cache once more.",
        KEEPS: "Call `keeps` at a capture only: it collects all tensors, which takes long.",
        NUM: "The number of captures that succeeded, also of those whose graph was replaced.",
        "raised TypeError": of_error,
        "raised RuntimeError": of_error,
        "raised KeyError": "There is no graph of this size yet. `has` returns False then (`self.graphs.get(size)` "
        "returns None), and `run` captures.",
        "should raise CaptureRefused": "The error has to go on to the caller, and a capture that failed leaves neither "
        "a graph nor its key.",
    },
)

EXERCISE = TASK.exercise(
    id="13.1",
    title="graphs that are never stale",
    hints=(
        "Imagine every way in which the engine can put something else where the graph reads. For each, what about the "
        "tensors changes: the address, the object, or only the values?",
        "The key has three parts: the addresses of all inputs and weights, in order; something that tells views at the "
        "same address apart, which `id` does for the inputs; and the settings. `run` captures if `has` says no. It "
        "stores the key together with the graph, after the capture has succeeded, and replays in any case.",
        "`key_of`: `addresses = [tensor.data_ptr() for tensor in [*inputs, *weights]]`, then `return addresses, "
        "[id(tensor) for tensor in inputs], settings`. `run`: if `has` says no, `replay, output = self.capture(step)`, "
        "`self.graphs[size] = Graph(key, keeps(), replay, output)` and `self.num_captured += 1`; then "
        "`self.graphs[size].replay()` and `return self.graphs[size].output`.",
    ),
    points=3,
)
