"""A client that may leave, and an engine with one request: both tell what still goes on."""

import asyncio

DISCONNECT = {"type": "http.disconnect"}
ACCEPTED, FIRST_TOKEN, BETWEEN_TOKENS = 0.02, 0.1, 0.02  # seconds on the virtual clock
BATCHES = (["The"], [" old"], [" dog", " ran"])


class EngineFailed(RuntimeError):
    """What a fake raises when it is told to."""


class FakeClient:
    """
    Attributes:
        sent: (when, tokens) that it got.
        num_receives, first_receive: how often `receive` was called, and when for the first time.
        faults: what the caller did wrong, each with the idea behind it.
        is_receiving, is_sending: whether a call waits.
    """

    def __init__(self, messages=(), send_seconds: float = 0.0, fails: bool = False, error=EngineFailed):
        """
        Args:
            messages: (when, message) in order; after the last one, it says nothing more.
            send_seconds: how long it takes until there is room for tokens.
            fails: whether `send` raises.
            error: the type of what it raises.
        """
        self.error = error
        self.messages, self.send_seconds, self.fails = list(messages), send_seconds, fails
        self.leaves_at = next((when for when, message in messages if message is DISCONNECT), float("inf"))
        self.sent: list[tuple[float, list[str]]] = []
        self.faults: list[tuple[str, str]] = []
        self.num_receives, self.first_receive = 0, None
        self.is_receiving = self.is_sending = False

    async def receive(self) -> dict:
        loop = asyncio.get_running_loop()
        if self.is_receiving:
            self.faults.append(
                (
                    "`receive` was called while another call of it was still waiting.",
                    "A message goes to one of the two, and the other waits forever. One listener is enough.",
                )
            )
            await loop.create_future()
        if self.first_receive is None:
            self.first_receive = loop.time()
        self.num_receives += 1
        self.is_receiving = True
        try:
            if not self.messages:
                await loop.create_future()
            when, message = self.messages[0]
            if when > loop.time():
                await asyncio.sleep(when - loop.time())
            if message is not DISCONNECT:  # that one is told again and again
                self.messages.pop(0)
            return message
        finally:
            self.is_receiving = False

    async def send(self, tokens) -> None:
        if self.is_sending:
            self.faults.append(
                (
                    "`send` was called while the call before was still waiting.",
                    "`await` each `send`: a slow connection must be able to make you wait.",
                )
            )
        loop = asyncio.get_running_loop()
        if loop.time() >= self.leaves_at:
            return  # as a server does: no error says that the client has gone
        self.is_sending = True
        try:
            await asyncio.sleep(self.send_seconds)
            if self.fails:
                raise self.error("the connection broke")
            self.sent.append((loop.time(), list(tokens)))
        finally:
            self.is_sending = False


class FakeRequest:
    """The engine's side: `add` returns the request itself as its stream.

    Attributes:
        is_open: whether it holds blocks in the engine.
        num_closes: how often `aclose` was called.
        waiting_in: what is being waited for: "add", "tokens", or nothing.
    """

    def __init__(self, first_token: float = FIRST_TOKEN, fails_in: str = ""):
        """
        Args:
            fails_in: "add" or "tokens", whichever raises.
        """
        self.arrivals = [first_token + number * BETWEEN_TOKENS for number in range(len(BATCHES))]
        self.fails_in, self.waiting_in = fails_in, ""
        self.num_taken = self.num_closes = 0
        self.is_open = False

    async def add(self) -> "FakeRequest":
        self.is_open, self.waiting_in = True, "add"
        try:
            await asyncio.sleep(ACCEPTED)
            if self.fails_in == "add":
                raise EngineFailed("the server is full")
        except BaseException:
            self.is_open = False
            raise
        finally:
            self.waiting_in = ""
        return self

    def __aiter__(self) -> "FakeRequest":
        return self

    async def __anext__(self) -> list[str]:
        if self.num_taken == len(BATCHES):
            self.is_open = False
        if not self.is_open:
            raise StopAsyncIteration
        self.waiting_in = "tokens"
        try:
            await asyncio.sleep(max(0.0, self.arrivals[self.num_taken] - asyncio.get_running_loop().time()))
        finally:
            self.waiting_in = ""
        if self.fails_in == "tokens" and self.num_taken == 1:
            self.is_open = False
            raise EngineFailed("the engine is dead")
        self.num_taken += 1
        return list(BATCHES[self.num_taken - 1])

    async def aclose(self) -> None:
        self.num_closes += 1
        self.is_open = False

    async def __aenter__(self) -> "FakeRequest":
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.aclose()
