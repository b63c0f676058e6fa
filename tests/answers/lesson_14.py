"""Answers to the exercises of lesson 14: what learners get wrong, and other ways to be right."""

import asyncio
import collections
import concurrent.futures
import contextlib
import dataclasses
import json
import queue
import time
from time import sleep

import anyio
import numpy as np

from answers import Wrong
from lessons_lib.models.validate import BadRequest
from lessons_lib.serving.admission import AdmissionControl, Admitted, Overloaded
from lessons_lib.serving.http.chat_events import DONE, ChatChunks
from lessons_lib.serving.owner import own_engine

# 14.1 Mailbox


class Right:
    """The reference, so that one method can be made another way."""

    def __init__(self):
        self._items = []
        self._has_news = asyncio.Event()
        self.is_closed = False

    def put(self, item):
        if not self.is_closed:
            self._items.append(item)
            self._has_news.set()

    def close(self):
        self.is_closed = True
        self._has_news.set()

    def clear(self):
        self._items = []

    async def take(self):
        while not self._items and not self.is_closed:
            self._has_news.clear()
            await self._has_news.wait()
        items, self._items = self._items, []
        return items


async def take_by_slices(self):
    while True:
        await self._has_news.wait()
        items = self._items[:]
        del self._items[: len(items)]
        if not self.is_closed:
            self._has_news.clear()
        if items or self.is_closed:
            return items


def mailbox(name, **methods):
    """A mailbox with some methods made another way."""
    return type(name, (Right,), methods)


def put_without_waking(self, item):
    if not self.is_closed:
        self._items.append(item)


async def put_as_coroutine(self, item):
    self._items.append(item)
    self._has_news.set()


def keep_the_newest(self, item):
    if not self.is_closed:
        self._items = [item]
        self._has_news.set()


def put_in_front(self, item):
    if not self.is_closed:
        self._items.insert(0, item)
        self._has_news.set()


def put_also_after_close(self, item):
    self._items.append(item)
    self._has_news.set()


def put_raises_after_close(self, item):
    if self.is_closed:
        raise RuntimeError("the mailbox is closed")
    Right.put(self, item)


def put_up_to_100(self, item):
    if not self.is_closed and len(self._items) < 100:
        self._items.append(item)
        self._has_news.set()


def close_without_waking(self):
    self.is_closed = True


async def close_as_coroutine(self):
    Right.close(self)


async def take_if_any_is_true(self):
    while not any(self._items) and not self.is_closed:
        self._has_news.clear()
        await self._has_news.wait()
    items, self._items = self._items, []
    return items


async def take_unequal(self):
    return list(dict.fromkeys(await Right.take(self)))


async def take_one(self):
    while not self._items and not self.is_closed:
        self._has_news.clear()
        await self._has_news.wait()
    return [self._items.pop(0)] if self._items else []


async def take_then_rest(self):
    while not self._items and not self.is_closed:
        self._has_news.clear()
        await self._has_news.wait()
    items, self._items = self._items, []
    await asyncio.sleep(0)
    return items


async def take_one_bare(self):
    while not self._items and not self.is_closed:
        self._has_news.clear()
        await self._has_news.wait()
    return self._items.pop(0) if self._items else None


async def take_without_waiting(self):
    items, self._items = self._items, []
    return items


def take_plain(self):
    items, self._items = self._items, []
    return items


async def take_never_clears(self):
    if not self._items and not self.is_closed:
        await self._has_news.wait()
    items, self._items = self._items, []
    return items


async def take_never_clears_in_a_while(self):
    while not self._items and not self.is_closed:
        await self._has_news.wait()
    items, self._items = self._items, []
    return items


async def take_keeps_what_it_waited_for(self):
    items, self._items = self._items, []
    if not items and not self.is_closed:
        self._has_news.clear()
        await self._has_news.wait()
        items = self._items
    return items


async def take_looks_once(self):
    if not self._items and not self.is_closed:
        self._has_news.clear()
        await self._has_news.wait()
    items, self._items = self._items, []
    return items


async def take_puts_back_behind(self):
    items = await Right.take(self)
    try:
        await asyncio.sleep(0)
    except asyncio.CancelledError:
        self._items += items
        raise
    return items


async def take_waits_without_looking(self):
    while not self.is_closed:
        await self._has_news.wait()
        self._has_news.clear()
        await asyncio.sleep(0)
        if self._items:
            break
    items, self._items = self._items, []
    return items


async def take_clears_late(self):
    await self._has_news.wait()
    items, self._items = self._items, []
    await asyncio.sleep(0)
    self._has_news.clear()
    return items


async def take_clears_first(self):
    self._has_news.clear()
    await self._has_news.wait()
    items, self._items = self._items, []
    return items


async def take_keeps(self):
    while not self._items and not self.is_closed:
        self._has_news.clear()
        await self._has_news.wait()
    return list(self._items)


async def take_same_list(self):
    while not self._items and not self.is_closed:
        self._has_news.clear()
        await self._has_news.wait()
    items = self._items
    self._items.clear()
    return items


async def take_deletes_later(self):
    del self._items[: getattr(self, "_taken", 0)]
    self._taken = 0
    while not self._items and not self.is_closed:
        self._has_news.clear()
        await self._has_news.wait()
    self._taken = len(self._items)
    return self._items


async def take_spinning(self):
    while not self._items and not self.is_closed:
        await asyncio.sleep(0)
    items, self._items = self._items, []
    return items


async def take_polling(self):
    while not self._items and not self.is_closed:
        await asyncio.sleep(0.01)
    items, self._items = self._items, []
    return items


async def take_ignores_close(self):
    while not self._items:
        self._has_news.clear()
        await self._has_news.wait()
    items, self._items = self._items, []
    return items


async def take_nothing_when_closed(self):
    while not self._items and not self.is_closed:
        self._has_news.clear()
        await self._has_news.wait()
    if self.is_closed:
        return []
    items, self._items = self._items, []
    return items


async def take_swallows(self):
    try:
        return await Right.take(self)
    except asyncio.CancelledError:
        return []


async def take_then_awaits(self):
    while not self._items and not self.is_closed:
        self._has_news.clear()
        await self._has_news.wait()
    items, self._items = self._items, []
    await asyncio.sleep(0)
    return items


def close_with_a_flag_of_its_own(self):
    self._is_over = True
    self._has_news.set()


def put_until_over(self, item):
    if not getattr(self, "_is_over", False):
        self._items.append(item)
        self._has_news.set()


async def take_until_over(self):
    while not self._items and not getattr(self, "_is_over", False):
        self._has_news.clear()
        await self._has_news.wait()
    items, self._items = self._items, []
    return items


class SharedByAll(Right):
    items_of_all = []

    def __init__(self):
        super().__init__()
        self._items = self.items_of_all

    async def take(self):
        while not self._items and not self.is_closed:
            self._has_news.clear()
            await self._has_news.wait()
        items = list(self._items)
        self._items.clear()
        return items


class WithFuture:
    """The item is handed to the reader through its future."""

    def __init__(self):
        self.items, self.reader, self.is_closed = [], None, False

    def put(self, item):
        if self.is_closed:
            return
        if self.reader and not self.reader.done():
            self.reader.set_result([item])
        else:
            self.items.append(item)

    def close(self):
        self.is_closed = True
        if self.reader and not self.reader.done():
            self.reader.set_result([])

    async def take(self):
        if not self.items and not self.is_closed:
            self.reader = asyncio.get_running_loop().create_future()
            return await self.reader
        items, self.items = self.items, []
        return items


class HandsOverAll(WithFuture):
    """As above, with everything that came before the reader ran."""

    def put(self, item):
        if self.is_closed:
            return
        if self.reader and not self.reader.cancelled():
            if self.reader.done():
                self.reader.result().append(item)
            else:
                self.reader.set_result([item])
        else:
            self.items.append(item)

    async def take(self):
        if not self.items and not self.is_closed:
            self.reader = asyncio.get_running_loop().create_future()
            try:
                return await self.reader
            finally:
                self.reader = None
        items, self.items = self.items, []
        return items


class FutureOfTheGone(HandsOverAll):
    def put(self, item):
        if self.reader is not None:
            reader, self.reader = self.reader, None
            reader.set_result(None)
        if not self.is_closed:
            self.items.append(item)

    async def take(self):
        if not self.items and not self.is_closed:
            self.reader = asyncio.get_running_loop().create_future()
            await self.reader
        items, self.items = self.items, []
        return items


class ABoundedQueue:
    def __init__(self):
        self.queue, self.is_closed = asyncio.Queue(16), False

    def put(self, item):
        self.queue.put_nowait(item)

    def close(self):
        self.is_closed = True

    async def take(self):
        items = [await self.queue.get()]
        while not self.queue.empty():
            items.append(self.queue.get_nowait())
        return items


class WithoutClose:
    __init__, put, take = Right.__init__, Right.put, Right.take


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


class DequeAndCondition:
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
        items = list(self.items)
        self.items.clear()
        return items


class EventPerWait(Right):
    """A new event for every wait, and a thread-safe queue for the items."""

    def __init__(self):
        self.queue, self.event, self.is_closed = queue.SimpleQueue(), None, False

    def put(self, item):
        if not self.is_closed:
            self.queue.put(item)
            if self.event:
                self.event.set()

    def close(self):
        self.is_closed = True
        if self.event:
            self.event.set()

    async def take(self):
        while self.queue.empty() and not self.is_closed:
            self.event = asyncio.Event()
            await self.event.wait()
        items = []
        while not self.queue.empty():
            items.append(self.queue.get())
        return tuple(items)


class GivesUp(Right):
    async def take(self):
        if not self._items and not self.is_closed:
            self._has_news.clear()
            try:
                await asyncio.wait_for(self._has_news.wait(), 0.05)
            except asyncio.TimeoutError:
                pass
        items, self._items = self._items, []
        return items


class Sleeps(Right):
    async def take(self):
        while not self._items and not self.is_closed:
            time.sleep(0.01)
        items, self._items = self._items, []
        return items


class SleepsByAnImportedName(Right):
    async def take(self):
        while not self._items and not self.is_closed:
            sleep(0.01)
        items, self._items = self._items, []
        return items


