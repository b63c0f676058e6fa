"""Lesson 14: a server with several API processes, as vLLM's `--api-server-count`: one process, busy with HTTP and JSON,
writes fewer events in a second than a GPU computes tokens.

The main process starts them and the engine's process. Then it accepts connections, hands them on in turn, and does
nothing else. If all processes accepted from one listening socket, the first one awake would take all connections that
wait: of 64 that came at once, one of 4 processes took 59, and two took none. With a socket for each process
(SO_REUSEPORT), the kernel spreads them by a hash: 11 to 20 each. The busiest process sets the pace, so here each gets
16. (Node.js has its clusters take turns for the same reason.)

Each process has its share of the limits on requests. What /metrics, /load and /cockpit say is true of the whole server,
whichever process answers (see `board`); only `process_...`, the memory and CPU time of one process, is left out.

If an API process dies, the main process lets the others drain and ends the server, as vLLM does: what starts a server
can start it again, and nothing is half alive meanwhile.
"""

import asyncio
import contextlib
import itertools
import logging
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass, field, replace
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any

from lessons_lib.serving.async_engine import CLOSED
from lessons_lib.serving.engine_process import PATIENCE, EngineProcess
from lessons_lib.serving.http.api_process import End, EngineHangs, EngineIsBack, Joins, Serves, Start
from lessons_lib.serving.http.board import Board
from lessons_lib.serving.http.engine_recipe import EngineRecipe
from lessons_lib.serving.http.server import (
    BACKLOG,
    ApiProcessDied,
    end_with_stdin,
    listen,
    patience,
    print_ready_line,
    raise_file_limit,
    served_model,
    start_log,
)
from lessons_lib.serving.http.settings import ServerSettings
from lessons_lib.serving.messages import EngineDead, EngineDied

LOG = logging.getLogger("lessons_lib.server")
PAUSE = 0.01  # seconds, when no API process can take one more connection


@dataclass(eq=False)
class ApiProcess:
    """The main process's end of an API process.

    Attributes:
        control: messages both ways.
        connections: takes open connections.
        is_serving: whether it can serve them.
        has_exited: whether it has ended.
    """

    number: int
    process: "subprocess.Popen[bytes]"
    control: "Connection[object, object]"
    connections: socket.socket
    is_serving: bool = field(default=False)
    has_exited: bool = field(default=False)

    def take(self, connection: socket.socket) -> bool:
        """Hand it a connection. Returns whether it has room for one more."""
        try:
            socket.send_fds(self.connections, [b"."], [connection.fileno()])
        except OSError:
            return False
        return True

    def tell(self, message: object) -> None:
        """Send it a message, if it is still there."""
        with contextlib.suppress(OSError):
            self.control.send(message)

    def how_it_ended(self) -> str:
        """Once it has."""
        status = self.process.returncode
        how = f"was killed by {signal.Signals(-status).name}" if status < 0 else f"ended with exit status {status}"
        return f"API process {self.number} (process id {self.process.pid}) {how}"

    def close(self) -> None:
        """Kill it if it still runs."""
        self.process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(PATIENCE)
        self.control.close()
        self.connections.close()


def start_api_process(start: Start, board: Board) -> ApiProcess:
    """A new process, without waiting for it. It ends with this one, however that ends, because `control` does."""
    control, its_control = Pipe()
    connections, its_connections = socket.socketpair()
    connections.setblocking(False)
    descriptors = (its_control.fileno(), its_connections.fileno(), board.file_descriptor)
    with its_control, its_connections:
        process = subprocess.Popen(
            [
                sys.executable,
                "-c",
                "from lessons_lib.serving.http.api_process import main; main()",
                *map(str, descriptors),
            ],
            stdin=subprocess.DEVNULL,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)},
            pass_fds=descriptors,
            start_new_session=True,  # Ctrl-C goes to all processes of a session's foreground group
        )
    control.send(start)
    return ApiProcess(start.number, process, control, connections)


