"""Lesson 14: what an operator sees of a server: health, metrics, a line for each request, the cockpit's numbers.

Metrics have vLLM's names, `vllm:...`, where they mean the same, so dashboards and alerts that were made for vLLM work
here too. What vLLM doesn't have, or means in another way, begins with `lessons_`.
"""

import contextlib
import logging
import os
import queue
import re
import threading
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from typing import Any, Protocol
from urllib.parse import quote

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from lessons_lib.engine.metrics import BOUNDS, EngineGauges
from lessons_lib.serving.http.security import App, Message, Receive, Scope, Send, header_values

ACCESS = logging.getLogger("lessons_lib.access")
CLIENT_LEFT = 499  # before it had a status; nginx logs the same number
REQUEST_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")


class InFlight(Protocol):
    """What observability asks of an AdmissionControl, or of a WholeServer."""

    max_requests: Any
    num_requests: Any
    num_prompt_tokens: Any
    num_refused: Any


class Whole(InFlight, Protocol):
    """What it asks of a WholeServer, if the server has several API processes."""

    num_dropped: Any

    def answers(self, known_paths: frozenset[str]) -> Any: ...


class Front(Protocol):
    """What observability asks of an AsyncEngine, of either kind."""

    gauges: EngineGauges
    error: str | None
    is_draining: bool
    admission: Any

    def metrics(self) -> dict[str, Any]: ...


def health(front: Front) -> tuple[int, dict[str, Any]]:
    """(status, body) of /health: 200 if a request would be served, else 503, so that a balancer asks another server."""
    if front.error is not None:
        return 503, {"status": "dead", "error": front.error}
    if front.is_draining:
        return 503, {"status": "draining"}
    return 200, {"status": "ok"}


def cockpit(front: Front, whole: InFlight | None = None) -> dict[str, Any]:
    """What the page draws: what the engine is doing now, and sums whose differences are rates."""
    gauges, metrics, admission = front.gauges, front.metrics(), whole or front.admission
    return {
        **health(front)[1],
        "running": gauges.running,
        "waiting": gauges.waiting,
        "used_blocks": gauges.used_blocks,
        "num_blocks": gauges.num_blocks,
        "max_num_seqs": metrics.get("max_num_seqs", 0),
        "requests": admission.num_requests,
        "max_requests": admission.max_requests,
        "refused": admission.num_refused,
        **{name: metrics.get(name, 0) for name in ("steps", "new_tokens", "tokens", "cached_tokens", "preemptions")},
        "busy_seconds": metrics.get("busy_seconds", 0.0),
        "prefix_hit_rate": metrics.get("prefix_hit_rate", 0.0),
        "ttft_p50": metrics.get("ttft", {}).get("p50"),
        "itl_p50": metrics.get("itl", {}).get("p50"),
    }


