"""Lesson 14: a run in numbers, with the fields, the definitions and the layout of `vllm bench serve`."""

from collections import Counter
from collections.abc import Sequence
from math import ceil
from typing import Any

import numpy as np

from lessons_lib.serving.load.goodput import Target, goodput
from lessons_lib.serving.load.records import LoadLog, LoadRecord

PERCENTILES = (50, 90, 99)
METRICS = {
    "ttft": ("TTFT", "Time to First Token"),
    "tpot": ("TPOT", "Time per Output Token (excl. 1st token)"),
    "itl": ("ITL", "Inter-token Latency"),
    "e2el": ("E2EL", "End-to-end Latency"),
}


def report(log: LoadLog, target: Target | None = None) -> dict[str, Any]:
    """A run as plain values, ready for JSON.

    Latencies are of the requests that succeeded. `duration` lasts until the last one ended, and all throughputs and
    `request_goodput` are relative to it. `goodput` is relative to the window in which requests were offered. A mean or
    percentile of no values is None.

    Returns:
        dict with the fields of `vllm bench serve`'s result, and "offered_rate", "goodput", "max_lateness_ms" (how late
        the client itself was) and "failures" (status -> count; "no answer", "cut", "unfinished" if there was none).
    """
    done = [record for record in log.records if record.succeeded]
    total_input, total_output = sum(record.prompt_tokens for record in done), sum(r.output_tokens for r in done)
    tokens_per_second, concurrency = per_second(done)
    numbers: dict[str, Any] = {
        "duration": log.duration,
        "completed": len(done),
        "failed": len(log.records) - len(done),
        "total_input_tokens": total_input,
        "total_output_tokens": total_output,
        "request_rate": log.rate,
        "offered_rate": log.offered_rate,
        "request_throughput": len(done) / log.duration,
        "request_goodput": goodput(log, target) * log.window / log.duration if target else None,
        "goodput": goodput(log, target) if target else None,
        "output_throughput": total_output / log.duration,
        "total_token_throughput": (total_input + total_output) / log.duration,
        "max_output_tokens_per_s": float(max(tokens_per_second, default=0)),
        "max_concurrent_requests": max(concurrency, default=0),
        "max_lateness_ms": max(record.send_time - record.arrival_time for record in log.records) * 1000,
        "failures": dict(sorted(Counter(why_failed(r) for r in log.records if not r.succeeded).items())),
    }
    seconds = {
        "ttft": [record.ttft for record in done],
        "tpot": [record.tpot for record in done if record.output_tokens > 1],
        "itl": [gap for record in done for gap in record.itl],
        "e2el": [record.e2el for record in done],
    }
    for name, values in seconds.items():
        numbers |= latency_fields(name, values)
    return numbers


def latency_fields(name: str, seconds: Sequence[float]) -> dict[str, float | None]:
    """Mean, median, standard deviation and percentiles in milliseconds, as "mean_ttft_ms", ..., "p99_ttft_ms"."""
    keys = [f"{what}_{name}_ms" for what in ("mean", "median", "std", *(f"p{share}" for share in PERCENTILES))]
    if not len(seconds):
        return dict.fromkeys(keys)
    array = np.asarray(seconds) * 1000
    values = [array.mean(), np.median(array), array.std(), *np.percentile(array, PERCENTILES)]
    return {key: float(value) for key, value in zip(keys, values)}


def per_second(done: Sequence[LoadRecord]) -> tuple[list[int], list[int]]:
    """For each second since the first sending: how many tokens came, and how many requests ran at some time in it."""
    if not done:
        return [], []
    start = min(record.send_time for record in done)
    seconds = ceil(max(record.token_times[-1] for record in done) - start) + 1
    tokens, concurrency = [0] * seconds, [0] * seconds
    for record in done:
        for time in record.token_times:
            tokens[int(time - start)] += 1
        for second in range(int(record.send_time - start), int(record.token_times[-1] - start) + 1):
            concurrency[second] += 1
    return tokens, concurrency


def why_failed(record: LoadRecord) -> str:
    """The status of a request that did not succeed, or what there was instead of one."""
    if record.end_time is None:
        return "unfinished"
    if record.status is None:
        return "no answer"
    return "cut" if record.status == 200 else str(record.status)


def as_text(numbers: dict[str, Any]) -> str:
    """A report as the table that `vllm bench serve` prints."""
    lines = [f"{' Serving Benchmark Result ':=^50}"]

    def row(name: str, value: float | None) -> None:
        text = "-" if value is None else f"{value:<10}" if isinstance(value, int) else f"{value:<10.2f}"
        lines.append(f"{name:<40} {text}".rstrip())

    row("Successful requests:", numbers["completed"])
    row("Failed requests:", numbers["failed"])
    for status, count in numbers["failures"].items():
        row(f"  {status}:", count)
    if numbers["request_rate"] is not None:
        row("Request rate configured (RPS):", float(numbers["request_rate"]))
    row("Request rate offered (RPS):", numbers["offered_rate"])
    row("Benchmark duration (s):", numbers["duration"])
    row("Total input tokens:", numbers["total_input_tokens"])
    row("Total generated tokens:", numbers["total_output_tokens"])
    row("Request throughput (req/s):", numbers["request_throughput"])
    if numbers["goodput"] is not None:
        row("Request goodput (req/s):", numbers["request_goodput"])
        row("Request goodput of the window (req/s):", numbers["goodput"])
    row("Output token throughput (tok/s):", numbers["output_throughput"])
    row("Peak output token throughput (tok/s):", numbers["max_output_tokens_per_s"])
    row("Peak concurrent requests:", float(numbers["max_concurrent_requests"]))
    row("Total token throughput (tok/s):", numbers["total_token_throughput"])
    row("Largest delay in the client (ms):", numbers["max_lateness_ms"])
    for name, (short, headline) in METRICS.items():
        lines.append(f"{headline:-^50}")
        row(f"Mean {short} (ms):", numbers[f"mean_{name}_ms"])
        row(f"Median {short} (ms):", numbers[f"median_{name}_ms"])
        for share in PERCENTILES[1:]:
            row(f"P{share} {short} (ms):", numbers[f"p{share}_{name}_ms"])
    return "\n".join([*lines, "=" * 50])
