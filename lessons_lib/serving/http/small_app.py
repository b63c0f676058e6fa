"""Lesson 14: a whole server of five parts, each of which can be exchanged. `app` is the real one.

It answers `POST /v1/chat/completions`, always as a stream.
"""

import asyncio
import json
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import Any, TypeAlias

from lessons_lib.engine.llm_engine import LLMEngine
from lessons_lib.engine.outputs import NewToken
from lessons_lib.engine.sampling_params import SamplingParams
from lessons_lib.models.validate import BadRequest
from lessons_lib.serving.admission import AdmissionControl
from lessons_lib.serving.http.chat_events import sse_events
from lessons_lib.serving.http.errors import ApiError, api_error
from lessons_lib.serving.http.leaving import stream_until_gone
from lessons_lib.serving.mailbox import Mailbox
from lessons_lib.serving.owner import own_engine
from lessons_lib.serving.small_front import SmallFront

Receive: TypeAlias = Callable[[], Awaitable[Any]]
Send: TypeAlias = Callable[[dict[str, Any]], Awaitable[None]]


class SmallApp:
    """An ASGI application around an engine.

    Attributes:
        front: a SmallFront, from the server's start to its end.
        num_left: how many clients have left before the end of their answers.
    """

    def __init__(
        self,
        engine: LLMEngine,
        *,
        mailbox: type[Any] = Mailbox,
        own: Callable[..., Awaitable[None]] = own_engine,
        events: Callable[..., Iterable[bytes]] = sse_events,
        until_gone: Callable[..., Awaitable[bool]] = stream_until_gone,
        admission: Any = None,
    ):
        """
        Args:
            mailbox, own, events, until_gone, admission: the five parts; the reference's if not given.
        """
        self.engine, self.parts = engine, (mailbox, own, admission or AdmissionControl())
        self.events, self.until_gone, self.num_left = events, until_gone, 0

    async def __call__(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._live(receive, send)
        elif (scope["method"], scope["path"]) != ("POST", "/v1/chat/completions"):
            await _say_error(send, ApiError(404, "this server has only POST /v1/chat/completions."))
        else:
            await self.answer(receive, send)

    async def _live(self, receive: Receive, send: Send) -> None:
        """From the server's start to its end, the owner runs."""
        await receive()
        self.front = SmallFront(self.engine, *self.parts)
        owner = asyncio.create_task(self.front.own())
        await send({"type": "lifespan.startup.complete"})
        await receive()
        self.front.commands.close()
        await owner
        await send({"type": "lifespan.shutdown.complete"})

    async def answer(self, receive: Receive, send: Send) -> None:
        """One chat. Nothing is sent before its first tokens, so that an error before them has a status of its own."""
        arrived: deque[list[NewToken] | Exception] = deque()
        is_sending = False

        async def send_tokens(tokens: list[NewToken]) -> None:
            nonlocal is_sending
            arrived.append(tokens)
            if not is_sending:
                is_sending = True
                await send(_start(200, {"Content-Type": "text/event-stream"}))
                await send(_body(next(events)))  # the role
            await send(_body(next(events)))

        try:
            prompt, params, with_usage = self._read(await _received(receive))
            head = {"id": f"chatcmpl-{time.time_ns()}", "object": "chat.completion.chunk", "created": int(time.time())}
            events = iter(self.events(head, _taken_from(arrived), len(prompt) if with_usage else None))
            if not await self.until_gone(lambda: self.front.add(prompt, params), receive, send_tokens):
                self.num_left += 1
                return
        except Exception as error:
            if not is_sending:
                await _say_error(send, api_error(error))
                return
            arrived.append(error)
        for event in events:  # usage or an error, and `DONE`
            await send(_body(event))
        await send(_body(b"", more=False))

    def _read(self, body: bytes) -> tuple[list[int], SamplingParams, bool]:
        """The prompt's tokens, how to go on, and whether usage is wanted. The bundled model doesn't know roles."""
        try:
            asked = json.loads(body)
            text = "\n".join(message["content"] for message in asked["messages"])
            names = ("max_tokens", "temperature", "ignore_eos")
            params = SamplingParams(**{name: asked[name] for name in names if name in asked})
            with_usage = bool((asked.get("stream_options") or {}).get("include_usage"))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise BadRequest(f"the body is not a chat ({type(error).__name__}: {error}).") from error
        return list(self.engine.tokenizer(text).input_ids), params, with_usage


def _taken_from(arrived: "deque[list[NewToken] | Exception]") -> Iterator[list[NewToken]]:
    """The batches for `sse_events`, which asks for one only when it is there, or when none will follow."""
    while arrived:
        tokens = arrived.popleft()
        if isinstance(tokens, Exception):
            raise tokens
        yield tokens


async def _received(receive: Receive) -> bytes:
    body, message = b"", {"more_body": True}
    while message.get("more_body"):
        message = await receive()
        body += message.get("body", b"")
    return body


def _start(status: int, headers: dict[str, str]) -> dict[str, Any]:
    encoded = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
    return {"type": "http.response.start", "status": status, "headers": encoded}


def _body(data: bytes, more: bool = True) -> dict[str, Any]:
    return {"type": "http.response.body", "body": data, "more_body": more}


async def _say_error(send: Send, error: ApiError) -> None:
    await send(_start(error.status, {"Content-Type": "application/json", **error.headers}))
    await send(_body(json.dumps(error.body()).encode(), more=False))
