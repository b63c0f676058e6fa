"""Lesson 14: a streamed completion over HTTP, on plain asyncio streams: a load generator must cost less than what it
measures."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from typing import Any
from urllib.parse import urlsplit

from lessons_lib.serving.load.client import Now
from lessons_lib.serving.load.records import LoadRecord
from lessons_lib.serving.load.shapes import LoadRequest

MAX_LINE = 1 << 20  # bytes of a header line


class CutStream(Exception):
    """The connection ended in the middle of an answer."""


class CompletionsClient:
    """Sends requests to `/v1/completions` of a server, each over a connection of its own.

    Attributes:
        model: what the server calls the model; None leaves it out.
        extra_body: more fields of each request, such as {"ignore_eos": True}.
        timeout: seconds after which a request is given up.
    """

    route = "/v1/completions"

    def __init__(
        self,
        url: str,
        model: str | None = None,
        *,
        api_key: str | None = None,
        extra_body: Mapping[str, Any] | None = None,
        timeout: float = 600.0,
    ):
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"the URL is {url!r}; write for example http://127.0.0.1:8000.")
        self.tls = parts.scheme == "https"
        self.host, self.port = parts.hostname, parts.port or (443 if self.tls else 80)
        self.path = parts.path.rstrip("/").removesuffix("/v1")
        self.model, self.api_key, self.timeout = model, api_key, timeout
        self.extra_body = dict(extra_body or {})

    async def send(self, request: LoadRequest, record: LoadRecord, now: Now) -> None:
        """One request, from its connection to its end. Whatever goes wrong is written into the record."""
        try:
            await asyncio.wait_for(self._stream(request, record, now), self.timeout)
        except TimeoutError:
            record.error = f"not finished after {self.timeout:g} s"
        except (OSError, EOFError, ValueError, CutStream) as error:
            record.error = f"{type(error).__name__}: {error}"
        record.end_time = now()
        record.output_tokens = record.output_tokens or len(record.token_times)

    async def models(self) -> list[str]:
        """Names of the models that the server offers.

        Raises:
            OSError, CutStream: there is no server, or it ended in the middle of its answer.
            ValueError: it answered something else.
        """
        reader, writer = await self._request("GET", "/v1/models")
        try:
            status, headers = await read_head(reader)
            body = b"".join([part async for part in read_body(reader, headers)])
        finally:
            writer.close()
        if status != 200:
            raise ValueError(f"GET /v1/models returned {status}: {error_message(body)}")
        return [str(model["id"]) for model in json.loads(body)["data"]]

    async def _stream(self, request: LoadRequest, record: LoadRecord, now: Now) -> None:
        fields = self._question(request) | {
            "max_tokens": request.max_tokens,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        model = {} if self.model is None else {"model": self.model}
        body = json.dumps(model | fields | self.extra_body).encode()
        reader, writer = await self._request("POST", self.route, body)
        try:
            record.status, headers = await read_head(reader)
            if record.status != 200:
                answer = b"".join([part async for part in read_body(reader, headers)])
                record.error = error_message(answer)
                return
            async for event in read_events(read_body(reader, headers)):
                if event == "[DONE]":
                    break
                take_event(json.loads(event), record, now())
            if record.error is None and record.finish_reason is None:
                raise CutStream(f"the stream ended without a finish_reason, after {len(record.token_times)} events")
        finally:
            writer.close()

    def _question(self, request: LoadRequest) -> dict[str, Any]:
        return {"prompt": request.prompt}

    async def _request(
        self, method: str, path: str, body: bytes = b""
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection(self.host, self.port, ssl=self.tls or None, limit=MAX_LINE)
        head = [f"{method} {self.path}{path} HTTP/1.1", f"host: {self.host}:{self.port}", "connection: close"]
        head += [f"content-length: {len(body)}", "content-type: application/json"]
        if self.api_key is not None:
            head.append(f"authorization: Bearer {self.api_key}")
        writer.write("\r\n".join([*head, "", ""]).encode() + body)
        return reader, writer


class ChatClient(CompletionsClient):
    """The same for `/v1/chat/completions`; a prompt is a text, and the only message."""

    route = "/v1/chat/completions"

    def _question(self, request: LoadRequest) -> dict[str, Any]:
        return {"messages": [{"role": "user", "content": request.prompt}]}


def take_event(event: dict[str, Any], record: LoadRecord, time: float) -> None:
    """Write one event of a stream into its record.

    Every event with choices counts as a token, as in `vllm bench serve`: some tokens have no text.
    """
    if "error" in event:
        record.error = _message_of(event["error"])
    if choices := event.get("choices"):
        record.token_times.append(time)
        record.finish_reason = choices[0].get("finish_reason") or record.finish_reason
    if usage := event.get("usage"):
        record.output_tokens = usage.get("completion_tokens") or record.output_tokens
        record.prompt_tokens = usage.get("prompt_tokens") or record.prompt_tokens


async def read_head(reader: asyncio.StreamReader) -> tuple[int, dict[str, str]]:
    """Status and headers of an answer; names of headers in lower case.

    Raises:
        CutStream: the connection ended before they were complete.
        ValueError: this is not HTTP.
    """
    try:
        lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    except asyncio.IncompleteReadError as error:
        raise CutStream(f"the connection ended after {len(error.partial)} bytes of the answer's head") from None
    except asyncio.LimitOverrunError:
        raise ValueError(f"the head of the answer is larger than {MAX_LINE} bytes; is this an HTTP server?") from None
    version, _, status = lines[0].partition(" ")
    if not version.startswith("HTTP/1.") or not status[:3].isdigit():
        raise ValueError(f"the answer begins with {lines[0][:40]!r}; is this an HTTP server?")
    headers = (line.partition(":") for line in lines[1:] if line)
    return int(status[:3]), {name.strip().lower(): value.strip() for name, _, value in headers}


async def read_body(reader: asyncio.StreamReader, headers: Mapping[str, str]) -> AsyncIterator[bytes]:
    """The parts of an answer's body, each as soon as it is there.

    Raises:
        CutStream: the connection ended before the body did.
    """
    try:
        if headers.get("transfer-encoding", "").lower() == "chunked":
            while size := int((await reader.readuntil(b"\r\n")).split(b";")[0], 16):
                yield await reader.readexactly(size)
                await reader.readexactly(2)
        elif "content-length" in headers:
            yield await reader.readexactly(int(headers["content-length"]))
        else:
            while part := await reader.read(MAX_LINE):
                yield part
    except asyncio.IncompleteReadError:
        raise CutStream("the connection ended before the answer did") from None


async def read_events(parts: AsyncIterator[bytes]) -> AsyncIterator[str]:
    """The data of each server-sent event, wherever the body is cut into parts. Comments are skipped."""
    buffer = b""
    async for part in parts:
        buffer += part
        if b"\r" in buffer:
            buffer = buffer.replace(b"\r\n", b"\n")
        *events, buffer = buffer.split(b"\n\n")
        for event in events:
            lines = [line[5:].removeprefix(b" ") for line in event.split(b"\n") if line.startswith(b"data:")]
            if lines:
                yield b"\n".join(lines).decode()


def error_message(body: bytes) -> str:
    """What an answer with an error says: OpenAI's `error.message`, or the beginning of the body."""
    try:
        return _message_of(json.loads(body)["error"])
    except (ValueError, KeyError, TypeError):
        return body[:200].decode(errors="replace")


def _message_of(error: Any) -> str:
    return str(error.get("message", error)) if isinstance(error, dict) else str(error)
