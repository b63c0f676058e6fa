"""Judges 14.5, `AdmissionControl`: two bounds, exact books, and a refusal that changes nothing."""

from random import Random

from lessons_lib.checks.exercise import Mistake, call, short
from lessons_lib.models.validate import BadRequest
from lessons_lib.serving.admission import AdmissionControl, Overloaded


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Desk:
    """An attempt and the reference, told the same."""

    def __init__(self, attempt, case: str, max_requests: int | None, max_prompt_tokens: int | None):
        self.case, self.clock = case, Clock()
        self.own = call(attempt, max_requests, max_prompt_tokens, self.clock, case=case)
        self.right = AdmissionControl(max_requests, max_prompt_tokens, self.clock)
        self.pairs: list[tuple] = []

    def admit(self, size: int):
        """Both admit. Returns ("admitted", None) or (the error's name, the error) of the attempt, and the same of the
        reference."""
        outcomes, admitted = [], []
        for control in (self.own, self.right):
            try:
                admitted.append(control.admit(size))
                outcomes.append(("admitted", None))
            except (Overloaded, BadRequest) as error:
                outcomes.append((type(error).__name__, error))
        if outcomes[0][0] == outcomes[1][0] == "admitted":
            if admitted[0] is None:
                raise Mistake(
                    "`admit` returned None.",
                    case=self.case,
                    idea="Return what it counted, `Admitted(num_prompt_tokens)`: `correct` and `release` get it later.",
                )
            got = getattr(admitted[0], "num_prompt_tokens", None)
            if got != size:
                raise Mistake(
                    f"`admit` should return Admitted({size}); yours has num_prompt_tokens={short(got)}.",
                    case=self.case,
                    idea="It holds what this one request takes up, so that `release` can give that back.",
                )
            self.pairs.append(tuple(admitted))
        return outcomes

    def correct(self, index: int, size: int):
        outcomes = []
        for control, admitted in zip((self.own, self.right), self.pairs[index]):
            try:
                control.correct(admitted, size)
                outcomes.append(("corrected", None))
            except (Overloaded, BadRequest) as error:
                outcomes.append((type(error).__name__, error))
        return outcomes

    def serve_six(self) -> None:
        """Six prompts of 30 tokens, one after the other, one every 2 s."""
        for _ in range(6):
            self.admit(30)
            self.clock.now += 2.0
            self.release(0)

    def release(self, index: int, was_served: bool = True) -> None:
        own, right = self.pairs.pop(index)
        self.own.release(own, was_served=was_served)
        self.right.release(right, was_served=was_served)

    def expect(self, outcomes, what: str, idea: str) -> None:
        (own, _), (right, _) = outcomes
        if own != right:
            how = {"admitted": "be admitted", "corrected": "be accepted"}.get(right, f"be refused with {right}")
            came = {"admitted": "admitted it", "corrected": "accepted it"}.get(own, f"raised {own}")
            raise Mistake(f"{what} should {how}; yours {came}.", case=self.case, idea=idea)

    def compare_books(self, when: str, idea: str) -> None:
        for name in ("num_requests", "num_prompt_tokens", "num_refused"):
            want, got = getattr(self.right, name), getattr(self.own, name, None)
            if got != want:
                raise Mistake(f"{when}, `{name}` should be {want}; yours is {short(got)}.", case=self.case, idea=idea)


def check_admission(attempt) -> None:
    for story in (
        _requests,
        _tokens,
        _too_long,
        _no_limits,
        _released,
        _corrected,
        _correction_refused,
        _refused,
        _waits,
        _requests_before_tokens,
        _unserved,
    ):
        story(attempt)
    for seed in range(20):
        _random(attempt, seed)


def _requests(attempt) -> None:
    desk = Desk(attempt, "max_requests=2, no limit for tokens; three requests of 10 tokens.", 2, None)
    for number in ("first", "second"):
        outcome = desk.admit(10)
        desk.expect(outcome, f"the {number} request", "`max_requests` is how many may be in flight; two are allowed.")
        desk.compare_books(f"after the {number} request", "`admit` counts each request and the tokens of its prompt.")
    outcome = desk.admit(10)
    desk.expect(
        outcome,
        "the third request",
        "Two are in flight, and two are the limit: raise `self._overloaded(...)`. Compare before you count.",
    )
    if outcome[0][1] is not None and not isinstance(getattr(outcome[0][1], "retry_after", None), (int, float)):
        raise Mistake(
            "`Overloaded` should say when to try again.", case=desk.case, idea="`self._overloaded(...)` makes it."
        )
    desk.compare_books("after the refusal", "A refused request isn't in flight: nothing is counted but "
                       "`num_refused`, and `_overloaded` counts that.")  # fmt: skip


