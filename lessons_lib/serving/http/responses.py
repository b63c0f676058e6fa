"""`POST /v1/responses`: OpenAI's newer form of chats. An answer is a list of items, a stream tells how they grow, and
the server keeps conversations for a while, so that a client sends only what is new."""

import hashlib
import time
import uuid
from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeAlias

from starlette.requests import Request

from lessons_lib.engine.outputs import NewToken
from lessons_lib.serving.http.chat import ChatGeneration
from lessons_lib.serving.http.errors import ApiError, api_error
from lessons_lib.serving.http.protocol import ChatMessage, to_template
from lessons_lib.serving.http.response_protocol import ResponseItem, ResponsesRequest, messages_of
from lessons_lib.serving.http.sse import event
from lessons_lib.serving.http.tools import Piece, new_call_id
from lessons_lib.serving.messages import RequestEnded

Told: TypeAlias = tuple[str, dict[str, Any]]  # an event's name, without "response.", and its fields


@dataclass(frozen=True)
class StoredResponse:
    """A response, and the whole conversation with it.

    Attributes:
        owner: only the client that made it may see it; see `owner_of`.
        expires: when, by the store's clock.
    """

    owner: str
    response: dict[str, Any]
    items: list[ResponseItem]
    expires: float


@dataclass
class ResponseStore:
    """The newest responses, in memory: at most `max_count`, each for `seconds`."""

    max_count: int = 1000
    seconds: float = 3600.0
    clock: Callable[[], float] = time.monotonic
    responses: OrderedDict[str, StoredResponse] = field(default_factory=OrderedDict)

    def add(self, owner: str, response: dict[str, Any], items: list[ResponseItem]) -> None:
        """Keep a response, and drop those whose time is over, or that are too many."""
        now = self.clock()
        self.responses[response["id"]] = StoredResponse(owner, response, items, now + self.seconds)
        while self.responses and (
            len(self.responses) > self.max_count or next(iter(self.responses.values())).expires <= now
        ):
            self.responses.popitem(last=False)

    def find(self, response_id: str, owner: str) -> StoredResponse | None:
        """A response of this owner, whose time isn't over."""
        found = self.responses.get(response_id)
        return found if found and found.owner == owner and self.clock() < found.expires else None


def owner_of(request: Request, cache_salt: str | None) -> str:
    """A hash of what tells tenants apart: the request's API key, and its salt."""
    return hashlib.sha256(repr((request.headers.get("authorization"), cache_salt)).encode()).hexdigest()


@dataclass
class OutputItems:
    """The items of an answer while it is written."""

    items: list[dict[str, Any]] = field(default_factory=list)

    def add(self, piece: Piece) -> Iterator[Told]:
        """Events about a piece. Write each before you ask for the next one, which changes the item that it has."""
        is_text = piece.call is None
        if piece.name is not None or not self.items or (self.items[-1]["type"] == "message") != is_text:
            yield from self.close("completed")
            yield from self._open(piece)
        item, place = self.items[-1], self._place()
        if is_text:
            item["content"][0]["text"] += piece.text
            yield "output_text.delta", place | {"content_index": 0, "delta": piece.text, "logprobs": []}
        elif piece.text:
            item["arguments"] += piece.text
            yield "function_call_arguments.delta", place | {"delta": piece.text}

    def close(self, status: str) -> Iterator[Told]:
        """The end of the last item."""
        if not self.items or self.items[-1]["status"] != "in_progress":
            return
        item, place = self.items[-1], self._place()
        item["status"] = status
        if item["type"] == "message":
            (part,) = item["content"]
            text = {"content_index": 0, "text": part["text"], "logprobs": []}
            yield "output_text.done", place | text
            yield "content_part.done", place | {"content_index": 0, "part": part}
        else:
            told = {name: item[name] for name in ("name", "arguments")}
            yield "function_call_arguments.done", place | told
        yield "output_item.done", {"output_index": len(self.items) - 1, "item": item}

    def _open(self, piece: Piece) -> Iterator[Told]:
        item: dict[str, Any] = {"id": new_id("msg"), "type": "message", "role": "assistant", "content": []}
        if piece.name is not None:
            item = {"id": new_id("fc"), "type": "function_call", "call_id": new_call_id(), "name": piece.name}
            item["arguments"] = ""
        item["status"] = "in_progress"
        self.items.append(item)
        yield "output_item.added", {"output_index": len(self.items) - 1, "item": item}
        if piece.name is None:
            part = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
            item["content"].append(part)
            yield "content_part.added", self._place() | {"content_index": 0, "part": part}

    def _place(self) -> dict[str, Any]:
        return {"item_id": self.items[-1]["id"], "output_index": len(self.items) - 1}


def new_id(kind: str) -> str:
    """An id that can't be guessed."""
    return f"{kind}_{uuid.uuid4().hex}"


