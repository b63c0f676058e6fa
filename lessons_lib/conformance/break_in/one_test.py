"""One test of the contract, written by the learner: right engines must pass it, and wrong ones must fail."""

import inspect
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from lessons_lib.checks.endless import files_of, is_cell
from lessons_lib.checks.exercise import Mistake, current_case
from lessons_lib.conformance.break_in import abort_engines
from lessons_lib.conformance.break_in.calls import Calls
from lessons_lib.conformance.break_in.engine import TooManySteps
from lessons_lib.conformance.break_in.grading import Test, error_of
from lessons_lib.conformance.break_in.silent import why_silent
from lessons_lib.conformance.contract import Params
from lessons_lib.models.validate import BadRequest

NO_ABORT = "It has aborted no request: call `engine.abort(request_id)` while the request runs, or waits."


def test_an_abort(make_engine: Callable[..., Any]) -> None:
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


@dataclass
class Outcome:
    """What a test raised, at which of its lines, what it returned, and the engines that it made."""

    error: BaseException | None = None
    place: str = ""
    returned: Any = None
    engines: list[Any] = field(default_factory=list)


def check_one_test(test: Test) -> None:
    """The check of the exercise: right engines must pass the test, and wrong ones fail."""
    for name, (make_engine, idea) in abort_engines.RIGHT.items():
        current_case.text = f"on {name}, which is right"
        for _ in range(2):
            calls = Calls()
            outcome = _tried(test, calls.noted_of(make_engine))
            if isinstance(outcome.error, NotImplementedError):
                raise outcome.error
            if outcome.error is None and not calls.has_aborted:
                idea = why_silent(test, outcome.returned) or NO_ABORT
                raise Mistake("the test passes on every engine.", case=current_case.text, idea=idea)
            if outcome.error is not None:
                if name == "the course's engine" and isinstance(outcome.error, AssertionError):
                    idea = _counts_others(calls, test) or idea + _counts_earlier(calls)
                    idea = idea if calls.has_aborted or not calls.served(slice(None)) else NO_ABORT
                raise _failed(name, outcome, calls, idea)
    for observable, (make_wrong, idea) in abort_engines.WRONG.items():
        current_case.text = f"on an engine with this mistake: {observable}"
        outcome = _tried(test, make_wrong)
        if outcome.error is None:
            if isinstance(outcome.returned, bool):
                idea = f"It returned {outcome.returned}, which nothing reads. A test fails by raising: `assert`."
            idea = why_silent(test, outcome.returned) or idea
            raise Mistake(f"the test passes on a wrong engine: {observable}.", idea=idea)
        if not any(engine.has_leaked for engine in outcome.engines):
            _must_look_at_tokens(test, observable, make_wrong)


def _failed(name: str, outcome: Outcome, calls: Calls, idea: str) -> Mistake:
    error = outcome.error
    what = (str(error) or "its assertion has no message").removesuffix(".")
    if isinstance(error, TooManySteps):
        idea = "Step while `has_unfinished()` is True, or a fixed number of times."
    if isinstance(error, BadRequest):
        idea = "The contract asks for this: `add_request` refuses what can't be served. Ask for something that can."
    if isinstance(error, TypeError):
        idea = "Is it your test's own error? "
        if "positional argument" in what:
            idea += "Limits are given by name: `make_engine(max_num_seqs=2)`."
    if isinstance(error, TypeError | AttributeError) and "NewTokens" in what:
        idea = "A NewTokens is an object: read its `request_id` and `token_ids`."
    return Mistake(
        f"the test fails on {name}: {type(error).__name__}: {what}.",
        case=f"{current_case.text}{outcome.place}{calls}",
        idea=idea,
    )


def _counts_others(calls: Calls, test: Test) -> str:
    """What to tell a test that fails because other requests get tokens after an abort; "" if it doesn't."""
    aborts = calls.aborts()
    later = calls.served(slice(aborts[0], None)) if aborts else []
    if aborts and _tried(test, abort_engines.Noticing).error is None:
        return "Your test demands a notice with “abort”. The next step may return one, and needn't."
    if not later or _tried(test, abort_engines.SilentAfterAnAbort).error is not None:
        return ""
    aborted = calls.made[aborts[0]][1]
    if aborted in later:
        return f"{aborted!r} was added again after its abort: those tokens are the new request's."
    others = " and ".join(repr(each) for each in dict.fromkeys(later))
    return (
        f"After its abort, {aborted!r} got no token. Those that came are of {others}, and your test "
        "counts them: look at `request_id`."
    )


def _counts_earlier(calls: Calls) -> str:
    """A question, where a request got tokens before its abort, and the test has gone on; "" otherwise."""
    aborted = [(index, calls.made[index][1]) for index in calls.aborts()]
    early = [request_id for index, request_id in aborted if request_id in calls.served(slice(index))]
    if not early or calls.made[-1][0] != "step":
        return ""
    return (
        f" Request {early[0]!r} got tokens before its abort, and none after it. Does your test count those from "
        "before, or those of another request?"
    )


def _must_look_at_tokens(test: Test, observable: str, make_wrong: type[abort_engines.WrongEngine]) -> None:
    """For a test that failed a wrong engine before that gave a token: was it `has_unfinished` alone that failed it?"""
    current_case.text += ", whose `has_unfinished()` doesn't count requests that were aborted"
    if _tried(test, abort_engines.hiding(make_wrong)).error is None:
        raise Mistake(
            f"the test passes on a wrong engine: {observable}, and `has_unfinished()` doesn't count it.",
            idea="Your test fails if `has_unfinished()` counts such a request. But that is only what an engine says of "
            "itself. Tokens come from `step`: go on stepping after the abort, and look at what it returns.",
        )


def _tried(test: Test, make_engine: Callable[..., Any]) -> Outcome:
    outcome = Outcome()

    def noted(make_engine: Any) -> None:
        def making(**limits: int) -> Any:
            outcome.engines.append(make_engine(**limits))
            return outcome.engines[-1]

        try:
            outcome.returned = test(making)
            if inspect.iscoroutine(outcome.returned):
                outcome.returned.close()  # without a warning that it was never awaited
        except BaseException as error:
            outcome.place = _place(error, test)
            raise

    outcome.error = error_of(noted, make_engine)
    return outcome


def _place(error: BaseException, test: Test) -> str:
    own = files_of(test)
    calls = traceback.extract_tb(error.__traceback__)
    frames = [each for each in calls if is_cell(each.filename) or each.filename in own]
    return f"; line {frames[-1].lineno} of your cell: `{frames[-1].line}`" if frames and frames[-1].line else ""
