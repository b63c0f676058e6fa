"""Lesson 15: one request through a balancer: the client's request, and the answer so far."""

import json
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any, TypeAlias

from starlette.types import Receive, Scope, Send

from lessons_lib.serving.continuation import DONE, ContinuedStream, ReplicaLost
from lessons_lib.serving.http.errors import ClientGone
from lessons_lib.serving.http.sse import unless_gone
from lessons_lib.serving.router import Replica, hash_prompt

STREAMED = ("/v1/completions", "/v1/chat/completions")
BLOCK_TOKENS, BLOCK_CHARACTERS = 16, 64  # of prompts in token ids, and in text
NOT_PASSED_ON = ("host", "content-length", "connection", "transfer-encoding", "accept-encoding", "x-request-id", "date")
JSON = {"content-type": "application/json"}
MAX_BODY_BYTES = 2**22
Answer: TypeAlias = tuple[int, dict[str, str], bytes]  # status, headers, body


async def served(
    scope: Scope, receive: Receive, send: Send, serve: "Callable[[ClientRequest], Awaitable[None]]"
) -> bool:
    """Serve one HTTP request. Returns False if the client has left: the work was cancelled, and the replica's as
    well."""
    request = ClientRequest(scope, send)
    if not await request.read(receive):
        await request.refuse(413, "too_large", f"the body has more than {MAX_BODY_BYTES} bytes.")
        return True
    try:
        await unless_gone(receive, serve(request))
    except ClientGone:
        return False
    return True


class ClientRequest:
    """A client's request, and the answer so far.

    Attributes:
        target: path and query.
        content: the body.
        block_hashes: of its prompt.
        stream: of its answer; None if it is in one piece.
        has_begun: the head of the response was sent.
        asked: the replicas that have been asked.
    """

    def __init__(self, scope: Scope, send: Send):
        self.method, self.path, self._send = scope["method"], scope["path"], send
        query = scope["query_string"].decode("latin-1")
        self.target = (scope.get("raw_path") or self.path.encode()).decode("latin-1") + (f"?{query}" if query else "")
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        # Every replica gets the same request id: it is part of the id of each chunk.
        own = {"x-request-id": headers.get("x-request-id") or uuid.uuid4().hex, "accept-encoding": "identity"}
        self.headers = {name: value for name, value in headers.items() if name not in NOT_PASSED_ON} | own
        self.content, self.block_hashes = b"", list[bytes]()
        self.stream: ContinuedStream | None = None
        self.has_begun = False
        self.asked: list[Replica] = []

    async def read(self, receive: Receive) -> bool:
        """Read the body. Returns False if it is too large."""
        parts, size = [], 0
        while (message := await receive())["type"] == "http.request":
            size += len(message.get("body", b""))
            if size > MAX_BODY_BYTES:
                return False
            parts.append(message.get("body", b""))
            if not message.get("more_body"):
                break
        self.content = b"".join(parts)
        if self.path in STREAMED:
            try:
                body = json.loads(self.content)
                self.block_hashes = hashes_of(body)
                self.stream = ContinuedStream(body) if body.get("stream") is True else None
            except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
                self.block_hashes = []  # the replica will say what is wrong with it
        return True

    def next_body(self) -> bytes:
        """The body for the next replica."""
        return json.dumps(self.stream.next_body()).encode("ascii") if self.stream else self.content

    def why_not_elsewhere(self) -> str | None:
        """The reason why no other replica can take the request over; None if one can."""
        return self.stream.why_not if self.stream and self.has_begun else None

    async def relay(self, status: int, headers: Mapping[str, str], parts: AsyncIterator[bytes]) -> Answer | None:
        """Pass the answer of a replica on.

        Returns:
            None; or an answer that the client doesn't get yet: the replica is full or draining, or it didn't go on.

        Raises:
            ReplicaLost: the stream isn't complete.
        """
        kept = {name: value for name, value in headers.items() if name not in NOT_PASSED_ON}
        if self.stream is None or status != 200:
            content = b"".join([part async for part in parts])
            if status in (429, 503) or self.has_begun:
                return status, kept, content
            await self.answer(status, kept, content)
            return None
        async for event in events(parts):
            passed = self.stream.accept(event)
            if not self.has_begun:  # the head goes out with the first event
                self.has_begun = True
                await self._send_head(200, kept)
            await self._send({"type": "http.response.body", "body": passed, "more_body": not self.stream.is_done})
        if not self.stream.is_done:
            raise ReplicaLost("its stream ended without [DONE]")
        return None

    async def answer(self, status: int, headers: dict[str, str], content: bytes) -> None:
        """Send the whole response."""
        self.has_begun = True
        await self._send_head(status, headers | {"content-length": str(len(content))})
        await self._send({"type": "http.response.body", "body": content})

    async def refuse(self, status: int, code: str, message: str) -> None:
        """Send an error: as a response of its own, or as the last event if the response has begun."""
        kind = "invalid_request_error" if status < 500 else "server_error"
        error = json.dumps({"error": {"message": message, "type": kind, "param": None, "code": code}}).encode("ascii")
        if self.has_begun:
            await self._send({"type": "http.response.body", "body": b"data: " + error + b"\n\n" + DONE})
        else:
            await self.answer(status, JSON | ({"retry-after": "1"} if status == 503 else {}), error)

    async def _send_head(self, status: int, headers: dict[str, str]) -> None:
        raw = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
        await self._send({"type": "http.response.start", "status": status, "headers": raw})


async def events(parts: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """The complete events of a stream, however it was cut into parts. Half an event at its end is lost."""
    buffer = b""
    async for part in parts:
        *complete, buffer = (buffer + part).split(b"\n\n")
        for event in complete:
            yield event + b"\n\n"


def hashes_of(body: dict[str, Any]) -> list[bytes]:
    """Hashes of the blocks of a prompt: of the first one if there are several, and of a chat's messages as text."""
    prompt = body["prompt"] if "prompt" in body else json.dumps(body["messages"])
    if isinstance(prompt, list) and not isinstance(prompt[0], int):
        prompt = prompt[0]
    return hash_prompt(prompt, BLOCK_CHARACTERS if isinstance(prompt, str) else BLOCK_TOKENS, body.get("cache_salt"))
