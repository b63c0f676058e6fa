"""Lesson 14: an engine for many callers at once. One coroutine owns it; the others send commands and read streams."""

import asyncio
import contextlib
import itertools
from collections.abc import Awaitable, Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any, Self

from lessons_lib.engine.llm_engine import LLMEngine
from lessons_lib.engine.metrics import EngineGauges
from lessons_lib.engine.outputs import NewToken
from lessons_lib.engine.sampling_params import SamplingParams
from lessons_lib.models.validate import BadRequest, shortened
from lessons_lib.serving.admission import AdmissionControl
from lessons_lib.serving.engine_loop import EngineLoop
from lessons_lib.serving.mailbox import Mailbox
from lessons_lib.serving.messages import (
    AbortRequest,
    Accepted,
    AddRequest,
    Command,
    Draining,
    EngineDead,
    EngineDied,
    EngineReady,
    EngineStatus,
    Event,
    NewTokens,
    Refused,
    RequestEnded,
    error_text,
)
from lessons_lib.serving.owner import own_engine
from lessons_lib.serving.stream_text import StreamText

CLOSED = "EngineDead: the front was closed."
CHARACTERS_PER_TOKEN = 4  # of usual text


@dataclass(eq=False)
class OpenRequest:
    """A request that has not ended.

    Attributes:
        answered: set when the engine has accepted or refused it, or has died.
        size: of its prompt, in tokens; for text, a guess.
        known: the first tokens of its completion, if another engine has computed them.
        text: makes the text of its tokens, if the engine doesn't.
        refusal: the error that `add` raises.
        ended: set when `end` is there.
        has_text: the completions of `end` have their text.
        is_left: its reader has left, and its abort is on the way.
    """

    request_id: str
    size: int
    mailbox: Mailbox[NewToken]
    answered: asyncio.Event = field(default_factory=asyncio.Event)
    known: Sequence[int] = ()
    num_prompt_tokens: int = 0
    text: StreamText | None = None
    refusal: Exception | None = None
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    end: RequestEnded | None = None
    has_text: bool = False
    is_left: bool = False

    def end_with_text(self) -> RequestEnded:
        """`end`, which must be there, with its text. A stream's reader has that already, so it is made only here."""
        assert self.end is not None
        if self.text is not None and not self.has_text:
            completions = [self.text.add_to_end(completion) for completion in self.end.completions]
            self.end, self.has_text = replace(self.end, completions=completions), True
        return self.end


class RequestStream:
    """The tokens of one request. It has one reader.

        async with await front.add(prompt) as stream:
            async for tokens in stream: ...

    When the reader leaves before the end, the request is aborted: at the end of `async with`, when the reader is
    cancelled while it waits, and when the stream is garbage. To wait for a limited time, use `asyncio.wait`, which
    cancels nothing.
    """

    def __init__(self, front: "AsyncEngine", request: OpenRequest):
        self.request_id, self.num_prompt_tokens = request.request_id, request.num_prompt_tokens
        self._front, self._request = front, request

    def __aiter__(self) -> "RequestStream":
        return self

    async def __anext__(self) -> list[NewToken]:
        """All tokens that have arrived since the last call. Waits for one if there is none."""
        try:
            tokens = await self._request.mailbox.take()
            if self._request.text is not None:
                tokens = self._request.text.add_to(tokens)
        except BaseException:
            self._front.leave(self._request)
            raise
        if not tokens:
            raise StopAsyncIteration
        return tokens

    async def end(self) -> RequestEnded:
        """Wait until the request has ended. Unread tokens can still be read."""
        try:
            await self._request.ended.wait()
        except BaseException:
            self._front.leave(self._request)
            raise
        return self._request.end_with_text()

    async def aclose(self) -> None:
        """Abort the request if it still runs. It ends with the next step; `end` waits for that.

        There is no await inside, so a caller in a `finally` can't be cancelled halfway.
        """
        self._front.leave(self._request)

    async def __aenter__(self) -> "RequestStream":
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.aclose()

    def __del__(self) -> None:
        # The garbage collector runs in any thread, also in the engine's.
        if not self._request.ended.is_set():
            with contextlib.suppress(RuntimeError):  # the event loop is closed, and so is the front
                self._front._event_loop.call_soon_threadsafe(self._front.leave, self._request)


