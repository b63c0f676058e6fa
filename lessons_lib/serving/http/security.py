"""Lesson 14: the guards between the network and the app. Each is ASGI middleware: a callable around an app that sees a
request's head first, and can answer in the app's place.

From the outside in: who is asked (Host, Origin), who asks (API key), how much is sent (body).
"""

import asyncio
import hashlib
import hmac
import json
import re
from collections.abc import Iterable

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from lessons_lib.models.validate import shortened
from lessons_lib.serving.http.errors import ApiError

MAX_OBJECTS = 5_000  # of a body: messages and their parts, and a schema's
# What needs no key: a balancer asks for health, and the page is where a user types the key.
OPEN_PATHS = ("/", "/health", "/ping", "/favicon.ico")


class Guard:
    """Refuses requests by their heads."""

    def __init__(self, app: ASGIApp):
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refusal = self.refusal(scope, Headers(scope=scope)) if scope["type"] == "http" else None
        await (refusal.response() if refusal else self.app)(scope, receive, send)

    def refusal(self, scope: Scope, headers: Headers) -> ApiError | None:
        """The reason to refuse a request; None to let it through."""
        raise NotImplementedError


class HostCheck(Guard):
    """Refuses requests that a web page of another site has made the user's browser send.

    A browser lets a page send to 127.0.0.1, and after DNS rebinding (Jackson et al. 2007, "Protecting browsers from DNS
    rebinding attacks") read the answer as well: the page's own name then has the address 127.0.0.1. Such requests have
    a foreign name in `Host`, or a foreign site in `Origin`.
    """

    def __init__(self, app: ASGIApp, known_hosts: Iterable[str]):
        super().__init__(app)
        self.known_hosts = frozenset(host.lower() for host in known_hosts)

    def refusal(self, scope: Scope, headers: Headers) -> ApiError | None:
        hosts = headers.getlist("host")
        host = hosts[0] if len(hosts) == 1 else ""
        if self.known_hosts and host_name(host) not in self.known_hosts:
            names = ", ".join(sorted(self.known_hosts))
            message = f"this server isn't called {shortened(host)}. Use one of {names} or start it with --allowed-host."
            return ApiError(403, message, code="unknown_host")
        for origin in headers.getlist("origin"):
            if origin.lower().split("://")[-1] != host.lower():
                message = (
                    f"a page of {shortened(origin)} may not use this server: cross-origin requests (CORS) are off. "
                    "Let your own server ask this one."
                )
                return ApiError(403, message, code="cross_origin")
        return None


class ApiKeys(Guard):
    """Lets a request through if it has one of the keys: `Authorization: Bearer ...`."""

    def __init__(self, app: ASGIApp, api_keys: Iterable[str]):
        super().__init__(app)
        self.digests = [digest(key) for key in api_keys]

    def refusal(self, scope: Scope, headers: Headers) -> ApiError | None:
        path = scope["path"].removeprefix(scope.get("root_path", ""))
        if not self.digests or path in OPEN_PATHS:
            return None
        values = headers.getlist("authorization")
        scheme, _, key = values[0].partition(" ") if len(values) == 1 else ("", "", "")
        found = digest(key.strip())
        # Each key is compared, and each comparison takes the same time wherever the two differ.
        matches = [hmac.compare_digest(found, known) for known in self.digests]
        if scheme.lower() == "bearer" and any(matches):
            return None
        message = (
            "the API key isn't one of this server's."
            if values
            else "this server needs an API key: send `Authorization: Bearer <key>` (`api_key=` of the openai client)."
        )
        return ApiError(401, message, code="invalid_api_key", headers={"www-authenticate": 'Bearer realm="lessons"'})


