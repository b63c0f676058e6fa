"""Server-sent events: how tokens go out one after another in one response, and how a client that leaves is noticed."""

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable
from typing import Any, TypeVar

from fastapi.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from lessons_lib.serving.http.errors import ClientGone, api_error

T = TypeVar("T")
DONE = b"data: [DONE]\n\n"
# Proxies must pass each event on at once, and store none.
HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}


def event(data: dict[str, Any]) -> bytes:
    """One event. All characters are ASCII: some clients take U+2028 in a text for the end of a line."""
    return f"data: {json.dumps(data)}\n\n".encode("ascii")


async def unless_gone(receive: Receive, work: Awaitable[T]) -> T:
    """Do some work, and cancel it if the client leaves. The body of the request must have been read.

    Raises:
        ClientGone: the client has left; the work has ended.
    """
    working = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_disconnected(receive))
    try:
        await asyncio.wait((working, gone), return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientGone
        return working.result()
    finally:
        working.cancel()
        gone.cancel()
        await asyncio.gather(working, gone, return_exceptions=True)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class EventStream(StreamingResponse):
    """Events as they come. The first is there already, so that an error before it has a status of its own; a later one
    becomes an event `{"error": ...}`. `events` is closed even if the client leaves."""

    def __init__(self, first: bytes, events: AsyncGenerator[bytes, None]):
        super().__init__(events, headers=HEADERS, media_type="text/event-stream")
        self.first, self.events = first, events

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await unless_gone(receive, self._send(send))
        except ClientGone:
            pass
        finally:
            await self.events.aclose()

    async def _send(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        await send({"type": "http.response.body", "body": self.first, "more_body": True})
        try:
            async for body in self.events:
                await send({"type": "http.response.body", "body": body, "more_body": True})
        except Exception as error:
            await send({"type": "http.response.body", "body": event(api_error(error).body()), "more_body": True})
        await send({"type": "http.response.body", "body": DONE, "more_body": False})
