"""Judges 14.6, `goodput`: requests per second that met every target, of all that were offered."""

import math
from dataclasses import dataclass, replace

from lessons_lib.checks.exercise import Mistake, call, short
from lessons_lib.checks.lesson_12.guessing import likeliest_idea
from lessons_lib.measuring.load.goodput import Target, goodput
from lessons_lib.measuring.load.records import LoadLog, LoadRecord


def record(
    id: str,
    send: float = 1.0,
    ttft: float | None = 0.2,
    gaps: tuple[float, ...] = (0.05, 0.05),
    status: int | None = 200,
    reason: str | None = "length",
    error: str | None = None,
    waited: float = 0.0,
) -> LoadRecord:
    """A request and its events, one token each. With no `ttft`, no token came."""
    times = [] if ttft is None else [send + ttft]
    for gap in gaps if times else ():
        times.append(times[-1] + gap)
    ended = reason is not None or error is not None
    return LoadRecord(
        id,
        arrival_time=send - waited,
        send_time=send,
        prompt_tokens=20,
        max_tokens=8,
        token_times=times,
        output_tokens=len(times),
        end_time=(times[-1] if times else send + 0.01) if ended else None,
        status=status,
        finish_reason=reason,
        error=error,
    )


TTFT, TPOT, E2EL = Target(ttft=0.5), Target(tpot=0.1), Target(e2el=1.0)
ALL = Target(ttft=0.5, tpot=0.1, e2el=1.0)
GOOD = record("A")
SLOW_START = record("B", ttft=0.9, gaps=(0.01,))
SLOW_TOKENS = record("C", gaps=(0.25, 0.25))
LONG = record("D", gaps=(0.09,) * 12)
REFUSED = record("E", ttft=None, status=429, reason=None, error="Overloaded")
CUT = record("F", reason=None, error="the stream was cut")
UNFINISHED = record("F", reason=None)
NO_ANSWER = record("E", ttft=None, status=None, reason=None, error="ConnectionRefusedError")
ONE_GAP = record("C", gaps=(0.02, 0.02, 0.22, 0.02))  # a gap beyond the target, and a mean within it
SINGLE = record("A", gaps=())
EXACT = record("A", send=1.0, ttft=0.5, gaps=(0.125, 0.125))
LATE = record("B", send=5.0)
QUEUED = record("D", waited=0.6)


@dataclass(frozen=True)
class Case:
    """A log and a target, and what the log is like in words."""

    told: str
    records: tuple[LoadRecord, ...]
    target: Target = TTFT
    window: float = 1.0
    duration: float = 1.0

    @property
    def log(self) -> LoadLog:
        return LoadLog([replace(each) for each in self.records], self.window, self.duration)


CASES = (
    Case("two requests within the target, window 1 s", (GOOD, replace(GOOD, request_id="B"))),
    Case("two requests within the target, window 4 s, duration 4 s", (GOOD, GOOD), window=4.0, duration=4.0),
    Case("one request within the target, one with a TTFT of 0.9 s", (GOOD, SLOW_START)),
    Case(
        "four requests within the target, window 2 s; the last one ended after 8 s",
        (GOOD,) * 4,
        window=2.0,
        duration=8.0,
    ),
    Case("one served, one refused with status 429, no tokens", (GOOD, REFUSED)),
    Case("one served, one that got no answer", (GOOD, NO_ANSWER)),
    Case("one served, one whose stream was cut after 3 tokens (error set, no finish reason)", (GOOD, CUT)),
    Case("one served, one still running when the log ended (3 tokens, no finish reason)", (GOOD, UNFINISHED)),
    Case("one served, one refused; no time is promised", (GOOD, REFUSED, SLOW_TOKENS), Target()),
    Case("TPOTs of 0.05 s and 0.25 s, target 0.1 s", (GOOD, SLOW_TOKENS), TPOT),
    Case("gaps of 0.02, 0.02, 0.22, 0.02 s: a TPOT of 0.07 s, target 0.1 s", (ONE_GAP,), TPOT),
    Case("one token only, target TPOT 0.1 s", (SINGLE,), TPOT),
    Case("end to end 0.3 s and 1.28 s, target 1 s", (GOOD, LONG), E2EL),
    Case(
        "each of three requests misses one of three targets, a fourth meets all",
        (GOOD, SLOW_START, SLOW_TOKENS, LONG),
        ALL,
    ),
    Case("a TTFT of exactly 0.5 s, target 0.5 s", (EXACT,), Target(ttft=0.5)),
    Case(
        "sent at 1 s and at 5 s, window 4 s: the second one ended after the window",
        (GOOD, LATE),
        window=4.0,
        duration=5.5,
    ),
    Case("sent 0.6 s after it was due, because the client was busy; a TTFT of 0.2 s, target 0.5 s", (QUEUED,)),
    Case("TPOTs of 0.05 s and 0 s, target 0 s", (GOOD, SINGLE), Target(tpot=0.0)),
    Case("one request within the target, window 0.5 s", (GOOD,), window=0.5, duration=0.5),
    Case("no request within the target", (SLOW_START, REFUSED)),
    Case("no request at all", ()),
)


