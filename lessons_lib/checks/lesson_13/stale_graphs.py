"""Judges 13.1, `GraphStore`: a graph is replayed as long as its key fits, and no longer."""

import gc
import weakref
from random import Random

import torch

from lessons_lib.checks.exercise import Mistake, current_case, short
from lessons_lib.checks.lesson_13.graph_captures import Bench, Recorder, expect_count, times_told
from lessons_lib.checks.lesson_13.graph_keys import KEY_CASES, check_key
from lessons_lib.engine.cuda_graphs import GraphStore


def check_graph_store(attempt) -> None:
    for case in KEY_CASES:
        check_key(attempt, case)
    for story in (_first_run, _second_run, _other_key, _sizes, _asked, _kept, _dropped, _others_stay, _capture_fails):
        story(attempt)
    for seed in range(20):
        _random(attempt, seed)


def _first_run(attempt) -> None:
    bench = Bench(attempt, 'a new store; `run(2, "A", step)`, where the step returns 1.')
    got = bench.run(2, "A", torch.tensor(1.0))
    bench.expect_captures(1, "There is no graph of this size yet: call `self.capture(step)`, once.")
    bench.expect(got, 1, "The output of the graph is what its replay computed.")
    if bench.recorder.replays > 1:
        raise bench.mistake(
            f"the graph should be replayed once; yours replayed it {bench.recorder.replays} times.",
            "A step computes its tokens once. Capture if necessary, then replay, in one place.",
        )
    if not bench.recorder.replays:
        raise bench.mistake(
            "the graph was captured, and never replayed: the output is that of a call of `step`.",
            "Every output comes from a graph, the first one too: capture if necessary, then replay, in one place.",
        )
    bench.expect_no_other_call()
    expect_count(bench, 1, "Count each capture there.")


def _second_run(attempt) -> None:
    value = torch.tensor(1.0)
    bench = Bench(attempt, '`run(2, "A", step)` twice; between the two, the step\'s input changes from 1 to 3.')
    bench.run(2, "A", value)
    value.fill_(3.0)
    got = bench.run(2, "A", value)
    bench.expect_captures(1, "The graph of this size has this key. A replay is all that's needed.")
    bench.expect(got, 3, "The graph has to be replayed at every run: that's what computes the output.")
    bench.expect_no_other_call()
    expect_count(bench, 1, "Count captures, not runs: the second one only replays.")
    bench = Bench(attempt, "`run(2, key, step)` twice; the two keys are equal, but two objects.")
    for _ in range(2):
        bench.run(2, tuple("A"), value)
    bench.expect_captures(1, "A key is looked up anew for each step. Compare keys with `==`, not with `is` or by `id`.")


def _other_key(attempt) -> None:
    bench = Bench(attempt, '`run(2, "A", step)`, then `run(2, "B", other)`. The steps return 1 and 5.')
    bench.run(2, "A", torch.tensor(1.0))
    got = bench.run(2, "B", torch.tensor(5.0))
    bench.expect(got, 5, "The graph was captured with another key, so it computes the old step. Capture it again.")
    bench.expect_no_other_call()
    expect_count(bench, 2, "Count each capture there, also one that takes the place of an older graph.")


def _sizes(attempt) -> None:
    bench = Bench(attempt, 'runs with the sizes 2, 4 and 2, all with the key "A"; the steps return 1, 5 and 1.')
    value, other = torch.tensor(1.0), torch.tensor(5.0)
    bench.run(2, "A", value)
    bench.expect(bench.run(4, "A", other), 5, "Each size has a graph of its own. Equal keys don't make sizes equal.")
    got = bench.run(2, "A", value)
    bench.expect_captures(2, "Each size keeps its graph while others run. Otherwise nearly every step is captured.")
    bench.expect(got, 1, "Replay the graph of this size.")
    bench = Bench(attempt, 'runs with the sizes 4 and 2, both with the key "A"; the steps return 5 and 1.')
    bench.run(4, "A", other)
    got = bench.run(2, "A", value)
    bench.expect(got, 1, "A graph computes the step of its own size only. Don't replay a larger one in its place.")


