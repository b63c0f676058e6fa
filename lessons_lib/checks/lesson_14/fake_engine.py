"""An engine that computes nothing and keeps books for 14.2: who calls it, from where, and which blocks are in use."""

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from lessons_lib.checks.exercise import Mistake
from lessons_lib.checks.lesson_14.virtual_loop import SPINNING, Halted, VirtualLoop, in_vain
from lessons_lib.serving.mailbox import Mailbox

STEP_SECONDS = 0.005  # on the virtual clock
MOST_ASKED = 10
OTHER_THREAD = "`engine.turn` was called in another thread than that of the executor that your coroutine was given."
NO_THREAD = "`engine.turn` was called outside of the executor that your coroutine was given."
SECOND_CALL = "your code gave the executor another call while a turn was still running."
Command = tuple[Any, ...]  # ("add", id, steps) or ("abort", id)


class FakeEngine:
    """What the owner's loop knows of an EngineLoop.

    Attributes:
        open: the steps that each request still needs.
        turns: the commands of each turn.
        faults: what the caller did wrong, and the idea behind it.
        fail_at: number of the turn that raises, counted from 1; 0 for none.
    """

    def __init__(self, loop: VirtualLoop, fail_at: int = 0):
        self.open: dict[str, int] = {}
        self.turns: list[list[Command]] = []
        self.faults: dict[str, str] = {}
        self.fail_at, self.is_closed = fail_at, False
        self.executor, self.elsewhere = TimedExecutor(loop, self.faults), TimedExecutor(loop, self.faults)
        loop.set_default_executor(self.elsewhere)

    def turn(self, commands: list[Command]) -> list[tuple]:
        if self.elsewhere.is_running:
            self.faults[OTHER_THREAD] = (
                "`executor` has one thread, and no other may enter the engine. `asyncio.to_thread` and an executor of "
                "`None` use threads that all parts of the program share."
            )
        elif not self.executor.is_running:
            self.faults[NO_THREAD] = (
                "A turn takes as long as a forward pass. In the event loop's own thread, nothing else runs in that "
                "time: `await event_loop.run_in_executor(executor, engine.turn, arrived)`."
            )
        if self.is_closed:
            self.faults["a turn began after `engine.close()`."] = ""
        if len(self.turns) > 50:
            raise Halted(SPINNING)
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
            self.faults["`engine.close()` was called in the executor's thread."] = (
                "The thread has to leave the engine first: `executor.shutdown()`. After that, call `engine.close()` in "
                "the coroutine itself, without an `await`, which a cancellation could end."
            )
        elif self.executor.queue:
            self.faults["`engine.close()` was called while a turn was still running in the executor's thread."] = (
                "Cancelling the coroutine doesn't stop the thread: it is still in the engine. Wait for it first: "
                "`executor.shutdown()`."
            )
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
        if in_vain(self):
            raise Mistake(
                "your code asks again and again for commands, and nothing else ever runs.",
                idea="With nothing to do, wait for a command: `await commands.take()`.",
            )
        return super().__len__()

    async def take(self) -> list[Command]:
        self.num_vain += self.is_closed
        if self.num_vain > MOST_ASKED:
            raise Halted(SPINNING)
        return await super().take()


class TimedFuture(Future):
    """A future for which the virtual thread can be waited without `await`: the clock stands still meanwhile."""

    def __init__(self, executor: "TimedExecutor"):
        super().__init__()
        self.finish = lambda *_: executor.finish(self)
        acquire = self._condition.acquire  # called by `concurrent.futures.wait` alone
        self._condition.acquire = lambda: (self.finish(), acquire())
        self._condition.wait = self.finish

    def done(self) -> bool:
        if in_vain(self, MOST_ASKED):
            self.finish()
        return super().done()


class TimedExecutor(ThreadPoolExecutor):
    """One "thread" on the virtual clock: a call takes STEP_SECONDS, and its result is there at the end.

    Like a thread, it can't be cancelled: a call that has begun goes on, even if its caller no longer waits for it.

    Attributes:
        queue: calls that have begun or wait.
        has_blocked: whether a caller has waited for a call without `await`.
    """

    def __init__(self, loop: VirtualLoop, faults: dict[str, str]):
        super().__init__(1)
        self.loop, self.faults = loop, faults
        self.queue: deque[tuple[TimedFuture, Callable[[], Any]]] = deque()
        self.is_running = self.is_shut = self.has_blocked = False

    def submit(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future:
        if self.is_shut:
            raise RuntimeError("cannot schedule new futures after shutdown")
        if self.queue:
            self.faults[SECOND_CALL] = ""
        if self.has_blocked:
            self.faults["your coroutine waited for a turn without `await`, and then took another one."] = (
                "`result()` blocks the event loop, so nothing else runs during the turn: `await "
                "event_loop.run_in_executor(...)`."
            )
        future = TimedFuture(self)
        future.set_running_or_notify_cancel()
        self.queue.append((future, lambda: function(*args, **kwargs)))
        self.loop.call_later(STEP_SECONDS * len(self.queue), self._work_until, future)
        return future

    def _work_until(self, done: Future) -> None:
        while self.queue and not Future.done(done):
            future, work = self.queue[0]
            self.is_running = True
            try:
                tell, outcome = future.set_result, work()
            except BaseException as error:
                tell, outcome = future.set_exception, error
            self.is_running = False
            self.queue.popleft()
            tell(outcome)

    def finish(self, future: Future) -> None:
        """Wait for one call, as a thread that blocks does."""
        if not Future.done(future):
            self.has_blocked = True
            # One last call behind the turn, waited for without `await`: the thread has left the engine when it returns.
            self.faults.pop(SECOND_CALL, None)
        self._work_until(future)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        self.is_shut = True
        if wait and self.queue:
            self._work_until(self.queue[-1][0])
