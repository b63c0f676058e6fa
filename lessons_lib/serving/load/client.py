"""Lesson 14: an open loop over HTTP: requests are sent at their times, whatever the server does. In a closed loop, a
slow server is asked less, so no queue grows.
"""

import asyncio
import json
import ssl
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import httpx

from lessons_lib.serving.load.records import LoadLog, LoadRecord, LoadRequest

Now = Callable[[], float]  # seconds since the start of the run
Send = Callable[[LoadRequest, LoadRecord, Now], Awaitable[None]]  # fills the record; errors go into it


async def open_loop(
    send: Send,
    requests: Sequence[LoadRequest],
    arrivals: Sequence[float],
    *,
    clock: Callable[[], float] = time.perf_counter,
) -> LoadLog:
    """Send each request at its time, whatever the server does, then wait until all have ended.

    Args:
        send: one request from sending to its end, such as `ChatClient.send`.
        arrivals: seconds from the start, one for each request, rising.
    """
    start = clock()
    records: list[LoadRecord] = []
    tasks: list[asyncio.Task[None]] = []

    def now() -> float:
        return clock() - start

    try:
        for index, (request, arrival) in enumerate(zip(requests, arrivals, strict=True)):
            await asyncio.sleep(max(0.0, arrival - now()))
            record = LoadRecord(str(index), arrival, now(), request.prompt_tokens, request.max_tokens)
            records.append(record)
            tasks.append(asyncio.ensure_future(send(request, record, now)))
        await asyncio.gather(*tasks)
        duration = now()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return LoadLog(records, arrivals[-1] or duration, duration)


class ChatClient:
    """Streams chat completions, each over a connection of its own. A prompt is a text, and the only message.

    Attributes:
        extra_body: more fields of each request, such as {"ignore_eos": True}.
    """

    def __init__(self, url: str, *, extra_body: Mapping[str, Any] | None = None, timeout: float = 600.0):
        self.url, self.extra_body = f"{url.rstrip('/')}/v1/chat/completions", dict(extra_body or {})
        # made once: httpx would load all certificates again for each request
        self.options: dict[str, Any] = {"timeout": timeout, "verify": ssl.create_default_context(), "trust_env": False}

    async def send(self, request: LoadRequest, record: LoadRecord, now: Now) -> None:
        """One request, from its connection to its end. Whatever goes wrong is written into the record."""
        body = {"messages": [{"role": "user", "content": request.prompt}], "max_tokens": request.max_tokens}
        body |= {"stream": True, "stream_options": {"include_usage": True}} | self.extra_body
        try:
            async with (
                httpx.AsyncClient(**self.options) as client,
                client.stream("POST", self.url, json=body) as response,
            ):
                record.status = response.status_code
                if record.status != 200:
                    record.error = error_message(await response.aread())
                    return
                async for line in response.aiter_lines():
                    if line == "data: [DONE]":
                        break
                    if line.startswith("data: {"):
                        take_event(json.loads(line.removeprefix("data: ")), record, now())
            if record.error is None and record.finish_reason is None:
                record.error = f"the stream ended without a finish_reason, after {len(record.token_times)} events"
        except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
            record.error = f"{type(error).__name__}: {error}"
        finally:
            record.end_time = now()
            record.output_tokens = record.output_tokens or len(record.token_times)


def take_event(event: dict[str, Any], record: LoadRecord, time: float) -> None:
    """Write one event of a stream into its record.

    Every event with choices counts as a token, as in `vllm bench serve`: some tokens have no text.
    """
    if "error" in event:
        record.error = str(event["error"]["message"])
    if choices := event.get("choices"):
        record.token_times.append(time)
        record.finish_reason = choices[0].get("finish_reason") or record.finish_reason
    if usage := event.get("usage"):
        record.output_tokens = usage.get("completion_tokens") or record.output_tokens
        record.prompt_tokens = usage.get("prompt_tokens") or record.prompt_tokens


def error_message(body: bytes) -> str:
    """OpenAI's `error.message`, or the beginning of the body."""
    try:
        return str(json.loads(body)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return body[:200].decode(errors="replace")
