"""Lesson 14: the same front, with the engine in a process of its own.

A thread shares Python's lock (GIL) with the callers: while one runs Python, the other waits. A process has its own, at
the price of one message per step.
"""

import asyncio
import contextlib
import gc
import os
import pickle
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import zmq
import zmq.asyncio

from lessons_lib.engine.llm_engine import LLMEngine
from lessons_lib.models.validate import BadRequest, number
from lessons_lib.serving.admission import AdmissionControl
from lessons_lib.serving.async_engine import CLOSED, AsyncEngine
from lessons_lib.serving.engine_loop import COMPILER_MILLISECONDS, EngineLoop
from lessons_lib.serving.messages import STEP_TIMEOUT, Command, EngineDead, EngineDied, EngineReady, Event, error_text

MAX_STARTS = 3  # in a row, of an engine that has died
PATIENCE = 5.0  # seconds that a process gets to end by itself
NUM_LOOKS = 10  # in the time after which a step counts as hung
REMEDY = "Put it into a module, and give the function."
CLOSE = b""  # the message that ends the engine's process
MakeEngine = Callable[[], LLMEngine]


class EngineProcess(AsyncEngine):
    """An AsyncEngine whose engine is in a process of its own.

    The process ends with the front, and also if the front's process is killed. It ignores Ctrl-C, which is meant for
    the notebook. If it dies, all streams end with an error; if a step hangs, it is killed. With `restarts`, a new
    process follows one that has died, and requests are refused until its engine is ready. No request is begun again
    here, since it may be the one that killed the engine; a balancer sends each to another replica.

    Attributes:
        process: a subprocess.Popen.
        num_restarts: of the engine so far.
    """

    def __init__(
        self, make_engine: MakeEngine, admission: AdmissionControl | None = None, *,
        step_timeout: float | None = STEP_TIMEOUT, restarts: bool = False,
    ):  # fmt: skip
        """
        Args:
            make_engine: makes the LLMEngine, in the new process: a function that can be pickled, such as a function of
                a module or a `functools.partial` of one.
            step_timeout: seconds after which a step that doesn't return counts as hung, and the process is killed.
                None for no limit. Starting the engine may take any time.
            restarts: start an engine that has died again.

        Raises:
            ValueError: `make_engine` can't be sent to another process, or `step_timeout` is not above 0.
        """
        if step_timeout is not None:
            number("step_timeout", step_timeout, "a number of seconds above 0, or None", lambda value: value > 0)
        self._prepare(admission)
        self._start_message = _start_message(make_engine)
        self.step_timeout, self._restarts = step_timeout, restarts
        self._is_shut, self.num_restarts = False, 0
        self._restarting: asyncio.Task[None] | None = None

    async def aclose(self) -> None:
        """Abort what is left, and end the process."""
        self._is_closing = True
        if self.is_restarting:
            assert self._restarting is not None
            self._restarting.cancel()
            await asyncio.wait({self._restarting})
        if self._owner is None or self._is_shut:
            return
        try:
            self._socket.send(CLOSE)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._has_exited.wait(), PATIENCE)
        finally:
            self._shut(CLOSED)

    @property
    def is_restarting(self) -> bool:
        """True while a new process starts because the last one has died."""
        return self._restarting is not None and not self._restarting.done()

    async def _restart(self) -> None:
        assert self._owner is not None
        await asyncio.wait({self._owner})  # it shuts what it owns
        for _ in range(MAX_STARTS):
            self._is_shut = False
            with contextlib.suppress(EngineDead):
                await self._open()
                self.error, self.num_restarts = None, self.num_restarts + 1
                self._owner = asyncio.create_task(self._own())
                return

    def _check_open(self) -> None:
        if self.is_restarting:
            raise EngineDead(f"the engine is being started again, for it has died: {self.error} Ask again soon.")
        super()._check_open()

    async def _open(self) -> None:
        self._has_exited = asyncio.Event()
        self._context = zmq.asyncio.Context()
        self._socket = self._context.socket(zmq.PAIR)
        try:
            self._start()
            await self._wait_until_ready()
        except BaseException:
            self._shut("EngineDead: the engine didn't start.")
            raise

    def _start(self) -> None:
        """Start the process, which connects to a port of this machine. Any user could, and unpickling a stranger's
        message would run code: so CURVE encrypts both directions, and only the new process has the keys."""
        public, private = zmq.curve_keypair()
        self._socket.curve_server, self._socket.curve_secretkey, self._socket.curve_publickey = True, private, public
        self._socket.set_hwm(0)  # neither side ever waits for the other to read
        address = f"tcp://127.0.0.1:{self._socket.bind_to_random_port('tcp://127.0.0.1')}"
        own = {"PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)}
        self.process = subprocess.Popen(
            [sys.executable, "-c", "from lessons_lib.serving.engine_process import main; main()"],
            stdin=subprocess.PIPE,
            env=os.environ | own,
            start_new_session=True,  # Ctrl-C goes to all processes of a session's foreground group
        )
        assert self.process.stdin is not None
        # It stays open: when this process has gone, in whatever way, the other one reads its end.
        pickle.dump((address, public, *zmq.curve_keypair()), self.process.stdin)
        self.process.stdin.flush()
        threading.Thread(target=self._watch, args=(self.process,), name="engine-watcher", daemon=True).start()
        self._socket.send(self._start_message)

    def _watch(self, process: "subprocess.Popen[bytes]") -> None:
        process.wait()
        with contextlib.suppress(RuntimeError):  # the event loop is closed, and so is the front
            self._event_loop.call_soon_threadsafe(self._note_exit, process)

    def _note_exit(self, process: "subprocess.Popen[bytes]") -> None:
        if process is not self.process:
            return  # another one has followed it
        self._has_exited.set()
        if self._owner is not None and not self.is_restarting:
            self._shut(self._exit_reason())

    def _exit_reason(self) -> str:
        status = self.process.poll()
        if status is None:
            return "EngineDead: the engine's process was stopped."
        if status < 0:
            return f"EngineDead: the engine's process was killed by {signal.Signals(-status).name}."
        return f"EngineDead: the engine's process ended with exit status {status}."

    async def _wait_until_ready(self) -> None:
        exited = asyncio.ensure_future(self._has_exited.wait())
        known, before = self.tokenizer, self.error  # of the process before, if there was one
        try:
            while self.tokenizer is known:
                message = asyncio.ensure_future(self._socket.recv())
                await asyncio.wait({message, exited}, return_when=asyncio.FIRST_COMPLETED)
                if message.done():
                    self._deliver(pickle.loads(message.result()))
                else:
                    message.cancel()
                if self.error != before or exited.done():
                    raise EngineDead(f"the engine didn't start: {self.error or self._exit_reason()}")
        finally:
            exited.cancel()

    def _send(self, command: Command) -> None:
        if self._is_shut:
            return
        try:
            message = pickle.dumps(command)
        except Exception as error:
            raise BadRequest(
                f"the request can't be sent to the engine's process ({error_text(error)}). Functions of a module can, "
                "such as logits processors; those of a notebook can't."
            ) from error
        self._socket.send(message)  # done at once, as there is no limit to what may wait

    async def _own(self) -> None:
        reason = CLOSED
        try:
            while not self._is_shut:
                await self._refuse_silence()
                self._deliver(pickle.loads(await self._socket.recv()))
                await asyncio.sleep(0)  # a message that is there already is received without a pause for the readers
        except asyncio.CancelledError:
            if not self._is_shut:
                raise
        except Exception as error:
            reason = error_text(error)
        finally:
            self._shut(reason)

    async def _refuse_silence(self) -> None:
        """Wait until the engine says something; EngineDead if it says nothing for too long, though requests are open.

        Nothing else notices a step that never returns: a thread next to it would still be alive. Looks are counted, not
        seconds: if this process itself stood still (a suspended laptop, a debugger), the engine is not to blame.
        """
        num_silent = -1  # the time of a request begins with the look that sees it first
        while not await self._socket.poll(self.step_timeout and 1000 * self.step_timeout / NUM_LOOKS):
            num_silent = num_silent + 1 if self._requests else -1
            if num_silent == NUM_LOOKS:
                raise EngineDead(
                    f"the engine hangs: it has said nothing for {self.step_timeout:g} s, though requests are open. If "
                    "a step can take longer, raise step_timeout (--step-timeout of the server). Its process was "
                    f"killed{'' if self._restarts else ': make a new one'}."
                )

    def _shut(self, reason: str) -> None:
        """End the process and everything that belongs to it. Nothing here awaits, so nothing can interrupt it."""
        if self._is_shut:
            return
        self._is_shut = True
        if hasattr(self, "process"):
            self.process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):  # a call into a driver that hangs outlives SIGKILL
                self.process.wait(PATIENCE)
            assert self.process.stdin is not None
            self.process.stdin.close()
        with contextlib.suppress(Exception):  # what the engine said before it died
            for message in _messages(zmq.Socket.shadow(self._socket.underlying)):
                self._deliver(pickle.loads(message))
        self._die(self.error or reason)
        self._socket.close(0)
        self._context.term()
        if self._owner is not None:
            self._owner.cancel()
            if self._restarts and not self._is_closing and not self.is_restarting:
                self._restarting = asyncio.ensure_future(self._restart())


