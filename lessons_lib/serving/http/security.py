"""Lesson 14: what stands between the network and the app. Each guard is ASGI middleware: a callable around an app that
sees a request's head first, and can answer in the app's place.

From the outside in: who is asked (Host, Origin), who asks (API key), how much is sent (body).
"""

import asyncio
import hashlib
import hmac
import json
import re
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any, TypeAlias

Scope: TypeAlias = MutableMapping[str, Any]
Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
App: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]

MAX_OBJECTS = 5_000  # of a body: messages and their parts, and a schema's
# What needs no key: a balancer asks for health, and the page is where a user types the key.
OPEN_PATHS = ("/", "/health", "/ping", "/favicon.ico")


class HostCheck:
    """Refuses requests that a web page of another site has made the user's browser send.

    A browser lets a page send to 127.0.0.1, and after DNS rebinding (Jackson et al. 2007, "Protecting browsers from DNS
    rebinding attacks") read the answer as well: the page's own name then has the address 127.0.0.1. Such requests have
    a foreign name in `Host`, or a foreign site in `Origin`.
    """

    def __init__(self, app: App, known_hosts: Iterable[str]):
        self.app, self.known_hosts = app, frozenset(host.lower() for host in known_hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        hosts = header_values(scope, b"host")
        host = hosts[0] if len(hosts) == 1 else ""
        if self.known_hosts and host_name(host) not in self.known_hosts:
            return await refuse(
                send,
                403,
                f"this server isn't called {printable(host)}. Use one of {', '.join(sorted(self.known_hosts))}, or "
                "start it with --allowed-host.",
                "unknown_host",
            )
        for origin in header_values(scope, b"origin"):
            if origin.lower().split("://")[-1] != host.lower():
                return await refuse(
                    send,
                    403,
                    f"a page of {printable(origin)} may not use this server: cross-origin requests (CORS) are off. "
                    "Let your own server ask this one.",
                    "cross_origin",
                )
        await self.app(scope, receive, send)


class ApiKeys:
    """Lets a request through if it has one of the keys: `Authorization: Bearer ...`."""

    def __init__(self, app: App, api_keys: Iterable[str], open_paths: Iterable[str] = OPEN_PATHS):
        self.app, self.open_paths = app, frozenset(open_paths)
        self.digests = [digest(key) for key in api_keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not self.digests or self._is_open(scope) or self._has_key(scope):
            return await self.app(scope, receive, send)
        sent = bool(header_values(scope, b"authorization"))
        message = (
            "the API key isn't one of this server's."
            if sent
            else "this server needs an API key: send `Authorization: Bearer <key>` (`api_key=` of the openai client)."
        )
        await refuse(send, 401, message, "invalid_api_key", [(b"www-authenticate", b'Bearer realm="lessons"')])

    def _is_open(self, scope: Scope) -> bool:
        path = scope["path"].removeprefix(scope.get("root_path", ""))
        return path in self.open_paths

    def _has_key(self, scope: Scope) -> bool:
        values = header_values(scope, b"authorization")
        scheme, _, key = values[0].partition(" ") if len(values) == 1 else ("", "", "")
        found = digest(key.strip())
        # Each key is compared, and each comparison takes the same time wherever the two differ.
        matches = [hmac.compare_digest(found, known) for known in self.digests]
        return scheme.lower() == "bearer" and any(matches)


class BodyLimit:
    """Reads the whole body before the app sees the request, and refuses one that is too large or isn't UTF-8, or that
    has so many values that parsing and checking them would keep all others waiting.

    The size in the head only saves reading: it may be wrong, and a chunked body has none.
    """

    def __init__(self, app: App, max_body_bytes: int, max_values: int = 2**17, context: int | None = None):
        self.app, self.max_body_bytes, self.max_values, self.context = app, max_body_bytes, max_values, context

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        encodings = [each for each in header_values(scope, b"content-encoding") if each.lower() != "identity"]
        if encodings:
            told = f"content-encoding is {printable(encodings[0])}, which isn't offered; send the body as it is."
            return await refuse(send, 415, told, "content_encoding")
        lengths = header_values(scope, b"content-length")
        if any(not length.isdigit() or len(length) > 18 or int(length) > self.max_body_bytes for length in lengths):
            return await self._refuse_size(send)
        body = bytearray()
        has_more = True
        while has_more:
            message = await receive()
            if message["type"] != "http.request":
                return None  # the client has left
            body += message.get("body", b"")
            has_more = message.get("more_body", False)
            if len(body) > self.max_body_bytes:
                return await self._refuse_size(send)
        try:
            body.decode()
        except UnicodeDecodeError as error:
            return await refuse(
                send, 400, f"the body is not UTF-8: byte {error.start} is 0x{body[error.start]:02x}.", "invalid_utf8"
            )
        if too_many := more_values_than(self.max_values, body):
            return await refuse(send, 400, too_many, "too_many_values")
        if has_half_a_character(body):
            param = field_with_half_a_character(body)
            text = f"{param or 'the body'} contains half a character, and lone surrogates are no text; leave them out."
            return await refuse(send, 400, text, "invalid_utf8", param=param)
        await asyncio.sleep(0)  # others' turn, before the app parses it
        await self.app(scope, replayed(bytes(body), receive), send)

    async def _refuse_size(self, send: Send) -> None:
        message = (
            f"the body is too large: this server takes up to {self.max_body_bytes} bytes. Send less in a request, or "
            "start it with --max-body-bytes."
        )
        if self.context is not None:  # clients look for these words
            message += f" This model's maximum context length is {self.context} tokens."
        await refuse(send, 413, message, "body_too_large")


def more_values_than(most: int, body: bytes | bytearray) -> str | None:
    """Why a body of JSON is refused before it is parsed: it has more values than that, or too many objects.

    Bytes are counted, which takes a hundredth of the time of parsing. Those in texts count only if it matters.
    """
    for is_exact in (False, True):
        if is_exact:
            body = body.replace(b"\\\\", b"").replace(b'\\"', b"")
            if body.count(b'"') > 2 * most:
                return f"the body has more than {most} values and names; send fewer in a request."
            body = b"".join(body.split(b'"')[::2])
        num_objects = body.count(b"{")
        num_values = body.count(b",") + body.count(b"[") + num_objects + 1
        if num_objects <= MAX_OBJECTS and num_values <= most:
            return None
    if num_objects > MAX_OBJECTS:
        return f"the body has {num_objects} objects; the limit is {MAX_OBJECTS}. Send fewer messages or parts."
    return f"the body has {num_values} values; the limit is {most}. Send fewer in a request."


def has_half_a_character(body: bytes | bytearray) -> bool:
    """Whether a text in a body of JSON has a lone surrogate, such as "\\ud83d" without its other half."""
    if b"\\ud" not in body and b"\\uD" not in body:
        return False
    try:
        return not is_text(json.dumps(json.loads(body), ensure_ascii=False))
    except (ValueError, RecursionError):
        return False  # the app says what is wrong with it


def field_with_half_a_character(body: bytes | bytearray) -> str | None:
    """The field of a JSON object that text with half a character is in. None if that isn't one field."""
    try:
        fields = json.loads(body).items()
    except (ValueError, AttributeError, RecursionError):
        return None
    return next(
        (name[:100] for name, value in fields if name.isascii() and not is_text(json.dumps(value, ensure_ascii=False))),
        None,
    )


def is_text(text: str) -> bool:
    """Whether it has no half characters."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


class HeadAsGet:
    """Answers HEAD as GET, without the body."""

    def __init__(self, app: App):
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "HEAD":
            return await self.app(scope, receive, send)

        async def send_head(message: Message) -> None:
            if message["type"] == "http.response.start":
                await send(message)
            elif not message.get("more_body", False):
                await send({"type": "http.response.body", "body": b""})

        as_get: Scope = {**scope, "method": "GET"}
        await self.app(as_get, receive, send_head)


class SafeHeaders:
    """Headers for every answer: no other site may frame it, and no browser may take it for another type."""

    def __init__(self, app: App):
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_safely(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = list(message.get("headers", []))
                present = {name.lower() for name, _ in headers}
                message["headers"] = headers + [header for header in SAFE_HEADERS if header[0] not in present]
            await send(message)

        await self.app(scope, receive, send_safely)


SAFE_HEADERS = [
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
]


def replayed(body: bytes, receive: Receive) -> Receive:
    """A `receive` that first gives a body that was read already."""
    is_read = False

    async def replay() -> Message:
        nonlocal is_read
        if is_read:
            return await receive()  # waits until the client leaves
        is_read = True
        return {"type": "http.request", "body": body, "more_body": False}

    return replay


async def refuse(
    send: Send,
    status: int,
    message: str,
    code: str,
    headers: Iterable[tuple[bytes, bytes]] = (),
    param: str | None = None,
) -> None:
    """Answer with an error, in the form that OpenAI's clients read."""
    error = {"message": message, "type": "invalid_request_error", "param": param, "code": code}
    body = json.dumps({"error": error}).encode()
    head = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode()), *headers]
    await send({"type": "http.response.start", "status": status, "headers": head})
    await send({"type": "http.response.body", "body": body})


def header_values(scope: Scope, name: bytes) -> list[str]:
    """All values of a header of a request."""
    return [value.decode("latin-1") for key, value in scope["headers"] if key.lower() == name]


def host_name(host: str) -> str:
    """The name in a `Host` header: without port, and without the brackets of an IPv6 address."""
    found = re.fullmatch(r"\[([0-9a-fA-F:.]+)\](:\d+)?|([^:]*)(:\d+)?", host)
    return (found[1] or found[3] or "").lower() if found else ""


def digest(key: str) -> bytes:
    """Hashes have equal lengths, so comparing two doesn't tell how long a key is."""
    return hashlib.sha256(key.encode("latin-1", "replace")).digest()


def printable(text: str, length: int = 80) -> str:
    """Text of a client, for a message: quoted, and not longer than that."""
    return repr(text[:length] + ("..." if len(text) > length else ""))