async def take_closed_after_the_wait(self):
    while not self._items and not self.is_closed:
        self._has_news.clear()
        await self._has_news.wait()
        if self.is_closed:
            return []
    items, self._items = self._items, []
    return items


MAILBOXES = [
    Wrong(
        "loses what comes with the end",
        mailbox("ClosedAfterTheWait", take=take_closed_after_the_wait),
        "The last tokens and the end come together",
    ),
    Wrong("asks whether any is true", mailbox("AnyIsTrue", take=take_if_any_is_true), "as `any` does"),
    Wrong("equal items once", mailbox("Unequal", take=take_unequal), "also those that are equal"),
    Wrong("sleeps by an imported name", SleepsByAnImportedName, "`sleep`, which is `time.sleep`, was called"),
    Wrong("sleeps", Sleeps, "`time.sleep` was called: it stops the event loop's thread"),
    Wrong("gives up", GivesUp, "for an item, however long"),
    Wrong("no wake", mailbox("NoWake", put=put_without_waking), "`put`: it has to set the event"),
    Wrong("put is a coroutine", mailbox("AsyncPut", put=put_as_coroutine), "`put` should be a plain function"),
    Wrong("only the newest", mailbox("Newest", put=keep_the_newest), "keeps only the newest"),
    Wrong("last in, first out", mailbox("Stack", put=put_in_front), "First in, first out"),
    Wrong("added after close", mailbox("Late", put=put_also_after_close), "After `close`, nothing is added"),
    Wrong(
        "raises after close", mailbox("LateError", put=put_raises_after_close), "`put` after `close` should do nothing"
    ),
    Wrong("drops beyond 100", mailbox("UpTo100", put=put_up_to_100), "Nothing may be dropped"),
    Wrong(
        "close doesn't wake",
        mailbox("QuietClose", close=close_without_waking),
        "`close`: it has to wake the reader too",
    ),
    Wrong(
        "close is a coroutine", mailbox("AsyncClose", close=close_as_coroutine), "`close` should be a plain function"
    ),
    Wrong("takes one", mailbox("One", take=take_one), "Take *all*"),
    Wrong("waits after taking", mailbox("RestsLate", take=take_then_rest), "Take items after the last `await`"),
    Wrong("takes one, without a list", mailbox("OneBare", take=take_one_bare), "should return a list of items"),
    Wrong(
        "doesn't wait", mailbox("NoWait", take=take_without_waiting), "`take` should wait; yours returned [] at once"
    ),
    Wrong("take isn't a coroutine", mailbox("Plain", take=take_plain), "`take` should be a coroutine"),
    Wrong("never clears", mailbox("NeverClears", take=take_never_clears), "still set from the first item"),
    Wrong(
        "never clears, in a while",
        mailbox("NeverClearsWhile", take=take_never_clears_in_a_while),
        "its event is still set from an earlier item",
    ),
    Wrong(
        "keeps what it waited for",
        mailbox("KeepsAfterWait", take=take_keeps_what_it_waited_for),
        "Is your mailbox empty after the wait too?",
    ),
    Wrong(
        "waits without looking",
        mailbox("WaitsFirst", take=take_waits_without_looking),
        "The item is in the mailbox, but its event was cleared",
    ),
    Wrong("looks once", mailbox("LooksOnce", take=take_looks_once), "yours returned [], and the mailbox is open"),
    Wrong("puts back behind", mailbox("PutsBack", take=take_puts_back_behind), "put back behind what came later"),
    Wrong("clears first", mailbox("ClearsFirst", take=take_clears_first), "put in, but the reader still sleeps"),
    Wrong("keeps what was taken", mailbox("Keeps", take=take_keeps), "What was taken is gone"),
    Wrong("clears the reader's list", mailbox("Clears", take=take_same_list), "it's the same list"),
    Wrong("deletes later", mailbox("Later", take=take_deletes_later), "the first list was ['a']"),
    Wrong("spins", mailbox("Spins", take=take_spinning), "asks again and again"),
    Wrong("polls", mailbox("Polls", take=take_polling), "with a pause in between"),
    Wrong("waits although closed", mailbox("Deaf", take=take_ignores_close), "the mailbox was closed, but"),
    Wrong(
        "nothing once closed", mailbox("Closed", take=take_nothing_when_closed), "look at the items before `is_closed`"
    ),
    Wrong("swallows the cancellation", mailbox("Swallows", take=take_swallows), "Don't catch `CancelledError`"),
    Wrong("shared by all", SharedByAll, "Each stream has a mailbox of its own"),
    Wrong("hands over the first", WithFuture, "Don't hand over the item that woke it"),
    Wrong("hands over to one that left", HandsOverAll, "handed to a reader that never took it"),
    Wrong("future of one that left", FutureOfTheGone, "InvalidStateError"),
    Wrong("a bounded queue", ABoundedQueue, "`put` raised QueueFull"),
    Wrong(
        "is_closed isn't set",
        mailbox("OwnFlag", close=close_with_a_flag_of_its_own, put=put_until_over, take=take_until_over),
        "`is_closed` should be False before `close` and True after it",
    ),
    Wrong("no close", WithoutClose, "a mailbox needs a method `close`"),
]


# 14.2 own_engine


async def without_finally(engine, commands, deliver, executor):
    loop = asyncio.get_running_loop()
    while not commands.is_closed:
        arrived = [] if engine.open and not commands else await commands.take()
        if arrived or engine.open:
            deliver(await loop.run_in_executor(executor, engine.turn, arrived))
    engine.close()


async def closes_with_thread_inside(engine, commands, deliver, executor):
    loop = asyncio.get_running_loop()
    try:
        while not commands.is_closed:
            arrived = [] if engine.open and not commands else await commands.take()
            if arrived or engine.open:
                deliver(await loop.run_in_executor(executor, engine.turn, arrived))
    finally:
        engine.close()


async def never_closes(engine, commands, deliver, executor):
    loop = asyncio.get_running_loop()
    try:
        while not commands.is_closed:
            arrived = [] if engine.open and not commands else await commands.take()
            if arrived or engine.open:
                deliver(await loop.run_in_executor(executor, engine.turn, arrived))
    finally:
        executor.shutdown(wait=True)


async def in_the_loop_itself(engine, commands, deliver, executor):
    try:
        while not commands.is_closed:
            arrived = [] if engine.open and not commands else await commands.take()
            if arrived or engine.open:
                deliver(engine.turn(arrived))
    finally:
        engine.close()


async def in_another_thread(engine, commands, deliver, executor):
    try:
        while not commands.is_closed:
            arrived = [] if engine.open and not commands else await commands.take()
            if arrived or engine.open:
                deliver(await asyncio.to_thread(engine.turn, arrived))
    finally:
        engine.close()


async def without_await(engine, commands, deliver, executor):
    loop = asyncio.get_running_loop()
    try:
        while not commands.is_closed:
            arrived = await commands.take()
            deliver(loop.run_in_executor(executor, engine.turn, arrived))
    finally:
        executor.shutdown(wait=True)
        engine.close()


async def always_waits_for_commands(engine, commands, deliver, executor):
    loop = asyncio.get_running_loop()
    try:
        while not commands.is_closed:
            arrived = await commands.take()
            if arrived or engine.open:
                deliver(await loop.run_in_executor(executor, engine.turn, arrived))
    finally:
        executor.shutdown(wait=True)
        engine.close()


async def empty_turns(engine, commands, deliver, executor):
    loop = asyncio.get_running_loop()
    try:
        while not commands.is_closed:
            arrived = await commands.take() if commands else []
            deliver(await loop.run_in_executor(executor, engine.turn, arrived))
    finally:
        executor.shutdown(wait=True)
        engine.close()


async def spins_when_idle(engine, commands, deliver, executor):
    loop = asyncio.get_running_loop()
    try:
        while not commands.is_closed:
            if not commands and not engine.open:
                await asyncio.sleep(0)
                continue
            arrived = await commands.take() if commands else []
            deliver(await loop.run_in_executor(executor, engine.turn, arrived))
    finally:
        executor.shutdown(wait=True)
        engine.close()


async def no_commands_while_busy(engine, commands, deliver, executor):
    loop = asyncio.get_running_loop()
    try:
        while not commands.is_closed:
            arrived = [] if engine.open else await commands.take()
            if arrived or engine.open:
                deliver(await loop.run_in_executor(executor, engine.turn, arrived))
    finally:
        executor.shutdown(wait=True)
        engine.close()


async def one_command_a_turn(engine, commands, deliver, executor):
    loop, pending = asyncio.get_running_loop(), []
    try:
        while not commands.is_closed:
            if commands or not (pending or engine.open):
                pending += await commands.take()
            if pending or engine.open:
                deliver(await loop.run_in_executor(executor, engine.turn, [pending.pop(0)] if pending else []))
    finally:
        executor.shutdown(wait=True)
        engine.close()


async def repeats_commands(engine, commands, deliver, executor):
    loop, arrived = asyncio.get_running_loop(), []
    try:
        while not commands.is_closed:
            if commands or not engine.open:
                arrived += await commands.take()
            if arrived or engine.open:
                deliver(await loop.run_in_executor(executor, engine.turn, list(arrived)))
    finally:
        executor.shutdown(wait=True)
        engine.close()


async def ends_when_idle(engine, commands, deliver, executor):
    loop = asyncio.get_running_loop()
    try:
        arrived = await commands.take()
        while arrived or engine.open:
            deliver(await loop.run_in_executor(executor, engine.turn, arrived))
            arrived = await commands.take() if commands else []
    finally:
        executor.shutdown(wait=True)
        engine.close()


async def drops_the_last_events(engine, commands, deliver, executor):
    loop = asyncio.get_running_loop()
    try:
        while not commands.is_closed:
            arrived = [] if engine.open and not commands else await commands.take()
            if arrived or engine.open:
                events = await loop.run_in_executor(executor, engine.turn, arrived)
                if not commands.is_closed:
                    deliver(events)
    finally:
        executor.shutdown(wait=True)
        engine.close()


