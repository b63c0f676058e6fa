"""Lesson 15: one request through a balancer: what the client has sent, and what it has been answered."""

import json
import uuid
from collections.abc import AsyncIterator
from typing import Any

from starlette.types import Receive, Scope, Send

from lessons_lib.serving.continuation import DONE, ContinuedStream
from lessons_lib.serving.router import Replica, hash_prompt

STREAMED = ("/v1/completions", "/v1/chat/completions")
BLOCK_TOKENS, BLOCK_CHARACTERS = 16, 64  # of prompts in token ids, and in text
NOT_PASSED_ON = ("host", "content-length", "connection", "transfer-encoding", "accept-encoding", "x-request-id", "date")
JSON = {"content-type": "application/json"}
MAX_BODY_BYTES = 2**22


class ClientRequest:
    """What a client has sent, and what it has been answered.

    Attributes:
        target: path and query.
        content: the body.
        block_hashes: of its prompt.
        stream: of its answer; None if it is in one piece.
        has_begun: whether the head of the response was sent.
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
        """Read the body. Returns whether it isn't too large."""
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
        """What the next replica is sent."""
        return json.dumps(self.stream.next_body()).encode("ascii") if self.stream else self.content

    def why_not_elsewhere(self) -> str | None:
        """Why no other replica can take the request over; None if one can."""
        return self.stream.why_not if self.stream and self.has_begun else None

    async def pass_on(self, headers: dict[str, str], event: bytes) -> None:
        """An event of the stream; the head goes out with the first one."""
        if not self.has_begun:
            self.has_begun = True
            await self._send_head(200, headers)
        is_last = bool(self.stream and self.stream.is_done)
        await self._send({"type": "http.response.body", "body": event, "more_body": not is_last})

    async def answer(self, status: int, headers: dict[str, str], content: bytes) -> None:
        """The whole response."""
        self.has_begun = True
        await self._send_head(status, headers | {"content-length": str(len(content))})
        await self._send({"type": "http.response.body", "body": content})

    async def refuse(self, status: int, code: str, message: str) -> None:
        """An error: a response of its own, or the last event if the response has begun."""
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
