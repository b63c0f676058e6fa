"""Lesson 14: limits of one connection. uvicorn has bounded buffers, but waits forever for a client that sends its
request one byte a minute, or doesn't read its answer; and it takes a head of any size. An app can't limit these: it
sees a request only when its head is complete, and can't tell a client that reads slowly from one that has stopped.
"""

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from lessons_lib.serving.http.settings import ServerSettings

TOO_LARGE = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-type: application/json\r\ncontent-length: %d\r\n"
    b"connection: close\r\n\r\n%s"
)
TOO_LARGE_BODY = b'{"error": {"message": "the head of the request is too large.", "type": "invalid_request_error"}}'
PROCESSING = b"HTTP/1.1 102 Processing\r\n\r\n"
PROBE_SECONDS = (0.05, 1.0)  # the second probe comes soon, the others now and then


class HeadTooLarge(Exception):
    """The parser turns it into an error of its own."""


class LimitedProtocol(HttpToolsProtocol):
    """uvicorn's connection with limits on the size of a request's head, on the time in which a request must arrive, and
    on the time for which an answer may stay unread. `limited_by` sets them.

    A client that has closed its half of the connection behind its request gets its answer. One that has gone altogether
    looks the same, until something is sent to it: so an answer that hasn't begun is announced now and then.
    """

    settings: ServerSettings

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._stalled: asyncio.TimerHandle | None = None
        self._is_in_head, self._head_bytes, self._header_bytes = True, 0, 0
        self._unsent: asyncio.TimerHandle | None = None
        self._probing: asyncio.TimerHandle | None = None
        self._expect_request()

    def connection_lost(self, exc: Exception | None) -> None:
        for timer in (self._unsent, self._stalled, self._probing):
            if timer:
                timer.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        # The parser passes on whole headers only, and a client may never end one.
        if self._is_in_head and not self.transport.is_closing():
            self._head_bytes += len(data)
            if self._head_bytes > self.settings.max_header_bytes:
                self._refuse_head()

    def eof_received(self) -> bool | None:  # type: ignore[override]
        cycle = self.cycle
        if self._is_in_head or cycle is None or cycle.more_body or cycle.response_complete:
            return None  # no answer is due: close the connection
        cycle.keep_alive = False
        self._probe(PROBE_SECONDS[0])
        return True

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._is_in_head, self._head_bytes, self._header_bytes = True, 0, 0
        self._expect_request()

    def on_url(self, url: bytes) -> None:
        super().on_url(url)
        self._count_header(len(url))

    def on_header(self, name: bytes, value: bytes) -> None:
        super().on_header(name, value)
        self._count_header(len(name) + len(value) + len(b": \r\n"))

    def on_headers_complete(self) -> None:
        self._is_in_head = False
        super().on_headers_complete()

    def send_400_response(self, msg: str) -> None:
        if self._header_bytes > self.settings.max_header_bytes:
            self._refuse_head()
        else:
            super().send_400_response(msg)

    def on_message_complete(self) -> None:
        super().on_message_complete()
        if self._unsent:
            self._unsent.cancel()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._stalled = self.loop.call_later(self.settings.stall_timeout, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._stalled:
            self._stalled.cancel()

    def _count_header(self, size: int) -> None:
        """Count the bytes of a head. Headers may all come at once, and some behind the body."""
        self._header_bytes += size
        if self._header_bytes > self.settings.max_header_bytes:
            raise HeadTooLarge

    def _refuse_head(self) -> None:
        self.transport.write(TOO_LARGE % (len(TOO_LARGE_BODY), TOO_LARGE_BODY))
        self.transport.close()

    def _probe(self, seconds: float) -> None:
        """Find out whether a client that sends no more still reads: if it doesn't, one of the next writes fails."""
        cycle = self.cycle
        is_waiting = not (self.transport.is_closing() or self.pipeline or cycle.response_started)
        if is_waiting and cycle.scope["http_version"] != "1.0":  # which has no announcements
            self.transport.write(PROCESSING)
            self._probing = self.loop.call_later(seconds, self._probe, PROBE_SECONDS[1])

    def _expect_request(self) -> None:
        if self._unsent:
            self._unsent.cancel()
        self._unsent = self.loop.call_later(self.settings.receive_timeout, self._give_up)

    def _give_up(self) -> None:
        if self.flow.read_paused:  # it is the server that doesn't read on, until it has answered an earlier request
            self._expect_request()
        else:
            self.transport.abort()


def limited_by(settings: ServerSettings) -> type[Any]:
    """The class of a server's connections, for uvicorn's `http=`."""
    return type("LimitedProtocol", (LimitedProtocol,), {"settings": settings})