async def delivers_twice(engine, commands, deliver, executor):
    loop = asyncio.get_running_loop()
    try:
        while not commands.is_closed:
            arrived = [] if engine.open and not commands else await commands.take()
            if arrived or engine.open:
                events = await loop.run_in_executor(executor, engine.turn, arrived)
                deliver(events)
                deliver(events)
    finally:
        executor.shutdown(wait=True)
        engine.close()


async def never_delivers(engine, commands, deliver, executor):
    await own_engine(engine, commands, lambda events: None, executor)


async def delivers_in_the_thread(engine, commands, deliver, executor):
    loop = asyncio.get_running_loop()
    try:
        while not commands.is_closed:
            arrived = [] if engine.open and not commands else await commands.take()
            if arrived or engine.open:
                await loop.run_in_executor(executor, lambda: deliver(engine.turn(arrived)))
    finally:
        executor.shutdown(wait=True)
        engine.close()


async def goes_on_after_close(engine, commands, deliver, executor):
    loop = asyncio.get_running_loop()
    try:
        while not commands.is_closed or engine.open:
            arrived = [] if engine.open and not commands else await commands.take()
            if arrived or engine.open:
                deliver(await loop.run_in_executor(executor, engine.turn, arrived))
    finally:
        executor.shutdown(wait=True)
        engine.close()


async def a_turn_for_nothing_at_the_end(engine, commands, deliver, executor):
    loop = asyncio.get_running_loop()
    try:
        while not commands.is_closed:
            arrived = [] if engine.open and not commands else await commands.take()
            deliver(await loop.run_in_executor(executor, engine.turn, arrived))
    finally:
        executor.shutdown(wait=True)
        engine.close()


async def carries_on_after_errors(engine, commands, deliver, executor):
    loop = asyncio.get_running_loop()
    try:
        while not commands.is_closed:
            arrived = [] if engine.open and not commands else await commands.take()
            try:
                if arrived or engine.open:
                    deliver(await loop.run_in_executor(executor, engine.turn, arrived))
            except RuntimeError:
                continue
    finally:
        executor.shutdown(wait=True)
        engine.close()


async def hides_errors(engine, commands, deliver, executor):
    try:
        await own_engine(engine, commands, deliver, executor)
    except RuntimeError:
        pass


async def swallows_cancellation(engine, commands, deliver, executor):
    try:
        await own_engine(engine, commands, deliver, executor)
    except asyncio.CancelledError:
        pass


async def carries_on_after_cancellation(engine, commands, deliver, executor):
    loop = asyncio.get_running_loop()
    try:
        while not commands.is_closed:
            try:
                arrived = [] if engine.open and not commands else await commands.take()
                if arrived or engine.open:
                    deliver(await loop.run_in_executor(executor, engine.turn, arrived))
            except asyncio.CancelledError:
                continue
    finally:
        executor.shutdown(wait=True)
        engine.close()


async def waits_with_an_await(engine, commands, deliver, executor):
    loop = asyncio.get_running_loop()
    turn = None
    try:
        while not commands.is_closed:
            arrived = [] if engine.open and not commands else await commands.take()
            if arrived or engine.open:
                turn = loop.run_in_executor(executor, engine.turn, arrived)
                deliver(await asyncio.shield(turn))
                turn = None
    finally:
        if turn is not None:
            await asyncio.wait([turn])
        engine.close()


async def blocks_in_each_turn(engine, commands, deliver, executor):
    try:
        while not commands.is_closed:
            arrived = [] if engine.open and not commands else await commands.take()
            if arrived or engine.open:
                deliver(executor.submit(engine.turn, arrived).result())
    finally:
        executor.shutdown(wait=True)
        engine.close()


async def waits_for_the_last_turn(engine, commands, deliver, executor):
    """Blocks for the turn that may still run, and leaves the executor open."""
    turn = None
    try:
        while not commands.is_closed:
            arrived = [] if engine.open and not commands else await commands.take()
            if arrived or engine.open:
                turn = executor.submit(engine.turn, arrived)
                deliver(await asyncio.wrap_future(turn))
    finally:
        with contextlib.suppress(BaseException):  # it raises in the loop above
            if turn is not None:
                turn.result()
        engine.close()


async def waits_behind_the_last_turn(engine, commands, deliver, executor):
    try:
        await take_turns(engine, commands, deliver, executor)
    finally:
        executor.submit(lambda: None).result()
        engine.close()


async def carries_out_late_commands(engine, commands, deliver, executor):
    try:
        while True:
            arrived = await commands.take() if commands or not engine.open else []
            if commands.is_closed and not arrived:
                break
            deliver(await asyncio.get_running_loop().run_in_executor(executor, engine.turn, arrived))
    finally:
        executor.shutdown(wait=True)
        engine.close()


async def waits_with_futures_wait(engine, commands, deliver, executor):
    """`concurrent.futures.wait` blocks until the thread has come back, and raises nothing."""
    turns = []
    try:
        while not commands.is_closed:
            arrived = [] if engine.open and not commands else await commands.take()
            if arrived or engine.open:
                turns = [executor.submit(engine.turn, arrived)]
                deliver(await asyncio.wrap_future(turns[0]))
    finally:
        concurrent.futures.wait(turns)
        engine.close()


async def asks_until_the_turn_is_done(engine, commands, deliver, executor):
    """Blocks the event loop in pieces of a millisecond until the thread has come back."""
    turn = None
    try:
        while not commands.is_closed:
            arrived = [] if engine.open and not commands else await commands.take()
            if arrived or engine.open:
                turn = executor.submit(engine.turn, arrived)
                deliver(await asyncio.wrap_future(turn))
    finally:
        while turn is not None and not turn.done():
            time.sleep(0.001)
        engine.close()


def not_a_coroutine(engine, commands, deliver, executor):
    deliver(engine.turn([]))
    engine.close()


async def starts_two_turns(engine, commands, deliver, executor):
    loop = asyncio.get_running_loop()
    try:
        while not commands.is_closed:
            arrived = [] if engine.open and not commands else await commands.take()
            if arrived or engine.open:
                first = loop.run_in_executor(executor, engine.turn, arrived)
                second = loop.run_in_executor(executor, engine.turn, [])
                deliver(await first)
                deliver(await second)
    finally:
        executor.shutdown(wait=True)
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


async def take_turns(engine, commands, deliver, executor):
    while not commands.is_closed:
        arrived = await commands.take() if len(commands) or not engine.open else []
        if commands.is_closed:
            return
        deliver(await asyncio.get_running_loop().run_in_executor(executor, engine.turn, arrived))


async def awaits_in_its_cleanup(engine, commands, deliver, executor):
    try:
        await take_turns(engine, commands, deliver, executor)
    finally:
        await asyncio.sleep(0)
        executor.shutdown()
        engine.close()


async def closes_in_the_thread(engine, commands, deliver, executor):
    try:
        await take_turns(engine, commands, deliver, executor)
    finally:
        await asyncio.get_running_loop().run_in_executor(executor, engine.close)
        executor.shutdown()


async def throws_commands_away(engine, commands, deliver, executor):
    try:
        while not commands.is_closed:
            if not engine.open:
                await commands.take()
            arrived = await commands.take() if len(commands) else []
            deliver(await asyncio.get_running_loop().run_in_executor(executor, engine.turn, arrived))
    finally:
        executor.shutdown()
        engine.close()


OWNERS = [
    Wrong("no finally", without_finally, "`engine.close()` wasn't called"),
    Wrong("closes with the thread inside", closes_with_thread_inside, "while a turn was still running"),
    Wrong("never closes", never_closes, "wasn't called"),
    Wrong("in the loop's thread", in_the_loop_itself, "outside of the executor"),
    Wrong("in another thread", in_another_thread, "another thread than that of the executor"),
    Wrong("no await", without_await, "must be awaited first"),
    Wrong("waits for commands while busy", always_waits_for_commands, "A needs 3 turns; yours took 1"),
    Wrong("empty turns", empty_turns, "A ends with the third turn"),
    Wrong("spins", spins_when_idle, "never rests"),
    Wrong("deaf while busy", no_commands_while_busy, "While the turn ran, commands arrived"),
    Wrong("one command a turn", one_command_a_turn, "should get all three commands"),
    Wrong("repeats commands", repeats_commands, "carried out twice"),
    Wrong("ends when idle", ends_when_idle, "although the mailbox is still open"),
    Wrong("drops the last events", drops_the_last_events, "were never delivered"),
    Wrong("delivers twice", delivers_twice, "Deliver each turn's events once"),
    Wrong("never delivers", never_delivers, "nothing was delivered"),
    Wrong("delivers in the thread", delivers_in_the_thread, "in the executor's thread"),
    Wrong("goes on after close", goes_on_after_close, "the mailbox was closed"),
    Wrong("late commands", carries_out_late_commands, "also if a command waits"),
    Wrong("a last turn", a_turn_for_nothing_at_the_end, "That isn't a reason for a turn"),
    Wrong("carries on after errors", carries_on_after_errors, "the engine failed, and your coroutine went on"),
    Wrong("hides errors", hides_errors, "as if nothing had happened"),
    Wrong("swallows the cancellation", swallows_cancellation, "should end with CancelledError; yours returned"),
    Wrong("carries on after cancellation", carries_on_after_cancellation, "was cancelled and goes on"),
    Wrong("an await in the cleanup", awaits_in_its_cleanup, "at one of its next awaits once more"),
    Wrong("closes in the thread", closes_in_the_thread, "`engine.close()` was called in the executor's thread"),
    Wrong("throws away what it waited for", throws_commands_away, "A never reached the engine"),
    Wrong("waits with an await", waits_with_an_await, "The second cancellation hits"),
    Wrong("not a coroutine", not_a_coroutine, "should be a coroutine"),
    Wrong("blocks in each turn", blocks_in_each_turn, "without `await`, and then took another one"),
    Wrong("two turns at once", starts_two_turns, "while a turn was still running"),
]


# 14.4 sse_events