class BodyLimit:
    """Reads the whole body before the app sees the request, and refuses one that is too large or isn't UTF-8, or that
    has so many values that parsing and checking them would keep all others waiting.

    Attributes:
        context: the longest sequence of the model, for errors.
    """

    def __init__(self, app: ASGIApp, max_body_bytes: int, max_values: int = 2**17, context: int | None = None):
        self.app, self.max_body_bytes, self.max_values, self.context = app, max_body_bytes, max_values, context

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        try:
            body = await self._read(Headers(scope=scope), receive)
            if body is not None:
                check_text_and_values(body, self.max_values)
        except ApiError as error:
            return await error.response()(scope, receive, send)
        if body is not None:  # otherwise, the client has left
            await asyncio.sleep(0)  # others' turn, before the app parses it
            await self.app(scope, replayed(body, receive), send)

    async def _read(self, headers: Headers, receive: Receive) -> bytes | None:
        for encoding in headers.getlist("content-encoding"):
            if encoding.lower() != "identity":
                message = f"content-encoding is {shortened(encoding)}, which isn't offered; send the body as it is."
                raise ApiError(415, message, code="content_encoding")
        # The size in the head only saves reading: it may be wrong, and a chunked body has none.
        for length in headers.getlist("content-length"):
            if not length.isdigit() or len(length) > 18 or int(length) > self.max_body_bytes:
                raise self._too_large()
        body, has_more = bytearray(), True
        while has_more:
            message_in = await receive()
            if message_in["type"] != "http.request":
                return None
            body += message_in.get("body", b"")
            has_more = message_in.get("more_body", False)
            if len(body) > self.max_body_bytes:
                raise self._too_large()
        return bytes(body)

    def _too_large(self) -> ApiError:
        message = (
            f"the body is too large: this server takes up to {self.max_body_bytes} bytes. Send less in a request, or "
            "start it with --max-body-bytes."
        )
        if self.context is not None:  # clients look for these words
            message += f" This model's maximum context length is {self.context} tokens."
        return ApiError(413, message, code="body_too_large")


def check_text_and_values(body: bytes, max_values: int) -> None:
    """Refuse what isn't UTF-8, has too many values, or has half a character: ApiError."""
    try:
        body.decode()
    except UnicodeDecodeError as error:
        message = f"the body is not UTF-8: byte {error.start} is 0x{body[error.start]:02x}."
        raise ApiError(400, message, code="invalid_utf8") from None
    if too_many := more_values_than(max_values, body):
        raise ApiError(400, too_many, code="too_many_values")
    if has_half_a_character(body):
        message = "the body contains half a character, and lone surrogates are no text; leave them out."
        raise ApiError(400, message, code="invalid_utf8")


def more_values_than(most: int, body: bytes) -> str | None:
    """The reason to refuse a body of JSON before it is parsed: it has more values than `most`, or too many objects.

    Bytes outside texts are counted, which takes a hundredth of the time of parsing.
    """
    body = body.replace(b"\\\\", b"").replace(b'\\"', b"")
    if body.count(b'"') > 4 * most:  # of a name and a text for each
        return f"the body has more than {most} values and names; send fewer in a request."
    body = b"".join(body.split(b'"')[::2])
    num_objects = body.count(b"{")
    if num_objects > MAX_OBJECTS:
        return f"the body has {num_objects} objects; the limit is {MAX_OBJECTS}. Send fewer messages or parts."
    num_values = body.count(b",") + body.count(b"[") + num_objects + 1
    if num_values > most:
        return f"the body has {num_values} values; the limit is {most}. Send fewer in a request."
    return None


def has_half_a_character(body: bytes) -> bool:
    """True for JSON with a lone surrogate, such as "\\ud83d" without its other half."""
    if b"\\ud" not in body and b"\\uD" not in body:
        return False
    try:
        json.dumps(json.loads(body), ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return True
    except (ValueError, RecursionError):
        pass  # the app says what is wrong with it
    return False


class SafeHeaders:
    """Headers for every answer: no other site may frame it, and no browser may take it for another type."""

    def __init__(self, app: ASGIApp):
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_safely(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in SAFE_HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        await self.app(scope, receive, send_safely)


SAFE_HEADERS = {
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
}


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


def host_name(host: str) -> str:
    """The name in a `Host` header: without port, and without the brackets of an IPv6 address."""
    found = re.fullmatch(r"\[([0-9a-fA-F:.]+)\](:\d+)?|([^:]*)(:\d+)?", host)
    return (found[1] or found[3] or "").lower() if found else ""


def digest(key: str) -> bytes:
    """A hash of the key. Hashes have equal lengths, so comparing two doesn't tell how long a key is."""
    return hashlib.sha256(key.encode("latin-1", "replace")).digest()
