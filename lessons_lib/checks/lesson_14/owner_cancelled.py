"""Judges 14.2 when its task is cancelled: it ends, and the engine is left whole."""

import asyncio

from lessons_lib.checks.exercise import Mistake
from lessons_lib.checks.lesson_14.owning_scene import BUSY, STUCK, Scene
from lessons_lib.checks.lesson_14.virtual_loop import noticing, play

MOST_AWAITS = 40


async def _life(scene: Scene) -> None:
    """What callers do while an owner is cancelled at one point or another."""
    scene.commands.put(("add", "A", 3))
    await asyncio.sleep(0.0075)
    scene.commands.put(("add", "B", 1))
    await asyncio.sleep(0.05)
    scene.commands.put(("add", "C", 4))


def check_cancelled_at(attempt, point: int) -> bool:
    """Cancel the owner at its await number `point`. Returns whether it has so many."""
    case = f"A runs for 3 steps, B for 1, later C for 4; your coroutine is cancelled at its await number {point + 1}"
    reached = []

    async def story():
        scene = Scene(attempt, case)

        def at_await(number: int) -> None:
            if number == point:
                scene.case = f"{case}, {_where(scene)}."
                reached.append(scene)
                scene.loop.call_soon(owner.cancel)

        async def wrapped(coroutine):
            return await noticing(coroutine, at_await)

        owner = scene.start(wrapped)
        living = asyncio.ensure_future(_life(scene))
        await asyncio.sleep(0.2)
        await living
        if reached:
            _refuse_survivor(owner, scene)
            scene.audit("it was cancelled")
        else:
            owner.cancel()

    play(story, case, STUCK, BUSY, BUSY)
    return bool(reached)


def _where(scene: Scene) -> str:
    return "in a turn" if scene.executor.is_busy else "waiting for commands"


def _refuse_survivor(owner: asyncio.Task, scene: Scene) -> None:
    if not owner.done():
        raise Mistake(
            "your coroutine was cancelled and goes on.",
            case=scene.case,
            idea="Don't swallow `CancelledError`: it is how the server says stop. `finally` lets it pass.",
        )
    if not owner.cancelled():
        how = (
            "returned"
            if owner.exception() is None
            else f"raised {type(owner.exception()).__name__}: {owner.exception()}"
        )
        raise Mistake(
            f"a cancelled coroutine should end with CancelledError; yours {how}.",
            case=scene.case,
            idea="Clean up in `finally`, and let the exception pass.",
        )


def check_cancelled_twice(attempt) -> None:
    _cancel_twice(attempt, 0.001, "1 ms later")
    for num_breaks in range(1, 5):
        _cancel_twice(attempt, 0, "at one of its next awaits", num_breaks)


def _cancel_twice(attempt, pause: float, when: str, num_breaks: int = 1) -> None:
    case = f"A runs for 6 steps. In the middle of its second turn your coroutine is cancelled, and {when} once more."

    async def story():
        scene = Scene(attempt, case)
        scene.commands.put(("add", "A", 6))
        owner = scene.start()
        await asyncio.sleep(0.0075)
        owner.cancel()
        for _ in range(num_breaks):
            await asyncio.sleep(pause)
        owner.cancel()
        await asyncio.sleep(0.1)
        _refuse_survivor(owner, scene)
        try:
            scene.audit("it was cancelled twice")
        except Mistake as mistake:
            idea = (
                "The second cancellation hits the `await` of your cleanup. Wait there without one: which call in the "
                "cell above the exercise blocks until the thread has come back?"
            )
            raise Mistake(mistake.what, case=case, idea=idea) from None

    play(story, case, STUCK, BUSY, BUSY)
