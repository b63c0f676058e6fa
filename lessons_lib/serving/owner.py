"""Lesson 14: one coroutine owns the engine. All others send it commands."""

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor

from lessons_lib.serving.engine_loop import EngineLoop
from lessons_lib.serving.mailbox import Mailbox
from lessons_lib.serving.messages import Command, Event


async def own_engine(
    engine: EngineLoop, commands: "Mailbox[Command]", deliver: Callable[[list[Event]], None], executor: Executor
) -> None:
    """Take turns of the engine until `commands` is closed.

    Args:
        engine: `engine.turn(commands)` carries out a list of commands, takes a step, and returns events. It takes a
            while, so it runs in the executor. `engine.open` holds the ids of the requests that have not ended; if it is
            empty, there is nothing to do. `engine.close()` aborts what is left.
        commands: each turn gets all that have arrived since the turn before.
        deliver: called in the event loop's thread with the events of each turn.
        executor: has one thread, and is this coroutine's own: nothing else runs in it, during its life or after it.

    However it ends (the mailbox is closed, a turn raises, it is cancelled), the thread has left the engine by then, and
    the engine is closed.
    """
    event_loop = asyncio.get_running_loop()
    try:
        while not commands.is_closed:
            arrived = [] if engine.open and not commands else await commands.take()
            if arrived or engine.open:
                deliver(await event_loop.run_in_executor(executor, engine.turn, arrived))
    finally:
        # A thread can't be cancelled, so wait for it. Not with `await`: this coroutine may be cancelled once more.
        executor.shutdown(wait=True)
        engine.close()
