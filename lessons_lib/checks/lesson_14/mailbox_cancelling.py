"""Judges 14.1 when a reader is cancelled: no item is lost with it."""

import asyncio

from lessons_lib.checks.exercise import Mistake, short
from lessons_lib.checks.lesson_14.mailbox_calls import ASLEEP, SPINNING, expect_items, new_box, put_items, take_items
from lessons_lib.checks.lesson_14.virtual_loop import play, settle


def check_cancelled(attempt) -> None:
    case = 'a reader waits, put("The"), the reader is cancelled before it runs again; then take().'

    async def story():
        box = new_box(attempt, case)
        reading = asyncio.ensure_future(take_items(box, case))
        await settle()
        put_items(box, "The", case=case)
        reading.cancel()
        await asyncio.wait([reading])
        if not reading.cancelled():
            raise Mistake(
                f"a cancelled reader should raise CancelledError; yours ended with {_how(reading)}.",
                case=case,
                idea="Don't catch `CancelledError`: the caller wants the reader to stop.",
            )
        idea = (
            "Was the item handed to a reader that never took it, or taken out on its way out (`except`, `finally`)? "
            "Leave items in the mailbox until the reader runs again: take them after the last `await`."
        )
        expect_items(await _take_soon(box, ["The"], case, idea), ["The"], case, idea)

    play(story, case, ASLEEP, SPINNING)


def check_cancelled_after_taking(attempt) -> None:
    for rounds in range(1, 5):
        for is_there in (True, False):
            _cancelled_in_round(attempt, rounds, is_there)
    for rounds in range(1, 5):
        _cancelled_in_round(attempt, rounds, True, comes_late=True)


def _cancelled_in_round(attempt, rounds: int, is_there: bool, comes_late: bool = False) -> None:
    """Cancel a reader that still awaits something although its item is there.

    Args:
        rounds: of the event loop that the reader gets before.
        is_there: whether the item is there before the reader comes.
        comes_late: whether one more item comes right before the cancellation.
    """
    case = 'put("The"), a reader comes' if is_there else 'a reader waits, put("The")'
    if comes_late:
        case += ', put(" dog")'
    case += ", the reader is cancelled before its `take` has returned; then take()."

    async def story():
        box = new_box(attempt, case)
        if is_there:
            put_items(box, "The", case=case)
        reading = asyncio.ensure_future(take_items(box, case))
        if not is_there:
            await settle()
            put_items(box, "The", case=case)
        await settle(rounds)
        if comes_late:
            put_items(box, " dog", case=case)
        reading.cancel()
        await asyncio.wait([reading])
        if not reading.cancelled():
            return  # it has got the item
        want = ["The", " dog"] if comes_late else ["The"]
        idea = "Taken out, and then an `await`: cancelled there, the item is lost. Take items after the last `await`."
        got = await _take_soon(box, want, case, idea)
        if sorted(map(str, got)) == sorted(want):
            idea = "Taken out, and put back behind what came later. Take items after the last `await`, not before it."
        expect_items(got, want, case, idea)

    play(story, case, ASLEEP, SPINNING)


def check_cancelled_early(attempt) -> None:
    case = 'a reader waits and is cancelled; put("The"), then another take().'

    async def story():
        box = new_box(attempt, case)
        reading = asyncio.ensure_future(take_items(box, case))
        await settle()
        reading.cancel()
        await asyncio.wait([reading])
        try:
            put_items(box, "The", case=case)
        except asyncio.InvalidStateError:
            raise Mistake(
                "`put` raised InvalidStateError.",
                case=case,
                idea="The future of the reader that left is cancelled, and can't be set any more. An `asyncio.Event` "
                "doesn't care who waits for it.",
            ) from None
        idea = "A reader that has left must take nothing with it."
        expect_items(await _take_soon(box, ["The"], case, idea), ["The"], case, idea)

    play(story, case, ASLEEP, SPINNING)


async def _take_soon(box, want: list, case: str, idea: str) -> list:
    """What the next `take` returns. It must not wait: the items are there.

    Args:
        idea: what to say if they aren't.
    """
    try:
        return await asyncio.wait_for(take_items(box, case), 1)
    except TimeoutError:
        if getattr(box, "_items", None):
            idea = (
                "The item is in the mailbox, but its event was cleared, and nothing sets it again. Look at the items "
                "before you wait."
            )
        raise Mistake(f"the next `take` should return {want}; yours waits.", case=case, idea=idea) from None


def _how(task) -> str:
    return short(task.result()) if task.exception() is None else type(task.exception()).__name__