def sse(
    line=lambda fields: f"data: {json.dumps(fields)}\n\n".encode(),
    role=True,
    role_in_each=False,
    role_first=False,
    text=lambda tokens, before: "".join(token.text for token in tokens),
    reason=lambda tokens: tokens[-1].finish_reason,
    batch=lambda batches: batches,
    usage_null=True,
    wants_usage=lambda prompt_tokens: prompt_tokens is not None,
    usage=lambda prompt, count, events: {
        "prompt_tokens": prompt,
        "completion_tokens": count,
        "total_tokens": prompt + count,
    },
    usage_choices=True,
    usage_in_last=False,
    done=(b"data: [DONE]\n\n",),
    on_error="event",
    error_reason=None,
    change_head=False,
    delta="delta",
    has_index=True,
):
    """The reference with one rule made another way."""

    def sse_events(head, batches, prompt_tokens=None):
        def chunk(fields, finish, last=False):
            choice = {"index": 0, delta: fields, "finish_reason": finish}
            if not has_index:
                del choice["index"]
            if change_head:
                head["choices"] = [choice]
                return line(head)
            more = {"usage": None} if prompt_tokens is not None and usage_null else {}
            return line({**head, "choices": [choice], **more})

        count, events, before = 0, 0, ""
        opening = {"role": "assistant", "content": ""}
        if role_first:
            yield chunk(opening, None)
        try:
            for tokens in batch(batches):
                if not count and role and not role_first:
                    yield chunk(opening, None)
                count, events = count + len(tokens), events + 1
                fields = {"content": text(tokens, before)}
                before += "".join(token.text for token in tokens)
                if role_in_each:
                    fields = {"role": "assistant", **fields}
                yield chunk(fields, reason(tokens))
        except Exception as error:
            if on_error == "raise" or (not count and on_error != "always event"):
                raise
            if on_error != "silent":
                yield line({"error": {"message": str(error), "type": "server_error"}})
            if error_reason:
                yield chunk({"content": ""}, error_reason)
        else:
            if wants_usage(prompt_tokens):
                own = {"choices": []} if usage_choices else {}
                yield line({**head, **own, "usage": usage(prompt_tokens or 0, count, events)})
        yield from done

    return sse_events


def all_at_once(head, batches, prompt_tokens=None):
    return list(sse()(head, batches, prompt_tokens))


def one_piece(head, batches, prompt_tokens=None):
    return b"".join(sse()(head, batches, prompt_tokens))


def catches_runtime_errors_only(head, batches, prompt_tokens=None):
    chunks, count = ChatChunks(head, prompt_tokens), 0
    try:
        for tokens in batches:
            if not count:
                yield chunks.role()
            count += len(tokens)
            yield chunks.text("".join(token.text for token in tokens), tokens[-1].finish_reason)
    except RuntimeError as error:
        if not count:
            raise
        yield chunks.error(error)
    else:
        if prompt_tokens is not None:
            yield chunks.usage(count)
    yield DONE


def an_event_per_token(head, batches, prompt_tokens=None):
    return sse()(head, ([token] for tokens in batches for token in tokens), prompt_tokens)


def skips_empty(head, batches, prompt_tokens=None):
    return sse(batch=lambda batches: (each for each in batches if any(token.text for token in each)))(
        head, batches, prompt_tokens
    )


def text_without_json(head, batches, prompt_tokens=None):
    def lines(fields):
        whole = json.dumps(fields)
        content = fields["choices"][0]["delta"].get("content") if fields.get("choices") else None
        return ("data: " + (whole.replace(json.dumps(content), f'"{content}"') if content else whole) + "\n\n").encode(
            "ascii", "replace"
        )

    return sse(line=lines)(head, batches, prompt_tokens)


def finish_in_an_extra_event(head, batches, prompt_tokens=None):
    last = []

    def noted():
        for tokens in batches:
            last[:] = [tokens[-1].finish_reason]
            yield tokens

    for event in sse(reason=lambda tokens: None)(head, noted(), prompt_tokens):
        if event.startswith(b"data: [DONE]"):
            choice = {"index": 0, "delta": {"content": ""}, "finish_reason": last[0]}
            yield f"data: {json.dumps({**head, 'choices': [choice]})}\n\n".encode()
        yield event


def looks_ahead(head, batches, prompt_tokens=None):
    """Holds each batch until the next one is there, to know which is the last."""

    def late():
        held = None
        for tokens in batches:
            if held is not None:
                yield held
            held = tokens
        if held is not None:
            yield held

    return sse()(head, late(), prompt_tokens)


def catches_everything(head, batches, prompt_tokens=None):
    """Also what closing the generator raises."""
    events = sse()(head, batches, prompt_tokens)
    num_sent = 0
    try:
        for event in events:
            yield event
            num_sent += 1
    except BaseException as error:
        if not num_sent:
            raise
        yield f"data: {json.dumps({'error': {'message': str(error), 'type': 'server_error'}})}\n\n".encode()
        yield b"data: [DONE]\n\n"


def done_in_finally(head, batches, prompt_tokens=None):
    """Says [DONE] even to a reader that has left."""
    events = sse(done=())(head, batches, prompt_tokens)
    first = next(events)
    try:
        yield first
        yield from events
    finally:
        yield b"data: [DONE]\n\n"


def error_with_head(head, batches, prompt_tokens=None):
    for event in sse()(head, batches, prompt_tokens):
        data = json.loads(event[6:]) if b'"error"' in event else None
        yield f"data: {json.dumps({**head, **data})}\n\n".encode() if data else event


def mapping_of_lines(head, batches, prompt_tokens=None):
    """First the dicts, then the lines."""

    def dicts():
        asked = {"usage": None} if prompt_tokens is not None else {}
        made, tokens_of = 0, iter(batches)
        first = next(tokens_of)  # what it raises comes out
        yield {
            **head,
            "choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}],
            **asked,
        }
        tokens = first
        while tokens is not None:
            made += len(tokens)
            text = "".join(token.text for token in tokens)
            yield {
                **head,
                "choices": [{"index": 0, "delta": {"content": text}, "finish_reason": tokens[-1].finish_reason}],
                **asked,
            }
            try:
                tokens = next(tokens_of, None)
            except Exception as error:
                yield {"error": {"type": "server_error", "message": str(error)}}
                return
        if asked:
            counts = dict(prompt_tokens=prompt_tokens, completion_tokens=made, total_tokens=made + prompt_tokens)
            yield {**head, "choices": [], "usage": counts}

    for data in dicts():
        yield b"data: " + json.dumps(data).encode() + b"\n\n"
    yield b"data: [DONE]\n\n"


class AsAnObject:
    """An iterator object in place of a generator function."""

    def __init__(self, head, batches, prompt_tokens=None):
        self.events = sse()(head, batches, prompt_tokens)

    def __iter__(self):
        return self

    def __next__(self):
        return next(self.events)


def made_by_an_object(head, batches, prompt_tokens=None):
    return AsAnObject(head, batches, prompt_tokens)


def with_compact_json(head, batches, prompt_tokens=None):
    return sse(line=lambda fields: f"data:{json.dumps(fields, separators=(',', ':'))}\n\n".encode())(
        head, batches, prompt_tokens
    )


def chunks_without_the_prompt(head, batches, prompt_tokens=None):
    chunks, count = ChatChunks(head), 0
    for batch in batches:
        if not count:
            yield chunks.role()
        count += len(batch)
        yield chunks.text("".join(token.text for token in batch), batch[-1].finish_reason)
    if prompt_tokens is not None:
        yield chunks.usage(count)
    yield DONE


EVENTS = [
    Wrong("chunks without the prompt", chunks_without_the_prompt, "`ChatChunks(head, prompt_tokens)`"),
    Wrong("no [DONE]", sse(done=()), "can't tell the end from a cut connection"),
    Wrong("[DONE] as JSON", sse(done=(b'data: "[DONE]"\n\n',)), "without quotes"),
    Wrong("catches everything", catches_everything, "the generator was closed, and yielded one more event"),
    Wrong("[DONE] in finally", done_in_finally, "the generator was closed, and yielded one more event"),
    Wrong("the error with a head", error_with_head, "the error event should have the field `error` only"),
    Wrong("[DONE] twice", sse(done=(b"data: [DONE]\n\n",) * 2), "should come once, as the last event"),
    Wrong(
        "one line break",
        sse(line=lambda fields: f"data: {json.dumps(fields)}\n".encode()),
        "should end with an empty line",
    ),
    Wrong("no data:", sse(line=lambda fields: f"{json.dumps(fields)}\n\n".encode()), "should begin with `data: `"),
    Wrong(
        "str", sse(line=lambda fields: f"data: {json.dumps(fields)}\n\n"), "events should be bytes; yours has the str"
    ),
    Wrong("dicts", sse(line=lambda fields: fields), "events should be bytes; yours yielded"),
    Wrong("repr, not JSON", sse(line=lambda fields: f"data: {fields}\n\n".encode()), "isn't JSON"),
    Wrong(
        "not ASCII",
        sse(line=lambda fields: f"data: {json.dumps(fields, ensure_ascii=False)}\n\n".encode()),
        "not all of it is ASCII",
    ),
    Wrong(
        "indented", sse(line=lambda fields: f"data: {json.dumps(fields, indent=1)}\n\n".encode()), "line breaks inside"
    ),
    Wrong("text without JSON", text_without_json, "Smallest case: texts with line breaks"),
    Wrong("no role", sse(role=False), "Begin with the role"),
    Wrong("role in each", sse(role_in_each=True), "names the role again"),
    Wrong("role before the first token", sse(role_first=True), "before there was a token"),
    Wrong("all at once", all_at_once, "events should come one by one"),
    Wrong("one piece", one_piece, "In one piece, nothing is streamed"),
    Wrong("an event per token", an_event_per_token, "an event for each token"),
    Wrong(
        "cumulative",
        sse(text=lambda tokens, before: before + "".join(token.text for token in tokens)),
        "A delta has only what is new",
    ),
    Wrong("last token only", sse(text=lambda tokens, before: tokens[-1].text), "Join the texts of all of them"),
    Wrong("first token only", sse(text=lambda tokens, before: tokens[0].text), "only the first of each"),
    Wrong("skips empty", skips_empty, "A batch without text gets an event too"),
    Wrong("no finish reason", sse(reason=lambda tokens: None), "believes the answer was cut"),
    Wrong("a reason in every event", sse(reason=lambda tokens: "stop"), "null in all events but the last"),
    Wrong("always length", sse(reason=lambda tokens: "length"), "The reason is the token's own"),
    Wrong("empty finish reason", sse(reason=lambda tokens: tokens[-1].finish_reason or ""), "not an empty string"),
    Wrong("finish reason in an extra event", finish_in_an_extra_event, "An extra event carries no text"),
    Wrong("looks ahead", looks_ahead, "before the text of the first was sent"),
    Wrong("always usage", sse(wants_usage=lambda prompt_tokens: True), "the client didn't ask for usage"),
    Wrong("never usage", sse(wants_usage=lambda prompt_tokens: False), "the usage event is missing"),
    Wrong("usage if prompt_tokens", sse(wants_usage=bool), "Smallest case: one token; prompt_tokens=0"),
    Wrong("usage without choices", sse(usage_choices=False), "has no `choices`"),
    Wrong(
        "usage counts events",
        sse(
            usage=lambda prompt, count, events: {
                "prompt_tokens": prompt,
                "completion_tokens": events,
                "total_tokens": prompt + events,
            }
        ),
        "You count events",
    ),
    Wrong(
        "no total",
        sse(usage=lambda prompt, count, events: {"prompt_tokens": prompt, "completion_tokens": count}),
        "which is their sum",
    ),
    Wrong("no usage: null", sse(usage_null=False), "should have `usage: null`"),
    Wrong("raises later", sse(on_error="raise"), "the exception came out"),
    Wrong("catches RuntimeError only", catches_runtime_errors_only, "after 2 events the exception came out"),
    Wrong("hides errors", sse(on_error="silent"), "ended as if all was well"),
    Wrong("an event at once", sse(on_error="always event"), "Let the exception out"),
    Wrong("a reason after an error", sse(error_reason="error"), "has no finish reason"),
    Wrong("changes the head", sse(change_head=True), "your code changed `head`"),
    Wrong("message", sse(delta="message"), "a stream has `delta`"),
    Wrong("no index", sse(has_index=False), "should have the index 0"),
]

