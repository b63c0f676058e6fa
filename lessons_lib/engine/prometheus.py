"""Lesson 12: an engine's metrics in the text format that Prometheus reads
(https://prometheus.io/docs/instrumenting/exposition_formats/)."""

from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from lessons_lib.engine.metrics import BOUNDS, EngineGauges, EngineMetrics, Histogram

PREFIX = "lessons_engine_"
COUNTERS = {
    "steps": "Steps.",
    "tokens": "Tokens computed.",
    "new_tokens": "Tokens generated.",
    "cached_tokens": "Prompt tokens found in the cache.",
    "preemptions": "Sequences preempted.",
}
GAUGES = {
    "slot_utilization": "Share of the batch slots in use, averaged over the steps.",
    "token_utilization": "Share of the token budget in use, averaged over the steps.",
    "block_utilization": "Share of the blocks in use, averaged over the steps.",
    "prefix_hit_rate": "Share of the prefill tokens that were found in the cache.",
}
NOW = {  # gauge, by vLLM's name if it has one -> (attribute of EngineGauges, help)
    "num_requests_running": ("running", "Sequences in a batch slot."),
    "num_requests_waiting": ("waiting", "Sequences that wait for a batch slot."),
    "num_requests_swapped": ("swapped", "Waiting sequences that are swapped out."),
    "kv_cache_usage_perc": ("kv_cache_usage_perc", "Share of the blocks in use; 1 means all."),
    "used_blocks": ("used_blocks", "Blocks in use."),
    "named_blocks": ("named_blocks", "Blocks that can be found by their hash."),
    "num_blocks": ("num_blocks", "Blocks in all."),
}
HISTOGRAMS = {
    "queue_time": "From arrival to the first step.",
    "ttft": "Time to first token.",
    "tpot": "Time per output token after the first, averaged over a completion.",
    "itl": "Time between two tokens of a completion.",
    "latency": "From arrival to the last token.",
}


class EngineCollector:
    """What prometheus_client asks for the values when they are scraped. The engine itself doesn't know about it.

    Attributes:
        metrics: of the engine.
        gauges: function: `LLMEngine.gauges`; None leaves them out.
    """

    def __init__(self, metrics: EngineMetrics, gauges: Callable[[], EngineGauges] | None = None):
        self.metrics, self.gauges = metrics, gauges

    def collect(self) -> Iterator[Metric]:
        """Every metric once."""
        for name, help_text in COUNTERS.items():
            yield CounterMetricFamily(PREFIX + name, help_text, value=getattr(self.metrics, name))
        for name, help_text in GAUGES.items():
            yield GaugeMetricFamily(PREFIX + name, help_text, value=getattr(self.metrics, name))
        if self.gauges:
            now = self.gauges()
            for name, (attribute, help_text) in NOW.items():
                yield GaugeMetricFamily(PREFIX + name, help_text, value=getattr(now, attribute))
        for name, help_text in HISTOGRAMS.items():
            histogram = getattr(self.metrics, name)
            yield HistogramMetricFamily(
                f"{PREFIX}{name}_seconds", help_text, buckets=_cumulative(histogram), sum_value=histogram.total
            )
        ended = CounterMetricFamily(PREFIX + "requests", "Requests that have ended.", labels=["reason"])
        for reason, count in self.metrics.requests.items():
            ended.add_metric([reason], count)
        yield ended
        parts = CounterMetricFamily(PREFIX + "step_seconds", "Time of the parts of all steps.", labels=["part"])
        for part, seconds in self.metrics.part_seconds.items():
            parts.add_metric([part], seconds)
        yield parts


def prometheus_text(metrics: EngineMetrics, gauges: Callable[[], EngineGauges] | None = None) -> str:
    """All metrics, one per line, as a server returns them under /metrics; see EngineCollector."""
    registry = CollectorRegistry()
    registry.register(EngineCollector(metrics, gauges))
    return generate_latest(registry).decode()


def _cumulative(histogram: Histogram) -> list[tuple[str, float]]:
    """In Prometheus, a bucket counts all values up to its bound."""
    bounds = [*map(str, BOUNDS), "+Inf"]
    return [(bound, sum(histogram.counts[: index + 1])) for index, bound in enumerate(bounds)]