def _tokens(attempt) -> None:
    desk = Desk(attempt, "max_prompt_tokens=100, ten requests allowed; prompts of 60, 40 and 1 tokens.", 10, 100)
    desk.expect(desk.admit(60), "the prompt of 60 tokens", "Nothing is in flight, and `max_prompt_tokens` is 100.")
    desk.expect(
        desk.admit(40),
        "the prompt of 40 tokens",
        "60 + 40 is exactly the limit, and a limit may be reached: refuse only what exceeds it.",
    )
    desk.expect(
        desk.admit(1),
        "the prompt of 1 token",
        "100 tokens are in flight already, and 100 is the limit. Does `admit` call `_check_room`? Does that count what is in flight, and does it *raise* what `_overloaded` returns?",  # noqa: E501
    )
    desk.compare_books("after the refusal", "A refused request isn't in flight: nothing is counted but "
                       "`num_refused`, and `_overloaded` counts that.")  # fmt: skip


def _too_long(attempt) -> None:
    desk = Desk(attempt, "max_prompt_tokens=100, nothing in flight; a prompt of 101 tokens.", 10, 100)
    outcome = desk.admit(101)
    desk.expect(
        outcome,
        "the prompt",
        "It would never fit, however long its client waits. `Overloaded` would have the client try again and again; `BadRequest` tells it to shorten the prompt.",  # noqa: E501
    )
    desk.compare_books(
        "after the refusal", "`num_refused` counts those that may come again. A bad request isn't one of them."
    )
    desk = Desk(
        attempt,
        "max_requests=1 and max_prompt_tokens=100; a prompt of 10 tokens is in flight, then one of 101.",
        1,
        100,
    )
    desk.admit(10)
    desk.expect(
        desk.admit(101),
        "the prompt of 101 tokens",
        "It is too long whether there is room or not. Check that first: the client shouldn't wait only to learn it.",
    )


def _no_limits(attempt) -> None:
    desk = Desk(attempt, "max_requests=None, max_prompt_tokens=None; 1,000 requests of 1,000 tokens.", None, None)
    for _ in range(1000):
        desk.expect(desk.admit(1000), "every request", "A limit of None is no limit.")
    desk.compare_books("at the end", "Without a limit, requests are counted all the same: a drain waits for them.")


def _released(attempt) -> None:
    desk = Desk(attempt, "max_requests=1, max_prompt_tokens=100; 100 tokens in, released, 100 tokens in.", 1, 100)
    desk.admit(100)
    desk.release(0)
    desk.compare_books(
        "after the release", "`release` takes back what `admit` counted: the request, and the tokens of its prompt."
    )
    desk.expect(desk.admit(100), "the second request", "The first one has ended; its room is free again.")


def _corrected(attempt) -> None:
    idea = "`correct` replaces the estimate: the books change by the difference, and `admitted.num_prompt_tokens` is the new number, because `release` takes that back."  # noqa: E501
    for size in (40, 10, 25):
        desk = Desk(
            attempt, f"max_prompt_tokens=100; admitted with 25 tokens, corrected to {size}, then released.", 10, 100
        )
        desk.admit(25)
        desk.expect(desk.correct(0, size), "the correction", "There is room for it.")
        desk.compare_books("after the correction", idea)
        desk.release(0)
        desk.compare_books("after the release", idea)
    desk = Desk(
        attempt,
        "max_prompt_tokens=100; 60 and 30 tokens in, then the 30 are corrected to 40, again to 40, and the 60 to 55.",
        10,
        100,
    )
    desk.admit(60)
    desk.admit(30)
    for index, size in ((1, 40), (1, 40), (0, 55)):
        desk.expect(
            desk.correct(index, size),
            f"the correction to {size}",
            "The request's own estimate is counted already. Only what it needs *more* has to fit.",
        )
    desk.compare_books("at the end", idea)


def _correction_refused(attempt) -> None:
    desk = Desk(attempt, "max_prompt_tokens=100; 60 and 30 tokens in, then the 30 are corrected to 50.", 10, 100)
    desk.admit(60)
    desk.admit(30)
    desk.expect(
        desk.correct(1, 50),
        "the correction",
        "60 + 50 exceed 100. An estimate may have been far too low, so the limit holds here too.",
    )
    desk.compare_books(
        "after the refused correction",
        "The request still counts as before: its caller releases it. Check first, then change.",
    )
    desk.release(1)
    desk.compare_books(
        "after its release", "The request still counts as before the refused correction, until it is released."
    )
    desk = Desk(attempt, "max_prompt_tokens=100; 25 tokens in, corrected to 101.", 10, 100)
    desk.admit(25)
    desk.expect(
        desk.correct(0, 101), "the correction", "Alone it exceeds the limit: BadRequest, as `admit` would have raised."
    )
    desk.compare_books("after the refused correction", "The request still counts as before: its caller releases it.")


