"""Lesson 14: a front of an engine that serves several. Another process has started the engine and will end it."""

import asyncio
from collections.abc import Callable

from lessons_lib.models.validate import BadRequest, shortened
from lessons_lib.serving.admission import AdmissionControl
from lessons_lib.serving.async_engine import CLOSED
from lessons_lib.serving.engine_process import EngineProcess
from lessons_lib.serving.watchdog import STEP_TIMEOUT


class SharedEngine(EngineProcess):
    """Used as EngineProcess is, but it owns no process. What it can't know or do, the parent tells it or does for it:
    the parent is the process whose EngineProcess has started the engine.

    Attributes:
        number: of this front, from 1 on. It is part of the ids of requests, so those of two fronts always differ.
    """

    def __init__(
        self,
        number: int,
        join: Callable[[str, list[str]], None],
        end_engine: Callable[[str], None],
        admission: AdmissionControl | None = None,
        *,
        transport: str | None = None,
        step_timeout: float | None = STEP_TIMEOUT,
    ):
        """
        Args:
            join: `join(address, secret)` asks the parent for `EngineProcess.let_join`.
            end_engine: `end_engine(reason)` asks the parent for `EngineProcess.give_up`: a step hangs.
            transport, step_timeout: see EngineProcess.

        Raises:
            ValueError: `step_timeout` is not above 0.
        """
        self.number, self._join, self._end_engine = number, join, end_engine
        self._transport, self._reason, self._restarts = transport, CLOSED, False
        self._awaits_new = False
        self._prepare(admission, step_timeout)

    async def aclose(self) -> None:
        """Close the socket. The parent lets this front leave, and so ends what it has left."""
        if self._owner is not None:
            self._is_closing = True
            self._shut(CLOSED)

    def give_up(self, reason: str) -> None:
        """A step hangs: let the parent kill the engine, and end all streams."""
        self._end_engine(reason)
        super().give_up(reason)

    def note_death(self, reason: str) -> None:
        """The parent says that the engine is dead: end all streams. Said twice, it can't be started again."""
        self._reason = reason
        self._note_exit()
        self._awaits_new = not self._awaits_new

    def rejoin(self) -> None:
        """The parent says that there is a new engine: be a front of it."""
        self._awaits_new = False
        if not self._is_closing:
            self._restarting = asyncio.ensure_future(self._restart(1))  # if it dies as well, the parent says so

    @property
    def is_restarting(self) -> bool:
        return self._awaits_new or super().is_restarting

    def _start(self, secret: list[str]) -> None:
        self._join(self.address, secret)

    def _exit_reason(self) -> str:
        return self._reason

    def _checked_id(self, request_id: str | None) -> str:
        if request_id is not None and not isinstance(request_id, str):
            raise BadRequest(f"request_id is {shortened(request_id)}; it must be a str, or None.")
        name = f"request-{next(self._numbers)}" if request_id is None else request_id
        return super()._checked_id(f"{self.number}:{name}")
