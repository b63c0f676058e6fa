"""A server on 127.0.0.1 that answers with the bytes of a script, on the clock of the test: nothing waits for time."""

import asyncio
import json
from contextlib import asynccontextmanager


class SetClock:
    """A clock that stands still until it is set."""

    def __init__(self):
        self.time = 0.0

    def __call__(self):
        return self.time


def chunked(data):
    """One part of a body in chunked encoding."""
    return b"%x\r\n%s\r\n" % (len(data), data)


def event(text="a", finish_reason=None, **fields):
    """A completion's event as bytes."""
    choices = [{"index": 0, "text": text, "finish_reason": finish_reason}]
    return b"data: " + json.dumps({"choices": choices} | fields).encode() + b"\n\n"


def usage(prompt_tokens, completion_tokens):
    counts = {"prompt_tokens": prompt_tokens, "completion_tokens": completion_tokens}
    return b"data: " + json.dumps({"choices": [], "usage": counts}).encode() + b"\n\n"


STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
DONE = b"data: [DONE]\n\n"


@asynccontextmanager
async def scripted_server(answer):
    """Yields its URL and the list of requests that it has got, each as (head, body).

    Args:
        answer: async function (reader, writer, head, body). The connection is closed when it returns.
    """
    requests, tasks = [], set()

    async def connected(reader, writer):
        tasks.add(asyncio.current_task())
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            length = next(line for line in head.split("\r\n") if line.lower().startswith("content-length: "))
            body = await reader.readexactly(int(length.split()[1]))
            requests.append((head, body))
            await answer(reader, writer, head, body)
            await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", requests
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