def _asked(attempt) -> None:
    bench = Bench(attempt, '`has(2, "A")` in a new store; then `run(2, "A", step)`, and `has` again.')
    asked = [bench.store.has(2, "A")]
    bench.expect_captures(0, "`has` only looks.")
    bench.run(2, "A", torch.tensor(1.0))
    asked += [bench.store.has(2, "A"), bench.store.has(2, "B"), bench.store.has(4, "A")]
    for got, want, what in zip(asked, (False, True, False, False), (
        'in a new store, `has(2, "A")`', 'after the run, `has(2, "A")`', '`has(2, "B")`', '`has(4, "A")`'
    )):  # fmt: skip
        if bool(got) != want or got is None:
            raise bench.mistake(
                f"{what} should be {want}; yours returned {short(got)}.",
                "It looks for `self.graphs[size]`, and compares its key with this one. Does `run` store the graph "
                "under its size, together with the key of the call?"
                if want
                else "It is True if there is a graph of this size, and its key equals this one.",
            )


def _kept(attempt) -> None:
    _check_kept(
        attempt, '`run(2, "A", step, keeps)`; then the engine replaces the cache that `keeps()` returned.', False
    )
    _check_kept(attempt, '`run(2, "A", …)`; the engine replaces its cache; `run(4, "B", …)`.', True)


def _check_kept(attempt, case: str, runs_another: bool) -> None:
    bench = Bench(attempt, case)
    engine = {"cache": torch.ones(3)}
    old, calls = weakref.ref(engine["cache"]), []

    def keeps() -> tuple:
        calls.append("keeps")
        return (engine["cache"],)

    bench.run(2, "A", torch.tensor(1.0), keeps)
    engine["cache"] = torch.zeros(3)
    if runs_another:
        bench.run(4, "B", torch.tensor(5.0), keeps)
        if not bench.store.has(2, "A"):
            raise bench.mistake(
                "the graph of size 2 is gone.",
                "Only a graph of the same size is replaced. The others stay, whatever their keys are.",
            )
    gc.collect()
    if old() is None:
        called = "`keeps()` was called, and what it returned was dropped." if calls else "`keeps()` wasn't called."
        raise bench.mistake(
            f"the old cache has been freed, and the graph of size 2 still exists: {called}",
            "Its address and its `id` may now be given to another tensor, and the key would fit again. Call `keeps()` "
            "at the capture, and hold on to what it returns as long as to the graph.",
        )


def _dropped(attempt) -> None:
    bench = Bench(attempt, '`run(2, "A", …)`; the engine replaces its cache; `run(2, "B", …)`.')
    engine = {"cache": torch.ones(3)}
    old = weakref.ref(engine["cache"])
    bench.run(2, "A", torch.tensor(1.0), lambda: (engine["cache"],))
    engine["cache"] = torch.zeros(3)
    bench.run(2, "B", torch.tensor(5.0), lambda: (engine["cache"],))
    if old() is not None:  # it may be part of a cycle
        gc.collect()
    if old() is not None and bench.store.has(2, "A"):
        raise bench.mistake(
            'the old cache is still held after its graph was captured again, and `has(2, "A")` is still True.',
            "There is one graph for each size: a new one takes the place of the old one, and nothing of that stays, "
            "since a cache takes most of the GPU's memory. Is the key part of what you store graphs by?",
        )
    if old() is not None:
        raise bench.mistake(
            "the old cache is still held after its graph was captured again.",
            "There is one graph for each size. When a new one takes its place, nothing of the old one stays: a cache "
            "takes most of the GPU's memory.",
        )


def _others_stay(attempt) -> None:
    bench = Bench(attempt, '`run(2, "A", …)`, `run(4, "A", …)`, `run(2, "B", …)`.')
    for size, key in ((2, "A"), (4, "A"), (2, "B")):
        bench.run(size, key, torch.tensor(1.0))
    if not bench.store.has(4, "A"):
        raise bench.mistake(
            'the graph of size 4 is gone: `has(4, "A")` is False.',
            "Where did the graph of size 4 go? The new graph takes the place of the one of its own size, 2. The others "
            "stay, whatever their keys are.",
        )


