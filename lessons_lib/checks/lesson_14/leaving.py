"""14.3, `stream_until_gone`: a client that leaves is noticed at once, and nothing is left of its request."""

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

from lessons_lib.checks.diagnosis import Shown, Task, Watch, mistakes
from lessons_lib.checks.exercise import Mistake
from lessons_lib.checks.lesson_14.fake_client import SLOW, Case, EngineFailed, FakeClient, FakeRequest, cases, tell
from lessons_lib.checks.lesson_14.virtual_loop import accident, now, play, settle, started, state_of, until

WAIT = (
    "Wait for both at once, the work and `receive`: `asyncio.wait`, without a timeout. A client that stays says "
    "nothing more, so when the work has ended, stop listening, and don't wait for the listener."
)
EXPECTED = (EngineFailed, ConnectionError, TimeoutError, BaseExceptionGroup)


def run(attempt: Any, case: Case, watch: Watch) -> None:
    async def story() -> None:
        loop = asyncio.get_running_loop()
        hit: asyncio.Future[None] = loop.create_future()
        client, request = FakeClient(case), FakeRequest(case)

        def at_await(number: int) -> None:
            if number == case.at_await:
                loop.call_soon(lambda: (owner.cancel(), loop.call_soon(owner.cancel), hit.set_result(None)))

        def end() -> dict[str, Any]:
            doing = request.waits or ("waiting in `send`" if client.is_sending else "")
            if case.late is not None:  # either end is right
                return {"whether the request is still open": request.is_open and not doing}
            was_cut = case.at_await and not hit.done()  # it has ended before its await of this number
            state = Shown("cancelled") if was_cut else state_of(owner, *EXPECTED)
            seen: dict[str, Any] = {"the state of your coroutine": state}
            if not (case.at_await or case.cancel):
                seen["what it returned"] = owner.result() if state == "at its end" else None
                seen["when `send` got what, in ms"] = client.sent
            return seen | {
                "what its work still does": Shown(doing or "nothing"),
                "whether the request is still open": request.is_open,
                "whether a call of `receive` still waits": client.is_receiving,
                "how many of its tasks still run": len(asyncio.all_tasks() - {owner, asyncio.current_task()}),
            }

        def look_at(look: Callable[[], dict[str, Any]]) -> None:
            for what, idea in client.faults.items() if not case.at_await else ():
                raise Mistake(what, idea=idea)
            clock = f"{now() / 1000:g} s" if now() >= 1000 else f"{now():g} ms"
            watch(clock, accident, owner, *EXPECTED, look=look)

        coroutine = attempt(request.add, client.receive, client.send)
        owner = started("stream_until_gone", coroutine, "It waits for the engine and for the client", at_await)
        moment = case.leaves or case.cancel or 0.0
        if moment and case.late is None and not case.at_await:
            await until(moment - 1)
            look_at(lambda: {"whether a call of `receive` waits": Shown(client.listens())})
        if case.at_await:
            await asyncio.wait((hit, owner), return_when=asyncio.FIRST_COMPLETED)
        else:
            await until(moment or case.first_token + 190)
        if case.cancel:
            await settle(case.late or 0)
            owner.cancel()
        if case.late is not None:
            await settle(10)
            await asyncio.wait([owner], timeout=4 * SLOW)
        if moment and not case.at_await:
            await until(moment + 1)
        await settle()
        look_at(end)

    play(story, WAIT, most_timers=60)


async def no_close(streams: list[Any], add: Any, send: Any) -> None:
    streams.append(await add())
    async for tokens in streams[0]:
        await send(tokens)


