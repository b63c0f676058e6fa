"""An event loop whose clock jumps: no check waits, and a reader that is never woken is noticed at once."""

import asyncio
import contextlib
import inspect
import selectors
import threading
import time
import types
from collections.abc import Callable, Coroutine, Iterator
from typing import Any
from unittest.mock import patch

from lessons_lib.checks.diagnosis import Shown
from lessons_lib.checks.exercise import Mistake, short

MOST_ROUNDS = 2_000  # of the loop without any time passing
SPINNING = "your code asks again and again instead of waiting."


class Halted(BaseException):
    """The loop goes on forever, or can't go on."""


class _JumpingSelector(selectors.DefaultSelector):
    """Never waits: where the loop would sleep, its clock jumps."""

    most_timers = 1000
    now, rounds, timers = 0.0, 0, 0

    def select(self, timeout=None):
        found = super().select(0)
        self.rounds += 1
        if found:
            return found
        if timeout is None:
            raise Halted("your code waits for something that never happens.")
        if timeout > 0:
            self.now, self.rounds, self.timers = self.now + timeout, 0, self.timers + 1
        if self.rounds > MOST_ROUNDS:
            raise Halted(SPINNING)
        if self.timers > self.most_timers:
            raise Halted("your code asks again and again, with a pause in between.")
        return found


class VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self.jumping = _JumpingSelector()
        super().__init__(self.jumping)
        self.set_exception_handler(lambda loop, context: None)  # nothing of an attempt may reach stderr

    def time(self) -> float:
        return self.jumping.now


def play(story: Callable[[], Coroutine[object, object, object]], idea: str, most_timers: int = 1000) -> None:
    """Run a coroutine function on a virtual loop.

    Args:
        idea: what an answer that never rests, or never ends, should do.
        most_timers: how often the clock may jump; a coroutine that asks again and again sets a timer for each time.

    Raises:
        Mistake: this, or what the story itself raises.
    """
    loop = VirtualLoop()
    loop.jumping.most_timers = most_timers
    try:
        return loop.run_until_complete(story())
    except Halted as halted:
        what = str(halted)
    finally:
        left = asyncio.all_tasks(loop)
        for task in left:
            task.cancel()
            task._log_destroy_pending = False  # type: ignore[attr-defined]
        loop.jumping.rounds = loop.jumping.timers = 0
        with contextlib.suppress(BaseException):
            loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
        loop.close()
    raise Mistake(what, idea=idea)


async def settle(rounds: int = 20) -> None:
    """Let every coroutine run until it waits."""
    for _ in range(rounds):
        await asyncio.sleep(0)


def now() -> float:
    """Milliseconds."""
    return 1000 * asyncio.get_running_loop().time()


async def until(when: float) -> None:
    if when > now():
        await asyncio.sleep((when - now()) / 1000)


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


def accident(task: "asyncio.Future[Any]", *expected: type[BaseException]) -> None:
    """Raise what a task raised, unless it is expected."""
    error = task.exception() if task.done() and not task.cancelled() else None
    if error is not None and not isinstance(error, expected):
        raise error


def started(name: str, coroutine: Any, idea: str, at_await: Callable[[int], object]) -> "asyncio.Future[Any]":
    """A task of an answer's coroutine. `at_await(number)` is called whenever it is about to wait."""
    if not inspect.iscoroutine(coroutine):
        raise Mistake(
            f"`{name}` should be a coroutine; yours returned {short(coroutine)}.", idea=f"{idea}: `async def`."
        )
    return asyncio.ensure_future(_noticing(coroutine, at_await))


@types.coroutine
def _noticing(coroutine, at_await):
    number, resume, value = 0, coroutine.send, None
    while True:
        try:
            waits_for = resume(value)
        except StopIteration as ended:
            return ended.value
        number += 1
        at_await(number)
        try:
            value, resume = (yield waits_for), coroutine.send
        except GeneratorExit:
            return coroutine.close()
        except BaseException as error:
            value, resume = error, coroutine.throw


def in_vain(asked: Any, most: int = 100) -> bool:
    """Whether an object is asked again and again in one round of the event loop: nothing else runs meanwhile."""
    jumping = asyncio.get_running_loop().jumping  # type: ignore[attr-defined]
    this_round = (jumping.now, jumping.rounds, jumping.timers)
    before, times = vars(asked).get("asked", (None, 0))
    asked.asked = (this_round, times + 1 if this_round == before else 1)
    return asked.asked[1] > most


class WatchedEvent(asyncio.Event):
    """Refuses a reader that calls `wait` again and again while nothing else runs."""

    def wait(self) -> Coroutine[Any, Any, Any]:
        if in_vain(self):
            raise Mistake(
                "`take` never ends: it calls `wait` again and again, and nothing else ever runs.",
                idea="Clear the event before you wait for it, and `await` what `wait` returns.",
            )
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
    aliases = {name: refuse for name, each in names.items() if each is sleep}
    with patch.dict(names, aliases), patch("time.sleep", refuse):
        yield
