"""An engine that computes nothing and keeps books: who calls it, from where, and which blocks are in use."""

import asyncio
import threading
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor

STEP_SECONDS = 0.005  # on the virtual clock
NUM_BLOCKS = 8
MOST_ASKED = 100


class FakeEngine:
    """What the owner's loop knows of an EngineLoop. A command is ("add", id, steps) or ("abort", id).

    Attributes:
        open: ids of requests that have not ended.
        turns: the commands of each turn.
        empty_turns: how many turns had neither commands nor requests.
        faults: what the caller did wrong, each with the idea behind it.
        fail_at: number of the turn that raises, counted from 1; 0 for none.
    """

    def __init__(self, fail_at: int = 0):
        self.steps_left: dict[str, int] = {}
        self.blocks: dict[str, list[int]] = {}
        self.free = deque(range(NUM_BLOCKS))
        self.turns: list[list[tuple]] = []
        self.returned: list[list[tuple]] = []
        self.faults: list[tuple[str, str]] = []
        self.empty_turns, self.fail_at = 0, fail_at
        self.is_closed = False
        self.executor: TimedExecutor | None = None
        self.elsewhere: TimedExecutor | None = None  # for attempts that don't use the executor

    @property
    def open(self) -> set[str]:
        return set(self.steps_left)

    def turn(self, commands) -> list[tuple]:
        commands = list(commands)
        if self.elsewhere is not None and self.elsewhere.is_running:
            self.faults.append(
                (
                    "`engine.turn` was called in another thread than that of the executor that your coroutine was given.",  # noqa: E501
                    "`executor` has one thread, and no other may enter the engine. `asyncio.to_thread` and an executor of "  # noqa: E501
                    "`None` use threads that all parts of the program share.",
                )
            )
        elif self.executor is None or not self.executor.is_running:
            self.faults.append(
                (
                    "`engine.turn` was called outside of the executor that your coroutine was given.",
                    "A turn takes as long as a forward pass. In the event loop's own thread, no other coroutine runs in "  # noqa: E501
                    "that time: `await loop.run_in_executor(executor, engine.turn, commands)`.",
                )
            )
        if self.is_closed:
            self.faults.append(("a turn began after `engine.close()`.", "Close the engine last, when no turn follows."))
        self.turns.append(commands)
        self.empty_turns += not commands and not self.steps_left
        events = [event for command in commands for event in self._carry_out(command)]
        if len(self.turns) == self.fail_at:
            raise RuntimeError("the GPU is gone")
        for id in list(self.steps_left):
            self.steps_left[id] -= 1
            events.append(("token", id))
            if not self.steps_left[id]:
                self._end(id)
                events.append(("ended", id))
        self.returned.append(events)
        return events

    def close(self) -> None:
        if self.executor is not None and self.executor.is_running:
            self.faults.append(
                (
                    "`engine.close()` was called in the executor's thread.",
                    "The thread has to leave the engine first: `executor.shutdown()`. After that, call "
                    "`engine.close()` in the coroutine itself, without an `await`, which a cancellation could end.",
                )
            )
        elif self.executor is not None and self.executor.is_busy:
            self.faults.append(
                (
                    "`engine.close()` was called while a turn was still running in the executor's thread.",
                    "Cancelling the coroutine doesn't stop the thread: it is still in the engine. Two threads in one "
                    "engine step on each other's toes, so wait for it first: `executor.shutdown(wait=True)`.",
                )
            )
        for id in list(self.steps_left):
            self._end(id)
        self.is_closed = True

    def audit(self) -> int:
        """How many blocks are in use."""
        return NUM_BLOCKS - len(self.free)

    def _carry_out(self, command: tuple) -> list[tuple]:
        if command[0] == "add":
            _, id, steps = command
            if id in self.steps_left:
                self.faults.append(
                    (
                        f"the command {command} was carried out twice.",
                        "Each turn gets what has arrived since the last one. Start each turn with a new list.",
                    )
                )
                return []
            self.steps_left[id] = steps
            self.blocks[id] = [self.free.popleft()]
            return [("accepted", id)]
        if command[1] in self.steps_left:
            self._end(command[1])
            return [("ended", command[1])]
        return []

    def _end(self, id: str) -> None:
        del self.steps_left[id]
        self.free.extend(self.blocks.pop(id))


