"""An engine with its commands and its owner for 14.2, and what was noticed of them."""

import asyncio
import inspect

from lessons_lib.checks.exercise import Mistake, call, short
from lessons_lib.checks.lesson_14.fake_engine import FakeEngine, TimedExecutor
from lessons_lib.serving.mailbox import Mailbox

STUCK = (
    "your coroutine waits for something that never happens.",
    "It may wait for commands only if the engine has nothing to do (`engine.open` is empty). While requests run, turn "
    "follows turn, with or without commands.",
)
BUSY = (
    "your coroutine never rests.",
    "If the engine has nothing to do and no command has arrived, wait: `await commands.take()`.",
)


class Scene:
    """One run: an engine, its executor, a mailbox, and what was delivered."""

    def __init__(self, attempt, case: str, fail_at: int = 0):
        self.loop, self.case = asyncio.get_running_loop(), case
        self.engine = FakeEngine(fail_at)
        self.executor = self.engine.executor = TimedExecutor(self.loop, self.engine)
        self.engine.elsewhere = TimedExecutor(self.loop, self.engine)
        self.loop.set_default_executor(self.engine.elsewhere)
        self.commands: Mailbox = Mailbox()
        self.delivered: list[list] = []
        self.attempt = attempt

    def deliver(self, events) -> None:
        if inspect.isawaitable(events):
            close = getattr(events, "close", None)
            if close:
                close()
            raise Mistake(
                "`deliver` got something that must be awaited first.",
                case=self.case,
                idea="`run_in_executor` returns at once, with a future. The events are there after `await`.",
            )
        if not isinstance(events, (list, tuple)):
            raise Mistake(
                f"`deliver` should get the list of events of a turn; it got {short(events)}.",
                case=self.case,
                idea="Pass on what `engine.turn` returned.",
            )
        if self.executor.is_running:
            raise Mistake(
                "`deliver` was called in the executor's thread.",
                case=self.case,
                idea="Streams and futures belong to the event loop. Deliver after the `await`, in the coroutine itself.",  # noqa: E501
            )
        self.delivered.append(list(events))

    def start(self, wrap=lambda coroutine: coroutine) -> asyncio.Task:
        coroutine = call(self.attempt, self.engine, self.commands, self.deliver, self.executor, case=self.case)
        if not inspect.iscoroutine(coroutine):
            raise Mistake(
                f"`own_engine` should be a coroutine; yours returned {short(coroutine)}.",
                case=self.case,
                idea="It runs beside the other coroutines for as long as the server does: `async def`.",
            )
        return asyncio.ensure_future(wrap(coroutine))

    def audit(self, how: str) -> None:
        """After the end: no faults, no call in progress, everything closed.

        Args:
            how: how it ended, for messages.
        """
        if self.engine.faults:
            what, idea = self.engine.faults[0]
            raise Mistake(what, case=self.case, idea=idea)
        if self.executor.is_busy:
            raise Mistake(
                f"your coroutine has ended ({how}), and the executor's thread is still in the engine.",
                case=self.case,
                idea="A thread can't be cancelled. Wait for it, in a `finally`: `executor.shutdown(wait=True)`.",
            )
        if not self.engine.is_closed:
            raise Mistake(
                f"your coroutine has ended ({how}), and `engine.close()` wasn't called.",
                case=self.case,
                idea="Nothing else aborts the requests that are left, and frees their blocks. However the coroutine "
                "ends, it passes through `finally`.",
            )
        if self.engine.audit():
            raise Mistake(
                f"{self.engine.audit()} blocks are still in use at the end.",
                case=self.case,
                idea="Close the engine last.",
            )


def refuse_faults(scene: Scene) -> None:
    if scene.engine.faults:
        what, idea = scene.engine.faults[0]
        raise Mistake(what, case=scene.case, idea=idea)


def refuse_early_end(owner: asyncio.Task, scene: Scene) -> None:
    if not owner.done():
        return
    refuse_faults(scene)
    if owner.cancelled():
        raise Mistake("your coroutine ended with CancelledError, although nothing cancelled it.", case=scene.case)
    if owner.exception() is not None:
        raise owner.exception()
    raise Mistake(
        "your coroutine returned, although the mailbox is still open.",
        case=scene.case,
        idea="The owner runs until the mailbox of commands is closed, not until the engine is idle.",
    )
