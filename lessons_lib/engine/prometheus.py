"""Lesson 12: an engine's metrics in the text format that Prometheus reads
(https://prometheus.io/docs/instrumenting/exposition_formats/).

Metrics have vLLM's names, `vllm:...`, where they mean the same, so dashboards and alerts that were made for vLLM work
here too. Those that vLLM doesn't have, or means in another way, begin with `lessons_`.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from lessons_lib.engine.metrics import BOUNDS, EngineGauges

GAUGES = {  # name -> (attribute of EngineGauges, help)
    "vllm:num_requests_running": ("running", "Sequences in the batch."),
    "vllm:num_requests_waiting": ("waiting", "Sequences that wait for the batch."),
    "lessons_requests_swapped": ("swapped", "Waiting sequences that are swapped out."),
    "vllm:kv_cache_usage_perc": ("kv_cache_usage_perc", "Share of the blocks in use, 0 to 1."),
    "lessons_used_blocks": ("used_blocks", "Blocks in use."),
    "lessons_named_blocks": ("named_blocks", "Blocks that can be found by their hash."),
    "lessons_num_blocks": ("num_blocks", "Blocks of the pool."),
}
COUNTERS = {  # name -> (key of a snapshot, help)
    "vllm:prompt_tokens": ("prompt_tokens", "Tokens of the prompts that were computed or found in the cache."),
    "vllm:generation_tokens": ("new_tokens", "Tokens generated."),
    "vllm:num_preemptions": ("preemptions", "Sequences preempted."),
    "vllm:prefix_cache_hits": ("cached_tokens", "Tokens of admitted sequences that were in the prefix cache."),
    "vllm:spec_decode_num_drafts": ("num_drafts", "How often guesses were computed for a sequence."),
    "vllm:spec_decode_num_draft_tokens": ("num_draft_tokens", "Guesses computed."),
    "vllm:spec_decode_num_accepted_tokens": ("num_accepted_tokens", "Guesses that are in a completion."),
    "lessons_steps": ("steps", "Steps of the engine."),
    "lessons_computed_tokens": ("tokens", "Tokens computed, of prompts and completions."),
    "lessons_busy_seconds": ("busy_seconds", "Time in which the engine was inside a step."),
}
HISTOGRAMS = {
    "vllm:time_to_first_token_seconds": ("ttft", "From arrival to the first token."),
    "vllm:inter_token_latency_seconds": ("itl", "Between two tokens of a completion."),
    "vllm:request_time_per_output_token_seconds": ("tpot", "Time per token after the first, averaged by completion."),
    "vllm:e2e_request_latency_seconds": ("latency", "From arrival to the last token."),
    "vllm:request_queue_time_seconds": ("queue_time", "From arrival to the first step."),
}
Labels = Mapping[str, str]
NO_LABELS: Labels = {}


def gauge(name: str, text: str, value: float, labels: Labels = NO_LABELS) -> Metric:
    family = GaugeMetricFamily(name, text, labels=[*labels])
    family.add_metric([*labels.values()], value)
    return family


def counter(name: str, text: str, value: float, labels: Labels = NO_LABELS) -> Metric:
    return counters(name, text, [], {(): value}, labels)


def counters(name: str, text: str, own: list[str], values: dict[Any, float], labels: Labels = NO_LABELS) -> Metric:
    """A counter with labels of its own.

    Args:
        values: (value of each own label, ...) -> count.
    """
    family = CounterMetricFamily(name, text, labels=[*labels, *own])
    for key, value in values.items():
        family.add_metric([*labels.values(), *key], value)
    return family


def histogram(name: str, text: str, found: Mapping[str, Any] | None, labels: Labels = NO_LABELS) -> Metric:
    """A histogram of a snapshot. In Prometheus, a bucket counts all values up to its bound."""
    family = HistogramMetricFamily(name, text, labels=[*labels])
    counts = found["counts"] if found else [0] * (len(BOUNDS) + 1)
    bounds = [*map(str, BOUNDS), "+Inf"]
    buckets = [(bound, float(sum(counts[: index + 1]))) for index, bound in enumerate(bounds)]
    family.add_metric([*labels.values()], buckets, found["total"] if found else 0.0)
    return family


def engine_families(
    snapshot: Mapping[str, Any], gauges: EngineGauges | None = None, labels: Labels = NO_LABELS
) -> Iterator[Metric]:
    """All metrics of an engine.

    Args:
        snapshot: `EngineMetrics.snapshot()`; empty before the engine has sent one.
    """
    for name, (attribute, text) in GAUGES.items() if gauges else ():
        yield gauge(name, text, getattr(gauges, attribute), labels)
    for name, (key, text) in COUNTERS.items():
        yield counter(name, text, snapshot.get(key, 0), labels)
    asked = snapshot.get("cached_tokens", 0) + snapshot.get("prefill_tokens", 0)
    yield counter("vllm:prefix_cache_queries", "Tokens that were looked for in the prefix cache.", asked, labels)
    for name, (key, text) in HISTOGRAMS.items():
        yield histogram(name, text, snapshot.get(key), labels)
    for name, text, own, key in (
        ("vllm:request_success", "Requests that have ended.", "finished_reason", "requests"),
        ("lessons_step_seconds", "Time of the parts of all steps.", "part", "part_seconds"),
    ):
        values = {(each,): value for each, value in sorted(snapshot.get(key, {}).items())}
        yield counters(name, text, [own], values, labels)
