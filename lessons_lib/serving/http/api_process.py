"""Lesson 14: one of several API processes: a uvicorn server around a SharedEngine.

It doesn't listen: the main process accepts all connections, and hands each one on. It obeys the main process alone:
signals that reach it are ignored, since a service manager sends SIGTERM to all processes of a service, and the main
process passes it on.
"""

import asyncio
import contextlib
import logging
import signal
import socket
import sys
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from types import FrameType

import uvicorn

from lessons_lib.serving.http.board import AdmissionOnBoard, Board, LogOnBoard, WholeServer
from lessons_lib.serving.http.engine_recipe import EngineRecipe
from lessons_lib.serving.http.server import Server, make_app, raise_file_limit, start_log, uvicorn_config
from lessons_lib.serving.http.settings import ServerSettings
from lessons_lib.serving.messages import EngineDead, EngineDied
from lessons_lib.serving.shared_engine import SharedEngine

PARENT_DIED = "EngineDead: the server's main process has ended, and the engine with it."

# What the main process and an API process say to each other, besides EngineDied.


@dataclass(frozen=True)
class Start:
    """The first message to an API process.

    Attributes:
        number: of this API process, from 1 on.
        count: how many there are.
        settings: of the server, with this process's share of the limits.
    """

    number: int
    count: int
    recipe: EngineRecipe
    settings: ServerSettings


@dataclass(frozen=True)
class End:
    """Drain, then end. Said once more: end now."""


@dataclass(frozen=True)
class Joins:
    """The front's socket listens; see FrontJoined."""

    address: str
    secret: list[str] = field(repr=False)


@dataclass(frozen=True)
class Serves:
    """The API process can take connections."""


@dataclass(frozen=True)
class EngineIsBack:
    """After EngineDied: a new engine is ready."""


@dataclass(frozen=True)
class EngineHangs:
    """A step hasn't returned for too long: kill the engine."""

    reason: str


class ApiServer(Server):
    """A Server whose connections and orders come from the main process."""

    front: SharedEngine

    def __init__(
        self,
        config: uvicorn.Config,
        front: SharedEngine,
        settings: ServerSettings,
        control: "Connection[object, object]",
        connections: socket.socket,
    ):
        """
        Args:
            control: to the main process.
            connections: on which it sends open connections.
        """
        super().__init__(config, front, settings)
        self.control, self.connections = control, connections
        self._connecting: set[asyncio.Task[None]] = set()

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        asyncio.get_running_loop().add_reader(self.control.fileno(), self._hear)
        await super().serve(sockets)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await uvicorn.Server.startup(self, [])
        self.connections.setblocking(False)
        self._event_loop.add_reader(self.connections.fileno(), self._take)
        with contextlib.suppress(OSError):  # the main process has gone, which `_hear` notices
            self.control.send(Serves())

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """The main process says when to end."""

    def _hear(self) -> None:
        try:
            message = self.control.recv()
        except (EOFError, OSError):
            asyncio.get_running_loop().remove_reader(self.control.fileno())
            self.front.note_death(PARENT_DIED)
            message = End()
        if isinstance(message, EngineDied):
            self.front.note_death(message.error)
        elif isinstance(message, EngineIsBack):
            self.front.rejoin()
        elif isinstance(message, End):
            self.end()

    def _take(self) -> None:
        """Serve one more connection."""
        try:
            _, descriptors, _, _ = socket.recv_fds(self.connections, 1, 1)
        except BlockingIOError:
            return
        except OSError:
            descriptors = []
        if not descriptors:  # the main process has gone
            self._event_loop.remove_reader(self.connections.fileno())
            return
        task = self._event_loop.create_task(self._connect(socket.socket(fileno=descriptors[0])))
        self._connecting.add(task)
        task.add_done_callback(self._connecting.discard)

    async def _connect(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        config, state = self.config, self.lifespan.state
        with contextlib.suppress(OSError):  # the client has left already
            await self._event_loop.connect_accepted_socket(
                lambda: config.http_protocol_class(config=config, server_state=self.server_state, app_state=state),  # type: ignore[call-arg]
                connection,
            )


def main() -> None:
    """What an API process does. Its arguments are file descriptors: of `control`, of `connections`, of the board."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    control_descriptor, connections_descriptor, board_descriptor = map(int, sys.argv[1:4])
    control: Connection[object, object] = Connection(control_descriptor)
    try:
        start = control.recv()
    except EOFError:
        return  # the main process has gone
    assert isinstance(start, Start)
    with contextlib.suppress(EngineDead, BrokenPipeError):  # the main process says why
        serve(start, control, socket.socket(fileno=connections_descriptor), Board(start.count, board_descriptor))


def serve(start: Start, control: "Connection[object, object]", connections: socket.socket, board: Board) -> None:
    """Serve until the main process says that it is enough, or has gone."""
    settings, row = start.settings, board.rows[start.number - 1]
    raise_file_limit()
    log = start_log(settings, LogOnBoard(row))
    try:
        front = SharedEngine(
            start.number,
            lambda address, secret: control.send(Joins(address, secret)),
            lambda reason: control.send(EngineHangs(reason)),
            AdmissionOnBoard(row, settings.max_requests, settings.max_prompt_tokens),
            step_timeout=settings.step_timeout,
        )
        limits = (start.count * settings.max_requests, start.count * settings.max_prompt_tokens)
        app = make_app(front, start.recipe, settings, WholeServer(board, row, *limits))
        ApiServer(uvicorn_config(app, settings), front, settings, control, connections).run()
    finally:
        logging.getLogger().removeHandler(log)
        log.close()
