"""Right answers to the exercises of lesson 14, written in other ways than the reference, and wrong ones that what they
meet explains. The other wrong ones are the checks' lists."""

import asyncio
import concurrent.futures
import contextlib
import time

import anyio
from answers import rights, slips

from lessons_lib.serving.http.leaving import stream_until_gone
from lessons_lib.serving.mailbox import Mailbox
from lessons_lib.serving.owner import own_engine

MAILBOXES = """
an end marker in an unbounded queue
~ asyncio.Event() => asyncio.Queue()
- self._items.append(item) ... self._has_news.set() => self._has_news.put_nowait(item)
- self.is_closed = True ... self._has_news.set()
+ self.put(END)
+ self.is_closed = True
- while not self._items ... return items
+ items = [] if self.is_over else [await self._has_news.get()]
+ while not self._has_news.empty(): items.append(self._has_news.get_nowait())
+ if items[-1:] == [END]: self.is_over = items.pop()
+ return items
~ self._items => self.is_over
waiters' futures, each woken and none given anything
~ asyncio.Event() => []
~ self._has_news.set() => [each.set_result(None) for each in self._has_news if not each.done()]
- self._has_news.clear() ... await self._has_news.wait()
+ self._has_news += [asyncio.get_running_loop().create_future()]
+ await self._has_news[-1]
= items, self._items = tuple(self._items), []
the flag says that the mailbox has items, or is closed
- while not self._items ... return items
+ while True:
+     await self._has_news.wait()
+     items = self._items[:]
+     del self._items[: len(items)]
+     if not self.is_closed: self._has_news.clear()
+     if items or self.is_closed: return items
"""

OWNERS = """
waits behind the last turn
- arrived = ... if arrived
+ arrived = await commands.take() if len(commands) or not engine.open else []
+ if not commands.is_closed:
- executor.shutdown(wait=True) => executor.submit(lambda: None).result()
shields its turn until it is over, as often as it is cancelled
- deliver(
+ turn, cancelled = event_loop.run_in_executor(executor, engine.turn, arrived), None
+ while not turn.done():
+     try: await asyncio.shield(turn)
+     except asyncio.CancelledError as error: cancelled = error
+     except Exception: break
+ deliver(turn.result())
+ if cancelled: raise cancelled
- executor.shutdown(wait=True)
the executor as a context manager: leaving it shuts it down
- try: ... engine.close()
+ with contextlib.ExitStack() as stack:
+     stack.callback(engine.close)
+     stack.enter_context(executor)
+     while not commands.is_closed:
+         arrived = await commands.take() if len(commands) or not engine.open else []
+         if arrived or engine.open: deliver(await asyncio.wrap_future(executor.submit(engine.turn, arrived)))
an outer loop that waits, an inner one that runs while there are requests
- while not commands.is_closed: ... deliver(
+ while arrived := await commands.take():
+     deliver(await event_loop.run_in_executor(executor, engine.turn, arrived))
+     while engine.open and not commands.is_closed:
+         arrived = await commands.take() if len(commands) else []
+         deliver(await event_loop.run_in_executor(executor, engine.turn, arrived))
+     if commands.is_closed: break
"""
WAITS_FOR_ITS_LAST_TURN = """
waits for its last turn
- event_loop =
+ turn = concurrent.futures.Future()
+ turn.set_result(None)
- deliver(
+ turn = executor.submit(engine.turn, arrived)
+ deliver(await asyncio.wrap_future(turn))
- executor.shutdown(wait=True) => """
WAITS = (
    "concurrent.futures.wait([turn])",
    "while not turn.done(): time.sleep(0.001)",
    "with contextlib.suppress(BaseException): turn.result()",  # it raises in the loop above
)

