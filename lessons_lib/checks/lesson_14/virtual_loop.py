"""An event loop whose clock jumps: no check waits, and a reader that is never woken is noticed at once."""

import asyncio
import contextlib
import selectors
import types
from collections.abc import Callable, Coroutine

from lessons_lib.checks.exercise import Mistake, current_case

MOST_ROUNDS = 20_000  # of the loop without any time passing


class Stuck(Exception):
    """Nothing is left to run, and nothing will ever become ready."""


class Spinning(Exception):
    """The loop goes round and round, and no time passes."""


class Polling(Exception):
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


def play(
    story: Callable[[], Coroutine[object, object, object]],
    case: str,
    stuck: tuple[str, str],
    spinning: tuple[str, str] = ("your code asks again and again instead of waiting.", ""),
    polling: tuple[str, str] = ("your code sets timer after timer instead of waiting.", ""),
    most_timers: int = 1000,
) -> object:
    """Run a coroutine function on a virtual loop, and return what it returns.

    Args:
        case: what a message calls the story.
        stuck: what to say, and why, if a coroutine waits for something that never happens.
        spinning, polling: the same for one that asks again and again instead of waiting, without or with a pause.

    Raises:
        Mistake: one of these, or what the story itself raises.
    """
    current_case.text = case
    loop = VirtualLoop(most_timers)
    try:
        return loop.run_until_complete(story())
    except Stuck:
        (what, idea) = stuck
    except Spinning:
        (what, idea) = spinning
    except Polling:
        (what, idea) = polling
    finally:
        _close(loop)
    raise Mistake(what, case=case, idea=idea)


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
        except BaseException as error:
            value, resume = error, coroutine.throw
