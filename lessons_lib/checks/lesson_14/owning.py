"""14.2, `own_engine`: one owner, one turn at a time, and nothing is left wherever it is cancelled."""

import asyncio
import contextlib
import inspect
from collections.abc import Iterator
from typing import Any, NamedTuple

from lessons_lib.checks.diagnosis import Task, Watch, mistakes
from lessons_lib.checks.exercise import Mistake
from lessons_lib.checks.lesson_14.fake_engine import Commands, FakeEngine
from lessons_lib.checks.lesson_14.virtual_loop import accident, play, settle, started, state_of, until

DONE = {"add": "{0} is added, which needs {1} turns", "abort": "{0} is aborted", "close": "the mailbox is closed"}
WAIT = (
    "`await` what `run_in_executor` returns. If the engine has nothing to do (`engine.open` is empty) and no command "
    "has arrived, wait with `await commands.take()`. Asking again and again, with a pause or without, costs an idle "
    "server as much as work. `commands.is_closed` says when to stop."
)


class Case(NamedTuple):
    """What happens when, in milliseconds: ("add", id, steps), ("abort", id), ("close",), ("look",). A turn takes 5 ms.

    Attributes:
        fail_at: the number of the turn that raises; 0 for none.
        cancel: the await, counted from 1, or the time, with a dot, at which the coroutine is cancelled.
        again: the rounds of the event loop after which it is cancelled once more.
    """

    script: tuple[tuple, ...]
    fail_at: int = 0
    cancel: float | None = None
    again: int = 0


def cases() -> Iterator[Case]:
    yield Case(((50, "look"), (51, "add", "A", 1), (70, "look")))
    yield Case(((0, "add", "A", 3), (100, "look"), (110, "close"), (120, "look")))
    yield Case(((0, "add", "A", 1), (0, "add", "B", 2), (100, "look")))
    late = ((7.5, "add", "B", 2), (7.5, "add", "C", 2), (7.5, "abort", "A"))
    yield Case(((0, "add", "A", 6), *late, (100, "look")))
    yield Case(((0, "add", "A", 1), (2.5, "add", "B", 1), (100, "look"), (101, "add", "C", 1), (200, "look")))
    yield Case(((0, "add", "A", 6), (2.5, "add", "B", 2), (7.5, "add", "C", 1), (100, "look")))
    quiet = ((100_000, "look"), (100_001, "add", "A", 1), (100_020, "look"), (200_000, "add", "B", 1))
    yield Case((*quiet, (200_020, "look")))
    yield Case(((0, "add", "A", 6), (7.5, "close"), (100, "look")))
    yield Case(((0, "add", "A", 6), (7.5, "add", "B", 2), (7.5, "close"), (100, "look")))
    yield Case(((1, "close"), (100, "look")))
    yield Case(((0, "add", "A", 2), (50, "close"), (100, "look")))
    yield Case(((0, "add", "A", 6), (100, "look")), fail_at=3)
    yield Case(((0, "add", "A", 6), (2.5, "close"), (100, "look")), fail_at=1)
    life = ((0, "add", "A", 3), (7.5, "add", "B", 1), (50, "add", "C", 4), (200, "look"))
    yield from (Case(life, cancel=number) for number in range(1, 12))
    yield from (Case(((0, "add", "A", 6), (100, "look")), cancel=7.5, again=again) for again in (1, 2, 3, 4))
    yield Case(((0, "add", "A", 1), (100, "look")), cancel=50.5, again=1)


def run(attempt: Any, case: Case, watch: Watch) -> None:
    async def story() -> None:
        loop = asyncio.get_running_loop()
        engine, commands, delivered = FakeEngine(loop, case.fail_at), Commands(), []

        def deliver(events: Any) -> None:
            if inspect.isawaitable(events):
                idea = "`run_in_executor` returns at once, with a future. The events are there after `await`."
                raise Mistake("`deliver` got something that must be awaited first.", idea=idea)
            if engine.executor.is_running:
                engine.faults["`deliver` was called in the executor's thread."] = (
                    "Streams and futures belong to the event loop. Deliver after the `await`, in the coroutine itself."
                )
            delivered.extend(events)

        def at_await(number: int) -> None:
            if number == case.cancel:
                loop.call_soon(owner.cancel)

        idea = "It runs beside the other coroutines for as long as the server does"
        owner = started("own_engine", attempt(engine, commands, deliver, engine.executor), idea, at_await)
        last = 199 if case.cancel and case.cancel == int(case.cancel) else case.cancel  # it may have fewer awaits
        script = [*case.script, (last, "cancel")] if last else case.script
        for when, what, *more in sorted(script, key=lambda step: step[0]):
            await until(when)
            if what == "cancel":
                for rounds in (0, case.again):
                    await settle(rounds)
                    owner.cancel()
            elif what == "close":
                commands.close()
            elif what != "look":
                commands.put((what, *more))
            else:
                await settle()
                for what, idea in engine.faults.items():
                    raise Mistake(what, idea=idea)
                seen = {"the state of your coroutine": state_of(owner, RuntimeError)}
                if case.cancel is None:
                    seen |= {"the commands of the turns": engine.turns, "what was delivered": delivered}
                seen["whether `engine.close()` was called"] = engine.is_closed
                seen["whether the thread is still in the engine"] = bool(engine.executor.queue)
                watch(f"{when:g} ms", accident, owner, RuntimeError, look=lambda: seen)

    play(story, WAIT, most_timers=60)


