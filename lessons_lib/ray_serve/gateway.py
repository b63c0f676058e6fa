"""Lesson 15: what clients of several replicas talk to. When a replica dies in the middle of a stream, another one
continues from the tokens so far, and the client sees nothing of that.

It is exact because the server takes `output_token_ids` and goes on as if it had computed these tokens itself, and its
random numbers depend only on the seed and the number of tokens. So the gateway asks for token ids in every chunk, gives
each request a seed, and remembers the tokens that it has passed on.
"""

import json
import random
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from typing import Any, TypeAlias

from fastapi import FastAPI, Request
from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import Scope

from lessons_lib.serving.failover import MAX_MOVES, ReplicaLost
from lessons_lib.serving.http import errors
from lessons_lib.serving.http.errors import ApiError
from lessons_lib.serving.http.security import BodyLimit
from lessons_lib.serving.http.settings import BYTES_PER_VALUE
from lessons_lib.serving.http.sse import DONE, KEEP_ALIVE, EventStream, event, unless_gone
from lessons_lib.serving.router import hash_prompt

STREAMED = ("/v1/completions", "/v1/chat/completions")
BLOCK_TOKENS, BLOCK_CHARACTERS = 16, 64  # of prompts in token ids, and in text
NOT_PASSED_ON = ("host", "content-length", "connection", "transfer-encoding", "accept-encoding", "x-request-id", "date")
MAX_BODY_BYTES = 2**22
# Of error events: the replica won't finish the request, and another one can.
LOST = ("engine_dead", "aborted", "draining")


# Asks one replica: gives it a request's scope, its body, and the block hashes of its prompt; yields (status, headers),
# then the parts of the body. Raises ReplicaLost, or the ApiError that is the client's answer.
Ask: TypeAlias = Callable[[Scope, bytes, list[bytes]], AsyncGenerator[Any, None]]