def check_goodput(attempt) -> None:
    found = []
    for case in CASES:
        try:
            found.append(_asked(attempt, case))
        except Exception:
            if all(_same(got, goodput(done.log, done.target)) for done, got in zip(CASES, found)):
                raise
            break  # an earlier case was wrong: report that one
    for index, got in enumerate(found):
        want = goodput(CASES[index].log, CASES[index].target)
        if not _same(got, want):
            raise Mistake(
                f"the goodput should be {want:g} requests per second; yours is {got:g}.",
                case=_told(CASES[index]),
                idea=_why(found, index),
            )


def _asked(attempt, case: Case) -> float:
    told, log = _told(case), case.log
    got = call(attempt, log, case.target, case=told)
    if log != case.log:
        raise Mistake(
            "your code changed the log.", case=told, idea="Only read it: the report and the knee use the same records."
        )
    if isinstance(got, bool) or not (isinstance(got, (int, float)) or hasattr(got, "__float__")):
        raise Mistake(
            f"expected a number of requests per second; yours returned {short(got)}.",
            case=told,
            idea="Return one number: good requests divided by the seconds of the window.",
        )
    return float(got)


def _told(case: Case) -> str:
    limits = ", ".join(f"{name}={limit:g}" for name, limit in vars(case.target).items() if limit is not None)
    return f"{case.told}. Target({limits})."


def _same(got: float, want: float) -> bool:
    return math.isclose(got, want, rel_tol=1e-9, abs_tol=1e-12)


def _within(record: LoadRecord, target: Target, names=("ttft", "tpot", "e2el")) -> list[bool]:
    return [getattr(record, name) <= getattr(target, name) for name in names if getattr(target, name) is not None]


def _if_means_are_within(records: list[LoadRecord], target: Target) -> int:
    served = [each for each in records if each.succeeded]
    limits = {name: limit for name, limit in vars(target).items() if limit is not None}
    within = all(sum(getattr(each, name) for each in served) <= limit * len(served) for name, limit in limits.items())
    return len(served) if within else 0


