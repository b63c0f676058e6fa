"""Judges 14.1 when the mailbox is closed: what is in it can be taken, and nothing follows."""

import asyncio

from lessons_lib.checks.exercise import Mistake
from lessons_lib.checks.lesson_14.mailbox_calls import (
    NEVER_ENDS,
    SPINNING,
    close_box,
    expect_items,
    new_box,
    put_items,
    take_items,
)
from lessons_lib.checks.lesson_14.virtual_loop import play, settle


def check_closed(attempt) -> None:
    case = 'put("dog"), close(), take(), take().'

    async def story():
        box = new_box(attempt, case)
        put_items(box, "dog", case=case)
        close_box(box, case)
        got = await take_items(box, case)
        idea = "What is in the mailbox when it is closed can still be taken: look at the items before `is_closed`."
        expect_items(got, ["dog"], case, idea)
        got = await take_items(box, case)
        expect_items(got, [], case, "Closed and empty: an empty list tells the reader that nothing follows.")

    play(story, case, NEVER_ENDS, SPINNING)


def check_says_closed(attempt) -> None:
    case = "is_closed, close(), is_closed."

    async def story():
        box = new_box(attempt, case)
        before = getattr(box, "is_closed", None)
        close_box(box, case)
        after = getattr(box, "is_closed", None)
        if before or not after:
            raise Mistake(
                f"`is_closed` should be False before `close` and True after it; yours is {before}, then {after}.",
                case=case,
                idea="The engine's owner looks at it to know when to stop: `close` sets it.",
            )

    play(story, case, NEVER_ENDS, SPINNING)


def check_closed_while_waiting(attempt) -> None:
    case = "a reader waits; then close()."

    async def story():
        box = new_box(attempt, case)
        reading = asyncio.ensure_future(take_items(box, case))
        await settle()
        close_box(box, case)
        try:
            expect_items(await reading, [], case, "Nothing follows, so the reader gets an empty list.")
        except asyncio.CancelledError:
            raise Mistake(
                "`take` should return []; yours was cancelled.",
                case=case,
                idea="A mailbox that is closed isn't an error. Wake the reader, and return an empty list.",
            ) from None

    play(story, case, NEVER_ENDS, SPINNING)


def check_last_item_while_waiting(attempt) -> None:
    case = 'a reader waits; put("dog"), close(), both before it runs again; then take().'

    async def story():
        box = new_box(attempt, case)
        reading = asyncio.ensure_future(take_items(box, case))
        await settle()
        put_items(box, "dog", case=case)
        close_box(box, case)
        idea = (
            "The last tokens and the end come together. [] says that nothing follows, so it may come only when the "
            "mailbox is closed *and* empty. What does your code look at first when it wakes up?"
        )
        expect_items(await reading, ["dog"], case, idea)
        expect_items(await take_items(box, case), [], case, "Closed and empty: nothing follows.")

    play(story, case, NEVER_ENDS, SPINNING)


def check_put_after_close(attempt) -> None:
    case = 'close(), put("late"), take().'

    async def story():
        box = new_box(attempt, case)
        close_box(box, case)
        try:
            put_items(box, "late", case=case)
        except Mistake:
            raise
        except Exception as error:
            raise Mistake(
                f"`put` after `close` should do nothing; yours raised {type(error).__name__}.",
                case=case,
                idea="The producer serves many requests. One that has ended must not stop it.",
            ) from None
        expect_items(
            await take_items(box, case),
            [],
            case,
            "After `close`, nothing is added: the reader was told that nothing follows.",
        )

    play(story, case, NEVER_ENDS, SPINNING)
