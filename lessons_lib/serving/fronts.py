"""Lesson 14: one engine, several fronts. What the engine's process does from the first command to the last.

One Python process can write fewer events than a GPU computes tokens, so a server may have several API processes
(`--api-server-count`), each with a front of its own. Every front has a socket to the engine's process and an EngineLoop
in it: its events go to it alone, one message a step, and the engine pays for a token only once.
"""

import contextlib
import pickle
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import zmq

from lessons_lib.engine.llm_engine import LLMEngine
from lessons_lib.engine.metrics import EngineMetrics
from lessons_lib.serving.engine_loop import COMPILER_MILLISECONDS, EngineLoop
from lessons_lib.serving.messages import (
    EngineInfo,
    EngineReady,
    Event,
    FrontJoined,
    FrontLeft,
    Refused,
    error_text,
)

CLOSE = b""  # the message that ends the engine's process
PARENT = 0  # number of the front in the process that has started this one
Commands = list[tuple[int, list[Any]]]  # (number of a front, what it wants)


def serve(engine: LLMEngine, socket: "zmq.Socket[bytes]") -> None:
    """Take turns until the parent says that it is enough.

    Args:
        socket: of the parent. Commands arrive here, and events are sent: a message for each turn.
    """
    fronts = Fronts(engine, socket)
    while (commands := fronts.received(wait=not engine.has_unfinished())) is not None:
        fronts.apply(commands)  # answers before the step, so that no caller waits for it
        fronts.step()
    fronts.close()


@dataclass(eq=False)
class EngineSide:
    """The engine's end of one front."""

    socket: "zmq.Socket[bytes]"
    loop: EngineLoop

    def send(self, events: Sequence[Event]) -> None:
        """One message, if there is anything to say. It never waits: there is no limit to what may be unread, and a
        front that was killed reads nothing any more."""
        if events:
            with contextlib.suppress(zmq.Again):
                self.socket.send(packed(events), zmq.NOBLOCK)


class Fronts:
    """All fronts of an engine.

    Attributes:
        sides: number of a front -> the engine's end of it. The parent lets the others join, and notices when they die.
    """

    def __init__(self, engine: LLMEngine, socket: "zmq.Socket[bytes]"):
        self.engine, self.sides, self._poller = engine, dict[int, EngineSide](), zmq.Poller()
        self._context, self._metrics = socket.context, EngineMetrics(engine)
        self._add(PARENT, socket)

    def received(self, wait: bool) -> Commands | None:
        """All commands that have arrived, by front; None if the parent says that it is enough.

        Args:
            wait: for the first one.
        """
        is_compiling = any(side.loop.compiling for side in self.sides.values())
        readable = dict(self._poller.poll((COMPILER_MILLISECONDS if is_compiling else None) if wait else 0))
        arrived: Commands = []
        for number, side in self.sides.items():
            if side.socket in readable:
                messages = list(_messages(side.socket))
                if CLOSE in messages:
                    return None
                arrived.append((number, list(map(pickle.loads, messages))))
        return arrived

    def apply(self, arrived: Commands) -> None:
        """Carry out commands, and answer them."""
        for number, commands in arrived:
            if number not in self.sides:
                continue  # it has left meanwhile
            changes = [each for each in commands if isinstance(each, FrontJoined | FrontLeft)]
            for change in changes:
                self._join(change) if isinstance(change, FrontJoined) else self._leave(change.number)
            side = self.sides[number]
            side.send(side.loop.apply([each for each in commands if each not in changes] if changes else commands))
        if arrived and len(self.sides) > 1 and not self.engine.has_unfinished():
            # No step follows that would tell the others that the engine is idle now.
            status = self.sides[PARENT].loop.status()
            for side in self.sides.values():
                side.send([status])

    def step(self) -> None:
        """One step, if there is anything to do. Each front hears of its own requests; a front without any hears how the
        engine is doing now and then."""
        for side in self.sides.values():
            if side.loop.compiling:
                side.send(side.loop.apply([]))  # adds those whose grammars are compiled
        if not self.engine.has_unfinished():
            for side in self.sides.values():
                side.send(side.loop.collect())
            return
        self.engine.step()
        status = self.sides[PARENT].loop.status()
        for side in self.sides.values():
            events = side.loop.collect()
            if events or side.loop.open or status.metrics is not None:
                side.send([*events, status])

    def close(self) -> None:
        """Abort what is left."""
        for side in self.sides.values():
            side.loop.close()

    def _join(self, joined: FrontJoined) -> None:
        self._add(joined.number, connected_socket(self._context, joined.address, joined.secret))

    def _add(self, number: int, socket: "zmq.Socket[bytes]") -> None:
        self._poller.register(socket, zmq.POLLIN)
        side = self.sides[number] = EngineSide(socket, EngineLoop(self.engine, metrics=self._metrics))
        side.send([EngineReady(EngineInfo.of(self.engine)), side.loop.status()])

    def _leave(self, number: int) -> None:
        """Abort all that a front has left behind, and forget it."""
        side = self.sides.pop(number, None)
        if side is not None:
            self._poller.unregister(side.socket)
            side.loop.close()
            side.socket.close(0)


def connected_socket(context: "zmq.Context[Any]", address: str, secret: Iterable[str]) -> "zmq.Socket[bytes]":
    """The engine's socket to a front that listens at an address.

    Args:
        secret: the keys that this connection needs; none for a Unix socket.
    """
    socket: zmq.Socket[bytes] = context.socket(zmq.PAIR)
    socket.setsockopt(zmq.SNDHWM, 0)  # no limit: neither side ever waits for the other to read
    socket.setsockopt(zmq.RCVHWM, 0)
    if keys := [key.encode() for key in secret]:
        socket.curve_serverkey, socket.curve_publickey, socket.curve_secretkey = keys
    socket.connect(address)
    return socket


def _messages(socket: "zmq.Socket[bytes]") -> Iterable[bytes]:
    """All that have arrived."""
    with contextlib.suppress(zmq.Again):
        while True:
            yield socket.recv(zmq.NOBLOCK)


def packed(events: Sequence[Event]) -> bytes:
    """Events as one message."""
    try:
        return pickle.dumps(list(events))
    except Exception:  # the error's class isn't ours
        plain = [
            Refused(event.request_id, RuntimeError(error_text(event.error))) if isinstance(event, Refused) else event
            for event in events
        ]
        return pickle.dumps(plain)
