"""A Gantt chart in words."""

from collections.abc import Iterable

from lessons_lib.measuring.arrivals import Arrival
from lessons_lib.viz.charts.time_axis import say_seconds
from lessons_lib.viz.timelines.gantt_rows import DECODE, HELD, PREFILL, STALLED, WAITING, Row, Span

_MOST_NAMES = 20
_DOES = {
    "finished": "finished",
    DECODE: "decoding",
    PREFILL: "in prefill",
    HELD: "running without a token",
    STALLED: "stalled",
    WAITING: "waiting",
}


def latency_words(rows: list[Row], upto: float | None) -> str:
    """The mean latency, or how many have finished if not all have."""
    done = [row for row in rows if row.finished is not None and (upto is None or row.finished <= upto)]
    if not rows or len(done) < len(rows):
        return f"{len(done)} of {len(rows)} finished"
    return f"mean latency {say_seconds(sum(row.finished - row.arrival for row in done) / len(done))}"


def say_request(request: Arrival) -> str:
    """What a policy knows of a request."""
    return f"{request.id}, tier {request.tier}{', interactive' if request.is_interactive else ''}"


def describe_requests(requests: Iterable[Arrival]) -> list[str]:
    """The requests of each tier, and the interactive ones, one sentence each. Empty if there are no requests."""
    requests = list(requests)
    tiers = {
        tier: [request.id for request in requests if request.tier == tier]
        for tier in sorted({request.tier for request in requests})
    }
    told = [f"Tier {tier}: {_names(own)}." for tier, own in tiers.items()]
    return (
        [*told, f"Interactive: {_names([request.id for request in requests if request.is_interactive])}."]
        if requests
        else []
    )


def describe_moment(rows: list[Row], seconds: float, upto: float | None) -> str:
    """What each request does at a time; at the end, the order in which they finished."""
    if not rows:
        return "Nothing has run yet."
    if upto is None or upto >= seconds:
        order = sorted((row for row in rows if row.finished is not None), key=lambda row: row.finished)
        rest = [row.name for row in rows if row.finished is None]
        missing = f" Not finished: {_names(rest)}." if rest else ""
        return (
            f"Finished after {say_seconds(seconds)}. Finished in this order: "
            f"{_names([row.name for row in order])}.{missing}"
        )
    doing: dict[str, list[str]] = {state: [] for state in _DOES}
    for row in rows:
        doing.setdefault(row.state_at(upto), []).append(row.name)
    told = [f"{words}: {_names(doing[state])}" for state, words in _DOES.items() if doing[state]]
    return f"At {say_seconds(upto)}: {'; '.join(told) or 'no request is in the system'}."


def say_span(span: Span) -> str:
    """What a stretch of time was spent on."""
    steps = f" in {span.steps} step{'' if span.steps == 1 else 's'}" if span.steps else ""
    tokens = f" of {span.tokens} token{'' if span.tokens == 1 else 's'}" if span.tokens else ""
    what = span.state if span.state in (PREFILL, DECODE) else _DOES[span.state]
    return f"{what}{tokens}{steps}, {say_seconds(span.start)} to {say_seconds(span.end)}"


def _names(names: list[str]) -> str:
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    return ", ".join(names[:_MOST_NAMES]) + more if names else "none"
