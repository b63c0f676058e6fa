"""An event loop whose clock jumps: no check waits, and a reader that is never woken is noticed at once."""

import asyncio
import contextlib
import selectors
import threading
import time
import types
from collections.abc import Callable, Coroutine, Iterator
from typing import Any
from unittest.mock import patch

from lessons_lib.checks.diagnosis import Shown
from lessons_lib.checks.exercise import Mistake

MOST_ROUNDS = 2_000  # of the loop without any time passing


class Stuck(BaseException):
    """Nothing is left to run, and nothing will ever become ready."""


class Spinning(BaseException):
    """The loop goes round and round, and no time passes."""


class Polling(BaseException):
    """Time passes only because a coroutine sets one timer after another."""


class _JumpingSelector(selectors.DefaultSelector):
    """Never waits: where the loop would sleep, its clock jumps."""

    def __init__(self, most_timers: int) -> None:
        super().__init__()
        self.most_timers = most_timers
        self.now, self.rounds, self.timers = 0.0, 0, 0

    def select(self, timeout=None):
        found = super().select(0)
        self.rounds += 1
        if found:
            return found
        if timeout is None:
            raise Stuck
        if timeout > 0:
            self.now, self.rounds, self.timers = self.now + timeout, 0, self.timers + 1
        if self.rounds > MOST_ROUNDS:
            raise Spinning
        if self.timers > self.most_timers:
            raise Polling
        return found


class VirtualLoop(asyncio.SelectorEventLoop):
    """
    Args:
        most_timers: how often its clock may jump; a coroutine that asks again and again sets a timer for each time.
    """

    def __init__(self, most_timers: int = 1000) -> None:
        self.jumping = _JumpingSelector(most_timers)
        super().__init__(self.jumping)
        self.set_exception_handler(lambda loop, context: None)  # nothing of an attempt may reach stderr

    def time(self) -> float:
        return self.jumping.now


def play(story: Callable[[], Coroutine[object, object, object]], idea: str, most_timers: int = 1000) -> None:
    """Run a coroutine function on a virtual loop.

    Args:
        idea: what an answer that never rests, or never ends, should do.

    Raises:
        Mistake: this, or what the story itself raises.
    """
    loop = VirtualLoop(most_timers)
    try:
        return loop.run_until_complete(story())
    except Stuck:
        what = "your code waits for something that never happens."
    except Spinning:
        what = "your code asks again and again instead of waiting."
    except Polling:
        what = "your code asks again and again, with a pause in between."
    finally:
        _close(loop)
    raise Mistake(what, idea=idea)


def _close(loop: VirtualLoop) -> None:
    left = asyncio.all_tasks(loop)
    for task in left:
        task.cancel()
    loop.jumping.rounds = loop.jumping.timers = 0
    with contextlib.suppress(BaseException):
        loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
    for task in left:
        task._log_destroy_pending = False
    loop.close()


async def settle(rounds: int = 20) -> None:
    """Let every coroutine run until it waits."""
    for _ in range(rounds):
        await asyncio.sleep(0)


async def outcome(task: "asyncio.Future[Any]") -> Callable[[], Any]:
    """A function that returns, or raises, what a task has, for `watch`; of one that was cancelled or goes on, words."""
    await settle()
    if not task.done():
        return lambda: Shown("nothing yet")
    return (lambda: Shown("a CancelledError")) if task.cancelled() else task.result


def state_of(task: "asyncio.Future[Any]", *expected: type[BaseException]) -> Shown:
    """How far a task is, in words; for one that raised an expected error, its name."""
    if not task.done():
        return Shown("going on")
    if task.cancelled():
        return Shown("cancelled")
    error = task.exception()
    if isinstance(error, NotImplementedError):  # a RuntimeError, and what an exercise without an answer raises
        raise error
    return Shown(f"at its end, with {type(error).__name__}" if isinstance(error, expected) else "at its end")


def accident(task: "asyncio.Future[Any]", *expected: type[BaseException]) -> Callable[[], None]:
    """For `watch`: raises what a task raised, unless it is expected."""
    error = task.exception() if task.done() and not task.cancelled() else None

    def raises() -> None:
        if error is not None and not isinstance(error, expected):
            raise error

    return raises


@types.coroutine
def noticing(coroutine, at_await):
    """Run a coroutine, and call `at_await(number)` whenever it is about to wait."""
    number, resume, value = 0, coroutine.send, None
    while True:
        try:
            waits_for = resume(value)
        except StopIteration as ended:
            return ended.value
        at_await(number)
        number += 1
        try:
            value, resume = (yield waits_for), coroutine.send
        except GeneratorExit:
            return coroutine.close()
        except BaseException as error:
            value, resume = error, coroutine.throw


def in_vain(asked: Any, what: str, faults: list[str] | None = None, idea: str = "") -> None:
    """Refuse code that asks an object again and again in one round of the event loop: nothing else runs meanwhile."""
    jumping = asyncio.get_running_loop().jumping  # type: ignore[attr-defined]
    this_round = (jumping.now, jumping.rounds, jumping.timers)
    before, times = vars(asked).get("asked", (None, 0))
    asked.asked = (this_round, times + 1 if this_round == before else 0)
    if asked.asked[1] > 100:
        if faults is not None:
            faults.append(what)
        raise Mistake(what, idea=idea)


class WatchedEvent(asyncio.Event):
    """Refuses a reader that calls `wait` again and again while nothing else runs."""

    def wait(self) -> Coroutine[Any, Any, Any]:
        idea = "Clear the event before you wait for it, and `await` what `wait` returns."
        in_vain(self, "`take` never ends: it calls `wait` again and again, and nothing else ever runs.", idea=idea)
        return super().wait()


@contextlib.contextmanager
def no_sleep(attempt: Any) -> Iterator[None]:
    """`time.sleep` in an attempt would stop the check's event loop, and so everything that could wake it."""
    sleep, thread = time.sleep, threading.get_ident()

    def refuse(seconds: float) -> None:
        if threading.get_ident() != thread:
            return sleep(seconds)
        raise Mistake(
            "`time.sleep` was called: it stops the event loop's thread, so nothing can be put in meanwhile.",
            idea="A coroutine waits with `await`, which lets others run: `await self._has_news.wait()`.",
        )

    names = getattr(getattr(attempt, "take", None), "__globals__", {})
    with (
        patch.dict(names, {name: refuse for name, each in names.items() if each is sleep}),
        patch("time.sleep", refuse),
    ):
        yield
