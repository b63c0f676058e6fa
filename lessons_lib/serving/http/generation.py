"""What both kinds of completion share: the streams of one HTTP request in the engine, and what is counted."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

from lessons_lib import __version__
from lessons_lib.engine.outputs import NewToken
from lessons_lib.engine.sampling_params import SamplingParams
from lessons_lib.serving.async_engine import AsyncEngine, RequestStream
from lessons_lib.serving.http.errors import ApiError
from lessons_lib.serving.messages import EngineDead, RequestEnded

FINGERPRINT = f"lessons_lib-{__version__}"
Arrived = list[tuple[int, list[NewToken]]]


@asynccontextmanager
async def started(
    front: AsyncEngine, request_id: str, prompts: list[list[int]], params: list[SamplingParams], options: dict[str, Any]
) -> AsyncIterator[list[RequestStream]]:
    """The streams of the prompts. Those that still run when the block is left are aborted: all, if the client leaves or
    if one of them is refused.
    """
    async with AsyncExitStack() as stack:
        streams: list[RequestStream] = []
        for index, (prompt, own) in enumerate(zip(prompts, params)):
            name = request_id if len(prompts) == 1 else f"{request_id}-{index}"
            stream = await front.add(prompt, own, request_id=name, **options)
            stack.push_async_callback(stream.aclose)
            streams.append(stream)
        yield streams


async def arrivals(streams: list[RequestStream]) -> AsyncIterator[Arrived]:
    """(which stream, its new tokens) of all streams that have some, until all have ended: what a step has computed for
    them goes out in one piece."""
    if len(streams) == 1:
        async for tokens in streams[0]:
            yield [(0, tokens)]
        return
    queue: asyncio.Queue[tuple[int, list[NewToken] | BaseException | None]] = asyncio.Queue()

    async def read(index: int, stream: RequestStream) -> None:
        try:
            async for tokens in stream:
                queue.put_nowait((index, tokens))
            queue.put_nowait((index, None))
        except Exception as error:
            queue.put_nowait((index, error))

    readers = [asyncio.ensure_future(read(index, stream)) for index, stream in enumerate(streams)]
    unfinished = len(readers)
    try:
        while unfinished:
            new: Arrived = []
            for index, found in [await queue.get(), *_all_of(queue)]:
                if isinstance(found, BaseException):
                    raise found
                if found is None:
                    unfinished -= 1
                else:
                    new.append((index, found))
            if new:
                yield new
    finally:
        for reader in readers:
            reader.cancel()
        await asyncio.gather(*readers, return_exceptions=True)


def _all_of(queue: "asyncio.Queue[Any]") -> Iterator[Any]:
    while not queue.empty():
        yield queue.get_nowait()


def by_completion(tokens: list[NewToken]) -> dict[int, list[NewToken]]:
    """Tokens by the completion of the request that they belong to."""
    if len(tokens) == 1:
        return {tokens[0].index: tokens}
    found: dict[int, list[NewToken]] = {}
    for token in tokens:
        found.setdefault(token.index, []).append(token)
    return found


async def ended(stream: RequestStream) -> RequestEnded:
    """What a request has returned.

    Raises:
        ApiError: it failed, or the server has ended it.
    """
    end = await stream.end()
    if end.error is not None:
        is_dead = end.error.startswith(EngineDead.__name__)
        code = "engine_dead" if is_dead else "request_failed"
        raise ApiError(503 if is_dead else 500, f"the request failed: {end.error}", code=code)
    if end.is_aborted:
        raise ApiError(503, "the server has ended the request; send it again, here or elsewhere.", code="aborted")
    return end


@dataclass
class Usage:
    """Tokens of one HTTP request.

    Attributes:
        prompt_tokens: of all its prompts.
        completion_tokens: of all their completions.
        cached_tokens: how many of the prompts' were in the prefix cache.
    """

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0

    def so_far(self) -> dict[str, Any]:
        """While it runs."""
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
        }

    def at_the_end(self) -> dict[str, Any]:
        return self.so_far() | {"prompt_tokens_details": {"cached_tokens": self.cached_tokens}}