class Waiters(list):
    """Of a future: `concurrent.futures.wait` adds one for each call, and then blocks until it is told of the end."""

    def __init__(self, future: "TimedFuture"):
        super().__init__()
        self.future = future

    def append(self, waiter) -> None:
        super().append(waiter)
        self.future.executor.finish(self.future)


class TimedFuture(Future):
    """A future for which the virtual thread can be waited without `await`: the clock stands still meanwhile."""

    def __init__(self, executor: "TimedExecutor"):
        super().__init__()
        self.executor = executor
        self.second_call: tuple[str, str] | None = None  # the fault, if a turn was still running
        self._waiters = Waiters(self)
        self.asked_in, self.num_asked = None, 0  # the round of the event loop in which `done` was called, how often

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

    def result(self, timeout=None):
        self.executor.finish(self)
        return super().result(timeout)

    def exception(self, timeout=None):
        self.executor.finish(self)
        return super().exception(timeout)


class TimedExecutor(ThreadPoolExecutor):
    """One "thread" on the virtual clock: a call takes STEP_SECONDS, and its result is there at the end.

    Like a thread, it can't be cancelled: a call that has begun goes on, even if its caller no longer waits for it.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, engine: FakeEngine):
        super().__init__(1)
        self.loop, self.engine = loop, engine
        self.queue: deque[tuple[TimedFuture, object]] = deque()
        self.timer: asyncio.TimerHandle | None = None
        self.is_running = self.is_shut = False
        self.has_blocked = False  # whether a caller has waited for a call without `await`

    @property
    def is_busy(self) -> bool:
        """Whether a call has begun or waits, and hasn't returned."""
        return bool(self.queue)

    def submit(self, function, /, *args, **kwargs) -> Future:
        if self.is_shut:
            raise RuntimeError("cannot schedule new futures after shutdown")
        if threading.get_ident() != self.loop._thread_id:
            raise RuntimeError("submit was called in another thread")
        second_call = None
        if self.queue:
            second_call = (
                "your code gave the executor another call while a turn was still running.",
                "Wait for each turn before you start the next: `await` what `run_in_executor` returns. And to wait "
                "for the last turn before you clean up, use `executor.shutdown()`: an `await` may be cancelled.",
            )
            self.engine.faults.append(second_call)
        if self.has_blocked:
            self.engine.faults.append(
                (
                    "your coroutine waited for a turn without `await`, and then took another one.",
                    "`result()` of a future of `executor.submit` blocks the event loop, so no other coroutine runs during the turn: `await loop.run_in_executor(executor, engine.turn, commands)`.",  # noqa: E501
                )
            )
        future = TimedFuture(self)
        future.second_call = second_call
        future.set_running_or_notify_cancel()
        self.queue.append((future, lambda: function(*args, **kwargs)))
        if self.timer is None:
            self.timer = self.loop.call_later(STEP_SECONDS, self._finish_one)
        return future

    def _finish_one(self) -> None:
        self.timer = None
        if not self.queue:
            return
        future, work = self.queue[0]
        self.is_running = True
        try:
            result, error = work(), None
        except BaseException as raised:
            result, error = None, raised
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
        if not future.done():
            self.has_blocked = True
            # One last call behind the turn, waited for without `await`: the thread has left the engine when it returns.
            if future.second_call in self.engine.faults:
                self.engine.faults.remove(future.second_call)
        while self.queue and not future.done():
            self._finish_now()

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        self.is_shut = True
        if wait:
            while self.queue:
                self._finish_now()

    def _finish_now(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
        self._finish_one()
