"""Judges 14.2, `own_engine`: one owner, one turn at a time, and nothing is left wherever it is cancelled."""

import asyncio
import inspect

from lessons_lib.checks.exercise import Mistake, call, short
from lessons_lib.checks.lesson_14.fake_engine import FakeEngine, TimedExecutor
from lessons_lib.checks.lesson_14.virtual_loop import noticing, play, settle
from lessons_lib.serving.mailbox import Mailbox

STUCK = (
    "your coroutine waits for something that never happens.",
    "It may wait for commands only if the engine has nothing to do (`engine.open` is empty). While requests run, turn "
    "follows turn, with or without commands.",
)
BUSY = (
    "your coroutine never rests.",
    "If the engine has nothing to do and no command has arrived, wait: `await commands.take()`.",
)
MOST_AWAITS = 40


class Scene:
    """One run: an engine, its executor, a mailbox, and what was delivered."""

    def __init__(self, attempt, case: str, fail_at: int = 0):
        self.loop, self.case = asyncio.get_running_loop(), case
        self.engine = FakeEngine(fail_at)
        self.executor = self.engine.executor = TimedExecutor(self.loop, self.engine)
        self.engine.elsewhere = TimedExecutor(self.loop, self.engine)
        self.loop.set_default_executor(self.engine.elsewhere)
        self.commands: Mailbox = Mailbox()
        self.delivered: list[list] = []
        self.attempt = attempt

    def deliver(self, events) -> None:
        if inspect.isawaitable(events):
            close = getattr(events, "close", None)
            if close:
                close()
            raise Mistake(
                "`deliver` got something that must be awaited first.",
                case=self.case,
                idea="`run_in_executor` returns at once, with a future. The events are there after `await`.",
            )
        if not isinstance(events, (list, tuple)):
            raise Mistake(
                f"`deliver` should get the list of events of a turn; it got {short(events)}.",
                case=self.case,
                idea="Pass on what `engine.turn` returned.",
            )
        if self.executor.is_running:
            raise Mistake(
                "`deliver` was called in the executor's thread.",
                case=self.case,
                idea="Streams and futures belong to the event loop. Deliver after the `await`, in the coroutine itself.",  # noqa: E501
            )
        self.delivered.append(list(events))

    def start(self, wrap=lambda coroutine: coroutine) -> asyncio.Task:
        coroutine = call(self.attempt, self.engine, self.commands, self.deliver, self.executor, case=self.case)
        if not inspect.iscoroutine(coroutine):
            raise Mistake(
                f"`own_engine` should be a coroutine; yours returned {short(coroutine)}.",
                case=self.case,
                idea="It runs beside the other coroutines for as long as the server does: `async def`.",
            )
        return asyncio.ensure_future(wrap(coroutine))

    def audit(self, how: str) -> None:
        """After the end: no faults, no call in progress, everything closed.

        Args:
            how: how it ended, for messages.
        """
        if self.engine.faults:
            what, idea = self.engine.faults[0]
            raise Mistake(what, case=self.case, idea=idea)
        if self.executor.is_busy:
            raise Mistake(
                f"your coroutine has ended ({how}), and the executor's thread is still in the engine.",
                case=self.case,
                idea="A thread can't be cancelled. Wait for it, in a `finally`: `executor.shutdown(wait=True)`.",
            )
        if not self.engine.is_closed:
            raise Mistake(
                f"your coroutine has ended ({how}), and `engine.close()` wasn't called.",
                case=self.case,
                idea="Nothing else aborts the requests that are left, and frees their blocks. However the coroutine "
                "ends, it passes through `finally`.",
            )
        if self.engine.audit():
            raise Mistake(
                f"{self.engine.audit()} blocks are still in use at the end.",
                case=self.case,
                idea="Close the engine last.",
            )


def check_own_engine(attempt) -> None:
    for story in (_one_request, _idle, _commands_in_a_turn, _closed_in_a_turn, _closed_idle, _failing):
        story(attempt)
    for point in range(MOST_AWAITS):
        if not _cancelled_at(attempt, point):
            break
    _cancelled_twice(attempt)


