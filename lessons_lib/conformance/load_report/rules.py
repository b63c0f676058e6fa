"""The numbers of a log by rules that can be changed one at a time, to find out which rule gave a wrong number."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from lessons_lib.serving.load.goodput import Target
from lessons_lib.serving.load.records import LoadLog, LoadRecord
from lessons_lib.serving.load.report import report

FIELDS = (
    "requests", "completed", "failed", "median_ttft_ms", "p99_ttft_ms", "mean_itl_ms", "p99_itl_ms",
    "output_throughput", "goodput",
)  # fmt: skip
Numbers = dict[str, Any]


def right_numbers(log: LoadLog, target: Target) -> Numbers:
    """By the report of lesson 14."""
    return {"requests": len(log.records)} | {name: report(log, target)[name] for name in FIELDS[1:]}


@dataclass(frozen=True)
class Rules:
    """How numbers are computed; the defaults are right.

    Attributes:
        percentile: numpy's method.
        p99: the share that is taken for 99.
        start: the time that a time to first token is counted from.
        has_first_gap: whether the time to first token is one of the gaps between tokens.
        is_per_request: whether gaps are averaged over each request first.
        counts: which requests count: "completed", "status 200" (with those that were cut) or "all".
        tokens: "output_tokens", "events" or "max_tokens".
        seconds: of a throughput: "duration", "window" or "last send".
        good_seconds: of the goodput, the same.
        good_by: the targets that count: "both", "ttft", "tpot", "nothing".
        scale: of times, 1000 for milliseconds.
    """

    percentile: str = "linear"
    p99: float = 99
    start: str = "send_time"
    has_first_gap: bool = False
    is_per_request: bool = False
    counts: str = "completed"
    tokens: str = "output_tokens"
    seconds: str = "duration"
    good_seconds: str = "window"
    good_by: str = "both"
    scale: float = 1000.0


RIGHT = Rules()
CAUSES = {
    "A percentile between two values is interpolated, as `np.percentile` does; yours takes the lower one.": replace(
        RIGHT, percentile="lower"
    ),
    "A percentile between two values is interpolated, as `np.percentile` does; yours takes the higher one, or "
    "`sorted(values)[int(share * len(values))]`.": replace(RIGHT, percentile="higher"),
    "A percentile between two values is interpolated, as `np.percentile` does; yours takes the nearest one.": replace(
        RIGHT, percentile="nearest"
    ),
    "It is the largest value, not the 99th percentile.": replace(RIGHT, p99=100),
    "It is the 95th percentile.": replace(RIGHT, p99=95),
    "It is the 90th percentile.": replace(RIGHT, p99=90),
    "It counts from `arrival_time`, when the request was due. The server saw it at `send_time`.": replace(
        RIGHT, start="arrival_time"
    ),
    "The wait for the first token is among the gaps. A gap lies between two tokens.": replace(
        RIGHT, has_first_gap=True
    ),
    "It averages each request first, so that a short answer counts as much as a long one. Take all gaps.": replace(
        RIGHT, is_per_request=True
    ),
    "Streams that were cut count: status 200, tokens, and no finish reason. They failed.": replace(
        RIGHT, counts="status 200"
    ),
    "Failed requests count.": replace(RIGHT, counts="all"),
    "It counts events. A server may put several tokens into one: `output_tokens` has their number.": replace(
        RIGHT, tokens="events"
    ),
    "It counts the tokens that were asked for, `max_tokens`, not those that came.": replace(RIGHT, tokens="max_tokens"),
    "It is per second of the window in which requests were offered. The server worked on until `duration`.": replace(
        RIGHT, seconds="window"
    ),
    "It is per second up to the last sending, by the client's clock.": replace(
        RIGHT, seconds="last send", good_seconds="last send"
    ),
    "It is per second of the duration. Requests were offered in the window only.": replace(
        RIGHT, good_seconds="duration"
    ),
    "It looks at the time to first token only.": replace(RIGHT, good_by="ttft"),
    "It looks at the time per token only.": replace(RIGHT, good_by="tpot"),
    "Every completed request counts, whether it met the target or not.": replace(RIGHT, good_by="nothing"),
    "It is in seconds, not milliseconds.": replace(RIGHT, scale=1.0),
}


def numbers_by(rules: Rules, log: LoadLog, target: Target) -> Numbers:
    """The numbers of a log by these rules. By RIGHT they are `right_numbers`."""
    counted = [record for record in log.records if _counts(record, rules.counts)]
    begun = [record for record in counted if record.token_times]
    ttft = [rules.scale * (record.token_times[0] - getattr(record, rules.start)) for record in begun]
    gaps = [_gaps(record, rules) for record in begun]
    averages, all_gaps = [sum(each) / len(each) for each in gaps if each], [gap for each in gaps for gap in each]
    itl = averages if rules.is_per_request else all_gaps
    seconds = {
        "duration": log.duration,
        "window": log.window,
        "last send": max((record.send_time for record in log.records), default=0.0),
    }
    tokens = {
        "output_tokens": sum(record.output_tokens for record in counted),
        "events": sum(len(record.token_times) for record in counted),
        "max_tokens": sum(record.max_tokens for record in counted),
    }
    limits = {
        "both": target,
        "ttft": Target(ttft=target.ttft),
        "tpot": Target(tpot=target.tpot),
        "nothing": Target(),
    }
    num_good = sum(_is_good(record, limits[rules.good_by]) for record in begun)
    return {
        "requests": len(log.records),
        "completed": len(counted),
        "failed": len(log.records) - len(counted),
        "median_ttft_ms": _percentile(ttft, 50, rules.percentile),
        "p99_ttft_ms": _percentile(ttft, rules.p99, rules.percentile),
        "mean_itl_ms": sum(itl) / len(itl) if itl else None,
        "p99_itl_ms": _percentile(itl, rules.p99, rules.percentile),
        "output_throughput": _rate(tokens[rules.tokens], seconds[rules.seconds]),
        "goodput": _rate(num_good, seconds[rules.good_seconds]),
    }


def _counts(record: LoadRecord, which: str) -> bool:
    return record.succeeded if which == "completed" else which == "all" or record.status == 200


def _is_good(record: LoadRecord, target: Target) -> bool:
    pairs = ((record.ttft, target.ttft), (record.tpot, target.tpot))
    return all(limit is None or seconds <= limit for seconds, limit in pairs)


def _gaps(record: LoadRecord, rules: Rules) -> list[float]:
    first = [record.ttft] if rules.has_first_gap else []
    return [rules.scale * gap for gap in [*first, *record.itl]]


def _percentile(values: Sequence[float], share: float, method: Any) -> float | None:
    return float(np.percentile(values, share, method=method)) if values else None


def _rate(count: float, seconds: float) -> float | None:
    return count / seconds if seconds else None
