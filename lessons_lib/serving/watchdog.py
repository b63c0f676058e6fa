"""Lesson 14: a step that never returns. The engine is alive and silent, so nothing else notices it.

A sign of life from a thread beside the engine would prove nothing: that thread lives on while the step hangs. Only the
messages of the steps themselves count.
"""

import asyncio
import math
from typing import Protocol

STEP_TIMEOUT = 300.0  # seconds; as vLLM's VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS
NUM_LOOKS = 10  # in a row; fewer would notice a hang later, more would wake the front more often


class Watched(Protocol):
    """What a StepWatch asks of a front.

    Attributes:
        num_heard: how many times the engine has said something.
    """

    num_heard: int

    @property
    def is_waiting(self) -> bool:
        """Whether the engine owes it something."""

    def give_up(self, reason: str) -> None:
        """The engine won't say anything any more."""


class StepWatch:
    """Gives an engine up that says nothing for `timeout` seconds, though requests are open.

    It looks `NUM_LOOKS` times in that time, and counts looks, not seconds: after a time in which this process itself
    stood still (a suspended laptop, a debugger), messages lie unread, and the engine is not to blame.

    Attributes:
        timeout: in seconds; None for no limit.
        num_silent: looks in a row without a word.
    """

    def __init__(self, front: Watched, timeout: float | None):
        """
        Raises:
            ValueError: the timeout is no time.
        """
        check_step_timeout(timeout)
        self.front, self.timeout = front, timeout
        self.num_silent, self._num_heard = 0, -1
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """From now on. The engine is ready: it may take any time to start."""
        if self.timeout is not None:
            self._timer = asyncio.get_running_loop().call_later(self.timeout / NUM_LOOKS, self._look_again)

    def stop(self) -> None:
        """No more looks."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def look(self) -> None:
        """Has it said anything since the last look? If not for too long, give it up."""
        if not self.front.is_waiting:
            self._num_heard = -1  # whatever comes next, its time begins with the look that sees it first
        elif self.front.num_heard != self._num_heard:
            self.num_silent, self._num_heard = 0, self.front.num_heard
        else:
            self.num_silent += 1
            if self.num_silent == NUM_LOOKS:
                self.stop()
                self.front.give_up(
                    f"EngineDead: the engine hangs: it has said nothing for {self.timeout:g} s, though requests are "
                    "open. If a step can take longer, raise step_timeout (--step-timeout of the server)."
                )

    def _look_again(self) -> None:
        self.start()
        self.look()


def check_step_timeout(timeout: float | None) -> None:
    """Raises:
    ValueError: it is no time that can be waited for.
    """
    if timeout is not None and not 0 < timeout < math.inf:
        raise ValueError(f"step_timeout is {timeout}; it must be a number of seconds above 0, or None for no limit.")
