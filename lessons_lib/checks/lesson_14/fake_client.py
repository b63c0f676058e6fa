"""The cases of 14.3, a client that may leave, and an engine with one request: both tell what still goes on."""

import asyncio
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import AbstractAsyncContextManager
from math import inf
from typing import Any, NamedTuple

from lessons_lib.checks.exercise import Mistake
from lessons_lib.checks.lesson_14.virtual_loop import in_vain, now, settle, until

ACCEPTED, FIRST_TOKEN, BETWEEN_TOKENS = 20.0, 100.0, 20.0  # milliseconds on the virtual clock
BATCHES = (["The"], [" old"], [" dog", " ran"])
LEAVES = "http.disconnect"
IN_STREAM, SLOW = 130.0, 10_000.0
PHASES = {  # when, how long a `send` takes -> what goes on
    (10.0, 0.0): "before the engine has accepted the request",
    (60.0, 0.0): "before the first token",
    (IN_STREAM, 0.0): "after two of three batches",
    (IN_STREAM, SLOW): "while `send` waits for a slow connection",
}


class Case(NamedTuple):
    """When what happens, in milliseconds.

    Attributes:
        send_ms: how long it takes until there is room for tokens.
        others: types of messages that come before.
        fails_in: "add" or "tokens", whichever raises.
        error: what `send` raises.
        cancel: when the coroutine itself is cancelled.
        at_await: the await at which it is cancelled, twice in a row, counted from 1.
        late: rounds of the event loop by which leaving or cancelling comes after the moment at which `add` returns.
    """

    leaves: float | None = None
    send_ms: float = 0.0
    first_token: float = FIRST_TOKEN
    others: tuple[str, ...] = ()
    fails_in: str = ""
    error: type[Exception] | None = None
    cancel: float | None = None
    at_await: int | None = None
    late: int | None = None


def cases() -> Iterator[Case]:
    yield from (Case(), Case(send_ms=25.0), Case(first_token=100_000.0))
    yield from (Case(when, send_ms) for when, send_ms in PHASES)
    yield from (Case(110.0, others=("http.request",)), Case(110.0, others=("http.other",)))
    yield from (Case(110.0, others=("http.request",) * 3), Case(others=("http.request",)))
    yield from (Case(fails_in="add"), Case(fails_in="tokens"))
    yield from (Case(error=error) for error in (EngineFailed, ConnectionError, TimeoutError))
    yield from (Case(cancel=when, send_ms=send_ms) for when, send_ms in PHASES)
    for late in range(6):
        yield from (Case(ACCEPTED, late=late), Case(cancel=ACCEPTED, late=late))
    for number in range(1, 11):
        yield from (Case(at_await=number), Case(IN_STREAM, at_await=number))


class EngineFailed(RuntimeError):
    """What a fake raises when it is told to."""