def tell(case: Case) -> str:
    told = []
    for when, what, *more in case.script:
        after = f"after {when / 1000:g} s, " if when >= 1000 else f"after {when:g} ms, " if when else ""
        if what != "look":
            told.append(f"{after}{DONE[what].format(*more)}".replace("1 turns", "1 turn"))
    told += [f"turn {case.fail_at} raises RuntimeError"] * bool(case.fail_at)
    if case.cancel:
        is_time = case.cancel != int(case.cancel)
        when = f"after {case.cancel:g} ms" if is_time else f"at its await number {case.cancel}"
        again = ", and at one of its next awaits once more" * bool(case.again)
        told.append(f"your coroutine is cancelled {when}{again}")
    return f"a turn takes 5 ms; {'; '.join(told)}."


TURN = "deliver(await event_loop.run_in_executor(executor, engine.turn, arrived))"

MISTAKES = """
`take` returns an empty list when the mailbox is closed. That isn't a reason for a turn.
~ if arrived or engine.open => if True
While the turn ran, commands arrived. Look into the mailbox before every turn, not only when idle.
~ [] if engine.open and not commands => [] if engine.open
A turn gets a list of commands. `take` returns one already: pass it on as it is.
~ engine.turn, arrived) => engine.turn, *arrived)
Each command is carried out once: a turn gets what has arrived since the last one. Start each turn with a new list.
- arrived = => arrived = locals().get("arrived", []) + ([] if engine.open and not commands else await commands.take())
What `take` has returned is no longer in the mailbox. Give it to the next turn, also if you only waited for it.
- arrived =
+ if not engine.open: await commands.take()
+ arrived = await commands.take() if commands else []
A turn's events are all that its requests ever hear of it. Deliver them before you look whether to stop.
- deliver(
+ events = await event_loop.run_in_executor(executor, engine.turn, arrived)
+ if commands.is_closed: break
+ deliver(events)
A closed mailbox means: stop after the turn that is running. What is still open is aborted by `engine.close()`.
~ while not commands.is_closed => while not commands.is_closed or engine.open
A closed mailbox means: stop after the turn that is running, also if a command waits.
~ while not commands.is_closed => while not commands.is_closed or commands
Nothing ends your loop. Once `commands.is_closed`, stop: `take` returns an empty list at once then, each time.
~ while not commands.is_closed => while True
An engine that has failed can't go on, and its readers must hear of it. Let the exception out; only clean up in
`finally`.
- deliver(
+ try: DELIVER
+ except RuntimeError: continue
or < finally: => except Exception: pass
Don't swallow `CancelledError`, which is how the server says stop, nor any other exception: `finally` lets them pass,
unless there is a `return` in it.
< finally: => except BaseException: pass
A cancelled coroutine has to end. Yours catches `CancelledError` and goes on.
- arrived = ... deliver(
+ try:
+     arrived = [] if engine.open and not commands else await commands.take()
+     if arrived or engine.open: DELIVER
+ except asyncio.CancelledError: continue
The second cancellation hits the `await` of your cleanup, and what follows it isn't done. Wait there without one: which
call in the cell above the exercise blocks until the thread has come back?
- executor.shutdown(wait=True) => await asyncio.to_thread(executor.shutdown)
`is_closed` of the mailbox ends the loop, not an empty list: nothing may have arrived while requests are open.
< if arrived or engine.open: => if not arrived: break
"""

TASK = Task(
    reference="lessons_lib.serving.owner:own_engine",
    cases=cases,
    run=run,
    tell=tell,
    known=mistakes(MISTAKES.replace("DELIVER", TURN), contextlib=contextlib),
    about={
        "the state of your coroutine": "It runs until the mailbox of commands is closed (not until the engine is "
        "idle), a turn raises, or it is cancelled. Then it ends in this way, after its cleanup.",
        "the commands of the turns": "A turn gets all commands that have arrived since the turn before. While requests "
        "are open, turn follows turn, without a pause; without any, only commands are a reason for one.",
        "what was delivered": "Pass the list of each turn's events to `deliver`, once and in order.",
        "whether `engine.close()` was called": "However the coroutine ends, the engine has to be closed, and only "
        "then: `finally`. Nothing else aborts the requests that are left.",
    },
    enough=6,
)

EXERCISE = TASK.exercise(
    id="14.2",
    title="the owner's loop",
    time_limit=1.5,
    hints=(
        "Which `await`s are in your cleanup? A second cancellation can hit each of them. Can you wait for the thread "
        "without one? The cell above the exercise does.",
        "A `while` over `commands.is_closed`, inside `try … finally`. In the loop: `take` if there are commands, or if "
        "`engine.open` is empty; otherwise the turn gets an empty list. `take` may return an empty list when the "
        "mailbox was closed: then there is nothing to do. In `finally`, without any `await`: `executor.shutdown()`, "
        "which returns when the thread has come back, then close the engine.",
        "`arrived = [] if ... else await commands.take()`; `if arrived or engine.open:` `deliver(await "
        "event_loop.run_in_executor(...))`. `finally:` `executor.shutdown(wait=True)`, then `engine.close()`.",
    ),
    points=3,
)
