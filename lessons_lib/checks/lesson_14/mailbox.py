"""Judges 14.1, `Mailbox`: nothing is lost, the producer never waits, and the reader is woken."""

import asyncio
import inspect

from lessons_lib.checks.exercise import Mistake, call, short
from lessons_lib.checks.lesson_14.virtual_loop import play, settle
from lessons_lib.viz.words import marked

ASLEEP = (
    "an item was put in, but the reader still sleeps.",
    "`take` waits for the event, so `put` has to set it. And `take` may clear it only before it looks at the items: "
    "cleared after an item has come, the news is lost.",
)
NEVER_ENDS = (
    "the mailbox was closed, but the reader still sleeps.",
    "`close` must wake the reader too. And a reader that comes later must not wait at all: does yours look at "
    "`is_closed` before it waits?",
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


def check_mailbox(attempt) -> None:
    for story in STORIES:
        story(attempt)


def _new(attempt, case: str):
    box = call(attempt, case=case)
    for name in ("put", "take", "close"):
        if not callable(getattr(box, name, None)):
            raise Mistake(f"a mailbox needs a method `{name}`; yours has none.", case=case)
    return box


def _put(box, *items, case: str) -> None:
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


def _close(box, case: str) -> None:
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


async def _take(box, case: str) -> list:
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


def _expect(got: list, want: list, case: str, idea: str) -> None:
    if got != want:
        raise Mistake(f"`take` should return {want}; yours returned {marked(want, got)}.", case=case, idea=idea)


def _two_are_there(attempt) -> None:
    case = 'put("The"), put(" dog"), then take().'

    async def story():
        box = _new(attempt, case)
        _put(box, "The", " dog", case=case)
        got = await _take(box, case)
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
        _expect(got, ["The", " dog"], case, idea)

    play(story, case, ASLEEP, SPINNING)


def _reader_waits(attempt) -> None:
    case = 'take() on an empty mailbox; then put("The").'

    async def story():
        box = _new(attempt, case)
        reading = asyncio.ensure_future(_take(box, case))
        await settle()
        if reading.done():
            got = reading.result()
            idea = (
                "An empty list means that nothing follows. The mailbox is open, so wait until there is an item."
                if got == []
                else "Nothing was put in yet, so there is nothing to return."
            )
            raise Mistake(f"`take` should wait; yours returned {short(got)} at once.", case=case, idea=idea)
        _put(box, "The", case=case)
        _expect(await reading, ["The"], case, "Woken, the reader takes what has arrived.")

    play(story, case, ASLEEP, SPINNING)


def _waits_long(attempt) -> None:
    case = 'take() on an empty mailbox; 100 s later, put("The").'

    async def story():
        box = _new(attempt, case)
        reading = asyncio.ensure_future(_take(box, case))
        await asyncio.sleep(100)
        _put(box, "The", case=case)
        _expect(await reading, ["The"], case, "Woken, the reader takes what has arrived.")

    play(story, case, ASLEEP, SPINNING, POLLING, most_timers=20)


def _takes_again(attempt) -> None:
    case = 'put("a"), take(), put("b"), put("c"), take().'

    async def story():
        box = _new(attempt, case)
        _put(box, "a", case=case)
        first = await box.take()  # not a copy of it
        _put(box, "b", "c", case=case)
        second = await _take(box, case)
        if second == ["a", "b", "c"]:
            idea = "What was taken is gone: the next call returns only what has arrived since."
        elif second == []:
            idea = "The mailbox is still open; the second call has items to return."
        else:
            idea = "The second call returns what has arrived since the first, and only that."
        _expect(second, ["b", "c"], case, idea)
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
        box = _new(attempt, case)
        _put(box, "a", case=case)
        await _take(box, case)
        reading = asyncio.ensure_future(_take(box, case))
        await settle()
        if reading.done():
            raise Mistake(
                f"the second `take` should wait; yours returned {short(reading.result())} at once.",
                case=case,
                idea="The event is still set from the first item. Clear it before you wait, and look at the items in a "
                "`while`: an event says that there may be news, not that there is.",
            )
        _put(box, "b", case=case)
        _expect(await reading, ["b"], case, "Woken, the reader takes what has arrived since.")

    play(story, case, ASLEEP, SPINNING)


def _several_between(attempt) -> None:
    case = "a reader waits; a step puts in 3 items in a row, without an await in between."

    async def story():
        box = _new(attempt, case)
        reading = asyncio.ensure_future(_take(box, case))
        await settle()
        _put(box, 1, 2, 3, case=case)
        got = await reading
        if got == [1]:
            box.close()
            raise Mistake(
                "`take` should return [1, 2, 3]; yours returned [1].",
                case=case,
                idea="When the reader runs, all three are there. Don't hand over the item that woke it: take everything "  # noqa: E501
                "from the mailbox after the wait.",
            )
        _expect(got, [1, 2, 3], case, "When the reader runs, all three are there.")

    play(story, case, ASLEEP, SPINNING)


def _no_reader(attempt) -> None:
    case = "1,000 items are put in before anything is read; then take()."

    async def story():
        box = _new(attempt, case)
        try:
            _put(box, *range(1000), case=case)
        except (asyncio.QueueFull, OverflowError) as error:
            raise Mistake(
                f"`put` raised {type(error).__name__}; a producer must never have to care whether there is a reader.",
                case=case,
                idea="A request has at most `max_tokens` tokens, so its mailbox can't grow without bound. Limit nothing here.",  # noqa: E501
            ) from None
        got = await _take(box, case)
        if got != list(range(1000)):
            idea = (
                "Nothing may be dropped, however slow the reader is."
                if len(got) < 1000
                else "Each item once, in the order in which they came."
            )
            raise Mistake(f"1000 items should come; yours returned {len(got)}: {short(got, 60)}.", case=case, idea=idea)

    play(story, case, ASLEEP, SPINNING)


def _closed(attempt) -> None:
    case = 'put("dog"), close(), take(), take().'

    async def story():
        box = _new(attempt, case)
        _put(box, "dog", case=case)
        _close(box, case)
        got = await _take(box, case)
        idea = "What is in the mailbox when it is closed can still be taken: look at the items before `is_closed`."
        _expect(got, ["dog"], case, idea)
        got = await _take(box, case)
        _expect(got, [], case, "Closed and empty: an empty list tells the reader that nothing follows.")

    play(story, case, NEVER_ENDS, SPINNING)


def _says_closed(attempt) -> None:
    case = "is_closed, close(), is_closed."

    async def story():
        box = _new(attempt, case)
        before = getattr(box, "is_closed", None)
        _close(box, case)
        after = getattr(box, "is_closed", None)
        if before or not after:
            raise Mistake(
                f"`is_closed` should be False before `close` and True after it; yours is {before}, then {after}.",
                case=case,
                idea="The engine's owner looks at it to know when to stop: `close` sets it.",
            )

    play(story, case, NEVER_ENDS, SPINNING)


def _closed_while_waiting(attempt) -> None:
    case = "a reader waits; then close()."

    async def story():
        box = _new(attempt, case)
        reading = asyncio.ensure_future(_take(box, case))
        await settle()
        _close(box, case)
        try:
            _expect(await reading, [], case, "Nothing follows, so the reader gets an empty list.")
        except asyncio.CancelledError:
            raise Mistake(
                "`take` should return []; yours was cancelled.",
                case=case,
                idea="A mailbox that is closed isn't an error. Wake the reader, and return an empty list.",
            ) from None

    play(story, case, NEVER_ENDS, SPINNING)


def _put_after_close(attempt) -> None:
    case = 'close(), put("late"), take().'

    async def story():
        box = _new(attempt, case)
        _close(box, case)
        try:
            _put(box, "late", case=case)
        except Mistake:
            raise
        except Exception as error:
            raise Mistake(
                f"`put` after `close` should do nothing; yours raised {type(error).__name__}.",
                case=case,
                idea="The producer serves many requests. One that has ended must not stop it.",
            ) from None
        _expect(
            await _take(box, case),
            [],
            case,
            "After `close`, nothing is added: the reader was told that nothing follows.",
        )

    play(story, case, NEVER_ENDS, SPINNING)


def _cancelled(attempt) -> None:
    case = 'a reader waits, put("The"), the reader is cancelled before it runs again; then take().'

    async def story():
        box = _new(attempt, case)
        reading = asyncio.ensure_future(_take(box, case))
        await settle()
        _put(box, "The", case=case)
        reading.cancel()
        await asyncio.wait([reading])
        if not reading.cancelled():
            raise Mistake(
                f"a cancelled reader should raise CancelledError; yours ended with {_how(reading)}.",
                case=case,
                idea="Don't catch `CancelledError`: the caller wants the reader to stop.",
            )
        try:
            got = await asyncio.wait_for(_take(box, case), 1)
        except asyncio.TimeoutError:
            got = []
        idea = (
            "The item was handed to a reader that never took it. Leave items in the mailbox until the reader runs "
            "again: take them after the last `await`."
        )
        _expect(got, ["The"], case, idea)

    play(story, case, ASLEEP, SPINNING)


def _cancelled_after_taking(attempt) -> None:
    for rounds in range(1, 5):
        for is_there in (True, False):
            _cancelled_in_round(attempt, rounds, is_there)


def _cancelled_in_round(attempt, rounds: int, is_there: bool) -> None:
    """Cancel a reader that still awaits something although its item is there.

    Args:
        rounds: of the event loop that the reader gets before.
        is_there: whether the item is there before the reader comes.
    """
    case = 'put("The"), a reader comes' if is_there else 'a reader waits, put("The")'
    case += ", the reader is cancelled before its `take` has returned; then take()."

    async def story():
        box = _new(attempt, case)
        if is_there:
            _put(box, "The", case=case)
        reading = asyncio.ensure_future(_take(box, case))
        if not is_there:
            await settle()
            _put(box, "The", case=case)
        await settle(rounds)
        reading.cancel()
        await asyncio.wait([reading])
        if not reading.cancelled():
            return  # it has got the item
        try:
            got = await asyncio.wait_for(_take(box, case), 1)
        except asyncio.TimeoutError:
            got = []
        idea = "Taken out, and then an `await`: cancelled there, the item is lost. Take items after the last `await`."
        _expect(got, ["The"], case, idea)

    play(story, case, ASLEEP, SPINNING)


def _cancelled_early(attempt) -> None:
    case = 'a reader waits and is cancelled; put("The"), then another take().'

    async def story():
        box = _new(attempt, case)
        reading = asyncio.ensure_future(_take(box, case))
        await settle()
        reading.cancel()
        await asyncio.wait([reading])
        try:
            _put(box, "The", case=case)
        except asyncio.InvalidStateError:
            raise Mistake(
                "`put` raised InvalidStateError.",
                case=case,
                idea="The future of the reader that left is cancelled, and can't be set any more. An `asyncio.Event` "
                "doesn't care who waits for it.",
            ) from None
        try:
            got = await asyncio.wait_for(_take(box, case), 1)
        except asyncio.TimeoutError:
            got = []
        _expect(got, ["The"], case, "A reader that has left must take nothing with it.")

    play(story, case, ASLEEP, SPINNING)


def _how(task) -> str:
    return short(task.result()) if task.exception() is None else type(task.exception()).__name__


def _two_boxes(attempt) -> None:
    case = 'two mailboxes, p and q; p.put("p"), q.put("q"), take() of each.'

    async def story():
        p, q = _new(attempt, case), _new(attempt, case)
        _put(p, "p", case=case)
        _put(q, "q", case=case)
        first = await _take(p, case)
        idea = "Each stream has a mailbox of its own. An attribute of the *class* is shared by all: make the list in `__init__`."  # noqa: E501
        _expect(first, ["p"], case, idea)
        _expect(await _take(q, case), ["q"], case, idea)

    play(story, case, ASLEEP, SPINNING)


def _falsy(attempt) -> None:
    case = "put(0), put(None), take()."

    async def story():
        box = _new(attempt, case)
        reading = asyncio.ensure_future(_take(box, case))
        await settle()
        _put(box, 0, None, case=case)
        _expect(
            await reading,
            [0, None],
            case,
            "An item may be anything: 0, None, an empty string. Ask whether the *list* is empty.",
        )

    play(story, case, ASLEEP, SPINNING)


STORIES = (
    _two_are_there,
    _reader_waits,
    _waits_long,
    _takes_again,
    _waits_again,
    _several_between,
    _no_reader,
    _closed,
    _closed_while_waiting,
    _put_after_close,
    _cancelled,
    _cancelled_after_taking,
    _cancelled_early,
    _two_boxes,
    _falsy,
    _says_closed,
)
