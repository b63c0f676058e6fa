"""Lesson 14: mailboxes, an owner and admission around an engine, and no more. `AsyncEngine` is the real one."""

import itertools
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from lessons_lib.engine.llm_engine import LLMEngine
from lessons_lib.engine.outputs import NewToken
from lessons_lib.engine.sampling_params import SamplingParams
from lessons_lib.serving.admission import Admitted
from lessons_lib.serving.engine_loop import EngineLoop
from lessons_lib.serving.messages import (
    AbortRequest,
    Accepted,
    AddRequest,
    EngineDead,
    Event,
    NewTokens,
    Refused,
    RequestEnded,
)
from lessons_lib.serving.stream_text import StreamText


class SmallStream:
    """The tokens of one request.

    Attributes:
        text: makes the text of the tokens, once the engine has accepted the request.
        error: why it ended without all its tokens.
    """

    def __init__(self, front: "SmallFront", request_id: str, admitted: Admitted):
        self.front, self.request_id, self.admitted = front, request_id, admitted
        self.mailbox = front.mailbox()
        self.text: StreamText | None = None
        self.error: Exception | None = None

    def __aiter__(self) -> "SmallStream":
        return self

    async def __anext__(self) -> list[NewToken]:
        if tokens := await self.mailbox.take():
            return self.text.add_to(tokens) if self.text else list(tokens)
        raise self.error or StopAsyncIteration

    async def aclose(self) -> None:
        """Abort the request if it still runs."""
        if self.request_id in self.front.streams:
            self.front.commands.put(AbortRequest(self.request_id))


class SmallFront:
    """An engine for the coroutines of one event loop, in which it is made.

    Attributes:
        streams: request id -> its stream, of all requests that have not ended.
    """

    def __init__(self, engine: LLMEngine, mailbox: type[Any], own: Callable[..., Awaitable[None]], admission: Any):
        """
        Args:
            mailbox, own, admission: a class as `Mailbox`, a coroutine as `own_engine`, an object as `AdmissionControl`.
        """
        self.engine, self.mailbox, self.own_engine, self.admission = engine, mailbox, own, admission
        self.commands = mailbox()
        self.streams: dict[str, SmallStream] = {}
        self._numbers = itertools.count(1)

    async def own(self) -> None:
        """Run the engine until `commands` is closed, or until it fails: then all streams end with an error."""
        reason = "it was closed"
        try:
            await self.own_engine(EngineLoop(self.engine), self.commands, self.deliver, ThreadPoolExecutor(1))
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
        finally:
            self.commands.close()
            for request_id in list(self.streams):
                self._end(request_id, EngineDead(f"the engine has stopped ({reason})."))

    async def add(self, prompt: list[int], params: SamplingParams) -> SmallStream:
        """Add a request. What the engine says against it, its stream raises.

        Raises:
            Overloaded, BadRequest: see `AdmissionControl.admit`.
            EngineDead: the engine has stopped.
        """
        if self.commands.is_closed:
            raise EngineDead("the engine has stopped. Start the server again.")
        stream = SmallStream(self, str(next(self._numbers)), self.admission.admit(len(prompt)))
        self.streams[stream.request_id] = stream
        self.commands.put(AddRequest(stream.request_id, prompt, params))
        return stream

    def deliver(self, events: list[Event]) -> None:
        """Sort the events of a turn into the mailboxes of their streams."""
        for event in events:
            if isinstance(event, Accepted) and event.text_rules:
                self.streams[event.request_id].text = StreamText(self.engine.tokenizer, event.text_rules)
            elif isinstance(event, NewTokens):
                for token in event.tokens:
                    self.streams[token.request_id].mailbox.put(token)
            elif isinstance(event, Refused):
                self._end(event.request_id, event.error)
            elif isinstance(event, RequestEnded):
                error = RuntimeError(event.error) if event.error else None
                self._end(event.request_id, error, was_served=not error and not event.is_aborted)

    def _end(self, request_id: str, error: Exception | None, was_served: bool = False) -> None:
        stream = self.streams.pop(request_id)
        self.admission.release(stream.admitted, was_served=was_served)
        stream.error = error
        stream.mailbox.close()
