"""Lesson 14: a server as its operator sees it: health, metrics, a log line for each request, the cockpit's numbers."""

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
from typing import Any
from urllib.parse import quote

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import Metric
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from lessons_lib.engine.prometheus import counter, counters, engine_families, gauge
from lessons_lib.serving.async_engine import AsyncEngine

ACCESS = logging.getLogger("lessons_lib.access")
CLIENT_LEFT = 499  # before it had a status; nginx logs the same number
REQUEST_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")


def health(front: AsyncEngine) -> tuple[int, dict[str, Any]]:
    """(status, body) of /health: 503 if no request would be served, so that a balancer asks another server."""
    if front.error is not None:
        return 503, {"status": "dead", "error": front.error}
    if front.is_draining:
        return 503, {"status": "draining"}
    return 200, {"status": "ok"}


def cockpit(front: AsyncEngine) -> dict[str, Any]:
    """Figures for the page: the state of the engine, and sums whose differences are rates."""
    gauges, metrics, admission = front.gauges, front.metrics(), front.admission
    names = ("max_num_seqs", "steps", "new_tokens", "tokens", "cached_tokens", "preemptions")
    return {
        **health(front)[1],
        **{name: getattr(gauges, name) for name in ("running", "waiting", "used_blocks", "num_blocks")},
        **{name: metrics.get(name, 0) for name in (*names, "busy_seconds", "prefix_hit_rate")},
        **{f"{name}_p50": metrics.get(name, {}).get("p50") for name in ("ttft", "itl")},
        "requests": admission.num_requests,
        "max_requests": admission.max_requests,
        "refused": admission.num_refused,
    }


class ServerMetrics:
    """Everything under /metrics, computed when it is asked for.

    Attributes:
        answers: (path, status) -> number of answers. Unknown paths count as "other", or a client could make the server
            remember any number of paths.
        log: counts lost lines; may be None.
    """

    def __init__(self, front: AsyncEngine, model_name: str, log: "BackgroundLog | None" = None):
        self.front, self.model_name, self.log = front, model_name, log
        self.answers: Any = Counter[tuple[str, int]]()
        self.registry = CollectorRegistry()
        self.registry.register(self)
        ProcessCollector(registry=self.registry)  # memory, open files and CPU time of this process

    def text(self) -> bytes:
        return generate_latest(self.registry)

    def describe(self) -> list[Metric]:
        """No metrics: the values may not be there yet when this is registered."""
        return []

    def collect(self) -> Iterator[Metric]:
        labels = {"engine": "0", "model_name": self.model_name}  # as vLLM has them
        yield from engine_families(self.front.metrics(), self.front.gauges, labels)
        admission, is_healthy = self.front.admission, health(self.front)[0] == 200
        num, tokens = admission.num_requests, admission.num_prompt_tokens
        yield gauge("lessons_requests_in_flight", "Requests that were admitted.", num, labels)
        yield gauge("lessons_prompt_tokens_in_flight", "Tokens of their prompts.", tokens, labels)
        yield counter("lessons_requests_refused", "Requests refused with 429.", admission.num_refused, labels)
        yield gauge("lessons_is_healthy", "1 if a request would be served.", int(is_healthy), labels)
        if self.log:
            dropped = self.log.num_dropped
            yield counter("lessons_log_lines_dropped", "Lines that couldn't be written.", dropped, labels)
        answers = {(path, str(status)): count for (path, status), count in sorted(self.answers.items())}
        yield counters("lessons_http_responses", "HTTP answers.", ["path", "status"], answers)


class AccessLog:
    """Gives each request an id, counts its answer, and logs one line about it. A prompt is never logged.

    A client may choose the id (`x-request-id`) if it is short and harmless. Another one is replaced: it goes into the
    answer's headers and into the log, where a line break would forge a header or a line.
    """

    def __init__(self, app: ASGIApp, metrics: ServerMetrics, known_paths: frozenset[str], is_logged: bool = True):
        self.app, self.metrics, self.known_paths, self.is_logged = app, metrics, known_paths, is_logged

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        start = time.monotonic()  # not the time of day, which may be set
        sent = Headers(scope=scope).getlist("x-request-id")
        request_id = sent[0] if len(sent) == 1 and REQUEST_ID.fullmatch(sent[0]) else uuid.uuid4().hex
        MutableHeaders(scope=scope)["x-request-id"] = request_id  # the one that the app sees
        status, num_bytes, is_complete = 0, 0, False

        async def send_and_note(message: Message) -> None:
            nonlocal status, num_bytes, is_complete
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message)["x-request-id"] = request_id
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
                client, seconds = (scope.get("client") or ("-",))[0], time.monotonic() - start
                # Quoted, so that a line break in a path is no line break in the log.
                line = f'request_id={request_id} client={client} method={scope["method"]} path="{quote(path[:200])}"'
                complete = "yes" if is_complete else "no"
                ACCESS.info(
                    "%s status=%d bytes=%d seconds=%.3f complete=%s", line, status, num_bytes, seconds, complete
                )


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