class AsyncEngine:
    """An engine in a thread of this process, for the coroutines of one event loop.

        async with AsyncEngine(engine) as front:
            stream = await front.add("Once upon a time")
            async for tokens in stream:
                print("".join(token.text for token in tokens))

    One coroutine owns the engine (`own_engine`). Tokens go into a mailbox for each stream.

    Attributes:
        gauges: of the engine after its last step.
        error: the reason if the engine is dead; None while it lives.
        is_draining: new requests are refused.
        tokenizer: of the model, once the front is open.
    """

    def __init__(
        self, engine: LLMEngine, admission: AdmissionControl | None = None, *, mailbox: type[Any] = Mailbox,
        own: Callable[..., Awaitable[None]] = own_engine,
    ):  # fmt: skip
        self._prepare(admission, mailbox)
        self._own_engine, self._engine_loop = own, EngineLoop(engine, self._answer)

    def _prepare(self, admission: AdmissionControl | None, mailbox: type[Any] = Mailbox) -> None:
        self.admission, self._mailbox = admission or AdmissionControl(), mailbox
        self.gauges = EngineGauges(0, 0, 0, 0, 0, 0)
        self.error: str | None = None
        self.is_draining = False
        self.tokenizer: Any = None
        self._metrics: dict[str, Any] = {}
        self._requests: dict[str, OpenRequest] = {}
        self._numbers = itertools.count()
        self._is_closing = False
        self._owner: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._event_loop = asyncio.get_running_loop()
        self._is_empty = asyncio.Event()
        self._is_empty.set()
        await self._open()
        self._owner = asyncio.create_task(self._own())
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.aclose()

    async def add(
        self, prompt: str | Sequence[int], params: SamplingParams | None = None, *, request_id: str | None = None,
        output_ids: Sequence[int] = (), **options: Any,
    ) -> RequestStream:  # fmt: skip
        """Add a request. Returns once the engine has accepted it.

        Args:
            See `LLMEngine.add_request`.

        Raises:
            BadRequest, OutOfBlocks: as `LLMEngine.add_request`.
            Overloaded: too much is in flight; its `retry_after` says when to try again.
            Draining: the front takes no new requests.
            EngineDead: the engine has stopped.
            In all cases, nothing is left of the request.
        """
        self._check_open()
        if output_ids:
            options["output_ids"] = output_ids
        command = AddRequest(self._checked_id(request_id), prompt, params, options)
        self.admission.admit(size := self._estimated_size(prompt))
        request = OpenRequest(command.request_id, size, self._mailbox(), known=output_ids)
        self._requests[request.request_id] = request
        self._is_empty.clear()
        try:
            self._send(command)
        except BaseException:
            self._forget(request)
            raise
        try:
            await request.answered.wait()
            if request.refusal is not None:
                raise request.refusal
        except BaseException:
            self.leave(request)
            raise
        return RequestStream(self, request)

    async def drain(self, timeout: float | None = None) -> int:
        """Take no new requests, and wait until those in flight have ended.

        Args:
            timeout: seconds after which those that are left are aborted; None to wait for all.

        Returns:
            the number of aborted requests.
        """
        self.is_draining = True
        left: list[OpenRequest] = []
        try:
            await asyncio.wait_for(self._is_empty.wait(), timeout)
        except TimeoutError:
            left = list(self._requests.values())
            for request in left:
                self._send(AbortRequest(request.request_id))
            await self._is_empty.wait()
        return sum(request.end is not None and request.end.is_aborted for request in left)

    def metrics(self) -> dict[str, Any]:
        """`EngineMetrics.snapshot()` of the engine, up to a quarter of a second old while it is busy."""
        return dict(self._metrics)

    async def aclose(self) -> None:
        """Abort what is left, and let go of the engine, which stays open."""
        if self._owner is None:
            return
        self._is_closing = True
        self._commands.close()
        try:
            await asyncio.wait({self._owner})
        finally:
            self._die(CLOSED)

    def leave(self, request: OpenRequest) -> None:
        """Abort a request whose reader has left, if it still runs."""
        if self._requests.get(request.request_id) is request and not request.is_left:
            request.is_left = True
            request.mailbox.clear()
            self._send(AbortRequest(request.request_id))

    # EngineProcess does these in another way.

    async def _open(self) -> None:
        self._commands = self._mailbox()
        self.tokenizer = self._engine_loop.engine.tokenizer
        self._deliver([self._engine_loop.status()])

    def _send(self, command: Command) -> None:
        self._commands.put(command)

    def _answer(self, events: list[Event]) -> None:
        self._event_loop.call_soon_threadsafe(self._deliver, events)

    async def _own(self) -> None:
        reason, executor = CLOSED, ThreadPoolExecutor(1, thread_name_prefix="engine")
        try:
            await self._own_engine(self._engine_loop, self._commands, self._deliver, executor)
        except Exception as error:
            reason = error_text(error)
        finally:
            self._die(reason)

    # Bookkeeping, in the event loop's thread.

    def _deliver(self, events: Iterable[Event]) -> None:
        """Pass events to their streams."""
        requests = self._requests
        for event in events:
            if isinstance(event, NewTokens):
                for token in event.tokens:
                    request = requests.get(token.request_id)
                    if request is not None and not request.is_left:
                        request.mailbox.put(token)
            elif isinstance(event, EngineStatus):
                self.gauges = event.gauges
                self._metrics = event.metrics or self._metrics
            elif isinstance(event, EngineReady):
                self.tokenizer = event.tokenizer
            elif isinstance(event, EngineDied):
                self.error = event.error
            elif (request := requests.get(event.request_id)) is None:
                continue  # the front has died meanwhile
            elif isinstance(event, Accepted):
                request.num_prompt_tokens = event.num_prompt_tokens
                if event.text_rules is not None:
                    request.text = StreamText(self.tokenizer, event.text_rules, request.known)
                request.answered.set()
            elif isinstance(event, Refused):
                request.refusal = event.error
                self._forget(request)
            else:
                self._finish(request, event)

    def _finish(self, request: OpenRequest, end: RequestEnded) -> None:
        request.end = end
        if not request.answered.is_set():
            request.refusal = EngineDead(f"the request wasn't accepted: {end.error}")
        self._forget(request)

    def _forget(self, request: OpenRequest) -> None:
        """Drop a request that has ended, or was refused."""
        del self._requests[request.request_id]
        was_served = request.end is not None and request.end.error is None and not request.end.is_aborted
        self.admission.release(request.size, was_served=was_served)
        request.answered.set()
        request.mailbox.close()
        request.ended.set()
        if not self._requests:
            self._is_empty.set()

    def _die(self, reason: str) -> None:
        """End all streams: the engine is dead, for this reason."""
        self.error = self.error or reason
        for request in list(self._requests.values()):
            self._finish(request, RequestEnded(request.request_id, request.size, error=reason))

    def _check_open(self) -> None:
        if self._owner is None:
            raise RuntimeError("the front isn't open; use it inside `async with`.")
        if self.error is not None or self._is_closing:
            raise EngineDead(f"the engine takes no requests any more: {self.error or 'it is closing'}. Make a new one.")
        if self.is_draining:
            raise Draining("the server is draining: it finishes its requests, and takes no new ones. Ask another one.")

    def _checked_id(self, request_id: str | None) -> str:
        if request_id is None:
            return next(name for name in map("request-{}".format, self._numbers) if name not in self._requests)
        if not isinstance(request_id, str):
            raise BadRequest(f"request_id is {shortened(request_id)}; it must be a str, or None.")
        if request_id in self._requests:
            raise BadRequest(f"request id {request_id!r} is being served; give every request its own id, or none.")
        return request_id

    def _estimated_size(self, prompt: str | Sequence[int]) -> int:
        """The number of a prompt's tokens; for text, a guess."""
        if not isinstance(prompt, str):
            return len(prompt) if hasattr(prompt, "__len__") else 1  # the engine refuses what has no length
        size = len(prompt) // CHARACTERS_PER_TOKEN + 1
        return size if self.admission.max_prompt_tokens is None else min(size, self.admission.max_prompt_tokens)