COUNTERS = {
    "vllm:prompt_tokens": ("prompt_tokens", "Tokens of the prompts that were computed or found in the cache."),
    "vllm:generation_tokens": ("new_tokens", "Tokens generated."),
    "vllm:num_preemptions": ("preemptions", "Sequences preempted."),
    "vllm:prefix_cache_hits": ("cached_tokens", "Tokens of admitted sequences that were in the prefix cache."),
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


class ServerMetrics:
    """Everything under /metrics, computed when it is asked for.

    Attributes:
        answers: (path, status) -> how many answers. Paths that the server doesn't have count as "other", or a client
            could make it remember any number of paths.
        log: whose lost lines are counted.
        whole: counts for all API processes of the server, if it has several: each scrape may reach another one.
    """

    def __init__(
        self, front: Front, model_name: str, log: "BackgroundLog | Whole | None" = None, whole: Whole | None = None
    ):
        self.front, self.model_name, self.log, self.whole = front, model_name, log or whole, whole
        self.answers: Any = Counter[tuple[str, int]]()
        self.registry = CollectorRegistry()
        self.registry.register(self)
        if whole is None:
            ProcessCollector(registry=self.registry)  # memory, open files and CPU time of this process

    def text(self) -> bytes:
        """All metrics in the text format of Prometheus."""
        return generate_latest(self.registry)

    def describe(self) -> list[Metric]:
        """Nothing: the values may not be there yet when this is registered."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Every metric once."""
        gauges, metrics = self.front.gauges, self.front.metrics()
        yield self._gauge("vllm:num_requests_running", "Sequences in the batch.", gauges.running)
        yield self._gauge("vllm:num_requests_waiting", "Sequences that wait for the batch.", gauges.waiting)
        usage = gauges.kv_cache_usage_perc
        yield self._gauge("vllm:kv_cache_usage_perc", "Share of the blocks in use, 0 to 1.", usage)
        yield self._gauge("lessons_used_blocks", "Blocks in use.", gauges.used_blocks)
        yield self._gauge("lessons_num_blocks", "Blocks of the pool.", gauges.num_blocks)
        for name, (field, text) in COUNTERS.items():
            yield self._counter(name, text, metrics.get(field, 0))
        asked = metrics.get("cached_tokens", 0) + metrics.get("prefill_tokens", 0)
        yield self._counter("vllm:prefix_cache_queries", "Tokens that were looked for in the prefix cache.", asked)
        for name, (field, text) in HISTOGRAMS.items():
            yield self._histogram(name, text, metrics.get(field))
        ended = CounterMetricFamily(
            "vllm:request_success", "Requests that have ended.", labels=[*self._labels, "finished_reason"]
        )
        for reason, count in sorted(metrics.get("requests", {}).items()):
            ended.add_metric([*self._values, reason], count)
        yield ended
        yield from self._of_server()

    def _of_server(self) -> Iterator[Metric]:
        admission = self.whole or self.front.admission
        yield self._gauge("lessons_requests_in_flight", "Requests that were admitted.", admission.num_requests)
        tokens = admission.num_prompt_tokens
        yield self._gauge("lessons_prompt_tokens_in_flight", "Tokens of their prompts.", tokens)
        yield self._counter("lessons_requests_refused", "Requests refused with 429.", admission.num_refused)
        yield self._gauge("lessons_is_healthy", "1 if a request would be served.", int(health(self.front)[0] == 200))
        if self.log:
            yield self._counter("lessons_log_lines_dropped", "Lines that couldn't be written.", self.log.num_dropped)
        answers = CounterMetricFamily("lessons_http_responses", "HTTP answers.", labels=["path", "status"])
        for (path, status), count in sorted(self.answers.items()):
            answers.add_metric([path, str(status)], count)
        yield answers

    @property
    def _labels(self) -> list[str]:
        return ["engine", "model_name"]  # as vLLM has them

    @property
    def _values(self) -> list[str]:
        return ["0", self.model_name]

    def _gauge(self, name: str, text: str, value: float) -> Metric:
        family = GaugeMetricFamily(name, text, labels=self._labels)
        family.add_metric(self._values, value)
        return family

    def _counter(self, name: str, text: str, value: float) -> Metric:
        family = CounterMetricFamily(name, text, labels=self._labels)
        family.add_metric(self._values, value)
        return family

    def _histogram(self, name: str, text: str, histogram: dict[str, Any] | None) -> Metric:
        """Of what `Histogram` counts, as a snapshot has it. In Prometheus, a bucket counts all values up to its
        bound."""
        family = HistogramMetricFamily(name, text, labels=self._labels)
        counts = histogram["counts"] if histogram else [0] * (len(BOUNDS) + 1)
        bounds = [*map(str, BOUNDS), "+Inf"]
        buckets = [(bound, float(sum(counts[: index + 1]))) for index, bound in enumerate(bounds)]
        family.add_metric(self._values, buckets, histogram["total"] if histogram else 0.0)
        return family


class AccessLog:
    """Gives each request an id, counts its answer, and logs one line about it. A prompt is never logged.

    A client may choose the id (`x-request-id`) if it is short and harmless. Another one is replaced: it goes into the
    answer's headers and into the log, where a line break would forge a header or a line.
    """

    def __init__(self, app: App, metrics: ServerMetrics, known_paths: frozenset[str], is_logged: bool = True):
        self.app, self.metrics, self.known_paths, self.is_logged = app, metrics, known_paths, is_logged

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        start = time.monotonic()  # not the time of day, which may be set
        request_id = checked_request_id(scope)
        status, num_bytes, is_complete = 0, 0, False

        async def send_and_note(message: Message) -> None:
            nonlocal status, num_bytes, is_complete
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = [header for header in message.get("headers", []) if header[0].lower() != b"x-request-id"]
                message["headers"] = [*headers, (b"x-request-id", request_id.encode())]
            else:
                num_bytes += len(message.get("body", b""))
                is_complete = not message.get("more_body", False)
            await send(message)

        try:
            await self.app(scope, receive, send_and_note)
        except Exception:
            status = status or 500
            raise
        finally:
            status = status or CLIENT_LEFT
            path = scope["path"].removeprefix(scope.get("root_path", ""))
            self.metrics.answers[path if path in self.known_paths else "other", status] += 1
            if self.is_logged:
                # Quoted, so that a line break in a path is no line break in the log.
                ACCESS.info(
                    'request_id=%s client=%s method=%s path="%s" status=%d bytes=%d seconds=%.3f complete=%s',
                    request_id,
                    (scope.get("client") or ("-",))[0],
                    scope["method"],
                    quote(path[:200], safe="/-._~"),
                    status,
                    num_bytes,
                    time.monotonic() - start,
                    "yes" if is_complete else "no",
                )


def checked_request_id(scope: Scope) -> str:
    """The request's id: the client's, or a new one. From now on it is the one in the request's headers."""
    sent = header_values(scope, b"x-request-id")
    request_id = sent[0] if len(sent) == 1 and REQUEST_ID.fullmatch(sent[0]) else uuid.uuid4().hex
    others = [header for header in scope["headers"] if header[0].lower() != b"x-request-id"]
    scope["headers"] = [*others, (b"x-request-id", request_id.encode())]
    return request_id


class BackgroundLog(logging.Handler):
    """Writes log lines in a thread of its own, so that nothing that happens to a log stops the server: a full disk, a
    pipe that isn't read, a network folder that hangs. Lines that can't be written are dropped and counted.

    Attributes:
        num_dropped: lines that are lost.
    """

    def __init__(self, file_descriptor: int = 2, capacity: int = 1000):
        super().__init__()
        self.file_descriptor, self.num_dropped = file_descriptor, 0
        self._lines: queue.Queue[bytes | None] = queue.Queue(capacity)
        self._thread = threading.Thread(target=self._write_lines, name="log", daemon=True)
        self._thread.start()

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._lines.put_nowait(self.format(record).encode("utf-8", "backslashreplace") + b"\n")
        except Exception:  # noqa: BLE001 - the queue is full, or a line can't be formatted: a log stops nothing
            self.num_dropped += 1

    def close(self) -> None:
        """Write what is left, if that takes less than a second."""
        with contextlib.suppress(queue.Full):
            self._lines.put_nowait(None)
            self._thread.join(1)
        super().close()

    def _write_lines(self) -> None:
        while (line := self._lines.get()) is not None:
            try:
                while line:
                    line = line[os.write(self.file_descriptor, line) :]
            except OSError:
                self.num_dropped += 1
