"""Lesson 14: the limits of what a server takes on. Beyond them, it refuses at once: a request that waits for a minute
and then times out has cost as much as one that was served."""

import time
from collections import deque
from collections.abc import Callable

from lessons_lib.models.validate import BadRequest

NUM_RECENT = 64  # ended requests, whose rate counts
SHORTEST_WAIT, LONGEST_WAIT = 0.1, 60.0  # seconds


class Overloaded(RuntimeError):
    """The server has as much to do as it takes on. In `retry_after` seconds there is likely to be room."""

    def __init__(self, message: str, retry_after: float):
        super().__init__(message, retry_after)
        self.message, self.retry_after = message, retry_after

    def __str__(self) -> str:
        return self.message


class AdmissionControl:
    """Bounds the requests in flight, waiting or running, and the tokens of their prompts.

    Both are needed: many short prompts fill the queue, and a few long ones hold up all the others.

    Attributes:
        max_requests, max_prompt_tokens: the bounds; None for none.
        num_requests, num_prompt_tokens: in flight now.
        num_refused: requests that it has refused.
    """

    def __init__(
        self, max_requests: int | None = 256, max_prompt_tokens: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ):  # fmt: skip
        for name, limit in (("max_requests", max_requests), ("max_prompt_tokens", max_prompt_tokens)):
            if limit is not None and limit < 1:
                raise ValueError(f"{name} is {limit}; it must be at least 1, or None for no limit.")
        self.max_requests, self.max_prompt_tokens, self.clock = max_requests, max_prompt_tokens, clock
        self.num_requests = self.num_prompt_tokens = self.num_refused = 0
        self._ended: deque[tuple[float, int]] = deque(maxlen=NUM_RECENT)  # (when, tokens of its prompt)

    def admit(self, num_prompt_tokens: int) -> None:
        """Count one more request.

        Raises:
            BadRequest: the prompt is longer than all prompts together may be.
            Overloaded: there is no room. In both cases, nothing is counted.
        """
        most = self.max_prompt_tokens
        if most is not None and num_prompt_tokens > most:
            raise BadRequest(
                f"the prompt has {num_prompt_tokens} tokens; this server takes {most} at a time, in all prompts "
                "together. Shorten the prompt."
            )
        if self.max_requests is not None and self.num_requests >= self.max_requests:
            raise self._overloaded(
                f"{self.num_requests} requests are in flight, the limit is {self.max_requests}", 1, 0
            )
        if most is not None and (too_many := self.num_prompt_tokens + num_prompt_tokens - most) > 0:
            what = f"prompts of {self.num_prompt_tokens} tokens are in flight, and {num_prompt_tokens} more exceed the"
            raise self._overloaded(f"{what} limit of {most}", 0, too_many)
        self.num_requests += 1
        self.num_prompt_tokens += num_prompt_tokens

    def release(self, num_prompt_tokens: int, *, was_served: bool = True) -> None:
        """Count a request no more: it has ended. If it was served, it counts in the rate at which requests end."""
        self.num_requests -= 1
        self.num_prompt_tokens -= num_prompt_tokens
        if was_served:
            self._ended.append((self.clock(), num_prompt_tokens))

    def retry_after(self, num_requests: int, num_prompt_tokens: int) -> float:
        """Estimate from the recent rate how long these numbers of requests and prompt tokens take to end.

        Returns:
            seconds, 0.1 to 60; 1 if too few requests have ended to tell.
        """
        if len(self._ended) < 2:
            return 1.0
        seconds = max(0.0, self.clock() - self._ended[0][0])  # until now: if nothing ends any more, the rate falls
        tokens = sum(count for _, count in self._ended)
        needed = max(num_requests / len(self._ended), num_prompt_tokens / max(1, tokens))
        return min(max(SHORTEST_WAIT, seconds * needed), LONGEST_WAIT)

    def _overloaded(self, what: str, num_requests: int, num_prompt_tokens: int) -> Overloaded:
        self.num_refused += 1
        seconds = self.retry_after(num_requests, num_prompt_tokens)
        return Overloaded(f"the server is full: {what}. Try again in {seconds:.1f} s.", seconds)