def _one_request(attempt) -> None:
    case = 'one command, ("add", "A", 3): A gets 3 tokens, one a turn. Then the mailbox is closed.'

    async def story():
        scene = Scene(attempt, case)
        scene.commands.put(("add", "A", 3))
        owner = scene.start()
        await asyncio.sleep(0.1)
        _refuse_early_end(owner, scene)
        _refuse_faults(scene)
        turns = scene.engine.turns
        if not turns:
            raise Mistake(
                "no turn was taken.", case=case, idea="Take what is in `commands`, and give it to `engine.turn`."
            )
        if turns[0] and not isinstance(turns[0][0], tuple):
            raise Mistake(
                f"`engine.turn` should get a list of commands; it got {short(turns[0])}.",
                case=case,
                idea="`take` returns a list already: pass it on as it is.",
            )
        if len(turns) > 3:
            raise Mistake(
                f"A ends with the third turn; yours took {len(turns)}.",
                case=case,
                idea="With nothing to do and no commands, don't take empty turns: each wakes a thread for nothing. Wait.",  # noqa: E501
            )
        if len(turns) < 3:
            raise Mistake(
                f"A needs 3 turns; yours took {len(turns)} and then waited.",
                case=case,
                idea="While `engine.open` isn't empty, turns follow each other, whether a command has arrived or not.",
            )
        _compare_events(scene)
        scene.commands.close()
        await _ended(owner, scene, "the mailbox was closed")
        scene.audit("the mailbox was closed")

    play(story, case, STUCK, BUSY, BUSY)


def _compare_events(scene: Scene) -> None:
    want, got = scene.engine.returned, scene.delivered
    flat_want, flat_got = [e for events in want for e in events], [e for events in got for e in events]
    if flat_got == flat_want:
        return
    if not got:
        what, idea = "nothing was delivered.", "Pass the events of each turn to `deliver`."
    elif len(flat_got) > len(flat_want):
        what, idea = (
            f"{len(flat_want)} events should be delivered; yours delivered {len(flat_got)}.",
            "Deliver each turn's events once.",
        )
    elif flat_got == flat_want[: len(flat_got)]:
        what = f"the events {short(flat_want[len(flat_got) :], 80)} were never delivered."
        idea = (
            "A turn's events are all that its requests ever hear of it. Deliver them before you look whether to stop."
        )
    else:
        what, idea = (
            f"the events should be {short(flat_want, 90)}; yours are {short(flat_got, 90)}.",
            "Deliver the events of each turn, in order.",
        )
    raise Mistake(what, case=scene.case, idea=idea)


def _idle(attempt) -> None:
    case = "no command for 100 s; then A for one step; 100 s later B for one step."

    async def story():
        scene = Scene(attempt, case)
        owner = scene.start()
        for number, id in enumerate("AB"):
            await asyncio.sleep(100)
            _refuse_early_end(owner, scene)
            if scene.engine.empty_turns:
                _refuse_faults(scene)
                raise Mistake(
                    f"{scene.engine.empty_turns} turns were taken although there was nothing to do.",
                    case=case,
                    idea="An idle server should cost nothing. If `engine.open` is empty, `await commands.take()`.",
                )
            scene.commands.put(("add", id, 1))
            await asyncio.sleep(0.02)
            if len(scene.engine.turns) != number + 1:
                raise Mistake(
                    f"{id} arrived, and {len(scene.engine.turns) - number} turns followed within 20 ms; a turn takes 5 ms.",  # noqa: E501
                    case=case,
                    idea="Woken by a command, take a turn with it at once.",
                )
        _refuse_faults(scene)
        _compare_events(scene)
        owner.cancel()

    play(story, case, STUCK, BUSY, BUSY, most_timers=60)


def _commands_in_a_turn(attempt) -> None:
    case = "A runs for 6 steps. In the middle of its second turn, B and C are added (2 steps each) and A is aborted."

    async def story():
        scene = Scene(attempt, case)
        scene.commands.put(("add", "A", 6))
        owner = scene.start()
        await asyncio.sleep(0.0075)
        late = [("add", "B", 2), ("add", "C", 2), ("abort", "A")]
        for command in late:
            scene.commands.put(command)
        await asyncio.sleep(0.1)
        _refuse_early_end(owner, scene)
        _refuse_faults(scene)
        carried_out = [command for turn in scene.engine.turns for command in turn]
        if carried_out != [("add", "A", 6), *late]:
            missing = [command for command in late if command not in carried_out]
            twice = len(carried_out) > len(set(carried_out))
            idea = (
                "Each command is carried out once: a turn gets what has arrived since the last one."
                if twice
                else "While the turn ran, commands arrived. All of them belong to the next one."
            )
            what = (
                f"{short(missing, 60)} never reached the engine."
                if missing
                else f"the commands should reach the engine in order, once; yours: {short(carried_out, 90)}."
            )
            raise Mistake(what, case=case, idea=idea)
        if scene.engine.turns[2] != late:
            raise Mistake(
                f"the third turn should get all three commands; yours got {short(scene.engine.turns[2])}.",
                case=case,
                idea="Take everything that has arrived. One command a turn would let a hundred callers wait for a hundred steps."  # noqa: E501
                if scene.engine.turns[2]
                else "While the turn ran, commands arrived. Look into the mailbox before every turn, not only when idle.",  # noqa: E501
            )
        _compare_events(scene)
        owner.cancel()

    play(story, case, STUCK, BUSY, BUSY)