def _start_message(make_engine: MakeEngine) -> bytes:
    """The new process's task. ValueError if it can't be done there."""
    function: Any = make_engine
    while isinstance(function, partial):
        function = function.func
    if getattr(function, "__module__", None) == "__main__":
        name = getattr(function, "__name__", repr(function))
        raise ValueError(f"{name} is part of this notebook or script, which the new process doesn't have. {REMEDY}")
    try:
        return pickle.dumps(make_engine)
    except Exception as error:
        raise ValueError(f"{make_engine!r} can't be sent to another process ({error_text(error)}). {REMEDY}") from error


# The other process.


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # A service manager sends it to all processes of a service. The front drains first, and then ends this one.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    address, *keys = pickle.load(sys.stdin.buffer)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    context = zmq.Context()
    socket = context.socket(zmq.PAIR)
    socket.curve_serverkey, socket.curve_publickey, socket.curve_secretkey = keys
    socket.set_hwm(0)
    socket.connect(address)
    status, is_made = 0, False
    try:
        with pickle.loads(socket.recv())() as engine:
            is_made = True
            gc.collect()
            gc.freeze()  # a full collection looks at all objects, for a quarter of a second; these stay
            serve(engine, socket)
    except Exception as error:
        socket.send(pickle.dumps([EngineDied(error_text(error))]))
        if is_made or not isinstance(error, (ValueError, MemoryError, OSError)):  # which say what to do
            traceback.print_exc()
        status = 1
    context.destroy(linger=1000)  # milliseconds for the last words
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)  # a model's threads may still run


def serve(engine: LLMEngine, socket: "zmq.Socket[bytes]") -> None:
    """Take turns until the front ends it. Commands arrive at the socket; the events of each turn are one message."""

    def send(events: Sequence[Event]) -> None:
        if events:
            socket.send(pickle.dumps(events))

    loop = EngineLoop(engine, send)
    send([EngineReady(engine.tokenizer), loop.status()])
    while True:
        if not engine.has_unfinished():
            socket.poll(COMPILER_MILLISECONDS if loop.compiling else None)
        messages = list(_messages(socket))
        if CLOSE in messages:
            return loop.close()
        send(loop.turn(map(pickle.loads, messages)))


def _messages(socket: "zmq.Socket[bytes]") -> Iterable[bytes]:
    """All that have arrived."""
    with contextlib.suppress(zmq.Again):
        while True:
            yield socket.recv(zmq.NOBLOCK)


def _end_with_parent() -> None:
    while os.read(0, 4096):
        continue
    os._exit(0)
