"""14.1, `Mailbox`: nothing is lost, the producer never waits, and the reader is woken."""

import asyncio
import inspect
from collections.abc import Iterator
from functools import partial
from typing import Any

from lessons_lib.checks.diagnosis import Shown, Task, Watch, mistakes
from lessons_lib.checks.exercise import Mistake, current_case, short
from lessons_lib.checks.lesson_14.virtual_loop import WatchedEvent, no_sleep, play, settle

WAIT = (
    "Wait for an `asyncio.Event` that `put` and `close` set: until then, the coroutine costs nothing. Asking again and "
    "again costs an idle server as much as work, and a pause delays each token."
)
WORDS = {
    "put": "put({word})",
    "put!": "put({word}) at once",
    "other": "put({word}) into another mailbox",
    "fill": "1,000 times put",
    "read": "a reader comes",
    "got": "the reader goes on",
    "sleep": "100 s later",
    "cancel": "the reader is cancelled before it runs again",
    "rounds": "a little later",
    "stop": "the reader is cancelled, if it still waits",
    "rest": "take()",
}


def cases() -> Iterator[str]:
    """Each is a list of steps. A reader runs after every step, but not after `put!` and `close!`."""
    yield from ("put The|put dog|take", "put a|put a|take", "put 3|put 1|put 2|take", "put 0|put None|put ''|take")
    yield from ("read|put The|got", "read|sleep|put The|got", "put a|take|put b|put c|take")
    yield from ("put a|take|read|put b|got", "read|put a|got|put b|take", "read|put! a|put! b|put! c|got")
    yield from ("read|put 0|got", "fill|take")
    yield from ("read|put a|got|read|sleep|put b|got", "put a|take|read|put b|got|read|put c|got", "close|take|take")
    yield from ("put dog|close|take|take", "read|close|got", "read|put! dog|close|got|take", "close|put late|take")
    yield from ("read|put! a|put! b|close|got|take", "put a|close|put late|take|take", "put a|take|put b|close|take")
    yield from ("read|put! The|cancel|take", "read|cancel|put The|take", "read|cancel|read|put The|got")
    yield from ("other p|put q|take", "other p|read|put q|got", "read|put! The|cancel|put dog|take")
    for rounds in range(1, 5):
        yield f"put The|rounds {rounds}|stop|rest"
        yield f"read|put! The|rounds {rounds}|stop|rest"
        yield f"put The|rounds {rounds}|put! dog|stop|rest"


def run(attempt: Any, case: str, watch: Watch) -> None:
    lists: list[Any] = []  # what readers got

    async def take(box: Any) -> Any:
        if not inspect.isawaitable(taken := box.take()):
            idea = "If nothing is there, the reader has to wait: `async def take`, with an `await` in it."
            raise Mistake(f"`take` returned {short(taken)} at once; it should be a coroutine.", idea=idea)
        lists.append(await taken)
        return lists[-1]

    async def story() -> None:
        box = new_box(attempt)
        reader: asyncio.Task[Any] = asyncio.ensure_future(asyncio.sleep(0))
        is_closed = False

        def put_late(item: Any) -> Any:
            try:
                return box.put(item)
            except Exception:
                return Shown("an exception")

        for step in case.split("|"):
            done, (what, _, word) = told(step), step.partition(" ")
            if what in ("put", "put!"):
                watch(done, put_late if is_closed else box.put, value(word), returns=plainly)
            elif what == "close":
                is_closed = True
                watch(done, box.close, returns=plainly, look=lambda: {"is_closed": bool(box.is_closed)})
            elif what == "fill":
                watch(done, lambda: [plainly(box.put(number)) for number in range(1000)][:0])
            elif what == "other":
                plainly(attempt().put(word))
            elif what == "stop":
                reader.cancel()
            elif what == "rounds":
                reader = reader if "read" in case else asyncio.ensure_future(take(box))
                await settle(int(word))
            else:
                if what in ("read", "take", "rest"):
                    reader = asyncio.ensure_future(take(box))
                if what == "cancel":
                    reader.cancel()
                if what != "read":
                    await asyncio.wait([reader], timeout=100 if what == "sleep" else 1)
                await settle()
                state = "a CancelledError" if reader.cancelled() else "nothing yet"
                result = reader.result if reader.done() and not reader.cancelled() else partial(Shown, state)
                if what == "rest":
                    watch("in all", lambda: [each for items in lists for each in items], subject="what readers got")
                else:
                    watch(done, result, returns=as_list, subject="what `take` returns")
            await settle(20 * (what == "put"))
        if "rest" not in case:
            watch("at the end", lambda: list(map(as_list, lists)), subject="what the lists that `take` returned hold")

    with no_sleep(attempt):
        play(story, WAIT, most_timers=20)


