"""One test of the contract, written by the learner: right engines must pass it, and two wrong ones must fail."""

import inspect
import traceback
from collections.abc import Callable
from typing import Any

from lessons_lib.checks.endless import files_of, is_cell
from lessons_lib.checks.exercise import Mistake, current_case
from lessons_lib.conformance.break_in.engine import ChatEngine, TooManySteps, right_engine
from lessons_lib.conformance.break_in.grading import Test, error_of
from lessons_lib.conformance.break_in.silent import why_silent
from lessons_lib.conformance.contract import Limits, NewTokens, Params
from lessons_lib.conformance.examples.small_engine import SmallEngine
from lessons_lib.conformance.oracle import a_model


def test_an_abort(make_engine: "Callable[..., Any]") -> None:
    """Raises if an engine gives tokens to a request after its abort.

    Args:
        make_engine: function (**limits) -> engine, such as `make_engine(max_num_seqs=2)`. The limits are fields of
            `Limits`.
    """
    for aborted, other in (("runs", "waits"), ("waits", "runs")):
        engine = make_engine(max_num_seqs=1)
        for name in ("runs", "waits"):
            engine.add_request(name, [5, 7, 9], Params(max_tokens=4, ignore_eos=True))
        engine.step()
        engine.abort(aborted)
        while engine.has_unfinished():
            for event in engine.step():
                assert event.request_id == other or not event.token_ids, f"{aborted} was aborted, and got a token"


class StoppingEngine(SmallEngine):
    """The small engine, which refuses to step for ever."""

    num_steps = 0

    def __init__(self, **limits: int):
        super().__init__(a_model("qwen2"), Limits(**limits))

    def step(self) -> list[NewTokens]:
        self.num_steps += 1
        if self.num_steps > 600:
            raise TooManySteps("600 steps were taken, and the test still goes on. Give its loop an end.")
        return super().step()

    def close(self) -> None:
        """Nothing is open."""


class Noticing(StoppingEngine):
    """Says "abort" in the step after, as the contract allows."""

    def __init__(self, **limits: int):
        super().__init__(**limits)
        self.notices: list[NewTokens] = []

    def abort(self, request_id: str) -> None:
        if request_id in {sequence.request_id for sequence in [*self.waiting, *self.running]}:
            self.notices.append(NewTokens(request_id, [], "abort"))
        super().abort(request_id)

    def step(self) -> list[NewTokens]:
        notices, self.notices = self.notices, []
        return notices + super().step()


class EndingLater(StoppingEngine):
    """Tells the end of a request one step after its last token, as the contract allows."""

    def __init__(self, **limits: int):
        super().__init__(**limits)
        self.ends: list[NewTokens] = []

    def abort(self, request_id: str) -> None:
        self.ends = [end for end in self.ends if end.request_id != request_id]
        super().abort(request_id)

    def step(self) -> list[NewTokens]:
        if self.ends:
            ends, self.ends = self.ends, []
            return ends
        events = super().step()
        self.ends = [NewTokens(event.request_id, [], event.finish_reason) for event in events if event.finish_reason]
        return [NewTokens(event.request_id, event.token_ids) for event in events]

    def has_unfinished(self) -> bool:
        return bool(self.ends) or super().has_unfinished()


class OneAtATime(StoppingEngine):
    """Serves one request at a time, whatever the limits are: fewer than allowed, as the contract allows."""

    def __init__(self, **limits: int):
        super().__init__(**{**limits, "max_num_seqs": 1})


class OneTokenMore(StoppingEngine):
    """Wrong: a request that runs is aborted after its next token only."""

    def __init__(self, **limits: int):
        super().__init__(**limits)
        self.late: list[str] = []

    def abort(self, request_id: str) -> None:
        if request_id in {sequence.request_id for sequence in self.running}:
            self.late.append(request_id)
        else:
            super().abort(request_id)

    def step(self) -> list[NewTokens]:
        events, late, self.late = super().step(), self.late, []
        for request_id in late:
            super().abort(request_id)
        return events


