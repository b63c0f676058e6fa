"""13.1, `GraphStore`: a graph is replayed as long as its key is the same, and no longer."""

import gc
from collections.abc import Iterator
from random import Random
from typing import Any

import torch

from lessons_lib.checks.diagnosis import Task, Watch, mistakes
from lessons_lib.checks.diagnosis.telling import Shown
from lessons_lib.checks.exercise import Exercise
from lessons_lib.checks.lesson_13.fake_capture import CHANGES, OFTEN, STRIDED, Bench, CaptureRefused, NoRoomForGraph

FAILURES: dict[str, type[Exception]] = {each.__name__: each for each in (NoRoomForGraph, CaptureRefused)}
EQUAL, OTHER, HELD, FREED = map(Shown, ("equal to the first", "another one", "alive", "freed"))
Case = list[str]
SCRIPTS = """
run 2 A 1
run 2 A 1; set 1 3; run 2 A 1
run 2 A 1; run 2 B 5; run 2 A 1
run 2 A 1; run 4 A 5; run 2 A 1
run 4 A 5; run 2 A 1
run 2 =A 1; has 2 =A
has 2 A; run 2 A 1; has 2 A; has 2 B; has 4 A
run 2 A 1; run 4 A 1; run 2 B 1; has 4 A
run 2 A 1; cache x; kept x
run 2 A 1; cache x; run 4 B 5; kept x; has 2 A
run 2 A 1; cache x; run 2 A 1; cache y; kept x
run 2 A 1; cache x; run 2 B 5; dropped x; has 2 A
run 2 A 1; fail NoRoomForGraph; run 2 B 5; works; run 2 B 5
run 2 A 1; fail CaptureRefused; run 2 B 5; works; run 2 B 5
"""


def cases() -> Iterator[Case]:
    yield ["key", "key"]
    yield from (["key", change, "key"] for change in CHANGES)
    yield [STRIDED[0], "key", STRIDED[1], "key"]
    yield from (line.split("; ") for line in SCRIPTS.strip().split("\n"))
    draw = Random(1)
    for _ in range(12):
        case = []
        for _ in range(8):
            case += [draw.choice(OFTEN)] if draw.random() < 0.5 else []
            case.append(f"step {draw.choice((2, 4))}")
        yield case


def run(attempt: Any, case: Case, watch: Watch) -> None:
    bench, keys = Bench(attempt), []
    same_keys: dict[str, tuple[str, ...]] = {}

    def look() -> dict[str, Any]:
        return {
            "the number of captures": bench.capture.captures,
            "the number of replays": bench.capture.replays,
            "the number of your own calls of `step`": sum(n == bench.capture.attempts for n in bench.own_calls),
            "store.num_captured": bench.store.num_captured,
        }

    def number(got: Any) -> Any:
        return float(got) if isinstance(got, torch.Tensor) and got.numel() == 1 else got

    def key_named(name: str) -> tuple[str, ...]:
        """Equal keys are other objects each time, except those with a `=`."""
        return same_keys.setdefault(name, tuple(name)) if name[0] == "=" else tuple(name)

    def make_key() -> Any:
        keys.append(bench.key())
        return keys[-1] if keys[-1] is None else Shown("a key")

    for operation in case:
        word, *rest = operation.split()
        told = told_of(operation)
        if operation in CHANGES:
            CHANGES[operation](bench)
        elif word == "key":
            watch(told, make_key)
            if len(keys) == 2:
                watch("then", lambda: EQUAL if keys[0] == keys[1] else OTHER, subject="the second key")
        elif word == "step":
            watch(told, bench.step, int(rest[0]), look=look, returns=number)
        elif word == "run":
            value = bench.values.setdefault(rest[2], torch.tensor(float(rest[2])))
            watch(
                told,
                bench.run,
                int(rest[0]),
                key_named(rest[1]),
                lambda value=value: value * 1.0,
                look=look,
                returns=number,
            )
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
            bench.capture.failure = FAILURES.get(rest[0]) if rest else None


def told_of(operation: str) -> str:
    """An operation in words."""
    if operation in CHANGES:
        return operation
    word, *rest = operation.split()
    return {
        "key": "`key_of(inputs, weights, settings)`",
        "step": "a step of size {}",
        "run": '`run({}, "{}", step, keeps)` with a step that returns {}',
        "has": '`has({}, "{}")`',
        "set": "the input of the step that returned {} changes, and now it returns {}",
        "cache": "the engine replaces its cache {}, which `keeps()` returned, by another",
        "fail": "from now on, captures raise {}",
        "works": "captures work again",
    }.get(word, "").format(*rest)


def tell(case: Case) -> str:
    return "; ".join(text for operation in case if (text := told_of(operation))) + "."


def smaller(case: Case) -> Iterator[Case]:
    yield from (case[:index] + case[index + 1 :] for index in range(len(case)) if len(case) > 1)