class FakeClient:
    """
    Attributes:
        messages: (when, type) in order; after the last one, it says nothing more.
        sent: (when, tokens) that it got.
        faults: what the caller did wrong, and the idea behind it.
        is_receiving, is_sending: whether a call waits.
    """

    def __init__(self, case: Case):
        self.case = case
        self.messages = [(50.0, kind) for kind in case.others] + [(case.leaves or inf, LEAVES)] * bool(case.leaves)
        self.sent: list[tuple[float, list[str]]] = []
        self.faults: dict[str, str] = {}
        self.is_receiving = self.is_sending = self.has_received = False

    def listens(self) -> str:
        """Whether a call of `receive` waits, in words."""
        if self.is_receiving:
            return "yes"
        return "no: an earlier call has ended" if self.has_received else "no: it has never been called"

    def receive(self) -> Coroutine[Any, Any, dict[str, Any]]:
        if in_vain(self):
            what = "`receive` was called again and again, and nothing else ever ran."
            self.faults[what] = (
                "A client that has left says so again and again, without a wait: end the listening at the message "
                'whose "type" is “http.disconnect”. And `receive` returns a message only after `await`.'
            )
            raise Mistake(what, idea=self.faults[what])
        return self._receive()

    async def _receive(self) -> dict[str, Any]:
        if self.is_receiving:
            self.faults["`receive` was called while another call of it was still waiting."] = ""
            await asyncio.Event().wait()
        self.is_receiving = self.has_received = True
        try:
            if not self.messages:
                await asyncio.Event().wait()
            await until(self.messages[0][0])
            await settle(self.case.late or 0)
            kind = self.messages[0][1]
            if kind != LEAVES:  # that one is told again and again
                self.messages.pop(0)
            return {"type": kind, "body": b"", "more_body": False}
        finally:
            self.is_receiving = False

    async def send(self, tokens: list[str]) -> None:
        if self.is_sending:
            self.faults["`send` was called while the call before was still waiting."] = ""
        if now() >= (self.case.leaves or inf):
            return  # as a server does: no error says that the client has gone
        self.is_sending = True
        try:
            await asyncio.sleep(self.case.send_ms / 1000)
            if self.case.error:
                raise self.case.error("the connection broke")
            self.sent.append((round(now(), 3), tokens if isinstance(tokens, str) else list(tokens)))
        finally:
            self.is_sending = False


class FakeRequest(AsyncIterator, AbstractAsyncContextManager):
    """The engine's side: `add` returns the request itself as its stream.

    Attributes:
        is_open: whether it holds blocks in the engine.
        waits: for what, in words; "" for nothing.
    """

    def __init__(self, case: Case):
        self.arrivals = [case.first_token + number * BETWEEN_TOKENS for number in range(len(BATCHES))]
        self.fails_in, self.waits, self.num_taken, self.is_open = case.fails_in, "", 0, False

    async def _wait(self, for_what: str, when: float) -> None:
        self.waits = for_what
        try:
            await until(when)
        finally:
            self.waits = ""

    async def add(self) -> "FakeRequest":
        self.is_open = True
        try:
            await self._wait("waiting for the engine in `add`", ACCEPTED)
            if self.fails_in == "add":
                raise EngineFailed("the server is full")
        except BaseException:
            self.is_open = False
            raise
        return self

    async def __anext__(self) -> list[str]:
        self.is_open = self.is_open and self.num_taken < len(BATCHES)
        if not self.is_open:
            raise StopAsyncIteration
        await self._wait("waiting for tokens", self.arrivals[self.num_taken])
        if self.fails_in == "tokens" and self.num_taken == 1:
            self.is_open = False
            raise EngineFailed("the engine is dead")
        self.num_taken += 1
        return list(BATCHES[self.num_taken - 1])

    async def aclose(self) -> None:
        self.is_open = False

    async def __aexit__(self, *error: object) -> None:
        self.is_open = False


def tell(case: Case) -> str:
    first = "100, 120 and 140 ms" if case.first_token == FIRST_TOKEN else "100 s, and 20 and 40 ms later"
    told = [f"three lists of tokens come after {first}"]
    told += [f"after 50 ms, a message “{kind}” comes" for kind in case.others]
    told += [f"{'`add`' if case.fails_in == 'add' else 'the stream'} raises EngineFailed"] * bool(case.fails_in)
    told += [f"`send` raises {error.__name__}" for error in (case.error,) if error]
    when, who = case.cancel or case.leaves, "the client leaves" if case.leaves else "the client stays"
    if case.cancel:
        who = "your coroutine itself is cancelled"
    if case.late is not None:
        who += " at the very moment at which `add` returns"
    elif when:
        who += f" after {when:g} ms, {PHASES.get((when, case.send_ms), '')}".rstrip(", ")
    told.append(who)
    if case.at_await:
        told.append(f"your coroutine is cancelled at its await number {case.at_await}, and once more right after")
    return f"{'; '.join(told)}."
