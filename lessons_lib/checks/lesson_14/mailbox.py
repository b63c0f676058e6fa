"""Judges 14.1, `Mailbox`: nothing is lost, the producer never waits, and the reader is woken."""

import asyncio
import contextlib
import threading
import time
from unittest.mock import patch

from lessons_lib.checks.exercise import Mistake, current_case, short
from lessons_lib.checks.lesson_14.mailbox_calls import (
    ASLEEP,
    POLLING,
    SPINNING,
    expect_items,
    new_box,
    put_items,
    take_items,
)
from lessons_lib.checks.lesson_14.mailbox_cancelling import (
    check_cancelled,
    check_cancelled_after_taking,
    check_cancelled_early,
)
from lessons_lib.checks.lesson_14.mailbox_closing import (
    check_closed,
    check_closed_while_waiting,
    check_last_item_while_waiting,
    check_put_after_close,
    check_says_closed,
)
from lessons_lib.checks.lesson_14.virtual_loop import play, settle


def check_mailbox(attempt) -> None:
    with _refusing_sleep(attempt):
        for story in STORIES:
            story(attempt)


@contextlib.contextmanager
def _refusing_sleep(attempt):
    """`time.sleep` in an attempt would stop the check's event loop, and so everything that could wake it."""
    sleep, thread = time.sleep, threading.get_ident()

    def refusing(name: str):
        def refuse(seconds: float) -> None:
            if threading.get_ident() != thread:
                return sleep(seconds)
            raise Mistake(
                f"{name} was called: it stops the event loop's thread, so nothing can be put in meanwhile.",
                case=current_case.text,
                idea="A coroutine waits with `await`, which lets others run: `await self._has_news.wait()`.",
            )

        return refuse

    names = getattr(getattr(attempt, "take", None), "__globals__", {})
    imported = [name for name, value in names.items() if value is sleep]  # `from time import sleep`
    names.update({name: refusing(f"`{name}`, which is `time.sleep`,") for name in imported})
    try:
        with patch("time.sleep", refusing("`time.sleep`")):
            yield
    finally:
        names.update(dict.fromkeys(imported, sleep))


def _two_are_there(attempt) -> None:
    case = 'put("The"), put(" dog"), then take().'

    async def story():
        box = new_box(attempt, case)
        put_items(box, "The", " dog", case=case)
        got = await take_items(box, case)
        if got == ["The"]:
            idea = "Take *all* that have arrived. A reader that takes one at a time falls further and further behind."
        elif got == [" dog"]:
            idea = "Each item counts: yours keeps only the newest. A token that is lost leaves a hole in the answer."
        elif got == [" dog", "The"]:
            idea = "First in, first out: the order of the tokens is the text."
        elif got == []:
            idea = "The items were there already. (If you return the list and then clear it, the reader gets an empty one: it's the same list.)"  # noqa: E501
        elif got == [["The", " dog"]]:
            idea = "Return the list of items itself, without a list around it."
        else:
            idea = "Everything that was put in, in that order, once."
        expect_items(got, ["The", " dog"], case, idea)

    play(story, case, ASLEEP, SPINNING)


def _equal_items(attempt) -> None:
    case = 'put("a"), put("a"), take().'

    async def story():
        box = new_box(attempt, case)
        put_items(box, "a", "a", case=case)
        got = await take_items(box, case)
        idea = "An answer may have the same token twice in a row. Each item counts, also those that are equal."
        expect_items(got, ["a", "a"], case, idea)

    play(story, case, ASLEEP, SPINNING)


def _reader_waits(attempt) -> None:
    case = 'take() on an empty mailbox; then put("The").'

    async def story():
        box = new_box(attempt, case)
        reading = asyncio.ensure_future(take_items(box, case))
        await settle()
        if reading.done():
            got = reading.result()
            idea = (
                "An empty list means that nothing follows. The mailbox is open, so wait until there is an item."
                if got == []
                else "Nothing was put in yet, so there is nothing to return."
            )
            raise Mistake(f"`take` should wait; yours returned {short(got)} at once.", case=case, idea=idea)
        put_items(box, "The", case=case)
        idea = "Woken, the reader takes what has arrived: look at the items after the wait, not before it."
        expect_items(await reading, ["The"], case, idea)

    play(story, case, ASLEEP, SPINNING)


