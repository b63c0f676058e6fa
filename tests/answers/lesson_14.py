"""Right answers to the exercises of lesson 14, written in other ways than the reference. The wrong ones are the checks'
lists."""

import asyncio
import collections
import concurrent.futures
import contextlib
import time

import anyio

# 14.1 Mailbox


class QueueWithEnd:
    """An end marker in an unbounded queue."""

    END = object()

    def __init__(self):
        self.queue, self.is_closed, self.over = asyncio.Queue(), False, False

    def put(self, item):
        if not self.is_closed:
            self.queue.put_nowait(item)

    def close(self):
        if not self.is_closed:
            self.is_closed = True
            self.queue.put_nowait(self.END)

    async def take(self):
        if self.over:
            return []
        items = [await self.queue.get()]
        while not self.queue.empty():
            items.append(self.queue.get_nowait())
        if items[-1] is self.END:
            self.over = True
            items.pop()
        return items


class DequeAndFutures:
    """Waiters' futures, each woken and none given anything."""

    def __init__(self):
        self.items, self.waiting, self.is_closed = collections.deque(), [], False

    def wake(self):
        for future in self.waiting:
            if not future.done():
                future.set_result(None)
        self.waiting = []

    def put(self, item):
        if not self.is_closed:
            self.items.append(item)
            self.wake()

    def close(self):
        self.is_closed = True
        self.wake()

    async def take(self):
        while not (self.items or self.is_closed):
            future = asyncio.get_running_loop().create_future()
            self.waiting.append(future)
            await future
        items = tuple(self.items)
        self.items.clear()
        return items


class BySlices:
    """The flag says that the mailbox has items, or is closed."""

    def __init__(self):
        self._items, self._has_news, self.is_closed = [], asyncio.Event(), False

    def put(self, item):
        if self.is_closed:
            return
        self._items += [item]
        self._has_news.set()

    def close(self):
        self.is_closed = True
        self._has_news.set()

    async def take(self):
        while True:
            await self._has_news.wait()
            items = self._items[:]
            del self._items[: len(items)]
            if not self.is_closed:
                self._has_news.clear()
            if items or self.is_closed:
                return items


# 14.2 own_engine


async def take_turns(engine, commands, deliver, executor):
    while not commands.is_closed:
        arrived = await commands.take() if len(commands) or not engine.open else []
        if commands.is_closed:
            return
        deliver(await asyncio.get_running_loop().run_in_executor(executor, engine.turn, arrived))


async def waits_behind_the_last_turn(engine, commands, deliver, executor):
    try:
        await take_turns(engine, commands, deliver, executor)
    finally:
        executor.submit(lambda: None).result()
        engine.close()


async def shields_until_it_is_over(engine, commands, deliver, executor):
    """Waits with awaits, as often as it is cancelled."""
    loop, cancelled = asyncio.get_running_loop(), None
    try:
        while not commands.is_closed and cancelled is None:
            arrived = []
            if commands or not engine.open:
                arrived = await commands.take()
            if not arrived and not engine.open:
                continue
            turn = asyncio.ensure_future(loop.run_in_executor(executor, engine.turn, arrived))
            while not turn.done():
                try:
                    await asyncio.shield(turn)
                except asyncio.CancelledError as error:
                    cancelled = error
                except Exception:
                    break
            deliver(turn.result())
    finally:
        engine.close()
    if cancelled:
        raise cancelled


async def with_a_stack(engine, commands, deliver, executor):
    """The executor as a context manager: leaving it shuts it down."""
    with contextlib.ExitStack() as stack:
        stack.callback(engine.close)
        stack.enter_context(executor)
        while True:
            arrived = await commands.take() if len(commands) or not engine.open else []
            if commands.is_closed and not arrived:
                return
            deliver(await asyncio.wrap_future(executor.submit(engine.turn, arrived)))
            if commands.is_closed:
                return