MISTAKES = """
Weights can get other memory, too. A graph would go on reading the old one: are all of them in your key?
~ [*inputs, *weights] => inputs
or
~ [*inputs, *weights] => [*inputs, *weights[:1]]
Inputs and caches can get other memory, too. A graph would go on reading the old one: are all of them in your key?
~ [*inputs, *weights] => [inputs[0], *weights]
~ list(map(id, inputs)) => id(inputs[0])
The same object may get other memory: a weight's `data`, for instance. Only its `data_ptr()` tells.
~ torch.Tensor.data_ptr => id
or
~ [*inputs, *weights] => weights
Another view may begin at the same address, with another shape, other strides or another dtype. What in your key tells
one input from another at the same address? Its `id` does (as long as the graph holds on to it).
~ list(map(id, inputs)) => []
or
~ list(map(id, inputs)) => [(each.shape, each.dtype) for each in inputs]
or
~ list(map(id, inputs)) => [(each.shape, each.stride()) for each in inputs]
or
~ list(map(id, inputs)) => [(each.numel(), each.stride(), each.dtype) for each in inputs]
or
~ list(map(id, inputs)) => [(each.stride(), each.dtype) for each in inputs]
or
~ list(map(id, inputs)) => [(each.shape, each.is_contiguous(), each.dtype) for each in inputs]
A view begins somewhere in its storage: its `data_ptr()` says where, not that of the storage.
~ torch.Tensor.data_ptr => (lambda each: each.untyped_storage().data_ptr())
or
= addresses = [(each.untyped_storage().data_ptr(), id(each)) for each in [*inputs, *weights]]
or
= addresses = [(each.untyped_storage().data_ptr(), each.shape, each.stride(), each.dtype) for each in [*inputs, *weights]]
~ list(map(id, inputs)) => []
Settings decide which kernels run, and a graph always runs the same ones. Are they in your key?
~ inputs)), settings) => inputs)), ())
Settings are new objects at each call: compare them as values.
~ inputs)), settings) => inputs)), [id(each) for each in settings])
The lists are new at each call. The tensors in them are the same objects, until one is replaced.
= return id(inputs), id(weights), settings
Tensors compare their elements, so tensors in a key can't be compared with `==`. A key says where they are.
= return inputs, weights, settings
Replays read the values that are there at that time, so new values need no new graph.
= return [each.tolist() for each in [*inputs, *weights]], addresses, list(map(id, inputs)), settings
or
= return repr((inputs, weights)), addresses, list(map(id, inputs)), settings
The order counts: a graph would use each weight in place of the other.
= addresses = set(map(torch.Tensor.data_ptr, [*inputs, *weights]))
or
= addresses = sorted(map(torch.Tensor.data_ptr, [*inputs, *weights]))
`settings` may contain lists, and a list has no hash. A key only needs `==`.
= return hash((tuple(addresses), tuple(map(id, inputs)), settings))
`key_of` returns nothing. Return what `has` will compare with `==`.
- return GraphKey
The graph was captured with another key, so it computes the old step. Compare the keys, and capture again.
~ graph is not None and graph.key == key => graph is not None
or
~ if not self.has(size, key) => if size not in self.graphs
Equal keys may be two objects: compare with `==`, not with `is` or by `id`.
~ graph.key == key => graph.key is key
or
~ graph.key == key => graph.key == id(key)
~ Graph(key, => Graph(id(key),
`has` returns True if there is a graph of this size that was captured with this key, and False otherwise.
~ return graph is not None and graph.key == key => pass
or
~ graph is not None and graph.key == key => graph is not None
~ if not self.has(size, key) => if not self.has(size, key) or self.graphs[size].key != key
or
~ return graph is not None and graph.key == key => return graph is None or graph.key != key
~ if not self.has(size, key) => if self.has(size, key)
If a graph of this size has this key, a replay is all that's needed.
~ if not self.has(size, key) => if True
The condition is the wrong way round: capture if there is *no* such graph.
~ if not self.has(size, key) => if self.has(size, key)
Don't rely on what a capture computes: its output is valid after a replay, the first time too.
- self.graphs[size].replay()
or
~ self.graphs[size].replay() => is_new or self.graphs[size].replay()
- if not self.has(size, key)
+ is_new = not self.has(size, key)
+ ...
The graph has to be replayed at every run, since that computes the output.
- self.graphs[size].replay()
- return self.graphs[size].output
+ return self.graphs[size].output
- self.num_captured += 1
+ ...
+ self.graphs[size].replay()
A run computes its step once. Capture if necessary, then replay, in one place.
- self.num_captured += 1
+ ...
+ self.graphs[size].replay()
Every output comes from a graph, the first one too. A call of `step` launches all its kernels, and writes to the cache
once more.
- if not self.has(size, key) ... return self.graphs[size].output
+ return step()
or
~ return self.graphs[size].output => return step()
`run` returns the output of the graph, the tensor that `self.capture` returned. `replay()` returns nothing: it writes to
that tensor.
- self.graphs[size].replay()
~ return self.graphs[size].output => return self.graphs[size].replay()
or
~ return self.graphs[size].output => return self.graphs[size].replay()
or
~ return self.graphs[size].output => pass
A replay writes to the very tensor that `self.capture` returned. A copy that was made before stays as it was.
- self.graphs[size] = Graph
+ replay, output = self.capture(step)
+ self.graphs[size] = Graph(key, keeps(), replay, output.clone())
Hold on to what `keeps()` returns at the capture, as long as to the graph. Otherwise its address and `id` may be given
to another tensor, and the key would fit by accident.
~ keeps() => ()
or
~ keeps() => (keeps,)
Each graph holds on to its own tensors, as they were at its capture. A replay changes nothing about that.
- self.graphs[size] = Graph
+ self.graphs[size] = Graph(key, (), *self.capture(step))
- self.graphs[size].replay()
+ self.kept = keeps()
+ ...
When a new graph takes the place of an old one, nothing of that stays: a cache takes most of the GPU's memory.
~ self.num_captured += 1 => self.num_captured += 1; self.kept = [*getattr(self, "kept", []), self.graphs[size]]
There is one graph for each size. With the key in what you store graphs by, old ones stay, and their memory too.
~ self.graphs[size] => self.graphs[size, str(key)]
~ self.graphs.get(size) => self.graphs.get((size, str(key)))
A new graph takes the place of the one of its own size. The others stay, whatever their keys are.
- if not self.has(size, key)
+ if size in self.graphs and not self.has(size, key): self.graphs.clear()
+ ...
or
- if not self.has(size, key)
+ if any(graph.key != key for graph in self.graphs.values()): self.graphs.clear()
+ ...
Each size keeps its graph while others run. Otherwise nearly every step is captured.
- if not self.has(size, key)
+ if not self.has(size, key): self.graphs.clear()
+ ...
Equal keys don't make sizes equal: each size has a graph of its own.
~ self.graphs.get(size) => self.graphs.get(0)
~ self.graphs[size] => self.graphs[0]
A graph computes the step of its own size only. Don't replay a larger one in its place.
- if not self.has(size, key)
+ size = size if self.has(size, key) else min((one for one in self.graphs if one > size and self.has(one, key)), default=size)
+ ...
Store a graph after its capture has returned. One that has failed must leave neither a graph nor its key.
- self.graphs[size] = Graph
+ self.graphs[size] = Graph(key, keeps(), None, None)
+ ...
or
~ graph.key == key => self.keys.get(size) == key
~ self.num_captured = 0 => self.num_captured, self.keys = 0, {}
- self.graphs[size] = Graph
+ self.keys[size] = key
+ ...
The error has to go on to the caller: the step wasn't computed.
- self.graphs[size] = Graph
+ try: self.graphs[size] = Graph(key, keeps(), *self.capture(step))
+ except Exception: return step()
or
- self.graphs[size] = Graph
+ try: self.graphs[size] = Graph(key, keeps(), *self.capture(step))
+ except RuntimeError: return step()
A capture that raises an error has made no graph. Count after it.
- self.graphs[size] = Graph
- self.num_captured +=
+ self.num_captured += 1
+ self.graphs[size] = Graph(key, keeps(), *self.capture(step))
Count each capture in `self.num_captured`.
- self.num_captured +=
Count captures. A run that only replays makes none.
- self.num_captured +=
- self.graphs[size].replay()
+ self.num_captured += 1
+ ...
Count captures, also one whose graph takes the place of an older one.
~ self.num_captured += 1 => self.num_captured = len(self.graphs)
"""  # noqa: E501

TASK = Task(
    reference="lessons_lib.engine.cuda_graphs:GraphStore",
    cases=cases,
    run=run,
    tell=tell,
    smaller=smaller,
    known=mistakes(MISTAKES),
    refusals=tuple(FAILURES),
    about={
        "returned": "`run` returns the output of a replay, of a graph that was captured with the same key and size; "
        "keys are equal exactly if a replay would still do what the step does.",
        "the number of captures": "Capture a step if there is no graph of its size with its key, and only then.",
        "the number of replays": "Every run replays one graph, once.",
        "the number of your own calls of `step`": "`self.capture(step)` records the step, and `replay()` runs it. "
        "Calling it yourself launches all its kernels.",
        "raised KeyError": "There may be no graph of this size yet: `self.graphs.get(size)` returns None then.",
        "store.num_captured": "The number of captures that succeeded.",
    },
)

EXERCISE = Exercise(
    id="13.1",
    title="graphs that are never stale",
    reference=TASK.reference,
    test=TASK,
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