def _waits_long(attempt) -> None:
    case = 'take() on an empty mailbox; 100 s later, put("The").'

    async def story():
        box = new_box(attempt, case)
        reading = asyncio.ensure_future(take_items(box, case))
        await asyncio.sleep(100)
        if reading.done():
            raise Mistake(
                f"`take` should wait for an item, however long; yours returned {short(reading.result())} before.",
                case=case,
                idea="An empty list means that nothing follows. The mailbox is open, so wait until there is an item.",
            )
        put_items(box, "The", case=case)
        expect_items(await reading, ["The"], case, "Woken, the reader takes what has arrived.")

    play(story, case, ASLEEP, SPINNING, POLLING, most_timers=20)


def _takes_again(attempt) -> None:
    case = 'put("a"), take(), put("b"), put("c"), take().'

    async def story():
        box = new_box(attempt, case)
        put_items(box, "a", case=case)
        first = await box.take()  # not a copy of it
        put_items(box, "b", "c", case=case)
        second = await take_items(box, case)
        if second == ["a", "b", "c"]:
            idea = "What was taken is gone: the next call returns only what has arrived since."
        elif second == []:
            idea = "The mailbox is still open; the second call has items to return."
        else:
            idea = "The second call returns what has arrived since the first, and only that."
        expect_items(second, ["b", "c"], case, idea)
        if list(first) != ["a"]:
            raise Mistake(
                f"the first list was ['a'] when it was returned; now it is {short(first)}.",
                case=case,
                idea="The reader still holds that list. Give it away and start a new one: "
                "`items, self._items = self._items, []`. `self._items.clear()` would empty the reader's list too.",
            )

    play(story, case, ASLEEP, SPINNING)


def _waits_again(attempt) -> None:
    case = 'put("a"), take(), take(), and later put("b").'

    async def story():
        box = new_box(attempt, case)
        put_items(box, "a", case=case)
        await take_items(box, case)
        reading = asyncio.ensure_future(take_items(box, case))
        await settle()
        if reading.done():
            raise Mistake(
                f"the second `take` should wait; yours returned {short(reading.result())} at once.",
                case=case,
                idea="The event is still set from the first item. Clear it before you wait, and look at the items in a "
                "`while`: an event says that there may be news, not that there is.",
            )
        put_items(box, "b", case=case)
        expect_items(await reading, ["b"], case, "Woken, the reader takes what has arrived since.")

    play(story, case, ASLEEP, SPINNING)


def _woken_and_again(attempt) -> None:
    case = 'take() on an empty mailbox, put("a"); then put("b"), take().'

    async def story():
        box = new_box(attempt, case)
        reading = asyncio.ensure_future(box.take())
        await settle()
        put_items(box, "a", case=case)
        first = await reading  # not a copy of it
        put_items(box, "b", case=case)
        second = await take_items(box, case)
        idea = (
            "An item is taken once, also if the reader had to wait for it. Is your mailbox empty after the wait too?"
            if second == ["a", "b"]
            else "The second call returns what has arrived since the first, and only that."
        )
        expect_items(second, ["b"], case, idea)
        if list(first) != ["a"]:
            raise Mistake(
                f"the first list was ['a'] when it was returned; now it is {short(first)}.",
                case=case,
                idea="The reader still holds that list. Give it away and start a new one.",
            )

    play(story, case, ASLEEP, SPINNING)