class ManyServers:
    """The main process of a server with several API processes.

    Attributes:
        engine: the EngineProcess that starts the engine, has no requests, and lets the API processes' fronts join.
        processes: of the API.
        failure: why the server ends; None if a signal ends it.
    """

    def __init__(self, engine: EngineProcess, board: Board, starts: list[Start], settings: ServerSettings):
        self.engine, self.board, self.starts, self.settings = engine, board, starts, settings
        self.processes: list[ApiProcess] = []
        self.failure: str | None = None
        self._is_ending = False

    async def serve(self, listening: socket.socket) -> None:
        """Until a signal ends it. Doesn't listen before all processes are there.

        Raises:
            EngineDead: the engine can't be made.
            ApiProcessDied: one has.
        """
        self._event_loop, self._news = asyncio.get_running_loop(), asyncio.Event()
        try:
            for start in self.starts:  # they import while the engine loads
                process = start_api_process(start, self.board)
                self.processes.append(process)
                self._event_loop.add_reader(process.control.fileno(), self._hear, process)
            async with self.engine:
                with self._task(self._pass_death_on()):
                    await self._until(self._is_started)
                    if self.engine.error is not None:
                        raise EngineDead(f"the engine didn't start: {self.engine.error}")
                    if self.failure is not None:
                        raise ApiProcessDied(self.failure)
                    for number in (signal.SIGINT, signal.SIGTERM):
                        self._event_loop.add_signal_handler(number, self.end)
                    listening.listen(BACKLOG)
                    print_ready_line(self.settings, listening.getsockname()[1])
                    with self._task(self._accept(listening)):
                        await self._until(lambda: all(each.has_exited for each in self.processes))
        finally:
            for process in self.processes:
                if not process.has_exited:
                    self._event_loop.remove_reader(process.control.fileno())
                process.close()
        if self.failure is not None:
            raise ApiProcessDied(self.failure)

    def end(self) -> None:
        """Let all processes drain, then end. Called once more: end now."""
        seconds = PATIENCE if self._is_ending else patience(self.settings)
        self._is_ending = True
        for each in self.processes:
            each.tell(End())
            self._event_loop.call_later(seconds, each.process.kill)  # whatever holds it up

    def _is_started(self) -> bool:
        """Whether all processes serve, or one of them never will."""
        is_serving = all(each.is_serving for each in self.processes)
        return is_serving or self.failure is not None or self.engine.error is not None

    @contextlib.contextmanager
    def _task(self, work: Coroutine[Any, Any, None]) -> Iterator[None]:
        """What goes on meanwhile."""
        task = asyncio.ensure_future(work)
        try:
            yield
        finally:
            task.cancel()

    async def _until(self, condition: Callable[[], object]) -> None:
        while not condition():
            self._news.clear()
            await self._news.wait()

    def _hear(self, process: ApiProcess) -> None:
        try:
            message = process.control.recv()
        except (EOFError, OSError):
            self._note_exit(process)
            message = None
        if isinstance(message, Joins):
            self.engine.let_join(process.number, message.address, message.secret)
        elif isinstance(message, EngineHangs):
            self.engine.give_up(message.reason)
        process.is_serving = process.is_serving or isinstance(message, Serves)
        self._news.set()

    def _note_exit(self, process: ApiProcess) -> None:
        self._event_loop.remove_reader(process.control.fileno())
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.process.wait(PATIENCE)
        process.process.kill()  # it has closed its end, so it can't be told anything any more
        process.process.wait()
        process.has_exited = True
        self.engine.let_leave(process.number)
        self.board.forget(process.number - 1)
        if not self._is_ending:
            self.failure = f"{process.how_it_ended()}. Start the server again."
            LOG.error("%s The other API processes finish their requests.", self.failure)
            self.end()

    async def _pass_death_on(self) -> None:
        """The engine's, to all API processes, which say so until there is a new one."""
        is_alive = True
        while is_alive and (reason := await self.engine.wait_until_dead()) != CLOSED:
            for each in self.processes:
                each.tell(EngineDied(reason))
            self._news.set()
            is_alive = await self.engine.restarted()
            for each in self.processes:
                each.tell(EngineIsBack() if is_alive else EngineDied(reason))

    async def _accept(self, listening: socket.socket) -> None:
        """Hand out connections in turn."""
        listening.setblocking(False)
        turns = itertools.cycle(self.processes)
        while True:
            try:
                connection, _ = await self._event_loop.sock_accept(listening)
            except OSError as error:  # too many open files, for instance
                LOG.error("a connection can't be accepted: %s", error)
                await asyncio.sleep(1)
                continue
            with connection:
                while not any(next(turns).take(connection) for _ in self.processes):
                    await asyncio.sleep(PAUSE)


def serve_many(recipe: EngineRecipe, settings: ServerSettings, count: int, *, until_stdin_closes: bool = False) -> None:
    """Serve a model with `count` API processes until a signal ends this process.

    Args:
        until_stdin_closes: see `serve` of one process.

    Raises:
        PortTaken: another program listens there.
        EngineDead: the engine can't be made.
        ApiProcessDied: one has.
        What loading the model's tokenizer raises.
    """
    listening = listen(settings)
    raise_file_limit()
    log = start_log(settings)
    try:
        own = share(settings, count, served_model(recipe, settings).max_model_len)
        starts = [Start(number, count, recipe, own) for number in range(1, count + 1)]
        if until_stdin_closes:
            end_with_stdin(settings)
        engine = EngineProcess(recipe, step_timeout=settings.step_timeout, restarts=True)
        asyncio.run(ManyServers(engine, Board(count), starts, settings).serve(listening))
    finally:
        listening.close()
        logging.getLogger().removeHandler(log)
        log.close()


def share(settings: ServerSettings, count: int, longest: int | None) -> ServerSettings:
    """The settings of one of `count` API processes: an equal share of the limits, rounded up.

    Args:
        longest: the longest prompt in tokens that the model takes. A share has room for one, if the whole has: a prompt
            can't be divided.
    """
    tokens = max(-(-settings.max_prompt_tokens // count), min(longest or 0, settings.max_prompt_tokens))
    return replace(settings, max_requests=-(-settings.max_requests // count), max_prompt_tokens=tokens)
