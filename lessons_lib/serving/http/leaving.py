"""Lesson 14: one request of one client, which may leave at any time. `sse` does the same for all routes."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from lessons_lib.engine.outputs import NewToken
from lessons_lib.serving.async_engine import RequestStream


async def send_all(
    add: Callable[[], Awaitable[RequestStream]], send: Callable[[list[NewToken]], Awaitable[None]]
) -> None:
    """Add a request, and send its tokens until the last one. However it ends, the request has ended or is aborted."""
    stream = await add()
    try:
        async for tokens in stream:
            await send(tokens)
    finally:
        await stream.aclose()  # never waits


async def stream_until_gone(
    add: Callable[[], Awaitable[RequestStream]],
    receive: Callable[[], Awaitable[dict[str, Any]]],
    send: Callable[[list[NewToken]], Awaitable[None]],
) -> bool:
    """Add a request, and send its tokens until the last one, or until the client leaves.

    Args:
        add: `await add()` returns the request's stream once the engine has accepted it. If it is cancelled while it
            waits, it takes the request back by itself.
        receive: `await receive()` waits for the client's next message, a dict. Its "type" is "http.disconnect" if the
            client has left.
        send: `await send(tokens)` waits until the connection has room for them.

    Returns:
        True if all tokens were sent.

    However it ends, the request has ended or is being aborted, and nothing that was started here runs on.
    """

    async def wait_until_gone() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    sending, leaving = asyncio.ensure_future(send_all(add, send)), asyncio.ensure_future(wait_until_gone())
    try:
        await asyncio.wait((sending, leaving), return_when=asyncio.FIRST_COMPLETED)
        if not sending.done():
            return False
        sending.result()  # raises what went wrong
        return True
    finally:
        # One more cancellation may end this `gather` early. Both tasks still end by themselves: no `finally` of theirs
        # waits, because `stream.aclose` has no await inside.
        sending.cancel()
        leaving.cancel()
        await asyncio.gather(sending, leaving, return_exceptions=True)