class DeafWhileItWaits(StoppingEngine):
    """Wrong: the abort of a request that waits changes nothing."""

    def abort(self, request_id: str) -> None:
        if request_id not in {sequence.request_id for sequence in self.waiting}:
            super().abort(request_id)


RIGHT: dict[str, tuple[Callable[..., ChatEngine | StoppingEngine], str]] = {
    "the course's engine": (
        right_engine,
        "What does the contract promise after an abort, and what does it only allow? Read the docstrings of `abort` "
        "and `step` again.",
    ),
    "the small engine": (StoppingEngine, "It has `Limits` and the five methods, but no blocks."),
    "an engine that says “abort” in its next step": (
        Noticing,
        "The contract allows that: an event of the request with “abort”, and without tokens.",
    ),
    "an engine that tells the end of a request one step after its last token": (
        EndingLater,
        "The contract allows that, and a step that gives no token. Does your test count steps or events?",
    ),
    "an engine that serves one request at a time": (
        OneAtATime,
        "A step serves some of the requests or all, and `max_num_seqs` is only the most that may run. Does your test "
        "expect a token that needn't be there yet?",
    ),
}
WRONG: dict[str, tuple[Callable[..., StoppingEngine], str]] = {
    "a request gets tokens after its abort": (
        OneTokenMore,
        "Is a request running, with tokens still to come, when your test aborts it? And does it look at every step "
        "after that?",
    ),
    "a request that was aborted is served in the end": (
        DeafWhileItWaits,
        "Abort in every state. In which state was the request when your test aborted it? `max_num_seqs=1` makes one "
        "wait.",
    ),
}


def check_one_test(test: Test) -> None:
    """The check of the exercise.

    Raises:
        Mistake: a right engine fails the test, or a wrong one passes.
    """
    for name, (make_engine, idea) in RIGHT.items():
        current_case.text = f"on {name}, which is right"
        for _ in range(2):
            error, place, _ = _tried(test, make_engine)
            if isinstance(error, NotImplementedError):
                raise error
            if error is not None:
                what = (str(error) or "its assertion has no message").removesuffix(".")
                if isinstance(error, TooManySteps):
                    idea = "Step while `has_unfinished()` is True, or a fixed number of times."
                if isinstance(error, TypeError):
                    idea = "Is it your test's own error? Limits are given by name: `make_engine(max_num_seqs=2)`."
                raise Mistake(
                    f"the test fails on {name}: {type(error).__name__}: {what}.",
                    case=f"{current_case.text}{place}",
                    idea=idea,
                )
    for observable, (make_wrong, idea) in WRONG.items():
        current_case.text = f"on an engine with this mistake: {observable}"
        error, _, returned = _tried(test, make_wrong)
        if error is None:
            if isinstance(returned, bool):
                idea = f"It returned {returned}, which nothing reads. A test fails by raising: `assert`."
            idea = why_silent(test, returned) or idea
            raise Mistake(f"the test passes on a wrong engine: {observable}.", case=current_case.text, idea=idea)


def _tried(test: Test, make_engine: Callable[..., Any]) -> tuple[BaseException | None, str, Any]:
    """What the test raises, at which of its lines, as the end of a sentence, and what it returns."""
    place, returned = "", None

    def noted(make_engine: Any) -> None:
        nonlocal place, returned
        try:
            returned = test(make_engine)
            if inspect.iscoroutine(returned):
                returned.close()  # without a warning that it was never awaited
        except BaseException as error:
            place = _place(error, test)
            raise

    return error_of(noted, make_engine), place, returned


def _place(error: BaseException, test: Test) -> str:
    own = files_of(test)
    calls = traceback.extract_tb(error.__traceback__)
    frames = [each for each in calls if is_cell(each.filename) or each.filename in own]
    return f"; line {frames[-1].lineno} of your cell: `{frames[-1].line}`" if frames and frames[-1].line else ""