@dataclass
class ResponseGeneration(ChatGeneration):
    """One request of this kind.

    Attributes:
        store: of the server.
        owner: see `owner_of`.
        conversation: all items, without instructions.
        output: the answer's items.
        num_told: events so far.
    """

    prompt_field: ClassVar[str] = "input"
    limit_field: ClassVar[str] = "max_output_tokens"
    end_of_stream: ClassVar[bytes] = b""

    body: ResponsesRequest  # type: ignore[assignment]
    store: ResponseStore = field(kw_only=True)
    response_id: str = field(default_factory=lambda: new_id("resp"))
    conversation: list[ResponseItem] = field(default_factory=list)
    output: OutputItems = field(default_factory=OutputItems)
    num_told: int = 0

    @property
    def id(self) -> str:
        return self.response_id

    async def prepare(self) -> None:
        body = self.body
        self.owner = owner_of(self.request, body.cache_salt)
        if (name := body.previous_response_id) is not None:
            if (previous := self.store.find(name, self.owner)) is None:
                raise not_found(400, name, "previous_response_id")
            self.conversation += previous.items
        self.conversation += body.items()
        messages = messages_of(self.conversation)
        if body.instructions is not None:
            messages.insert(0, ChatMessage(role="system", content=body.instructions))
        await self.ask(body.max_output_tokens, None, to_template(messages, "input"))

    def body_of(self, ends: list[RequestEnded]) -> dict[str, Any]:
        (completion,) = ends[0].completions
        pieces, _ = self.read(0, completion.text, completion.finish_reason)
        for piece in pieces:
            list(self.output.add(piece))
        return self._finish(ends)[1]

    async def events(self) -> AsyncGenerator[bytes, None]:
        has_begun = False
        async with aclosing(super().events()) as events:
            try:
                async for each in events:
                    has_begun = True
                    yield each
            except Exception as error:
                if not has_begun:  # the error can have a status
                    raise
                failure = {"code": "server_error", "message": api_error(error).message}
                yield self._event("failed", {"response": self._response("failed", error=failure)}).encode("ascii")

    def first_events(self) -> list[str]:
        return [self._event(name, {"response": self._response("in_progress")}) for name in ("created", "in_progress")]

    def events_of(self, index: int, prompt_index: int, tokens: list[NewToken]) -> list[str]:
        pieces, _ = self.read(0, "".join(token.text for token in tokens), tokens[-1].finish_reason)
        return [self._event(*told) for piece in pieces if piece.text or piece.name for told in self.output.add(piece)]

    def last_events(self, ends: list[RequestEnded]) -> list[str]:
        told, response = self._finish(ends)
        return [*told, self._event(response["status"], {"response": response})]

    def _finish(self, ends: list[RequestEnded]) -> tuple[list[str], dict[str, Any]]:
        """(events of what ends, the response); keeps it, unless the client doesn't want that."""
        (completion,) = ends[0].completions
        is_cut = completion.finish_reason == "length"
        status = "incomplete" if is_cut else "completed"
        opened = [] if self.output.items else self.output.add(Piece(""))
        told = [self._event(*each) for events in (opened, self.output.close(status)) for each in events]
        usage = self._usage(len(completion.token_ids), ends)
        response = self._response(
            status,
            incomplete_details={"reason": "max_output_tokens"} if is_cut else None,
            completed_at=None if is_cut else int(time.time()),
            usage={
                "input_tokens": usage["prompt_tokens"],
                "input_tokens_details": usage["prompt_tokens_details"],
                "output_tokens": usage["completion_tokens"],
                "output_tokens_details": {"reasoning_tokens": 0},
                "total_tokens": usage["total_tokens"],
            },
        )
        if self.body.store is not False:
            items = [ResponseItem.model_validate(each) for each in self.output.items]
            self.store.add(self.owner, response, [*self.conversation, *items])
        return told, response

    def _event(self, name: str, fields: dict[str, Any]) -> str:
        kind = f"response.{name}"
        self.num_told += 1
        data = event({"type": kind, "sequence_number": self.num_told - 1, **fields})
        return f"event: {kind}\n{data.decode()}"

    def _response(self, status: str, **more: Any) -> dict[str, Any]:
        body = self.body
        chosen = body.tool_choice if isinstance(body.tool_choice, str | None) else body.tool_choice.model_dump()
        text = body.text.model_dump(by_alias=True, exclude_none=True) if body.text else {}
        same = ("instructions", "max_output_tokens", "previous_response_id", "user", "prompt_cache_key")
        return {
            "id": self.id,
            "object": "response",
            "created_at": self.created,
            "status": status,
            "background": False,
            "error": None,
            "incomplete_details": None,
            "model": self.served.name,
            "output": self.output.items,
            **{name: getattr(body, name) for name in same},
            "metadata": body.metadata or {},
            "parallel_tool_calls": body.parallel_tool_calls is not False,
            "store": body.store is not False,
            "temperature": self.params[0].temperature,
            "text": {"format": {"type": "text"}} | text,
            "tool_choice": chosen or "auto",
            "tools": [each.model_dump() for each in body.tools or ()],
            "top_p": self.params[0].top_p,
            "truncation": "disabled",
            "usage": None,
        } | more


def not_found(status: int, response_id: str, param: str | None) -> ApiError:
    """The answer if a response isn't there, or isn't this client's: it can't tell which."""
    message = f"the response {response_id[:200]!r} isn't here, or its time is over; send the conversation as input."
    return ApiError(status, message, param=param, code="previous_response_not_found" if param else None)
