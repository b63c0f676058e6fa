"""A capture without a GPU, and a bench that counts captures and replays of a store."""

from collections.abc import Callable

import torch

from lessons_lib.checks.exercise import Mistake, current_case, short


class Recorder:
    """In place of a CUDA capture: nothing is computed before the first replay."""

    def __init__(self) -> None:
        self.captures = self.replays = 0
        self.calls_step = False
        self.fails: type[Exception] | None = None

    def __call__(self, step):
        if self.fails is not None:
            raise self.fails("no memory for another graph")
        self.captures += 1
        output = torch.full_like(self._call(step), float("nan"))

        def replay() -> None:
            self.replays += 1
            output.copy_(self._call(step))

        return replay, output

    def _call(self, step) -> torch.Tensor:
        self.calls_step = True
        try:
            return step()
        finally:
            self.calls_step = False


class Bench:
    """A store, its recorder, and runs whose output is a number."""

    def __init__(self, attempt, case: str):
        current_case.text = self.case = case
        self.recorder = Recorder()
        self.store = attempt(self.recorder)
        self.own_calls: list[int] = []  # of a step by the store: how many captures came before each

    def run(self, size, key, value: torch.Tensor, keeps: Callable[[], tuple] = tuple) -> float:
        def step() -> torch.Tensor:
            if not self.recorder.calls_step:
                self.own_calls.append(self.recorder.captures)
            return value * 1.0

        got = self.store.run(size, key, step, keeps)
        if not isinstance(got, torch.Tensor):
            raise self.mistake(
                f"`run` should return the graph's output, a tensor; yours returned {short(got)}.",
                "`self.capture(step)` returns the pair (replay, output). `replay()` writes to `output`.",
            )
        return float(got)

    def mistake(self, what: str, idea: str) -> Mistake:
        return Mistake(what, case=self.case, idea=idea)

    def expect(self, got: float, want: float, idea: str) -> None:
        if got != got:
            raise self.mistake(
                "`run` returned an output that was never computed.",
                "A capture only records the step. The output is valid after a replay, the first time too."
                if not self.recorder.replays
                else "A replay writes to `output`, the very tensor that `self.capture` returned. Return that one, "
                "after the replay: a copy that was made before it stays as it was.",
            )
        if got != want:
            raise self.mistake(f"`run` should return {want:g}; yours returned {got:g}.", idea)

    def expect_no_other_call(self) -> None:
        """A call just before a capture is a warm-up; any other computes outside of the graph."""
        if self.recorder.captures in self.own_calls:
            raise self.mistake(
                "your code called `step` itself, besides its capture and its replay.",
                "Every output comes from a graph: return the tensor that the replay wrote to. A call of the step "
                "launches all its kernels, and writes to the cache once more.",
            )

    def expect_captures(self, want: int, idea: str) -> None:
        if self.recorder.captures != want:
            raise self.mistake(
                f"there should be {times_told(want, 'capture')} by now; yours made {self.recorder.captures}.", idea
            )


def times_told(count: int, what: str) -> str:
    return f"{count} {what}" + "s" * (count != 1)


def expect_count(bench: Bench, want: int, idea: str) -> None:
    got = getattr(bench.store, "num_captured", None)
    if got != want:
        raise bench.mistake(f"`num_captured` should be {want}; yours is {short(got)}.", idea)
