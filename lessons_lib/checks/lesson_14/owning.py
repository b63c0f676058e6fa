"""Judges 14.2, `own_engine`: one owner, one turn at a time, and nothing is left wherever it is cancelled."""

import asyncio

from lessons_lib.checks.exercise import Mistake, short
from lessons_lib.checks.lesson_14.owner_cancelled import MOST_AWAITS, check_cancelled_at, check_cancelled_twice
from lessons_lib.checks.lesson_14.owning_scene import BUSY, STUCK, Scene, refuse_early_end, refuse_faults
from lessons_lib.checks.lesson_14.virtual_loop import play, settle


def check_own_engine(attempt) -> None:
    for story in (_one_request, _idle, _commands_in_a_turn, _closed_in_a_turn, _closed_idle, _failing):
        story(attempt)
    for point in range(MOST_AWAITS):
        if not check_cancelled_at(attempt, point):
            break
    check_cancelled_twice(attempt)


def _one_request(attempt) -> None:
    case = 'one command, ("add", "A", 3): A gets 3 tokens, one a turn. Then the mailbox is closed.'

    async def story():
        scene = Scene(attempt, case)
        scene.commands.put(("add", "A", 3))
        owner = scene.start()
        await asyncio.sleep(0.1)
        refuse_early_end(owner, scene)
        refuse_faults(scene)
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
        if not any(("add", "A", 3) in turn for turn in turns):
            raise Mistake(
                f"A never reached the engine: the first turn got {short(turns[0])}.",
                case=case,
                idea="What `take` has returned is no longer in the mailbox. Give it to the next turn, also if you only "
                "waited for it.",
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
            refuse_early_end(owner, scene)
            if scene.engine.empty_turns:
                refuse_faults(scene)
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
        refuse_faults(scene)
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
        refuse_early_end(owner, scene)
        refuse_faults(scene)
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
    _close_in_a_turn(attempt, "A runs for 6 steps. In the middle of its second turn, the mailbox is closed.")
    _close_in_a_turn(
        attempt, "A runs for 6 steps. In the middle of its second turn, B is added, and the mailbox is closed.", True
    )


def _close_in_a_turn(attempt, case: str, adds_another: bool = False) -> None:
    async def story():
        scene = Scene(attempt, case)
        scene.commands.put(("add", "A", 6))
        owner = scene.start()
        await asyncio.sleep(0.0075)
        if adds_another:
            scene.commands.put(("add", "B", 2))
        scene.commands.close()
        await _ended(owner, scene, "the mailbox was closed")
        if len(scene.engine.turns) > 2:
            raise Mistake(
                f"the mailbox was closed in the second turn; yours took {len(scene.engine.turns)}.",
                case=case,
                idea="A closed mailbox means: stop now. "
                + (
                    "It stops after the turn that is running, also if a command waits."
                    if adds_another
                    else "What is still open is aborted by `engine.close()`."
                ),
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


async def _ended(owner: asyncio.Task, scene: Scene, how: str) -> None:
    done, _ = await asyncio.wait([owner], timeout=0.5)
    refuse_faults(scene)
    if not done:
        raise Mistake(
            f"{how}, and your coroutine still runs after {len(scene.engine.turns)} turns.",
            case=scene.case,
            idea="`commands.is_closed` says that it is time to stop; look at it before each turn.",
        )
    if not owner.cancelled() and owner.exception() is not None:
        raise owner.exception()
