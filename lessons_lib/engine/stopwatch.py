"""Lesson 12: where the time of one engine step goes."""

import time
from collections.abc import Callable


class StopWatch:
    """How long each part of a step takes.

    Attributes:
        start: when it began, on the given clock.
        laps: part -> seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter):
        self._clock = clock
        self.start = self._last = clock()
        self.laps: dict[str, float] = {}

    def go_on(self) -> None:
        """The time since the last lap belongs to something else."""
        self._last = self._clock()

    def lap(self, part: str) -> None:
        """The time since the last lap was this part."""
        now = self._clock()
        self.laps[part] = self.laps.get(part, 0.0) + max(0.0, now - self._last)  # some clocks are set back
        self._last = now
