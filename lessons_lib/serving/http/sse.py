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
KEEP_ALIVE_INTERVAL = 15.0  # seconds
KEEP_ALIVE = b": keep-alive\n\n"  # a comment, which clients skip: proxies close connections that stay silent
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
    """Events as they come, and a comment after each `silence` of so many seconds.

    It begins when the first event is there, so that an error before it has a status of its own, or when the silence is
    over. A later error becomes an event `{"error": ...}`. `events` is closed even if the client leaves.
    """

    def __init__(self, events: AsyncGenerator[bytes, None], silence: float = KEEP_ALIVE_INTERVAL, end: bytes = DONE):
        super().__init__(events, headers=HEADERS, media_type="text/event-stream")
        self.events, self.silence, self.end = events, silence, end

    async def begun(self, receive: Receive) -> "EventStream":
        """This response, once it can begin. Raises ClientGone, and what `events` raises before its first event."""
        self.first = asyncio.ensure_future(anext(self.events))
        try:
            await unless_gone(receive, asyncio.wait((self.first,), timeout=self.silence))
            if self.first.done():
                self.first.result()
            return self
        except BaseException:
            await self._close()
            raise

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await unless_gone(receive, self._send(send))
        except ClientGone:
            pass
        finally:
            await self._close()

    async def _close(self) -> None:
        self.first.cancel()
        await asyncio.gather(self.first, return_exceptions=True)
        await self.events.aclose()

    async def _send(self, send: Send) -> None:
        clock = asyncio.get_running_loop().time
        last = clock()

        async def keep_alive() -> None:
            nonlocal last
            while True:
                await asyncio.sleep(last + self.silence - clock())
                if clock() >= last + self.silence:
                    last = clock()
                    await send({"type": "http.response.body", "body": KEEP_ALIVE, "more_body": True})

        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        keeping = asyncio.ensure_future(keep_alive())
        try:
            await send({"type": "http.response.body", "body": await self.first, "more_body": True})
            async for body in self.events:
                last = clock()
                await send({"type": "http.response.body", "body": body, "more_body": True})
        except Exception as error:
            await send({"type": "http.response.body", "body": event(api_error(error).body()), "more_body": True})
        finally:
            keeping.cancel()
        await send({"type": "http.response.body", "body": self.end, "more_body": False})