# 14.3 stream_until_gone


async def send_all(add, send):
    async with await add() as stream:
        async for tokens in stream:
            await send(tokens)


async def until_gone(receive):
    while (await receive())["type"] != "http.disconnect":
        pass


async def stop(*tasks):
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def leaving(
    work=send_all,
    listen=until_gone,
    gone=False,
    done=True,
    stopped=lambda sending, listening: (sending, listening),
    result=lambda sending: sending.result(),
):
    """The reference with one rule made another way."""

    async def stream_until_gone(add, receive, send):
        sending, listening = asyncio.ensure_future(work(add, send)), asyncio.ensure_future(listen(receive))
        try:
            await asyncio.wait((sending, listening), return_when=asyncio.FIRST_COMPLETED)
            if not sending.done():
                return gone
            result(sending)
            return done
        finally:
            await stop(*stopped(sending, listening))

    return stream_until_gone


async def gives_up_after_30_s(add, receive, send):
    sending, listening = asyncio.ensure_future(send_all(add, send)), asyncio.ensure_future(until_gone(receive))
    try:
        await asyncio.wait((sending, listening), return_when=asyncio.FIRST_COMPLETED, timeout=30)
        if not sending.done():
            return False
        sending.result()
        return True
    finally:
        await stop(sending, listening)


def takes_for_gone(error):
    """`error` from the work counts as a client that left."""

    async def stream_until_gone(add, receive, send):
        try:
            return await leaving()(add, receive, send)
        except error:
            return False

    return stream_until_gone


async def never_listens(add, receive, send):
    await send_all(add, send)
    return True


async def asks_at_the_end(add, receive, send):
    """Is the client still there? It asks once all has been sent."""
    await send_all(add, send)
    try:
        await asyncio.wait_for(until_gone(receive), 0.001)
        return False
    except asyncio.TimeoutError:
        return True


async def listens_after_add(add, receive, send):
    stream = await add()

    async def accepted():
        return stream

    return await leaving()(accepted, receive, send)


async def looks_between_batches(add, receive, send):
    async with await add() as stream:
        async for tokens in stream:
            try:
                await asyncio.wait_for(until_gone(receive), 0.001)
                return False
            except asyncio.TimeoutError:
                await send(tokens)
    return True


async def listens_before_the_first_token(add, receive, send):
    async def first():
        stream = await add()
        try:
            return stream, await anext(stream, None)
        except BaseException:
            await stream.aclose()
            raise

    started, listening = asyncio.ensure_future(first()), asyncio.ensure_future(until_gone(receive))
    try:
        await asyncio.wait((started, listening), return_when=asyncio.FIRST_COMPLETED)
        if not started.done():
            return False
        stream, tokens = started.result()
    finally:
        await stop(started, listening)
    async with stream:
        await send(tokens)
        async for tokens in stream:
            await send(tokens)
    return True


async def listens_for_tokens_only(add, receive, send):
    """Next to the waiting for tokens, not next to `send`."""
    listening = asyncio.ensure_future(until_gone(receive))
    adding = asyncio.ensure_future(add())
    waiting, stream = adding, None
    try:
        while True:
            await asyncio.wait((waiting, listening), return_when=asyncio.FIRST_COMPLETED)
            if not waiting.done():
                return False
            if stream is None:
                stream = waiting.result()
            else:
                try:
                    await send(waiting.result())
                except StopAsyncIteration:
                    return True
            waiting = asyncio.ensure_future(stream.__anext__())
    finally:
        await stop(waiting, listening)
        if stream is not None:
            await stream.aclose()


async def any_message(receive):
    await receive()


async def one_message(receive):
    if (await receive())["type"] != "http.disconnect":
        await asyncio.get_running_loop().create_future()


async def with_timeouts(receive):
    while True:
        try:
            return await asyncio.wait_for(until_gone(receive), 0.01)
        except asyncio.TimeoutError:
            continue


async def asks_every_half_second(receive):
    while True:
        await asyncio.sleep(0.5)
        try:
            return await asyncio.wait_for(until_gone(receive), 0.01)
        except asyncio.TimeoutError:
            continue


async def asks_now_and_every_half_second(receive):
    while True:
        try:
            return await asyncio.wait_for(until_gone(receive), 0.001)
        except asyncio.TimeoutError:
            await asyncio.sleep(0.5)


async def two_listeners(receive):
    await asyncio.gather(until_gone(receive), until_gone(receive))


async def without_aclose(add, send):
    async for tokens in await add():
        await send(tokens)


async def aclose_at_the_end(add, send):
    stream = await add()
    async for tokens in stream:
        await send(tokens)
    await stream.aclose()


async def sends_at_the_end(add, send):
    async with await add() as stream:
        await send([token async for tokens in stream for token in tokens])


async def sends_single_tokens(add, send):
    async with await add() as stream:
        async for tokens in stream:
            for token in tokens:
                await send([token])


async def sends_without_waiting(add, send):
    async with await add() as stream:
        pending = []
        async for tokens in stream:
            pending.append(asyncio.ensure_future(send(tokens)))
        await asyncio.gather(*pending)


async def one_batch_late(add, send):
    held = None
    async with await add() as stream:
        async for tokens in stream:
            if held:
                await send(held)
            held = tokens
    await send(held)


async def waits_for_the_work(add, receive, send):
    sending, listening = asyncio.ensure_future(send_all(add, send)), asyncio.ensure_future(until_gone(receive))
    try:
        await asyncio.wait((sending, listening), return_when=asyncio.FIRST_COMPLETED)
        is_whole = sending.done()
        await sending
        return is_whole
    finally:
        await stop(sending, listening)


async def waits_for_both(add, receive, send):
    sending, listening = asyncio.ensure_future(send_all(add, send)), asyncio.ensure_future(until_gone(receive))
    try:
        await asyncio.gather(sending, listening)
        return True
    finally:
        await stop(sending, listening)


async def shields_send(add, receive, send):
    async def send_whole(tokens):
        await asyncio.shield(send(tokens))

    return await with_the_given_coroutine(add, receive, send_whole)


async def without_finally_here(add, receive, send):
    sending, listening = asyncio.ensure_future(send_all(add, send)), asyncio.ensure_future(until_gone(receive))
    await asyncio.wait((sending, listening), return_when=asyncio.FIRST_COMPLETED)
    is_whole = sending.done()
    await stop(sending, listening)
    if is_whole:
        sending.result()
    return is_whole


async def aborts_after_an_await(add, receive, send):
    """The request is aborted by the outer coroutine, after a wait that can be interrupted."""
    streams = []

    async def work():
        streams.append(await add())
        async for tokens in streams[0]:
            await send(tokens)

    sending, listening = asyncio.ensure_future(work()), asyncio.ensure_future(until_gone(receive))
    try:
        await asyncio.wait((sending, listening), return_when=asyncio.FIRST_COMPLETED)
        if not sending.done():
            return False
        sending.result()
        return True
    finally:
        await stop(sending, listening)
        for stream in streams:
            await stream.aclose()


def stops_in_turn(in_order):
    """Each task is stopped when the one before it has ended."""

    async def attempt(add, receive, send):
        sending, listening = asyncio.ensure_future(send_all(add, send)), asyncio.ensure_future(until_gone(receive))
        try:
            await asyncio.wait((sending, listening), return_when=asyncio.FIRST_COMPLETED)
            if not sending.done():
                return False
            sending.result()
            return True
        finally:
            for task in in_order(sending, listening):
                await stop(task)

    return attempt


stops_one_after_the_other = stops_in_turn(lambda sending, listening: (listening, sending))
stops_the_listener_last = stops_in_turn(lambda sending, listening: (sending, listening))


async def hides_its_cancellation_while_it_stops(add, receive, send):
    """Its own cancellation is suppressed together with that of the work."""
    sending, listening = asyncio.ensure_future(send_all(add, send)), asyncio.ensure_future(until_gone(receive))
    try:
        await asyncio.wait((sending, listening), return_when=asyncio.FIRST_COMPLETED)
        if sending.done():
            sending.result()
            return True
        sending.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await sending
        return False
    finally:
        sending.cancel()
        listening.cancel()