MISTAKES = """
Nothing else tells that a client leaves: a `send` to one that has left raises nothing. Listen next to the work.
- sending, leaving = ... await asyncio.gather( => return await send_all(add, send) is None
The one that listens must end the work, whatever it waits for, `send` too: cancel its task.
- if not sending.done(): ... return False => if not sending.done(): await sending; return False
A message of another type means nothing, however many come: call `receive` again until “http.disconnect”.
- while (await receive()) ... pass
+ if (await receive())["type"] != "http.disconnect": await asyncio.get_running_loop().create_future()
A server has thousands of such clients. `receive` and the stream wake it when there is news: wait for both at once,
without a timeout.
- await asyncio.wait( => while not sending.done() and not leaving.done(): await asyncio.sleep(0.01)
The client stays, however long the engine takes. When a timeout is over, no client has left.
~ FIRST_COMPLETED) => FIRST_COMPLETED, timeout=30)
A client that stays says nothing more. Wait for the first of the two tasks, not for both.
~ FIRST_COMPLETED => FIRST_EXCEPTION
or - sending, leaving = ... await asyncio.gather(
+ async with await add() as stream:
+     async for tokens in stream: await send(tokens); await receive()
+ return True
On a connection that stays open, the listener would take the next request's messages. Cancel it when the work has ended.
- leaving.cancel() ... await asyncio.gather( => await asyncio.gather(sending, return_exceptions=True)
A task doesn't end with the coroutine that waits for it: cancel the work in a `finally`, which every way out passes.
- sending.cancel() ... await asyncio.gather( => pass
Every way out must cancel both tasks, your coroutine's own cancellation, too: that's what `finally` is for.
- try: ... await asyncio.wait(
+ await asyncio.wait((sending, leaving), return_when=asyncio.FIRST_COMPLETED)
+ try:
The second cancellation ends your cleanup at its first `await`. Cancel both tasks before that.
< sending.cancel() => leaving.cancel(); await asyncio.gather(leaving, return_exceptions=True)
or > sending.cancel() => await asyncio.gather(sending, return_exceptions=True)
The request is aborted by your cleanup, after an `await` that a second cancellation ends. Abort it where its tokens are
sent, as `send_all` does.
< async def wait_until_gone( => streams = []
~ send_all(add, send) => no_close(streams, add, send)
> await asyncio.gather( => for stream in streams: await stream.aclose()
Don't swallow `CancelledError`: it is how the server says stop.
< finally: => except asyncio.CancelledError: return False
If you suppress the end of a task that you have cancelled, your own cancellation may be suppressed with it.
- if not sending.done(): ... return False
+ if not sending.done():
+     sending.cancel()
+     with contextlib.suppress(asyncio.CancelledError): await sending
+     return False
- await asyncio.gather(
Nothing has cancelled *it*. What you cancel yourself, wait for without letting its end out: ask `task.cancelled()`, or
`asyncio.gather(…, return_exceptions=True)`.
- if not sending.done(): ... return False => if not sending.done(): sending.cancel(); await sending
A client that leaves isn't an error: return False.
~ return False => raise ConnectionError("gone")
An exception stays in its task until something asks for it, and `task.result()` raises it.
- sending.result()
Only “http.disconnect” says that the client has left. Every error of the work goes on to the caller.
< finally: => except Exception: return False
or < finally: => except TimeoutError: return False
Which of the two ended first, the work or the listening? Ask the work: `task.done()`. True says that all was sent.
~ return False => return True
or ~ return False => return None
or ~ return True => return None
or ~ if not sending.done() => if sending.done()
The stream is there, and nothing closes it, because `add` is in a task of its own: yours may be stopped before the `try`
whose `finally` calls `aclose`. Let one task do both, as `send_all` does.
- sending, leaving = ... if not sending.done():
+ leaving, adding = asyncio.ensure_future(wait_until_gone()), asyncio.ensure_future(add())
+ async def added(): return adding.result()
+ sending = adding
+ try:
+     await asyncio.wait((adding, leaving), return_when=asyncio.FIRST_COMPLETED)
+     if leaving.done(): return False
+     sending = asyncio.ensure_future(send_all(added, send))
+     await asyncio.wait((sending, leaving), return_when=asyncio.FIRST_COMPLETED)
+     if not sending.done():
"""

TASK = Task(
    reference="lessons_lib.serving.http.leaving:stream_until_gone",
    cases=cases,
    run=run,
    tell=tell,
    known=mistakes(MISTAKES, contextlib=contextlib, no_close=no_close),
    about={
        "the state of your coroutine": "When the client leaves, the work ends at once; a cancelled coroutine ends with "
        "CancelledError; an error of the work goes on to the caller, as it is and in no group.",
        "when `send` got what, in ms": "Each list that the stream yields goes to `send` as it is, as soon as "
        "it is there.",
        "whether a call of `receive` waits": "A client may leave at any time, so a call of `receive` should wait from "
        "the first moment to the last, in a task of its own.",
        "what its work still does": "A task doesn't end with the coroutine that started it: cancel it, in a `finally`, "
        "before anything that you await there. Or does `asyncio.shield` keep it from ending?",
        "whether the request is still open": "`stream.aclose()` aborts a request. Put it into a `finally`: every way "
        "out passes through it.",
        "whether a call of `receive` still waits": "Cancel the listener, before anything that your cleanup awaits.",
        "how many of its tasks still run": "Cancel what you have started.",
        "what it returned": "True if all tokens were sent, False if the client left.",
    },
    enough=6,
)

EXERCISE = TASK.exercise(
    id="14.3",
    title="a client that leaves",
    time_limit=1.5,
    hints=(
        "Two things are waited for at the same time, and either may end first. A coroutine can wait in one place only. "
        "And what you start has to be stopped again, on every way out.",
        "Two coroutines: `send_all` adds the request and sends its tokens; another one calls `receive` until the "
        "message says that the client has left. Start both with `asyncio.ensure_future`, wait for the first one to "
        "end, and cancel both in `finally`.",
        "`sending = asyncio.ensure_future(send_all(add, send))`; `leaving` is a task of an inner coroutine with `while "
        '(await receive())["type"] != ...: pass`. After the `wait`: if `sending` isn\'t done, the client has left. '
        "Otherwise `sending.result()` raises what went wrong. `finally:` cancel both.",
    ),
    points=3,
)