async def with_two_loops(engine, commands, deliver, executor):
    """An outer loop that waits, an inner one that runs while there are requests."""
    turns = asyncio.get_running_loop().run_in_executor
    try:
        while arrived := await commands.take():
            deliver(await turns(executor, engine.turn, arrived))
            while engine.open and not commands.is_closed:
                arrived = await commands.take() if len(commands) else []
                deliver(await turns(executor, engine.turn, arrived))
            if commands.is_closed:
                break
    finally:
        executor.shutdown()
        engine.close()


def waiting_for_its_last_turn(wait):
    """`wait(turn)` blocks until the thread has come back, and raises nothing."""

    async def own_engine(engine, commands, deliver, executor):
        turn = None
        try:
            while not commands.is_closed:
                arrived = [] if engine.open and not commands else await commands.take()
                if arrived or engine.open:
                    turn = executor.submit(engine.turn, arrived)
                    deliver(await asyncio.wrap_future(turn))
        finally:
            if turn is not None:
                wait(turn)
            engine.close()

    return own_engine


def asks_until_it_is_done(turn):
    while not turn.done():
        time.sleep(0.001)


def asks_for_its_result(turn):
    with contextlib.suppress(BaseException):  # it raises in the loop above
        turn.result()


# 14.3 stream_until_gone


async def until_gone(receive):
    while (await receive())["type"] != "http.disconnect":
        pass


async def send_all(add, send):
    async with await add() as stream:
        async for tokens in stream:
            await send(tokens)


async def listener_cancels_me(add, receive, send):
    """The work stays in the coroutine itself; the listener cancels it, and says so."""
    me, has_left = asyncio.current_task(), []

    async def listen():
        await until_gone(receive)
        has_left.append(True)
        me.cancel()

    listening = asyncio.ensure_future(listen())
    try:
        await send_all(add, send)
        return True
    except asyncio.CancelledError:
        if not has_left:
            raise
        return False
    finally:
        listening.cancel()


async def with_a_callback(add, receive, send):
    """The end of the listener cancels the work, and the coroutine waits for the work alone."""
    sending, listening = asyncio.ensure_future(send_all(add, send)), asyncio.ensure_future(until_gone(receive))
    listening.add_done_callback(lambda _: sending.cancel())
    try:
        await sending
    except asyncio.CancelledError:
        if not listening.done() or listening.cancelled():
            raise
        return False
    finally:
        sending.cancel()
        listening.cancel()
    return True


async def with_a_task_group(add, receive, send):
    """Starlette's way: two tasks of a group, and the first one to end cancels the other."""
    failed = []
    async with anyio.create_task_group() as group:

        async def listen():
            await until_gone(receive)
            group.cancel_scope.cancel()

        group.start_soon(listen)
        is_whole = False
        try:
            await send_all(add, send)
            is_whole = True
        except Exception as error:
            failed.append(error)
        group.cancel_scope.cancel()
    if failed:
        raise failed[0]
    return is_whole


async def races_every_wait(add, receive, send):
    listening, stream = asyncio.ensure_future(until_gone(receive)), None
    adding = asyncio.ensure_future(add())

    async def race(awaitable):
        task = asyncio.ensure_future(awaitable)
        try:
            await asyncio.wait((task, listening), return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                raise ConnectionAbortedError
            return task.result()
        finally:
            task.cancel()

    async def one_batch():
        return await anext(stream, None)

    try:
        stream = await race(adding)
        while tokens := await race(one_batch()):
            await race(send(tokens))
        return True
    except ConnectionAbortedError:
        return False
    finally:
        listening.cancel()
        if adding.done() and not adding.cancelled() and adding.exception() is None:
            await adding.result().aclose()


WRONG: dict[str, list] = {}
RIGHT = {
    "14.1": [QueueWithEnd, DequeAndFutures, BySlices],
    "14.2": [
        waits_behind_the_last_turn,
        shields_until_it_is_over,
        with_a_stack,
        with_two_loops,
        waiting_for_its_last_turn(lambda turn: concurrent.futures.wait([turn])),
        waiting_for_its_last_turn(asks_until_it_is_done),
        waiting_for_its_last_turn(asks_for_its_result),
    ],
    "14.3": [listener_cancels_me, with_a_callback, with_a_task_group, races_every_wait],
}