def _closed_in_a_turn(attempt) -> None:
    case = "A runs for 6 steps. In the middle of its second turn, the mailbox is closed."

    async def story():
        scene = Scene(attempt, case)
        scene.commands.put(("add", "A", 6))
        owner = scene.start()
        await asyncio.sleep(0.0075)
        scene.commands.close()
        await _ended(owner, scene, "the mailbox was closed")
        if len(scene.engine.turns) > 2:
            raise Mistake(
                f"the mailbox was closed in the second turn; yours took {len(scene.engine.turns)}.",
                case=case,
                idea="A closed mailbox means: stop now. What is still open is aborted by `engine.close()`.",
            )
        _compare_events(scene)
        scene.audit("the mailbox was closed")

    play(story, case, STUCK, BUSY, BUSY)


def _closed_idle(attempt) -> None:
    case = "nothing runs, your coroutine waits for commands; then the mailbox is closed."

    async def story():
        scene = Scene(attempt, case)
        owner = scene.start()
        await settle()
        scene.commands.close()
        await _ended(owner, scene, "the mailbox was closed")
        if scene.engine.turns:
            raise Mistake(
                "a turn was taken, although nothing was there to do.",
                case=case,
                idea="`take` returns an empty list when the mailbox is closed. That isn't a reason for a turn.",
            )
        scene.audit("the mailbox was closed")

    play(story, case, STUCK, BUSY, BUSY)


def _failing(attempt) -> None:
    case = "A runs for 6 steps; the third turn raises RuntimeError: the GPU is gone."

    async def story():
        scene = Scene(attempt, case, fail_at=3)
        scene.commands.put(("add", "A", 6))
        owner = scene.start()
        done, _ = await asyncio.wait([owner], timeout=0.1)
        if not done:
            raise Mistake(
                f"the engine failed, and your coroutine went on: {len(scene.engine.turns)} turns.",
                case=case,
                idea="An engine that has failed can't go on, and its readers must hear of it. Let the exception out; only "  # noqa: E501
                "clean up in `finally`.",
            )
        if owner.cancelled() or not isinstance(owner.exception(), RuntimeError):
            raise Mistake(
                "the engine failed, and your coroutine ended as if nothing had happened.",
                case=case,
                idea="Don't catch the exception: the code that started the owner tells the readers what went wrong.",
            )
        _compare_events(scene)
        scene.audit("a turn raised")

    play(story, case, STUCK, BUSY, BUSY)


async def _life(scene: Scene) -> None:
    """What callers do while an owner is cancelled at one point or another."""
    scene.commands.put(("add", "A", 3))
    await asyncio.sleep(0.0075)
    scene.commands.put(("add", "B", 1))
    await asyncio.sleep(0.05)
    scene.commands.put(("add", "C", 4))


def _cancelled_at(attempt, point: int) -> bool:
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


def _cancelled_twice(attempt) -> None:
    case = "A runs for 6 steps. In the middle of its second turn your coroutine is cancelled, and 1 ms later once more."

    async def story():
        scene = Scene(attempt, case)
        scene.commands.put(("add", "A", 6))
        owner = scene.start()
        await asyncio.sleep(0.0075)
        owner.cancel()
        await asyncio.sleep(0.001)
        owner.cancel()
        await asyncio.sleep(0.1)
        _refuse_survivor(owner, scene)
        try:
            scene.audit("it was cancelled twice")
        except Mistake as mistake:
            idea = "The second cancellation hits the `await` of your cleanup. Wait there without one: `executor.shutdown(wait=True)` in a `finally`."  # noqa: E501
            raise Mistake(mistake.what, case=case, idea=idea) from None

    play(story, case, STUCK, BUSY, BUSY)


def _refuse_faults(scene: Scene) -> None:
    if scene.engine.faults:
        what, idea = scene.engine.faults[0]
        raise Mistake(what, case=scene.case, idea=idea)


def _refuse_early_end(owner: asyncio.Task, scene: Scene) -> None:
    if not owner.done():
        return
    _refuse_faults(scene)
    if owner.cancelled():
        raise Mistake("your coroutine ended with CancelledError, although nothing cancelled it.", case=scene.case)
    if owner.exception() is not None:
        raise owner.exception()
    raise Mistake(
        "your coroutine returned, although the mailbox is still open.",
        case=scene.case,
        idea="The owner runs until the mailbox of commands is closed, not until the engine is idle.",
    )


async def _ended(owner: asyncio.Task, scene: Scene, how: str) -> None:
    done, _ = await asyncio.wait([owner], timeout=0.5)
    _refuse_faults(scene)
    if not done:
        raise Mistake(
            f"{how}, and your coroutine still runs after {len(scene.engine.turns)} turns.",
            case=scene.case,
            idea="`commands.is_closed` says that it is time to stop; look at it before each turn.",
        )
    if not owner.cancelled() and owner.exception() is not None:
        raise owner.exception()