def new_app() -> FastAPI:
    """An application without routes, with the limits and the errors of a server."""
    app = FastAPI(openapi_url=None, docs_url=None, redoc_url=None)
    errors.install(app)
    app.add_middleware(BodyLimit, max_body_bytes=MAX_BODY_BYTES, max_values=MAX_BODY_BYTES // BYTES_PER_VALUE)
    return app


async def relay(request: Request, ask: Ask) -> Response:
    """The response to a client's request, by one replica after another until one has served it.

    Raises:
        ApiError: none did.
        ClientGone: the client has left; the replica has seen that.
    """
    if request.url.path.startswith("/v1/responses"):
        message = "responses are kept by one replica, and the next request may reach another: use /v1/chat/completions."
        raise ApiError(404, message, code="not_offered")
    relayed = RelayedRequest(request, await request.body(), ask)
    if relayed.stream is None:
        return await unless_gone(request.receive, relayed.whole())
    try:
        response = await EventStream(relayed.events()).begun(request.receive)
    except NotStreamed as answer:
        return answer.response
    response.headers.update(relayed.headers)
    return response


class NotStreamed(Exception):
    """A replica has answered in one piece, for it refuses the request."""

    def __init__(self, response: Response):
        self.response = response


class RelayedRequest:
    """A client's request, and the answer so far.

    Attributes:
        scope: ASGI's, for the replicas: without what belongs to the client's connection.
        block_hashes: of its prompt.
        stream: of its answer; None if it is in one piece.
        headers: of the first replica's answer, as far as the client gets them.
        losses: replicas that were lost.
    """

    def __init__(self, request: Request, content: bytes, ask: Ask):
        self.content, self.ask = content, ask
        self.block_hashes: list[bytes] = []
        self.stream: ContinuedStream | None = None
        self.headers: dict[str, str] = {}
        self.losses = 0
        # Every replica gets the same request id: it is part of the id of each chunk.
        own = {"x-request-id": request.headers.get("x-request-id") or uuid.uuid4().hex, "accept-encoding": "identity"}
        headers = passed_on(request.headers.items()) | own | {"host": "localhost"}
        self.scope = {name: request.scope[name] for name in ("type", "method", "path", "query_string")}
        self.scope |= {"scheme": "http", "headers": Headers(headers).raw}
        if self.scope["path"] in STREAMED:
            try:
                body = json.loads(content)
                self.block_hashes = hashes_of(body)
                self.stream = ContinuedStream(body) if body.get("stream") is True else None
            except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
                self.block_hashes = []  # the replica will say what is wrong with it

    async def whole(self) -> Response:
        """The answer in one piece."""
        while True:
            try:
                async with aclosing(self.ask(self.scope, self.content, self.block_hashes)) as answer:
                    return await whole_response(await anext(answer), answer)
            except ReplicaLost as error:
                self._lose(error)

    async def events(self) -> AsyncGenerator[bytes, None]:
        """The client's events, without the last, [DONE].

        Raises:
            NotStreamed: instead of the first.
        """
        assert self.stream is not None
        while not self.stream.is_done:
            try:
                async with aclosing(self.ask(self.scope, self.stream.next_body(), self.block_hashes)) as answer:
                    status, headers = await anext(answer)
                    if status != 200 and self.stream.has_begun:
                        raise ReplicaLost(f"another replica answered with status {status}")
                    if status != 200:
                        raise NotStreamed(await whole_response((status, headers), answer))
                    self.headers = self.headers or passed_on(headers.items())
                    async for each in whole_events(answer):
                        if passed := self.stream.accept(each):
                            yield passed
                    if not self.stream.is_done:
                        raise ReplicaLost("its stream ended without [DONE]")
            except ReplicaLost as error:
                self._lose(error, self.stream.why_not if self.stream.has_begun else None)

    def _lose(self, error: ReplicaLost, why_not: str | None = None) -> None:
        """Count a loss; ApiError if no other replica is asked.

        Args:
            why_not: the reason why none can go on.
        """
        self.losses += 1
        if self.losses > MAX_MOVES or why_not:
            more = f", and the stream can't go on elsewhere: {why_not}" if why_not else ""
            message = f"the replica was lost ({error}){more}. Send the request again."
            raise ApiError(503, message, code="replica_lost", headers={"Retry-After": "1"}) from error


def passed_on(headers: Any) -> dict[str, str]:
    """Those of some headers that are about more than one connection."""
    return {name: value for name, value in headers if name not in NOT_PASSED_ON}


async def whole_response(head: tuple[int, dict[str, str]], parts: AsyncIterator[bytes]) -> Response:
    """A replica's answer, once all of it is there."""
    status, headers = head
    return Response(b"".join([part async for part in parts]), status, passed_on(headers.items()))


async def whole_events(parts: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """The complete events of a stream, however it was cut into parts. Half an event at its end is lost."""
    buffer = b""
    async for part in parts:
        *complete, buffer = (buffer + part).split(b"\n\n")
        for each in complete:
            yield each + b"\n\n"


def hashes_of(body: dict[str, Any]) -> list[bytes]:
    """Hashes of the blocks of a prompt: of the first one if there are several, and of a chat's messages as text."""
    prompt = body["prompt"] if "prompt" in body else json.dumps(body["messages"])
    if isinstance(prompt, list) and not isinstance(prompt[0], int):
        prompt = prompt[0]
    return hash_prompt(prompt, BLOCK_CHARACTERS if isinstance(prompt, str) else BLOCK_TOKENS, body.get("cache_salt"))


class ContinuedStream:
    """The stream that one client gets, by whichever replica.

    Attributes:
        body: the client's request.
        token_ids: all tokens that were sent.
        has_begun, is_finished, has_usage, is_done: an event, the finish reason, the last chunk (which has no choices),
            everything was sent.
    """

    def __init__(self, body: dict[str, Any]):
        self.body = {"seed": random.getrandbits(63)} | {name: body[name] for name in body if body[name] is not None}
        self.token_ids: list[int] = []
        self.has_begun = self.is_finished = self.has_usage = self.is_done = False
        self._first: dict[str, Any] = {}

    @property
    def why_not(self) -> str | None:
        """The reason why another replica can't go on with it once it has begun; None if it can."""
        prompt = self.body.get("prompt", "")
        if self.body.get("n", 1) != 1:
            return f"it has {self.body['n']} completions"
        if isinstance(prompt, list) and not all(isinstance(token, int) for token in prompt):
            return "it has a list of prompts"
        return "it has echo" if self.body.get("echo") else None

    def next_body(self) -> bytes:
        """The request to the next replica: for the rest."""
        # The end of a completion can't be asked for without its last token, which `accept` then leaves out.
        known = self.token_ids[:-1] if self.is_finished else self.token_ids
        body = self.body | {"return_token_ids": True} | ({"output_token_ids": known} if known else {})
        return json.dumps(body).encode("ascii")

    def accept(self, data: bytes) -> bytes:
        """Turn an event of a replica into the client's; b"" for none.

        Raises:
            ReplicaLost: it says that the request won't be finished here, or it isn't an event of a completion.
        """
        if data in (DONE, KEEP_ALIVE):
            self.is_done = data == DONE
            return b""
        try:
            chunk = json.loads(data.removeprefix(b"data: "))
            if "error" in chunk:
                if chunk["error"].get("code") in LOST:
                    raise ReplicaLost(chunk["error"]["message"])
            elif self._is_repeated(chunk):
                return b""
            else:
                self._note(chunk)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ReplicaLost(f"it sent {data[:100]!r}, which is no event of a completion") from error
        self.has_begun = True
        return event(chunk)

    def _is_repeated(self, chunk: dict[str, Any]) -> bool:
        """True for a chunk of a later replica that tells the client nothing new."""
        has_role = any("role" in choice.get("delta", ()) for choice in chunk["choices"])
        return (self.is_finished or (has_role and self.has_begun)) if chunk["choices"] else self.has_usage

    def _note(self, chunk: dict[str, Any]) -> None:
        """Remember the tokens of a chunk, and give it the form that the client wants."""
        for choice in chunk["choices"]:
            self.token_ids += choice.get("token_ids") or []
            self.is_finished |= choice["finish_reason"] is not None and self.why_not is None
        self.has_usage |= not chunk["choices"]
        if not self.body.get("return_token_ids"):
            for choice in chunk["choices"]:
                choice.pop("token_ids", None)
        self._first = self._first or {name: chunk[name] for name in ("id", "created") if name in chunk}
        chunk |= self._first
