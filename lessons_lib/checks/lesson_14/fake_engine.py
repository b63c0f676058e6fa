"""An engine that computes nothing and keeps books for 14.2: who calls it, from where, and which blocks are in use."""

import asyncio
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from lessons_lib.checks.lesson_14.virtual_loop import Spinning, VirtualLoop, in_vain
from lessons_lib.serving.mailbox import Mailbox

STEP_SECONDS = 0.005  # on the virtual clock
MOST_ASKED = 10
Command = tuple[Any, ...]  # ("add", id, steps) or ("abort", id)

OTHER_THREAD = "`engine.turn` was called in another thread than that of the executor that your coroutine was given."
NO_THREAD = "`engine.turn` was called outside of the executor that your coroutine was given."
AFTER_CLOSE = "a turn began after `engine.close()`."
CLOSED_IN_THREAD = "`engine.close()` was called in the executor's thread."
CLOSED_IN_TURN = "`engine.close()` was called while a turn was still running in the executor's thread."
SECOND_CALL = "your code gave the executor another call while a turn was still running."
BLOCKED = "your coroutine waited for a turn without `await`, and then took another one."


class FakeEngine:
    """What the owner's loop knows of an EngineLoop.

    Attributes:
        open: the steps that each request still needs.
        turns: the commands of each turn.
        faults: what the caller did wrong.
        fail_at: number of the turn that raises, counted from 1; 0 for none.
    """

    def __init__(self, loop: VirtualLoop, fail_at: int = 0):
        self.open: dict[str, int] = {}
        self.turns: list[list[Command]] = []
        self.faults: list[str] = []
        self.fail_at, self.is_closed = fail_at, False
        self.executor, self.elsewhere = TimedExecutor(loop, self.faults), TimedExecutor(loop, self.faults)
        loop.set_default_executor(self.elsewhere)

    def turn(self, commands: list[Command]) -> list[tuple]:
        if self.elsewhere.is_running:
            self.faults.append(OTHER_THREAD)
        elif not self.executor.is_running:
            self.faults.append(NO_THREAD)
        if self.is_closed:
            self.faults.append(AFTER_CLOSE)
        if len(self.turns) > 50:
            raise Spinning
        self.turns.append(list(commands))
        events = [event for command in self.turns[-1] for event in self._carry_out(*command)]
        if len(self.turns) == self.fail_at:
            raise RuntimeError("the GPU is gone")
        for name in list(self.open):
            self.open[name] -= 1
            events.append(("token", name))
            if not self.open[name]:
                del self.open[name]
                events.append(("ended", name))
        return events

    def close(self) -> None:
        if self.executor.is_running:
            self.faults.append(CLOSED_IN_THREAD)
        elif self.executor.queue:
            self.faults.append(CLOSED_IN_TURN)
        self.open, self.is_closed = {}, True

    def _carry_out(self, what: str, name: str, steps: int = 0) -> list[tuple]:
        if what == "add":
            self.open[name] = steps
            return [("accepted", name)]
        return [("ended", name)] if self.open.pop(name, 0) else []


class Commands(Mailbox[Command]):
    """Notices a loop that takes from it again and again once it is closed, or asks for its length: that never lets the
    event loop run."""

    num_vain = 0

    def __len__(self) -> int:
        idea = "With nothing to do, wait for a command: `await commands.take()`."
        in_vain(self, "your code asks again and again for commands, and nothing else ever runs.", idea=idea)
        return super().__len__()

    async def take(self) -> list[Command]:
        self.num_vain += self.is_closed
        if self.num_vain > MOST_ASKED:
            raise Spinning
        return await super().take()


class Waiters(list):
    """Of a future: `concurrent.futures.wait` adds one for each call, and then blocks until it is told of the end."""

    def __init__(self, future: "TimedFuture"):
        super().__init__()
        self.future = future

    def append(self, waiter: Any) -> None:
        super().append(waiter)
        self.future.executor.finish(self.future)


class TimedFuture(Future):
    """A future for which the virtual thread can be waited without `await`: the clock stands still meanwhile.

    Attributes:
        asked_in, num_asked: the round of the event loop in which `done` was called, and how often.
    """

    asked_in: Any = None
    num_asked = 0

    def __init__(self, executor: "TimedExecutor"):
        super().__init__()
        self.executor, self._waiters = executor, Waiters(self)

    def done(self) -> bool:
        """A caller that asks again and again in one round of the event loop blocks it, until the thread has ended."""
        jumping = self.executor.loop.jumping
        this_round = (jumping.now, jumping.rounds, jumping.timers)
        self.num_asked = self.num_asked + 1 if self.asked_in == this_round else 1
        self.asked_in = this_round
        if self.num_asked > MOST_ASKED:
            self.num_asked = 0
            self.executor.finish(self)
        return super().done()

    def result(self, timeout: float | None = None) -> Any:
        self.executor.finish(self)
        return super().result(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        self.executor.finish(self)
        return super().exception(timeout)


class TimedExecutor(ThreadPoolExecutor):
    """One "thread" on the virtual clock: a call takes STEP_SECONDS, and its result is there at the end.

    Like a thread, it can't be cancelled: a call that has begun goes on, even if its caller no longer waits for it.

    Attributes:
        queue: calls that have begun or wait.
        has_blocked: whether a caller has waited for a call without `await`.
    """

    def __init__(self, loop: VirtualLoop, faults: list[str]):
        super().__init__(1)
        self.loop, self.faults = loop, faults
        self.queue: deque[tuple[TimedFuture, Callable[[], Any]]] = deque()
        self.timer: asyncio.TimerHandle | None = None
        self.is_running = self.is_shut = self.has_blocked = False

    def submit(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future:
        if self.is_shut:
            raise RuntimeError("cannot schedule new futures after shutdown")
        if self.queue:
            self.faults.append(SECOND_CALL)
        if self.has_blocked:
            self.faults.append(BLOCKED)
        future = TimedFuture(self)
        future.set_running_or_notify_cancel()
        self.queue.append((future, lambda: function(*args, **kwargs)))
        if self.timer is None:
            self.timer = self.loop.call_later(STEP_SECONDS, self._finish_one)
        return future

    def _finish_one(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
        self.timer = None
        if not self.queue:
            return
        future, work = self.queue[0]
        self.is_running, result, error = True, None, None
        try:
            result = work()
        except BaseException as raised:
            error = raised
        self.is_running = False
        self.queue.popleft()
        if error is None:
            future.set_result(result)
        else:
            future.set_exception(error)
        if self.queue:
            self.timer = self.loop.call_later(STEP_SECONDS, self._finish_one)

    def finish(self, future: Future) -> None:
        """Wait for one call, as a thread that blocks does."""
        if not super(TimedFuture, future).done():
            self.has_blocked = True
            # One last call behind the turn, waited for without `await`: the thread has left the engine when it returns.
            if SECOND_CALL in self.faults:
                self.faults.remove(SECOND_CALL)
        while self.queue and not super(TimedFuture, future).done():
            self._finish_one()

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        self.is_shut = True
        while wait and self.queue:
            self._finish_one()