async def swallows_its_cancellation(add, receive, send):
    try:
        return await leaving()(add, receive, send)
    except asyncio.CancelledError:
        return False


async def lets_its_own_cancellation_out(add, receive, send):
    sending = asyncio.ensure_future(send_all(add, send))
    listening = asyncio.ensure_future(until_gone(receive))
    listening.add_done_callback(lambda _: sending.cancel())
    try:
        await sending
        return True
    finally:
        await stop(sending, listening)


async def raises_client_gone(add, receive, send):
    if not await leaving()(add, receive, send):
        raise ConnectionError("the client has gone")
    return True


async def goes_on_when_cancelled(add, receive, send):
    try:
        return await leaving()(add, receive, send)
    except asyncio.CancelledError:
        await asyncio.sleep(3600)


def a_plain_function(add, receive, send):
    asyncio.ensure_future(send_all(add, send))
    return True


async def listener_cancels_me(add, receive, send):
    """The work stays in the coroutine itself; the listener cancels it, and says so."""
    me, has_left = asyncio.current_task(), []

    async def listen():
        await until_gone(receive)
        has_left.append(True)
        me.cancel()

    listening = asyncio.ensure_future(listen())
    stream = None
    try:
        stream = await add()
        async for tokens in stream:
            await send(tokens)
        return True
    except asyncio.CancelledError:
        if not has_left:
            raise
        return False
    finally:
        listening.cancel()
        if stream is not None:
            await stream.aclose()


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


async def send_all(add, send):
    """The coroutine of the lesson."""
    stream = await add()
    try:
        async for tokens in stream:
            await send(tokens)
    finally:
        await stream.aclose()


async def with_the_given_coroutine(add, receive, send):
    sending, gone = asyncio.ensure_future(send_all(add, send)), asyncio.ensure_future(until_gone(receive))
    try:
        await asyncio.wait((sending, gone), return_when=asyncio.FIRST_COMPLETED)
        if sending.done():
            sending.result()
        return sending.done()
    finally:
        sending.cancel()
        gone.cancel()


def racing(keeps_accepted):
    """Races every single wait against the listener.

    Args:
        keeps_accepted: whether it closes the stream even if it is cancelled as `add` returns.
    """

    async def attempt(add, receive, send):
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
            if keeps_accepted and adding.done() and not adding.cancelled() and adding.exception() is None:
                stream = adding.result()
            if stream is not None:
                await stream.aclose()

    return attempt


async def two_messages(receive):
    if (await receive())["type"] != "http.disconnect":
        await receive()


async def until_no_request(receive):
    while (await receive())["type"] == "http.request":
        pass


async def lets_a_group_out(add, receive, send):
    async with anyio.create_task_group() as group:

        async def listen():
            await until_gone(receive)
            group.cancel_scope.cancel()

        group.start_soon(listen)
        is_whole = False
        await send_all(add, send)
        is_whole = True
        group.cancel_scope.cancel()
    return is_whole


async def adds_in_a_task_of_its_own(add, receive, send):
    listening, adding = asyncio.ensure_future(until_gone(receive)), asyncio.ensure_future(add())
    tasks = [listening, adding]
    try:
        await asyncio.wait([listening, adding], return_when=asyncio.FIRST_COMPLETED)
        if listening.done():
            return False

        async def added():
            return adding.result()

        tasks.append(asyncio.ensure_future(send_all(added, send)))
        await asyncio.wait([listening, tasks[-1]], return_when=asyncio.FIRST_COMPLETED)
        if not tasks[-1].done():
            return False
        tasks[-1].result()
        return True
    finally:
        for task in tasks:
            task.cancel()


LEAVINGS = [
    Wrong("gives up after 30 s", gives_up_after_30_s, "Is there a timeout? When it is over, no client has left"),
    Wrong("an OSError is a client that left", takes_for_gone(OSError), "the ConnectionError should come out"),
    Wrong("a timeout is a client that left", takes_for_gone(TimeoutError), "the TimeoutError should come out"),
    Wrong("lets a group out", lets_a_group_out, "A task group wraps what it raises"),
    Wrong(
        "loses an accepted stream", racing(keeps_accepted=False), "cancelled at the very moment at which `add` returns"
    ),
    Wrong("adds in a task of its own", adds_in_a_task_of_its_own, "Is `add` in a task of its own?"),
    Wrong("the second message is the end", leaving(listen=two_messages), "took one of these messages for the end"),
    Wrong("all but http.request", leaving(listen=until_no_request), "a message of the type “http.other”"),
    Wrong("never listens", never_listens, "your coroutine never calls `receive`"),
    Wrong("asks at the end", asks_at_the_end, "The first call came after 140 ms"),
    Wrong("listens after add", listens_after_add, "left; your coroutine was waiting for the engine in `add`"),
    Wrong(
        "asks every half second",
        leaving(listen=asks_every_half_second),
        "no call of `receive` was waiting when the client left; your coroutine was waiting for the engine in `add`. "
        "Your coroutine ran for 140 ms and didn't call it once.",
    ),
    Wrong(
        "asks now and every half second",
        leaving(listen=asks_now_and_every_half_second),
        "was waiting for the engine in `add`. An earlier call had ended.",
    ),
    Wrong("looks between batches", looks_between_batches, "The first call came after 100 ms"),
    Wrong(
        "listens for the first token only",
        listens_before_the_first_token,
        "no call of `receive` was waiting when the client left; your coroutine was waiting for tokens",
    ),
    Wrong("not while it sends", listens_for_tokens_only, "still waits in `send`"),
    Wrong("any message", leaving(listen=any_message), "took that message for the end"),
    Wrong("one message", leaving(listen=one_message), "It called `receive` once"),
    Wrong("polls", leaving(listen=with_timeouts), "wakes up again and again"),
    Wrong("two listeners", leaving(listen=two_listeners), "while another call of it was still waiting"),
    Wrong("the listener goes on", leaving(stopped=lambda sending, listening: (sending,)), "a call of `receive` still"),
    Wrong("the work goes on", leaving(stopped=lambda sending, listening: (listening,)), "its work goes on"),
    Wrong("no aclose", leaving(work=without_aclose), "`stream.aclose()` aborts a request, and yours never calls it"),
    Wrong("aclose at the end", leaving(work=aclose_at_the_end), "In a `finally`, every way out passes through it"),
    Wrong("all at the end", leaving(work=sends_at_the_end), "one `send` for everything"),
    Wrong("single tokens", leaving(work=sends_single_tokens), "goes to `send` as it is"),
    Wrong("send without await", leaving(work=sends_without_waiting), "while the call before was still waiting"),
    Wrong("one batch late", leaving(work=one_batch_late), "before you wait for the next one"),
    Wrong("waits for the work", waits_for_the_work, "and your coroutine still waits for the engine in `add`"),
    Wrong("waits for both", waits_for_both, "waits for something that never happens"),
    Wrong("shields `send`", shields_send, "does `asyncio.shield`, or a task of its own, keep this part"),
    Wrong("no finally", without_finally_here, "your coroutine has ended (it was cancelled), and its work goes on"),
    Wrong("aborts after an await", aborts_after_an_await, "the request is still open"),
    Wrong("stops one after the other", stops_one_after_the_other, "Does your cleanup await something before?"),
    Wrong("stops the listener last", stops_the_listener_last, "Cancel the listener, before anything that your cleanup"),
    Wrong("hides its own", hides_its_cancellation_while_it_stops, "ask first whether the cancellation was your own"),
    Wrong("swallows the cancellation", swallows_its_cancellation, "should end with CancelledError; yours returned"),
    Wrong("its own cancellation", lets_its_own_cancellation_out, "the client left, and your coroutine ended with"),
    Wrong("raises", raises_client_gone, "ConnectionError"),
    Wrong("goes on when cancelled", goes_on_when_cancelled, "was cancelled and goes on"),
    Wrong("hides errors", leaving(result=lambda sending: None), "the exception should come out"),
    Wrong("returns nothing", leaving(gone=None, done=None), "should return True; it returned None"),
    Wrong("True when it left", leaving(gone=True), "should return False; it returned True"),
    Wrong("a plain function", a_plain_function, "should be a coroutine"),
]


# 14.5 AdmissionControl


class Admission(AdmissionControl):
    """The reference, written out, so that one rule can be made another way."""

    reached = staticmethod(lambda count, limit: count >= limit)
    exceeds = staticmethod(lambda tokens, limit: tokens > limit)
    check_long = True
    check_requests = True
    check_tokens = True

    def admit(self, num_prompt_tokens):
        if self.check_long and self.max_prompt_tokens is not None and num_prompt_tokens > self.max_prompt_tokens:
            raise BadRequest("too long")
        if self.check_requests and self.max_requests is not None and self.reached(self.num_requests, self.max_requests):
            raise self._overloaded("full", 1, 0)
        self.room(num_prompt_tokens)
        self.num_requests += 1
        self.num_prompt_tokens += num_prompt_tokens
        return Admitted(num_prompt_tokens)

    def room(self, more):
        if not self.check_tokens or self.max_prompt_tokens is None:
            return
        if self.exceeds(self.num_prompt_tokens + more, self.max_prompt_tokens):
            raise self._overloaded("full", 0, self.num_prompt_tokens + more - self.max_prompt_tokens)

    def correct(self, admitted, num_prompt_tokens):
        more = num_prompt_tokens - admitted.num_prompt_tokens
        if more > 0:
            if self.max_prompt_tokens is not None and num_prompt_tokens > self.max_prompt_tokens:
                raise BadRequest("too long")
            self.room(more)
        self.num_prompt_tokens += more
        admitted.num_prompt_tokens = num_prompt_tokens

    def release(self, admitted, *, was_served=True):
        self.num_requests -= 1
        self.num_prompt_tokens -= admitted.num_prompt_tokens
        if was_served:
            self._ended.append((self.clock(), admitted.num_prompt_tokens))


def admission(name, **changes):
    return type(name, (Admission,), changes)


