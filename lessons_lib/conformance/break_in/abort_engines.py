"""Engines for a test of `abort`: five that keep the contract, and some that give tokens afterwards."""

from collections.abc import Callable
from dataclasses import replace

from lessons_lib.conformance.break_in.engine import ChatEngine, TooManySteps, right_engine
from lessons_lib.conformance.contract import Limits, NewTokens, Params
from lessons_lib.conformance.examples.small_engine import SmallEngine
from lessons_lib.conformance.oracle import a_model


class StoppingEngine(SmallEngine):
    """The small engine, which refuses to step for ever."""

    num_steps = 0

    def __init__(self, **limits: int):
        super().__init__(a_model("qwen2"), Limits(**limits))

    def ids(self) -> set[str]:
        """Of the requests that wait or run."""
        return {sequence.request_id for sequence in [*self.waiting, *self.running]}

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
        if request_id in self.ids():
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


class SilentAfterAnAbort(StoppingEngine):
    """Serves the other requests, and returns nothing of it: a test that passes only here counts what they get."""

    is_silent = False

    def abort(self, request_id: str) -> None:
        self.is_silent = True
        super().abort(request_id)

    def step(self) -> list[NewTokens]:
        events = super().step()
        return [] if self.is_silent else events


class WrongEngine(StoppingEngine):
    """An engine that gives tokens after an abort; `has_leaked` once a step has done so."""

    has_leaked = False

    def __init__(self, **limits: int):
        super().__init__(**limits)
        self.aborted: set[str] = set()

    def add_request(self, request_id: str, prompt_ids: list[int], params: Params) -> None:
        super().add_request(request_id, prompt_ids, params)
        self.aborted.discard(request_id)

    def abort(self, request_id: str) -> None:
        self.aborted.add(request_id)

    def step(self) -> list[NewTokens]:
        events = super().step()
        self.has_leaked |= any(event.request_id in self.aborted and event.token_ids for event in events)
        return events


class OneTokenMore(WrongEngine):
    """Wrong: a request that runs is aborted after its next token only."""

    def __init__(self, **limits: int):
        super().__init__(**limits)
        self.late: list[str] = []

    def abort(self, request_id: str) -> None:
        super().abort(request_id)
        if request_id in {sequence.request_id for sequence in self.running}:
            self.late.append(request_id)
        else:
            SmallEngine.abort(self, request_id)

    def step(self) -> list[NewTokens]:
        events, late, self.late = super().step(), self.late, []
        for request_id in late:
            SmallEngine.abort(self, request_id)
        return events


class WithAReason(OneTokenMore):
    """Wrong: that token comes with "abort"."""

    def step(self) -> list[NewTokens]:
        aborted = self.aborted
        return [replace(each, finish_reason="abort") if each.request_id in aborted else each for each in super().step()]


class AfterAPause(OneTokenMore):
    """Wrong: that token comes after a step that returns nothing."""

    has_paused = False

    def step(self) -> list[NewTokens]:
        if self.late and not self.has_paused:
            self.has_paused = True
            return []
        self.has_paused = False
        return super().step()


class DeafWhileItWaits(WrongEngine):
    """Wrong: the abort of a request that waits changes nothing."""

    def abort(self, request_id: str) -> None:
        super().abort(request_id)
        if request_id not in {sequence.request_id for sequence in self.waiting}:
            SmallEngine.abort(self, request_id)


def hiding(make_wrong: type[WrongEngine]) -> type[WrongEngine]:
    """The same engine, whose `has_unfinished` leaves out the requests that were aborted: only their tokens show it."""

    class Hiding(make_wrong):  # type: ignore[misc, valid-type]
        def has_unfinished(self) -> bool:
            return bool(self.ids() - self.aborted or self.unread)

    return Hiding


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
WRONG: dict[str, tuple[type[WrongEngine], str]] = {
    "a request gets tokens after its abort": (
        OneTokenMore,
        "Is a request running, with tokens still to come, when your test aborts it? Does it look at every step after "
        "that, and at all tokens of this request?",
    ),
    "a request gets one more token after its abort, with the reason “abort”": (
        WithAReason,
        "No token may follow, whatever `finish_reason` says: look at `token_ids` alone.",
    ),
    "after an abort one step returns [], and the next one a token of the aborted request": (
        AfterAPause,
        "A step without tokens isn't the end: look at every step until `has_unfinished()` is False.",
    ),
    "a request that was aborted is served in the end": (
        DeafWhileItWaits,
        "Abort in every state. In which state was the request when your test aborted it? `max_num_seqs=1` makes one "
        "wait. Its turn may come many steps later: does your test step until nothing is left?",
    ),
}