def new_box(attempt: Any) -> Any:
    box = attempt()
    if type(getattr(box, "_has_news", None)) is asyncio.Event:
        box._has_news = WatchedEvent()
    return box


def plainly(result: Any) -> Any:
    """What `put` and `close` return doesn't matter, unless it has to be awaited."""
    if inspect.iscoroutine(result):
        result.close()
        return Shown("a coroutine, which is never awaited")
    return result if isinstance(result, Shown) else Shown("nothing")


def as_list(items: Any) -> Any:
    return list(items) if isinstance(items, tuple) else items


def value(word: str) -> Any:
    return {"0": 0, "None": None, "''": "", "1": 1, "2": 2, "3": 3}.get(word, word)


def told(step: str) -> str:
    what, _, word = step.partition(" ")
    return WORDS.get(what, f"{what}()").format(word=repr(value(word)))


def stale_news(attempt: Any) -> None:
    """A probe: an event says that there may be news, not that there is."""
    current_case.text = case = 'a reader comes, put("a"), clear(), both before it runs again.'

    async def story() -> None:
        box = new_box(attempt)
        if not (hasattr(box, "clear") and hasattr(box, "_items")):
            return  # a mailbox of another make
        reader = asyncio.ensure_future(box.take())
        await settle()
        box.put("a")
        box.clear()
        await settle()
        if reader.done():
            got = "never rests" if reader.exception() else f"returned {short(reader.result())}"
            raise Mistake(
                f"`take` should go on waiting, since the mailbox is open; yours {got}.",
                case,
                "An event says that there may be news, not that there is. Woken, look at the items again. If there are "
                "none, clear the event and wait once more.",
            )

    play(story, WAIT)