def admit_counts_first(self, num_prompt_tokens):
    self.num_requests += 1
    self.num_prompt_tokens += num_prompt_tokens
    if self.max_requests is not None and self.num_requests > self.max_requests:
        raise self._overloaded("full", 1, 0)
    if self.max_prompt_tokens is not None and self.num_prompt_tokens > self.max_prompt_tokens:
        raise self._overloaded("full", 0, self.num_prompt_tokens - self.max_prompt_tokens)
    return Admitted(num_prompt_tokens)


def admit_returns_nothing(self, num_prompt_tokens):
    Admission.admit(self, num_prompt_tokens)


def admit_counts_no_tokens(self, num_prompt_tokens):
    admitted = Admission.admit(self, num_prompt_tokens)
    self.num_prompt_tokens -= num_prompt_tokens
    return admitted


def admit_long_last(self, num_prompt_tokens):
    if self.max_requests is not None and self.num_requests >= self.max_requests:
        raise self._overloaded("full", 1, 0)
    return Admission.admit(self, num_prompt_tokens)


def admit_tokens_first(self, num_prompt_tokens):
    if self.max_prompt_tokens is None or num_prompt_tokens <= self.max_prompt_tokens:
        self.room(num_prompt_tokens)
    return Admission.admit(self, num_prompt_tokens)


def admit_counts_bad_ones(self, num_prompt_tokens):
    try:
        return Admission.admit(self, num_prompt_tokens)
    except BadRequest:
        self.num_refused += 1
        raise


def admit_refuses_twice(self, num_prompt_tokens):
    try:
        return Admission.admit(self, num_prompt_tokens)
    except Overloaded:
        self.num_refused += 1
        raise


def admit_no_books_without_limit(self, num_prompt_tokens):
    if self.max_requests is None and self.max_prompt_tokens is None:
        return Admitted(num_prompt_tokens)
    return Admission.admit(self, num_prompt_tokens)


def admit_takes_none_for_zero(self, num_prompt_tokens):
    self._check_prompt(num_prompt_tokens)
    if self.num_requests >= (self.max_requests or 0):
        raise self._overloaded("full", 1, 0)
    return Admission.admit(self, num_prompt_tokens)


def admit_waits_for_all(self, num_prompt_tokens):
    if (
        self.max_prompt_tokens is not None
        and self.max_prompt_tokens >= num_prompt_tokens > self.max_prompt_tokens - self.num_prompt_tokens
    ):
        if self.max_requests is None or self.num_requests < self.max_requests:
            raise self._overloaded("full", 0, num_prompt_tokens)
    return Admission.admit(self, num_prompt_tokens)


def correct_only_books(self, admitted, num_prompt_tokens):
    self.num_prompt_tokens += num_prompt_tokens - admitted.num_prompt_tokens


def correct_does_nothing(self, admitted, num_prompt_tokens):
    pass


def correct_checks_all(self, admitted, num_prompt_tokens):
    self.room(num_prompt_tokens)
    Admission.correct(self, admitted, num_prompt_tokens)


def correct_without_check(self, admitted, num_prompt_tokens):
    self.num_prompt_tokens += num_prompt_tokens - admitted.num_prompt_tokens
    admitted.num_prompt_tokens = num_prompt_tokens


def correct_changes_first(self, admitted, num_prompt_tokens):
    more = num_prompt_tokens - admitted.num_prompt_tokens
    admitted.num_prompt_tokens = num_prompt_tokens
    if more > 0:
        self.room(more)
    self.num_prompt_tokens += more


def correct_never_bad(self, admitted, num_prompt_tokens):
    more = num_prompt_tokens - admitted.num_prompt_tokens
    self.room(more)
    self.num_prompt_tokens += more
    admitted.num_prompt_tokens = num_prompt_tokens


def release_requests_only(self, admitted, *, was_served=True):
    self.num_requests -= 1
    if was_served:
        self._ended.append((self.clock(), admitted.num_prompt_tokens))


def release_notes_nothing(self, admitted, *, was_served=True):
    self.num_requests -= 1
    self.num_prompt_tokens -= admitted.num_prompt_tokens


def release_notes_all(self, admitted, *, was_served=True):
    Admission.release(self, admitted)


def release_only_served(self, admitted, *, was_served=True):
    if was_served:
        Admission.release(self, admitted)


class WithASet(AdmissionControl):
    """The requests in flight in a set; the sums are computed from it."""

    def __init__(self, max_requests=256, max_prompt_tokens=None, clock=time.monotonic):
        self.flying = {}
        super().__init__(max_requests, max_prompt_tokens, clock)

    @property
    def num_requests(self):
        return len(self.flying)

    @num_requests.setter
    def num_requests(self, value):
        pass

    @property
    def num_prompt_tokens(self):
        return sum(each.num_prompt_tokens for each in self.flying.values())

    @num_prompt_tokens.setter
    def num_prompt_tokens(self, value):
        pass

    def refuse(self, size, more, requests):
        limit = float("inf") if self.max_prompt_tokens is None else self.max_prompt_tokens
        if size > limit:
            raise BadRequest("the prompt is too long")
        if self.num_requests + requests > (float("inf") if self.max_requests is None else self.max_requests):
            raise self._overloaded("too many", 1, 0)
        if more > 0 and self.num_prompt_tokens + more > limit:
            raise self._overloaded("too long", 0, self.num_prompt_tokens + more - limit)

    def admit(self, num_prompt_tokens):
        self.refuse(num_prompt_tokens, num_prompt_tokens, 1)
        admitted = Admitted(num_prompt_tokens)
        self.flying[id(admitted)] = admitted
        return admitted

    def correct(self, admitted, num_prompt_tokens):
        if num_prompt_tokens > admitted.num_prompt_tokens:
            self.refuse(num_prompt_tokens, num_prompt_tokens - admitted.num_prompt_tokens, 0)
        admitted.num_prompt_tokens = num_prompt_tokens

    def release(self, admitted, *, was_served=True):
        del self.flying[id(admitted)]
        if was_served:
            self._ended.append((self.clock(), admitted.num_prompt_tokens))


class WithTickets(Admission):
    """Its own kind of ticket."""

    @dataclasses.dataclass
    class Ticket:
        num_prompt_tokens: int
        since: float

    def admit(self, num_prompt_tokens):
        return self.Ticket(super().admit(num_prompt_tokens).num_prompt_tokens, self.clock())


class AddedThenTakenBack(Admission):
    """Counts first, and takes back on refusal."""

    def admit(self, num_prompt_tokens):
        self._check_prompt(num_prompt_tokens)
        self.num_requests += 1
        try:
            if self.max_requests is not None and self.num_requests > self.max_requests:
                raise self._overloaded("full", 1, 0)
            self.room(num_prompt_tokens)
        except Overloaded:
            self.num_requests -= 1
            raise
        self.num_prompt_tokens += num_prompt_tokens
        return Admitted(num_prompt_tokens)


class TokensOfTheRefused(AdmissionControl):
    def admit(self, num_prompt_tokens):
        self._check_prompt(num_prompt_tokens)
        if self.max_requests is not None and self.num_requests >= self.max_requests:
            raise self._overloaded("too many requests", 1, num_prompt_tokens)
        return super().admit(num_prompt_tokens)


class CorrectsWithTheWhole(AdmissionControl):
    """Refuses the right corrections, and says that the whole prompt must end first."""

    def correct(self, admitted, num_prompt_tokens):
        try:
            super().correct(admitted, num_prompt_tokens)
        except Overloaded:
            self.num_refused -= 1
            raise self._overloaded("too many tokens", 1, num_prompt_tokens) from None


class SaysBoth(AdmissionControl):
    """Where both limits would be exceeded, it tells both numbers."""

    def admit(self, num_prompt_tokens):
        self._check_prompt(num_prompt_tokens)
        is_full = self.max_requests is not None and self.num_requests >= self.max_requests
        limit = float("inf") if self.max_prompt_tokens is None else self.max_prompt_tokens
        too_many = max(0, self.num_prompt_tokens + num_prompt_tokens - limit)
        if is_full or too_many:
            raise self._overloaded("it's full", int(is_full), too_many)
        return super().admit(num_prompt_tokens)


class TicketOfAll(Admission):
    def admit(self, num_prompt_tokens):
        super().admit(num_prompt_tokens)
        return Admitted(self.num_prompt_tokens)


ADMISSIONS = [
    Wrong("a ticket for all", TicketOfAll, "`admit` should return Admitted(10)"),
    Wrong("the refused prompt must end", TokensOfTheRefused, "`self._overloaded(what, 1, 0)`"),
    Wrong("a correction tells the whole", CorrectsWithTheWhole, "`self._overloaded(what, 0, 20)`"),
    Wrong(
        "one too many",
        admission("OneTooMany", reached=staticmethod(lambda count, limit: count > limit)),
        "Compare before you count",
    ),
    Wrong(
        "one too few",
        admission("OneTooFew", reached=staticmethod(lambda count, limit: count + 1 >= limit)),
        "the second request should be admitted",
    ),
    Wrong("counts first", admission("CountsFirst", admit=admit_counts_first), "A refused request isn't in flight"),
    Wrong("no limit of tokens", admission("NoTokens", check_tokens=False), "the prompt of 1 token should be refused"),
    Wrong(
        "tokens below the limit",
        admission("Below", exceeds=staticmethod(lambda tokens, limit: tokens >= limit)),
        "a limit may be reached",
    ),
    Wrong("too long is overloaded", admission("Long", check_long=False), "It would never fit"),
    Wrong("too long last", admission("LongLast", admit=admit_long_last), "too long whether there is room or not"),
    Wrong("bad ones counted", admission("BadCounted", admit=admit_counts_bad_ones), "A bad request isn't one of them"),
    Wrong("tokens before requests", admission("TokensFirst", admit=admit_tokens_first), "Both limits are exceeded"),
    Wrong("refusals twice", admission("Twice", admit=admit_refuses_twice), "`num_refused` should be 1; yours is 2"),
    Wrong("returns nothing", admission("Nothing", admit=admit_returns_nothing), "`admit` returned None"),
    Wrong(
        "tokens not counted",
        admission("Uncounted", admit=admit_counts_no_tokens),
        "`num_prompt_tokens` should be 10; yours is 0",
    ),
    Wrong(
        "no books without limits", admission("NoBooks", admit=admit_no_books_without_limit), "a drain waits for them"
    ),
    Wrong("None is zero", admission("NoneIsZero", admit=admit_takes_none_for_zero), "A limit of None is no limit"),
    Wrong("waits for the whole prompt", admission("WaitsForAll", admit=admit_waits_for_all), "exceed the limit by 30"),
    Wrong(
        "corrects the books only",
        admission("BooksOnly", correct=correct_only_books),
        "after the release, `num_prompt_tokens`",
    ),
    Wrong(
        "corrects nothing",
        admission("CorrectsNothing", correct=correct_does_nothing),
        "after the correction, `num_prompt_tokens` should be 40; yours is 25",
    ),
    Wrong(
        "corrects with the whole",
        admission("CorrectsAll", correct=correct_checks_all),
        "Only what it needs *more* has to fit",
    ),
    Wrong(
        "corrects without a check", admission("Unchecked", correct=correct_without_check), "the limit holds here too"
    ),
    Wrong("corrects before the check", admission("ChangesFirst", correct=correct_changes_first), "after its release"),
    Wrong("correction never bad", admission("NeverBad", correct=correct_never_bad), "Alone it exceeds the limit"),
    Wrong(
        "releases requests only",
        admission("RequestsOnly", release=release_requests_only),
        "`release` takes back what `admit` counted",
    ),
    Wrong(
        "notes nothing", admission("NotesNothing", release=release_notes_nothing), "notes when a served request ended"
    ),
    Wrong(
        "notes all", admission("NotesAll", release=release_notes_all), "says nothing about how fast requests are served"
    ),
    Wrong("releases only served", admission("OnlyServed", release=release_only_served), "Served or not"),
]