def _capture_fails(attempt) -> None:
    for failure in (MemoryError, RuntimeError):  # PyTorch's own errors are RuntimeErrors
        _fails_with(attempt, failure)


def _fails_with(attempt, failure: type[Exception]) -> None:
    case = f'`run(2, "A", …)`; then `run(2, "B", …)`, whose capture raises {failure.__name__}; then `run(2, "B", …)` again. '  # noqa: E501
    bench = Bench(attempt, case + "The steps return 1, 5 and 5.")
    bench.run(2, "A", torch.tensor(1.0))
    bench.recorder.fails = failure
    try:
        bench.run(2, "B", torch.tensor(5.0))
    except failure:
        pass
    else:
        raise bench.mistake(
            f"the {failure.__name__} should go on to the caller; yours returned an output.",
            "The step wasn't computed, and the engine has to know that.",
        )
    bench.recorder.fails = None
    got = _run_again(bench)
    bench.expect(got, 5, "That is the graph of A. No graph was captured with B's key, so B's key must not be noted.")
    expect_count(bench, 2, "A capture that raises an error has made no graph. Count after it, not before.")


def _run_again(bench: Bench) -> float:
    """`run(2, "B", …)`, whose capture has failed before."""
    has_graph = bench.store.has(2, "B")
    try:
        return bench.run(2, "B", torch.tensor(5.0))
    except Exception as error:
        if not has_graph or isinstance(error, Mistake):
            raise
        raise bench.mistake(
            f'after the capture that failed, `has(2, "B")` is True, and the next run raised {type(error).__name__}: '
            f"{error}.",
            "No graph was captured with B's key. Put a graph into your store after its capture has returned, not "
            "before.",
        ) from None


class Engine:
    """A step over buffers, a cache and a weight that may change between steps, and a store that runs it."""

    def __init__(self, make_store) -> None:
        self.recorder = Recorder()
        self.store = make_store(self.recorder)
        self.buffer, self.cache = torch.arange(1.0, 9.0), torch.ones(())
        self.weight = torch.nn.Parameter(torch.tensor(2.0), requires_grad=False)
        self.views = {size: self.buffer[:size] for size in (2, 4, 8)}
        self.factor = 1.0

    def change(self, what: str) -> None:
        if what == "a weight moves":
            self.weight.data = self.weight.data + 1
        elif what == "the cache is replaced":
            self.cache = self.cache + 1
        elif what == "the buffer is replaced":
            self.buffer = self.buffer + 1
            self.views = {size: self.buffer[:size] for size in self.views}
        elif what == "new values":
            self.buffer += 1
        elif what == "a setting changes":
            self.factor += 1.0

    def step(self, size: int) -> tuple[float, float]:
        """What the store returns, and what is right."""
        view, cache, weight, factor = self.views[size], self.cache, self.weight.detach(), self.factor

        def compute() -> torch.Tensor:
            return (view.sum() + cache) * weight * factor

        key = self.store.key_of([view, cache], [self.weight], (factor,))
        got = self.store.run(size, key, compute, lambda: (view, cache, weight))
        return float(got), float(compute())


CHANGES = ("a weight moves", "the cache is replaced", "the buffer is replaced", "new values", "a setting changes")


def _random(attempt, seed: int) -> None:
    rng = Random(seed)
    own, right = Engine(attempt), Engine(GraphStore)
    told: list[str] = []
    for _ in range(12):
        if rng.random() < 0.5:
            told.append(rng.choice(CHANGES))
            own.change(told[-1])
            right.change(told[-1])
        size = rng.choice((2, 4, 8))
        told.append(f"size {size}")
        current_case.text = case = ", ".join(told) + "."
        got, want = own.step(size)
        right.step(size)
        if got != want:
            raise Mistake(f"the step should return {want:g}; yours returned {got:g}.", case=case,
                          idea="A graph was replayed although something that it reads has changed.")  # fmt: skip
        if own.recorder.captures != right.recorder.captures:
            what = f"{times_told(right.recorder.captures, 'capture')} should have been made; yours made "
            raise Mistake(what + f"{own.recorder.captures}.", case=case,
                          idea="A step is captured only if there is no graph of its size with its key.")  # fmt: skip
