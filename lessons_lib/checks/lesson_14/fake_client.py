"""The cases of 14.3, a client that may leave, and an engine with one request: both tell what still goes on."""

import asyncio
from collections.abc import Coroutine
from typing import Any, NamedTuple

from lessons_lib.checks.lesson_14.virtual_loop import in_vain, settle

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
        others: types of messages that come before.
        fails_in: "add" or "tokens".
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


class EngineFailed(RuntimeError):
    """What a fake raises when it is told to."""


def now() -> float:
    return 1000 * asyncio.get_running_loop().time()


async def until(when: float) -> None:
    if when > now():
        await asyncio.sleep((when - now()) / 1000)


class FakeClient:
    """
    Attributes:
        sent: (when, tokens) that it got.
        faults: what the caller did wrong.
        is_receiving, is_sending: whether a call waits.
    """

    def __init__(
        self, messages: tuple[tuple[float, str], ...], send_ms: float, error: type[Exception] | None, late: int
    ):
        """
        Args:
            messages: (when, type) in order; after the last one, it says nothing more.
            send_ms: how long it takes until there is room for tokens.
            error: what `send` raises.
            late: the rounds of the event loop by which `receive` returns later.
        """
        self.messages, self.send_ms, self.error, self.late = list(messages), send_ms, error, late
        self.leaves_at = next((when for when, kind in messages if kind == LEAVES), float("inf"))
        self.sent: list[tuple[float, list[str]]] = []
        self.faults: list[str] = []
        self.is_receiving = self.is_sending = self.has_received = False

    def listens(self) -> str:
        """Whether a call of `receive` waits, in words."""
        if self.is_receiving:
            return "yes"
        return "no: an earlier call has ended" if self.has_received else "no: it has never been called"

    def receive(self) -> Coroutine[Any, Any, dict[str, Any]]:
        in_vain(self, "`receive` was called again and again, and nothing else ever ran.", self.faults)
        return self._receive()

    async def _receive(self) -> dict[str, Any]:
        if self.is_receiving:
            self.faults.append("`receive` was called while another call of it was still waiting.")
            await asyncio.get_running_loop().create_future()
        self.is_receiving = self.has_received = True
        try:
            if not self.messages:
                await asyncio.get_running_loop().create_future()
            await until(self.messages[0][0])
            await settle(self.late)
            kind = self.messages[0][1]
            if kind != LEAVES:  # that one is told again and again
                self.messages.pop(0)
            return {"type": kind, "body": b"", "more_body": False}
        finally:
            self.is_receiving = False

    async def send(self, tokens: list[str]) -> None:
        if self.is_sending:
            self.faults.append("`send` was called while the call before was still waiting.")
        if now() >= self.leaves_at:
            return  # as a server does: no error says that the client has gone
        self.is_sending = True
        try:
            await asyncio.sleep(self.send_ms / 1000)
            if self.error:
                raise self.error("the connection broke")
            self.sent.append((round(now(), 3), tokens if isinstance(tokens, str) else list(tokens)))
        finally:
            self.is_sending = False


class FakeRequest:
    """The engine's side: `add` returns the request itself as its stream.

    Attributes:
        is_open: whether it holds blocks in the engine.
        waits: for what, in words; "" for nothing.
    """

    def __init__(self, first_token: float, fails_in: str):
        """
        Args:
            fails_in: "add" or "tokens", whichever raises.
        """
        self.arrivals = [first_token + number * BETWEEN_TOKENS for number in range(len(BATCHES))]
        self.fails_in, self.waits, self.num_taken, self.is_open = fails_in, "", 0, False

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

    def __aiter__(self) -> "FakeRequest":
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

    async def __aenter__(self) -> "FakeRequest":
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.aclose()


def clock() -> str:
    return f"{now() / 1000:g} s" if now() >= 1000 else f"{now():g} ms"


def tell(case: Case) -> str:
    first = "100, 120 and 140 ms" if case.first_token == FIRST_TOKEN else "100 s, and 20 and 40 ms later"
    told = [f"three lists of tokens come after {first}"]
    told += [f"after 50 ms, a message “{kind}” comes" for kind in case.others]
    if case.fails_in:
        told.append(f"{'`add`' if case.fails_in == 'add' else 'the stream'} raises EngineFailed")
    if case.error:
        told.append(f"`send` raises {case.error.__name__}")
    when, who = case.cancel or case.leaves, "the client leaves" if case.leaves else "the client stays"
    if case.cancel:
        who = "your coroutine itself is cancelled"
    if case.late is not None:
        told.append(f"{who} at the very moment at which `add` returns")
    else:
        told.append(f"{who} after {when:g} ms, {PHASES.get((when, case.send_ms), '')}".rstrip(", ") if when else who)
    if case.at_await:
        told.append(f"your coroutine is cancelled at its await number {case.at_await}, and once more right after")
    return f"{'; '.join(told)}."