def _guesses(case: Case) -> dict[str, float | None]:
    """What a wrong rule returns, by its message."""
    log, target = case.log, case.target
    records, window = log.records, log.window
    good = [each for each in records if each.succeeded and all(_within(each, target))]
    count = len(good)

    def only(*names):
        return sum(each.succeeded and all(_within(each, target, names)) for each in records) / window

    return {
        "You divide by `log.duration`. It goes on until the last request has ended, so a server that is behind would look better the longer it takes to stop. Divide by the seconds in which requests were offered: `log.window`.": count / log.duration,  # noqa: E501
        "That is a number of requests. Goodput is a rate: divide by `log.window`.": float(count),
        "That is a share of the requests. Goodput is a rate: divide by `log.window`, in seconds.": count / len(records) if records else None,  # noqa: E501
        "That is a share of the requests that were served. Goodput is a rate: divide by `log.window`, in seconds.": count / max(1, sum(each.succeeded for each in records)),  # noqa: E501
        "That is the throughput: every request that ended well. Count only those within the target.": sum(each.succeeded for each in records) / window,  # noqa: E501
        "That is the offered rate. Count only the requests that succeeded within the target.": len(records) / window,
        "A request that failed was counted. No token, or a cut stream, meets no target: look at `record.succeeded` first.": sum(all(_within(each, target)) for each in records) / window,  # noqa: E501
        "A stream that was cut, or that hasn't ended, has status 200 and fast first tokens; its client still has no whole answer. `record.succeeded` knows.": sum(each.status == 200 and all(_within(each, target)) for each in records) / window,  # noqa: E501
        "The request isn't finished: `finish_reason` is None, although there is no error. `record.succeeded` knows.": sum(each.status == 200 and each.error is None and all(_within(each, target)) for each in records) / window,  # noqa: E501
        "You look at the time to first token only. `target.tpot` and `target.e2el` are promises too, where they aren't None.": only("ttft"),  # noqa: E501
        "You leave out `target.e2el`: the time from sending to the last token.": only("ttft", "tpot"),
        "You leave out `target.tpot`: the time per output token after the first.": only("ttft", "e2el"),
        "One promise kept isn't enough: a request is good if it meets *all* limits. `all`, not `any`.": sum(each.succeeded and any(_within(each, target) or [True]) for each in records) / window,  # noqa: E501
        "One promise kept isn't enough: a request is good if it meets *all* limits. `any` of no limits is False, `all` of them is True.": sum(each.succeeded and any(_within(each, target)) for each in records) / window,  # noqa: E501
        "A window may be shorter than a second. Divide by `log.window` as it is.": count / max(1.0, window),
        "You ask whether every gap is within the target. TPOT is the mean over a request's tokens: `record.tpot`.": sum(each.succeeded and all(_within(each, target, ("ttft", "e2el"))) and (target.tpot is None or all(gap <= target.tpot for gap in each.itl)) for each in records) / window,  # noqa: E501
        "A request that takes exactly as long as promised is good: `<=`, not `<`.": sum(each.succeeded and all(getattr(each, name) < getattr(target, name) for name in vars(target) if getattr(target, name) is not None) for each in records) / window,  # noqa: E501
        "You count from `arrival_time`, when the request was due. The record's own times count from `send_time`: `record.ttft`.": sum(each.succeeded and all(_within(each, target)) and (target.ttft is None or each.token_times[0] - each.arrival_time <= target.ttft) for each in records) / window,  # noqa: E501
        "A limit of 0 is a limit. Only None promises nothing: `limit is None`, not `not limit`.": sum(each.succeeded and all(getattr(each, name) <= limit for name, limit in vars(target).items() if limit) for each in records) / window,  # noqa: E501
        "You leave out a request that ended after the window. It was offered within it, so it counts as any other.": sum(each.end_time <= window + 1 for each in good if each.end_time is not None) / window,  # noqa: E501
        "You leave out requests that ended after the window. They were offered within it, so they count as any other.": sum(each.end_time <= window for each in good if each.end_time is not None) / window,  # noqa: E501
        "You compare the mean times of all requests with the limits. Each request has to be within them by itself.": _if_means_are_within(records, target) / window,  # noqa: E501
        "`//` drops the fraction of a request per second. Divide with `/`.": float(count // window),
        "You divide by the time at which the last request ended. Divide by the seconds in which requests were offered: `log.window`.": count / max((each.end_time or 0.0 for each in records), default=1.0),  # noqa: E501
        "A limit of None promises nothing, so every request that succeeded meets it.": sum(each.succeeded and None not in vars(target).values() and all(_within(each, target)) for each in records) / window,  # noqa: E501
        "You count the requests that missed the target. Count the others.": (len(records) - count) / window,
        "You divide by `log.offered_rate`, the rate that was offered. A rate has seconds below the line: `log.window`.": count / log.offered_rate if log.records else None,  # noqa: E501
        "You count tokens. Goodput as DistServe defines it counts requests.": sum(each.output_tokens for each in good) / window,  # noqa: E501
    }  # fmt: skip


def _why(found: list[float], first: int) -> str:
    guesses = [_guesses(case) for case in CASES[: len(found)]]

    def rule(idea: str):
        def explains(index: int) -> bool | None:
            guess = guesses[index][idea]
            return None if guess is None else _same(found[index], guess)

        return explains

    rules = [(rule(idea), idea) for idea in guesses[first]]
    return likeliest_idea(rules, first, len(found)) or (
        "Count the records that succeeded and are within every limit that isn't None. Divide by `log.window`."
    )