# 14.6 goodput


def counting(
    is_good=lambda record, target: record.succeeded,
    within=lambda record, target: all(
        getattr(record, name) <= limit for name, limit in vars(target).items() if limit is not None
    ),
    below=lambda log, count: log.window,
):
    """The reference with one rule made another way."""

    def goodput(log, target):
        count = sum(bool(is_good(record, target) and within(record, target)) for record in log.records)
        return count / below(log, count)

    return goodput


def within_of(*names):
    return lambda record, target: all(
        getattr(record, name) <= getattr(target, name) for name in names if getattr(target, name) is not None
    )


def each_gap(record, target):
    fits = within_of("ttft", "e2el")(record, target)
    return fits and (target.tpot is None or all(gap <= target.tpot for gap in record.itl))


def sorts_the_log(log, target):
    log.records.sort(key=lambda record: -record.ttft)
    return counting()(log, target)


def a_list_of_good(log, target):
    return [record for record in log.records if counting()(type(log)([record], 1.0, 1.0), target)]


def ended_in_the_window(log, target):
    good = [r for r in log.records if r.succeeded and within_of("ttft", "tpot", "e2el")(r, target)]
    return sum(r.end_time <= log.window + 1 for r in good) / log.window


def promises_needed(log, target):
    good = [
        r
        for r in log.records
        if r.succeeded and None not in vars(target).values() and within_of("ttft", "tpot", "e2el")(r, target)
    ]
    return len(good) / log.window


def counts_tokens(log, target):
    good = [r for r in log.records if r.succeeded and within_of("ttft", "tpot", "e2el")(r, target)]
    return sum(r.output_tokens for r in good) / log.window


def with_three_ifs(log, target):
    good = 0
    for record in log.records:
        if not record.succeeded:
            continue
        if target.ttft is not None and record.ttft > target.ttft:
            continue
        if target.tpot is not None and record.tpot > target.tpot:
            continue
        if target.e2el is not None and record.e2el > target.e2el:
            continue
        good += 1
    return good / log.window


def with_infinities(log, target):
    limits = [float("inf") if limit is None else limit for limit in (target.ttft, target.tpot, target.e2el)]
    arrays = np.array([[r.ttft, r.tpot, r.e2el] for r in log.records if r.succeeded]).reshape(-1, 3)
    return (arrays <= limits).all(axis=1).sum() / log.window


def by_hand_from_events(log, target):
    """Every time computed from the events themselves."""
    good = []
    for r in log.records:
        if r.status != 200 or r.error or not r.finish_reason or not r.token_times:
            continue
        first, last = r.token_times[0], r.token_times[-1]
        times = (first - r.send_time, (last - first) / max(1, r.output_tokens - 1), last - r.send_time)
        limits = (target.ttft, target.tpot, target.e2el)
        good.append(not any(limit is not None and time > limit for time, limit in zip(times, limits)))
    return good.count(True) / log.window


def with_mean_times(log, target):
    served = [each for each in log.records if each.succeeded]
    limits = {name: limit for name, limit in vars(target).items() if limit is not None}
    within = all(sum(getattr(each, name) for each in served) <= limit * len(served) for name, limit in limits.items())
    return len(served) / log.window if within else 0.0


def good_of(log, target):
    limits = {name: limit for name, limit in vars(target).items() if limit is not None}
    return [
        each for each in log.records if each.succeeded and all(getattr(each, name) <= limits[name] for name in limits)
    ]


def ended_by_then(log, target):
    return sum(each.end_time <= log.window for each in good_of(log, target)) / log.window


def without_fractions(log, target):
    return len(good_of(log, target)) // log.window


def until_the_last_end(log, target):
    return len(good_of(log, target)) / max((each.end_time or 0.0 for each in log.records), default=1.0)


GOODPUTS = [
    Wrong(
        "any of none",
        lambda log, target: (
            sum(
                r.succeeded and any(getattr(r, n) <= v for n, v in vars(target).items() if v is not None)
                for r in log.records
            )
            / log.window
        ),
        "`any` of no limits is False",
    ),
    Wrong("a second at least", counting(below=lambda log, count: max(1, log.window)), "shorter than a second"),
    Wrong("mean times", with_mean_times, "within them by itself"),
    Wrong("ended by the end of the window", ended_by_then, "leave out requests that ended after the window"),
    Wrong("without fractions", without_fractions, "`//` drops the fraction"),
    Wrong("until the last end", until_the_last_end, "the time at which the last request ended"),
    Wrong(
        "from the arrival",
        counting(
            within=lambda record, target: (
                within_of("ttft", "tpot", "e2el")(record, target)
                and (target.ttft is None or record.token_times[0] - record.arrival_time <= target.ttft)
            )
        ),
        "You count from `arrival_time`",
    ),
    Wrong(
        "a limit of 0 is none",
        counting(
            within=lambda record, target: all(
                getattr(record, name) <= limit for name, limit in vars(target).items() if limit
            )
        ),
        "A limit of 0 is a limit",
    ),
    Wrong("divides by the duration", counting(below=lambda log, count: log.duration), "the longer it takes to stop"),
    Wrong("a number", counting(below=lambda log, count: 1), "That is a number of requests"),
    Wrong("a share", counting(below=lambda log, count: max(1, len(log.records))), "That is a share of the requests. "),
    Wrong(
        "a share of the served",
        counting(below=lambda log, count: max(1, sum(r.succeeded for r in log.records))),
        "a share of the requests that were served",
    ),
    Wrong("throughput", counting(within=lambda record, target: True), "That is the throughput"),
    Wrong("all", lambda log, target: len(log.records) / log.window, "the offered rate"),
    Wrong("failed ones too", counting(is_good=lambda record, target: True), "No token, or a cut stream"),
    Wrong(
        "status only",
        counting(is_good=lambda record, target: record.status == 200),
        "has status 200 and fast first tokens",
    ),
    Wrong(
        "unfinished ones",
        counting(is_good=lambda record, target: record.status == 200 and record.error is None),
        "The request isn't finished",
    ),
    Wrong("ttft only", counting(within=within_of("ttft")), "time to first token only"),
    Wrong("no e2el", counting(within=within_of("ttft", "tpot")), "You leave out `target.e2el`"),
    Wrong("no tpot", counting(within=within_of("ttft", "e2el")), "You leave out `target.tpot`"),
    Wrong(
        "any",
        counting(
            within=lambda record, target: any(
                [getattr(record, name) <= limit for name, limit in vars(target).items() if limit is not None] or [True]
            )
        ),
        "`all`, not `any`",
    ),
    Wrong("each gap", counting(within=each_gap), "TPOT is the mean"),
    Wrong(
        "below the target",
        counting(
            within=lambda record, target: all(
                getattr(record, name) < limit for name, limit in vars(target).items() if limit is not None
            )
        ),
        "`<=`, not `<`",
    ),
    Wrong("ended in the window", ended_in_the_window, "ended after the window"),
    Wrong("needs all promises", promises_needed, "A limit of None promises nothing"),
    Wrong(
        "missed ones",
        lambda log, target: (len(log.records) - counting()(log, target) * log.window) / log.window,
        "requests that missed the target",
    ),
    Wrong("the rate", counting(below=lambda log, count: log.offered_rate), "the rate that was offered"),
    Wrong("tokens", counts_tokens, "You count tokens"),
    Wrong("a list", a_list_of_good, "expected a number"),
    Wrong("sorts the log", sorts_the_log, "changed the log"),
]


WRONG = {"14.1": MAILBOXES, "14.2": OWNERS, "14.3": LEAVINGS, "14.4": EVENTS, "14.5": ADMISSIONS, "14.6": GOODPUTS}
RIGHT = {
    "14.1": [QueueWithEnd, DequeAndCondition, EventPerWait, mailbox("BySlices", take=take_by_slices)],
    "14.2": [
        shields_until_it_is_over,
        with_a_stack,
        with_two_loops,
        waits_for_the_last_turn,
        waits_with_futures_wait,
        asks_until_the_turn_is_done,
        waits_behind_the_last_turn,
    ],
    "14.3": [
        listener_cancels_me,
        with_a_callback,
        with_a_task_group,
        racing(keeps_accepted=True),
        with_the_given_coroutine,
    ],
    "14.4": [mapping_of_lines, made_by_an_object, with_compact_json],
    "14.5": [WithASet, WithTickets, AddedThenTakenBack, SaysBoth],
    "14.6": [with_three_ifs, with_infinities, by_hand_from_events],
}