MISTAKES = """
`put` adds the item, and then wakes the reader.
- self._items.append(item)
Nothing wakes the reader: `put` has to set the event.
- self._items.append(item) ... self._has_news.set() => self._items.append(item)
A reader that waits must hear of the end: `close` has to set the event, too.
- self.is_closed = True ... self._has_news.set() => self.is_closed = True
`put` and `close` look at `is_closed`, and so does the owner: set it in `close`.
- self.is_closed = True ... self._has_news.set() => self._has_news.set()
After `close`, nothing is added: the reader was told that nothing follows.
- if not self.is_closed: => if True:
The producer serves many requests. One that has ended must not stop it: `put` after `close` does nothing.
< if not self.is_closed: => if self.is_closed: raise RuntimeError
Nothing may be dropped, however slow the reader is. A request has at most `max_tokens` tokens, so a limit isn't needed.
~ self._items.append(item) => self._items = [*self._items, item][:100]
Each item counts: yours keeps only the newest. A token that is lost leaves a hole in the answer.
~ self._items.append(item) => self._items = [item]
An item goes in whole, even if it's a string or a list: `append` adds one item, and `+=` or `extend` adds its parts.
~ self._items.append(item) => self._items += item
First in, first out: the order of the tokens is the text.
~ self._items.append(item) => self._items.insert(0, item)
The producer must never wait for a reader, so it has nothing to await: `def put`, not `async def put`.
~ def put => async def put
Take *all* that have arrived. A reader that takes one at a time falls further and further behind.
- items, self._items = ... return items => return [self._items.pop(0)] if self._items else []
Closed and empty, `take` returns `[]`: the reader's `while` ends with an empty list, not with None.
~ return items => return items or None
An empty list means that nothing follows. The mailbox is open, so wait until there is an item, however long.
- while not self._items ... await self._has_news.wait()
or - while not self._items ... await self._has_news.wait()
+ if not self._items and not self.is_closed:
+     self._has_news.clear()
+     try: await asyncio.wait_for(self._has_news.wait(), 5)
+     except TimeoutError: pass
The event is still set from the first item. Clear it before you wait, and look at the items in a `while`: an event says
that there may be news, not that there is.
- while not self._items ... await self._has_news.wait() => await self._has_news.wait()
Was the event cleared after the item had come? Then the news is lost. Clear it only while there are no items, right
before you wait.
- while not self._items ... await self._has_news.wait() => self._has_news.clear(); await self._has_news.wait()
or - while not self._items ... await self._has_news.wait() => await self._has_news.wait(); self._has_news.clear()
Nothing follows, so the reader must not wait any more: look at `is_closed` before each wait.
~ while not self._items and not self.is_closed => while not self._items
What is in the mailbox when it is closed can still be taken: `close` drops nothing, and `take` looks at the items before
`is_closed`.
~ self.is_closed = True => self._items, self.is_closed = [], True
The last tokens and the end come together. [] says that nothing follows, so it may come only when the mailbox is closed
*and* empty. What does your code look at first when it wakes up?
> await self._has_news.wait() => if self.is_closed: return []
A mailbox that waits for the end isn't a stream: return what is there, without waiting for `close`.
~ while not self._items and not self.is_closed => while not self.is_closed
What was taken is gone, also if the reader had to wait for it: the next call returns only what has arrived since.
~ = self._items, [] => = self._items, self._items
`clear` empties the list that the reader gets: it's the same list. Give it away, and start a new one.
- items, self._items = ... return items
+ try: return self._items
+ finally: self._items.clear()
Return the list of items itself, without a list around it.
~ return items => return [items]
An answer may have the same token twice in a row. Each item counts, also those that are equal.
~ return items => return list(dict.fromkeys(items))
An item may be anything: 0, None, an empty string. Ask whether there are items, not whether they are true.
~ not self._items and => not any(self._items) and
or ~ return items => return [item for item in items if item]
Don't catch `CancelledError`: the caller wants the reader to stop.
- await self._has_news.wait()
+ try: await self._has_news.wait()
+ except asyncio.CancelledError: return []
or - await self._has_news.wait()
+ try: await self._has_news.wait()
+ except asyncio.CancelledError: pass
Taken out, and then an `await`: cancelled there, the item is lost. Take items after the last `await`.
= items, self._items = self._items, []; await asyncio.sleep(0)
The item was given to a reader that never took it, or taken out on its way out (`except`, `finally`). Leave items in the
mailbox until the reader runs again: take them after the last `await`.
- await self._has_news.wait()
+ try: await self._has_news.wait()
+ except asyncio.CancelledError:
+     self._items = []
+     raise
Each stream has a mailbox of its own. What the *class* has is shared by all: make the list in `__init__`.
~ self._items: list[T] = [] => self._items = SHARED
~ self._items, [] => self._items[:], SHARED; SHARED.clear()
"""

TASK = Task(
    reference="lessons_lib.serving.mailbox:Mailbox",
    cases=cases,
    run=run,
    tell=lambda case: ", ".join(map(told, case.split("|"))) + ".",
    known=mistakes(MISTAKES, SHARED=[]),
    probes=(stale_news,),
    about={
        "raised InvalidStateError": "The future of a reader that has left is cancelled, and can't be set any more. An "
        "`asyncio.Event` doesn't care who waits for it.",
        "raised StopAsyncIteration": "Closed and empty, `take` returns `[]`, and raises nothing.",
        "raised TimeoutError": "An answer may take long to begin: the reader waits without a timeout.",
        "raised QueueFull": "A request has at most `max_tokens` tokens, so its mailbox needs no limit.",
        "returned": "A reader gets all items that have arrived since the last call, each once and in order. It waits "
        "only while there are none and the mailbox is open. Clear the event right before you wait, take items after "
        "the last `await`, and set the event in `put` and `close`.",
    },
)

EXERCISE = TASK.exercise(
    id="14.1",
    title="the mailbox of a stream",
    time_limit=1.5,
    hints=(
        "An event says that there may be news, not what it is. Items stay in the list until the reader itself takes "
        "them out, and that's the very last thing that it does.",
        "In `take`: as long as there are no items and the mailbox is open, clear the event and wait for it. After that "
        "loop there is no `await` any more: give the reader the list, and start a new one.",
        "`while not self._items and not self.is_closed:` `self._has_news.clear()`, then `await self._has_news.wait()`. "
        "After the loop, `items, self._items = ..., ...`, and return one of the two. Which?",
    ),
)
