"""Calls the three methods of a mailbox, and names what none of them may do."""

import asyncio
import inspect

from lessons_lib.checks.exercise import Mistake, call, short
from lessons_lib.viz.words import marked

ASLEEP = (
    "an item was put in, but the reader still sleeps.",
    "Was the event cleared after the item had come? Then the news is lost: clear it only while there are no items, "
    "right before you wait. (If you have changed `put`: it has to set the event.)",
)
NEVER_ENDS = (
    "the mailbox was closed, but the reader still sleeps.",
    "Nothing follows, so the reader must not wait any more: does yours look at `is_closed` before each wait? (If you "
    "have changed `close`: it has to wake the reader too.)",
)
SPINNING = (
    "the reader asks again and again instead of waiting.",
    "While it asks, the event loop can't rest, and a hundred such readers slow each other down. Wait for an "
    "`asyncio.Event` that `put` sets: until then, the coroutine costs nothing.",
)
POLLING = (
    "the reader looks into the mailbox again and again, with a pause in between.",
    "A long pause delays each token, and a short one costs as much as not waiting at all. Wait for an `asyncio.Event` "
    "that `put` sets.",
)


class WatchedEvent(asyncio.Event):
    """Refuses a reader that waits again and again for a flag that is set: it would never let the event loop run."""

    MOST = 1000

    def __init__(self, case: str) -> None:
        super().__init__()
        self.case, self.num_vain = case, 0

    async def wait(self) -> bool:
        self.num_vain = self.num_vain + 1 if self.is_set() else 0
        if self.num_vain > self.MOST:
            raise Mistake(
                "`take` never ends: its event is still set from an earlier item, so `wait` returns at once, each time.",
                case=self.case,
                idea="Clear the event before you wait for it.",
            )
        return await super().wait()


def new_box(attempt, case: str):
    box = call(attempt, case=case)
    if type(getattr(box, "_has_news", None)) is asyncio.Event:
        box._has_news = WatchedEvent(case)
    for name in ("put", "take", "close"):
        if not callable(getattr(box, name, None)):
            raise Mistake(f"a mailbox needs a method `{name}`; yours has none.", case=case)
    return box


def put_items(box, *items, case: str) -> None:
    for item in items:
        got = box.put(item)
        if inspect.isawaitable(got):
            if inspect.iscoroutine(got):
                got.close()
            raise Mistake(
                "`put` should be a plain function; yours is a coroutine.",
                case=case,
                idea="The producer must never wait for a reader, so it has nothing to await: `def put`, not `async def put`.",  # noqa: E501
            )


def close_box(box, case: str) -> None:
    got = box.close()
    if inspect.iscoroutine(got):
        got.close()
        raise Mistake(
            "`close` should be a plain function; yours is a coroutine.",
            case=case,
            idea="It only says that nothing follows: `def close`.",
        )
    if not getattr(box, "is_closed", True):
        raise Mistake(
            "`is_closed` should be False before `close` and True after it.",
            case=case,
            idea="`put` and `take` look at it, and so does the owner: set it in `close`.",
        )


async def take_items(box, case: str) -> list:
    taken = box.take()
    if not inspect.isawaitable(taken):
        raise Mistake(
            f"`take` should be a coroutine; yours returned {short(taken)} at once.",
            case=case,
            idea="If nothing is there, the reader has to wait: `async def take`, with an `await` in it.",
        )
    return _checked(await taken, case)


def _checked(items, case: str) -> list:
    if not isinstance(items, (list, tuple)):
        raise Mistake(
            f"`take` should return a list of items; yours returned {short(items)}.",
            case=case,
            idea="Return a list in any case. It is empty once the mailbox is closed and nothing is left in it.",
        )
    return list(items)


def expect_items(got: list, want: list, case: str, idea: str) -> None:
    if got != want:
        raise Mistake(f"`take` should return {want}; yours returned {marked(want, got)}.", case=case, idea=idea)