def _refused(attempt) -> None:
    desk = Desk(attempt, "max_requests=1; one admitted, five refused, the first one released.", 1, None)
    desk.admit(5)
    for _ in range(5):
        desk.expect(desk.admit(5), "a further request", "One is in flight, and one is the limit.")
    desk.compare_books(
        "after five refusals", "Each refusal counts once, in `num_refused` only. `self._overloaded` does that."
    )
    desk.release(0)
    desk.expect(desk.admit(5), "the next request", "Refused requests take no room.")


def _waits(attempt) -> None:
    case = "max_requests=2; six requests were served, one every 2 s; then two are in flight and a third one comes."
    desk = Desk(attempt, case, 2, 100)
    desk.serve_six()
    desk.clock.now += 1.0
    desk.admit(30)
    desk.admit(30)
    _compare_waits(
        desk,
        desk.admit(40),
        "One request must end first, and no tokens: `self._overloaded(what, 1, 0)`. And `release` notes when a served request ended, and how long its prompt was: `self._ended.append((self.clock(), num_prompt_tokens))`. `retry_after` computes from that.",  # noqa: E501
    )
    desk = Desk(
        attempt,
        "max_prompt_tokens=100; six prompts of 30 tokens were served, one every 2 s; then 90 tokens are in flight and 40 more come.",  # noqa: E501
        10,
        100,
    )
    desk.serve_six()
    desk.admit(90)
    _compare_waits(
        desk,
        desk.admit(40),
        "40 more exceed the limit by 30: 90 + 40 − 100. That many tokens must end first, and no request: `self._overloaded(what, 0, 30)`.",  # noqa: E501
    )
    desk = Desk(
        attempt,
        "max_prompt_tokens=100; six prompts of 30 tokens were served, one every 2 s; then 60 and 20 tokens are in flight, and the 20 are corrected to 60.",  # noqa: E501
        10,
        100,
    )
    desk.serve_six()
    desk.admit(60)
    desk.admit(20)
    _compare_waits(
        desk,
        desk.correct(1, 60),
        "60 + 60 exceed the limit by 20. That many tokens must end first, and no request: `self._overloaded(what, 0, 20)`.",  # noqa: E501
    )


def _requests_before_tokens(attempt) -> None:
    case = "max_requests=2, max_prompt_tokens=100; six prompts of 30 tokens were served, one every 2 s; then two of 45 tokens are in flight, and one of 30 comes."  # noqa: E501
    desk = Desk(attempt, case, 2, 100)
    desk.serve_six()
    desk.admit(45)
    desk.admit(45)
    _compare_waits(
        desk,
        desk.admit(30),
        "Both limits are exceeded. The number of requests comes first: `self._overloaded(what, 1, 0)`.",
    )


def _compare_waits(desk: Desk, outcomes, idea: str) -> None:
    (_, own), (_, right) = outcomes
    desk.expect(outcomes, "the request", "There is no room.")
    if abs(own.retry_after - right.retry_after) > 1e-6:
        raise Mistake(
            f"`retry_after` should be {right.retry_after:.2f} s; yours is {own.retry_after:.2f} s.",
            case=desk.case,
            idea=idea,
        )


def _unserved(attempt) -> None:
    case = "six requests end without being served, one every 2 s; then the server is full, and one more comes."
    desk = Desk(attempt, case, 1, None)
    for _ in range(6):
        desk.expect(desk.admit(30), "a request", "Served or not, a request that has ended is no longer in flight.")
        desk.clock.now += 2.0
        desk.release(0, was_served=False)
    desk.compare_books("after the releases", "Served or not, a request that has ended is no longer in flight.")
    desk.admit(30)
    _compare_waits(
        desk,
        desk.admit(30),
        "A request that was aborted or failed says nothing about how fast requests are served: with `was_served=False`, note nothing.",  # noqa: E501
    )


def _random(attempt, seed: int) -> None:
    rng = Random(seed)
    limits = rng.choice((None, 1, 3, 5)), rng.choice((None, 50, 100))
    case = f"60 random calls, max_requests={limits[0]}, max_prompt_tokens={limits[1]} (seed {seed})."
    desk = Desk(attempt, case, *limits)
    for _ in range(60):
        desk.clock.now += rng.random()
        what = rng.random()
        if what < 0.5 or not desk.pairs:
            desk.expect(desk.admit(rng.randint(1, 60)), "a request", "Compare with the limits before you count.")
        elif what < 0.7:
            desk.expect(
                desk.correct(rng.randrange(len(desk.pairs)), rng.randint(1, 60)),
                "a correction",
                "Only what is needed more has to fit.",
            )
        else:
            desk.release(rng.randrange(len(desk.pairs)), rng.random() < 0.8)
        desk.compare_books(
            "after a call", "What `admit` and `correct` count, `release` takes back; what is refused changes nothing."
        )