STREAMERS = """
the work stays in the coroutine itself; the listener cancels it, and says so
- sending, leaving = ... await asyncio.gather(
+ me, has_left = asyncio.current_task(), []
+ async def listen():
+     await wait_until_gone()
+     has_left.append(True)
+     me.cancel()
+ listening = asyncio.ensure_future(listen())
+ try: await send_all(add, send)
+ except asyncio.CancelledError:
+     if not has_left: raise
+ finally: listening.cancel()
+ return not has_left
the end of the listener cancels the work, and the coroutine waits for the work alone
- await asyncio.wait( ... sending.result()
+ leaving.add_done_callback(lambda _: sending.cancel())
+ try: await sending
+ except asyncio.CancelledError:
+     if not leaving.done() or leaving.cancelled(): raise
+     return False
- await asyncio.gather(
Starlette's way: two tasks of a group, and the first one to end cancels the other
- sending, leaving = ... await asyncio.gather(
+ failed, is_whole = [], False
+ async with anyio.create_task_group() as group:
+     async def listen():
+         await wait_until_gone()
+         group.cancel_scope.cancel()
+     group.start_soon(listen)
+     try:
+         await send_all(add, send)
+         is_whole = True
+     except Exception as error: failed.append(error)
+     group.cancel_scope.cancel()
+ if failed: raise failed[0]
+ return is_whole
races every wait
- sending, leaving = ... await asyncio.gather(
+ adding, leaving = asyncio.ensure_future(add()), asyncio.ensure_future(wait_until_gone())
+ async def race(awaitable):
+     task = asyncio.ensure_future(awaitable)
+     try:
+         await asyncio.wait((task, leaving), return_when=asyncio.FIRST_COMPLETED)
+         if not task.done(): raise ConnectionAbortedError
+         return task.result()
+     finally: task.cancel()
+ async def one_batch(): return await anext(stream, None)
+ try:
+     stream = await race(adding)
+     while tokens := await race(one_batch()): await race(send(tokens))
+     return True
+ except ConnectionAbortedError: return False
+ finally:
+     leaving.cancel()
+     if adding.done() and not adding.cancelled() and adding.exception() is None: await adding.result().aclose()
"""

SLIPS = {
    Mailbox: """
`async def take`
- async def take ... return items => def take(self): return self._items
costs an idle server as much as work
- self._has_news.clear() ... await self._has_news.wait() => await asyncio.sleep(0)
or - self._has_news.clear() ... await self._has_news.wait() => await asyncio.sleep(0.01)
Clear the event before you wait for it
~ await self._has_news.wait() => self._has_news.wait().close()
""",
    own_engine: """
`async def`
- async def own_engine( ... engine.close() => def own_engine(engine, commands, deliver, executor): engine.close()
no other may enter the engine
~ run_in_executor(executor, => run_in_executor(None,
In the event loop's own thread, nothing else runs
~ await event_loop.run_in_executor(executor, engine.turn, arrived) => engine.turn(arrived)
`result()` blocks the event loop
~ await event_loop.run_in_executor(executor, engine.turn, arrived) => executor.submit(engine.turn, arrived).result()
Wait for it first: `executor.shutdown()`
~ wait=True => wait=False
call `engine.close()` in the coroutine itself
- executor.shutdown(wait=True) ... engine.close() => executor.submit(engine.close); executor.shutdown()
a turn was still running
- deliver( => turns = [executor.submit(engine.turn, arrived) for _ in (1, 2)]; await asyncio.wrap_future(turns[1])
The events are there after `await`
~ await event_loop => event_loop
Deliver after the `await`
- deliver( => await event_loop.run_in_executor(executor, lambda: deliver(engine.turn(arrived)))
costs an idle server as much as work
< arrived = => if not commands and not engine.open: await asyncio.sleep(0); continue
or < arrived = => if not commands and not engine.open: await asyncio.sleep(0.001); continue
""",
    stream_until_gone: """
`async def`
- async def stream_until_gone( ... await asyncio.gather( => def stream_until_gone(add, receive, send): return True
at the message whose "type" is “http.disconnect”
~ "http.disconnect" => "http.disconnected"
or - while (await receive()) ... pass => while True: receive().close()
`asyncio.wait`, without a timeout
- await asyncio.wait( => while not sending.done() and not leaving.done(): await asyncio.sleep(0)
""",
}
WRONG = {f"14.{number}": slips(reference, text) for number, (reference, text) in enumerate(SLIPS.items(), 1)}
RIGHT = {
    "14.1": rights(Mailbox, MAILBOXES, END=object()),
    "14.2": [
        way
        for text in (OWNERS, *(WAITS_FOR_ITS_LAST_TURN + wait for wait in WAITS))
        for way in rights(own_engine, text, concurrent=concurrent, contextlib=contextlib, time=time)
    ],
    "14.3": rights(stream_until_gone, STREAMERS, anyio=anyio),
}
