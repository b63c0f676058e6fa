"""Lesson 14: a whole server of five parts, each of which can be exchanged. `app` is the real one.

It answers `POST /v1/chat/completions`, always as a stream.
"""

import json
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import Any

from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from lessons_lib.engine.llm_engine import LLMEngine
from lessons_lib.engine.outputs import NewToken
from lessons_lib.engine.sampling_params import SamplingParams
from lessons_lib.models.validate import BadRequest
from lessons_lib.serving.async_engine import AsyncEngine, RequestStream
from lessons_lib.serving.http.chat_events import sse_events
from lessons_lib.serving.http.errors import ApiError, api_error
from lessons_lib.serving.http.leaving import stream_until_gone
from lessons_lib.serving.mailbox import Mailbox
from lessons_lib.serving.owner import own_engine


class SmallApp:
    """An ASGI application around an engine.

    Attributes:
        front: an AsyncEngine; it is open from the server's start to its end.
        num_left: clients that have left before the end of their answers.
    """

    def __init__(
        self, engine: LLMEngine, *, mailbox: type[Any] = Mailbox, own: Callable[..., Awaitable[None]] = own_engine,
        events: Callable[..., Iterable[bytes]] = sse_events,
        until_gone: Callable[..., Awaitable[bool]] = stream_until_gone, admission: Any = None,
    ):  # fmt: skip
        self.engine, self.events, self.until_gone, self.num_left = engine, events, until_gone, 0
        self.front = AsyncEngine(engine, admission, mailbox=mailbox, own=own)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._live(receive, send)
        elif (scope["method"], scope["path"]) != ("POST", "/v1/chat/completions"):
            error = ApiError(404, "this server has only POST /v1/chat/completions.")
            await error.response()(scope, receive, send)
        else:
            await self.answer(scope, receive, send)

    async def _live(self, receive: Receive, send: Send) -> None:
        """From the server's start to its end, the owner runs."""
        await receive()
        async with self.front:
            await send({"type": "lifespan.startup.complete"})
            await receive()
        await send({"type": "lifespan.shutdown.complete"})

    async def answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One chat. Nothing is sent before its first tokens, so that an error before them has a status of its own."""
        arrived: deque[list[NewToken] | Exception] = deque()
        stream: RequestStream | None = None
        is_sending = False

        async def add() -> RequestStream:
            nonlocal stream
            stream = await self.front.add(prompt, params)
            return stream

        async def send_tokens(tokens: list[NewToken]) -> None:
            nonlocal is_sending
            arrived.append(tokens)
            if not is_sending:
                is_sending = True
                headers = [(b"content-type", b"text/event-stream")]
                await send({"type": "http.response.start", "status": 200, "headers": headers})
                await send(_body(next(events)))  # the role
            await send(_body(next(events)))

        try:
            prompt, params, with_usage = self._read(await Request(scope, receive).body())
            head = {"id": f"chatcmpl-{time.time_ns()}", "object": "chat.completion.chunk", "created": int(time.time())}
            events = iter(self.events(head, _taken_from(arrived), len(prompt) if with_usage else None))
            if not await self.until_gone(add, receive, send_tokens):
                self.num_left += 1
                return None
            if stream and (reason := (await stream.end()).error):
                raise RuntimeError(reason)
        except Exception as error:
            if not is_sending:
                return await api_error(error).response()(scope, receive, send)
            arrived.append(error)
        for event in events:  # usage or an error, and `DONE`
            await send(_body(event))
        await send(_body(b"", more=False))

    def _read(self, body: bytes) -> tuple[list[int], SamplingParams, bool]:
        """(prompt's tokens, parameters, True if usage is wanted). The bundled model doesn't know roles."""
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


def _body(data: bytes, more: bool = True) -> dict[str, Any]:
    return {"type": "http.response.body", "body": data, "more_body": more}
