"""A client, a reader and a stream for 14.3: what is sent, when the client leaves, and what is left running."""

import asyncio
import inspect

from lessons_lib.checks.exercise import Mistake, call, short
from lessons_lib.checks.lesson_14.fake_client import (
    BETWEEN_TOKENS,
    FIRST_TOKEN,
    FakeClient,
    FakeRequest,
)
from lessons_lib.checks.lesson_14.virtual_loop import settle

STUCK = (
    "your coroutine waits for something that never happens.",
    "A client that stays says nothing more. When the work has ended, stop listening, and don't wait for the listener.",
)
SPINNING = ("your coroutine asks again and again instead of waiting.", "Wait for both at once: `asyncio.wait`.")
POLLING = (
    "your coroutine wakes up again and again while nothing happens.",
    "A server has thousands of such clients. `receive` and the stream wake it when there is news: wait for both at "
    "once, without a timeout.",
)
IN_STREAM = FIRST_TOKEN + 1.5 * BETWEEN_TOKENS
SLOW = 10.0
MOST_AWAITS = 40


class Scene:
    """One run of an attempt with a fake client and a fake request."""

    def __init__(self, attempt, case: str, client: FakeClient, request: FakeRequest | None = None):
        self.attempt, self.case, self.client = attempt, case, client
        self.request = request or FakeRequest()
        self.closes = True  # whether the attempt calls `aclose` at all

    def start(self, wrap=lambda coroutine: coroutine) -> asyncio.Task:
        coroutine = call(self.attempt, self.request.add, self.client.receive, self.client.send, case=self.case)
        if not inspect.iscoroutine(coroutine):
            raise Mistake(
                f"`stream_until_gone` should be a coroutine; yours returned {short(coroutine)}.",
                case=self.case,
                idea="It waits for the engine and for the client: `async def`.",
            )
        return asyncio.ensure_future(wrap(coroutine))

    def doing(self) -> str:
        """What still goes on, in words; "" for nothing."""
        if self.request.waiting_in:
            return {"add": "waits for the engine in `add`", "tokens": "waits for tokens"}[self.request.waiting_in]
        return "waits in `send`" if self.client.is_sending else ""

    def refuse_faults(self) -> None:
        if self.client.faults:
            what, idea = self.client.faults[0]
            raise Mistake(what, case=self.case, idea=idea)

    async def audit(self, owner: asyncio.Task, how: str) -> None:
        """After the end: the request isn't open, and no task runs on. A task that was cancelled, and has ended without
        being awaited, is fine.

        Args:
            how: how it ended, for messages.
        """
        await settle()
        if doing := self.doing():
            raise Mistake(
                f"your coroutine has ended ({how}), and its work goes on: it {doing}.",
                case=self.case,
                idea="A task doesn't end with the coroutine that started it: `cancel` it, in a `finally`. If you do: "
                "does `asyncio.shield`, or a task of its own, keep this part from ending?"
                + (
                    " Does your cleanup await something before? The second cancellation ends it there."
                    if "once more" in self.case
                    else ""
                ),
            )
        if self.request.is_open:
            aborts = "`await stream.aclose()` aborts it. In a `finally`, every way out passes through it; "
            if "once more" in self.case:
                aborts = (
                    "`await stream.aclose()` aborts it, and never waits. Does your cleanup wait for something else "
                    f"before it? The second cancellation ends it there.{aborts[aborts.index(' In a') :]}"
                )
            raise Mistake(
                f"your coroutine has ended ({how}), and the request is still open: it keeps its blocks.",
                case=self.case,
                idea=f"{aborts}put it around all that uses the stream."
                if self.closes
                else "`stream.aclose()` aborts a request, and yours never calls it. Put it into a `finally`.",
            )
        if self.client.is_receiving:
            raise Mistake(
                f"your coroutine has ended ({how}), and a call of `receive` still waits.",
                case=self.case,
                idea="On a connection that stays open, it would take the next request's messages. Cancel the listener"
                + (
                    ", before anything that your cleanup awaits: the second cancellation may end the cleanup there."
                    if "once more" in self.case
                    else "."
                ),
            )
        left = asyncio.all_tasks() - {owner, asyncio.current_task()}
        if left:
            raise Mistake(
                f"your coroutine has ended ({how}), and {len(left)} of its tasks still run.",
                case=self.case,
                idea="Cancel what you have started.",
            )
