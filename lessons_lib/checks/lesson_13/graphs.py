"""13.1, `GraphStore`: a graph is replayed as long as its key is the same, and no longer."""

import gc
from collections.abc import Iterator
from typing import Any

import torch

from lessons_lib.checks.diagnosis import Shown, Task, Watch, mistakes, without_one
from lessons_lib.checks.lesson_13.fake_capture import CHANGES, STRIDED, Bench, CaptureRefused

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