def _cleared_before_it_runs(attempt) -> None:
    case = 'a reader waits; put("a"), clear(), both before it runs again; later put("b").'

    async def story():
        box = new_box(attempt, case)
        reading = asyncio.ensure_future(take_items(box, case))
        await settle()
        put_items(box, "a", case=case)
        if getattr(box, "_items", None) != ["a"] or not hasattr(box, "clear"):
            return  # a mailbox of another make
        box.clear()
        await settle()
        if reading.done():
            raise Mistake(
                f"`take` should go on waiting; yours returned {short(reading.result())}, and the mailbox is open.",
                case=case,
                idea="An event says that there may be news, not that there is. Woken, look at the items again, and "
                "wait once more if there are none.",
            )
        put_items(box, "b", case=case)
        expect_items(await reading, ["b"], case, "Woken, the reader takes what is there now.")

    play(story, case, ASLEEP, SPINNING)


def _several_between(attempt) -> None:
    case = "a reader waits; a step puts in 3 items in a row, without an await in between."

    async def story():
        box = new_box(attempt, case)
        reading = asyncio.ensure_future(take_items(box, case))
        await settle()
        put_items(box, 1, 2, 3, case=case)
        got = await reading
        if got == [1]:
            box.close()
            raise Mistake(
                "`take` should return [1, 2, 3]; yours returned [1].",
                case=case,
                idea="When the reader runs, all three are there. Don't hand over the item that woke it: take everything "  # noqa: E501
                "from the mailbox after the wait.",
            )
        expect_items(got, [1, 2, 3], case, "When the reader runs, all three are there.")

    play(story, case, ASLEEP, SPINNING)


def _no_reader(attempt) -> None:
    case = "1,000 items are put in before anything is read; then take()."

    async def story():
        box = new_box(attempt, case)
        try:
            put_items(box, *range(1000), case=case)
        except (asyncio.QueueFull, OverflowError) as error:
            raise Mistake(
                f"`put` raised {type(error).__name__}; a producer must never have to care whether there is a reader.",
                case=case,
                idea="A request has at most `max_tokens` tokens, so its mailbox can't grow without bound. Limit nothing here.",  # noqa: E501
            ) from None
        got = await take_items(box, case)
        if got != list(range(1000)):
            idea = (
                "Nothing may be dropped, however slow the reader is."
                if len(got) < 1000
                else "Each item once, in the order in which they came."
            )
            raise Mistake(f"1000 items should come; yours returned {len(got)}: {short(got, 60)}.", case=case, idea=idea)

    play(story, case, ASLEEP, SPINNING)


def _two_boxes(attempt) -> None:
    case = 'two mailboxes, p and q; p.put("p"), q.put("q"), take() of each.'

    async def story():
        p, q = new_box(attempt, case), new_box(attempt, case)
        put_items(p, "p", case=case)
        put_items(q, "q", case=case)
        first = await take_items(p, case)
        idea = "Each stream has a mailbox of its own. An attribute of the *class* is shared by all: make the list in `__init__`."  # noqa: E501
        expect_items(first, ["p"], case, idea)
        expect_items(await take_items(q, case), ["q"], case, idea)

    play(story, case, ASLEEP, SPINNING)


def _falsy(attempt) -> None:
    case = "put(0), put(None), take()."

    async def story():
        box = new_box(attempt, case)
        reading = asyncio.ensure_future(take_items(box, case))
        await settle()
        put_items(box, 0, None, case=case)
        expect_items(
            await reading,
            [0, None],
            case,
            "An item may be anything: 0, None, an empty string. Ask whether the *list* is empty.",
        )

    asleep = (
        ASLEEP[0],
        "An item may be anything: 0, None, an empty string. Does yours ask whether the items are true, as `any` does, "
        "and not whether there are some?",
    )
    play(story, case, asleep, SPINNING)


STORIES = (
    _two_are_there,
    _reader_waits,
    _waits_long,
    _takes_again,
    _waits_again,
    _woken_and_again,
    _several_between,
    _no_reader,
    check_closed,
    check_closed_while_waiting,
    check_last_item_while_waiting,
    check_put_after_close,
    check_cancelled,
    check_cancelled_after_taking,
    check_cancelled_early,
    _cleared_before_it_runs,
    _two_boxes,
    _falsy,
    _equal_items,
    check_says_closed,
)
