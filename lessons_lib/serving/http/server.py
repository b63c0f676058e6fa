"""Lesson 14: the server's process: it listens, serves, and ends in an orderly way.

On the first SIGTERM or Ctrl-C it drains: it goes on listening, answers new requests with 503, and lets the others
finish, at most `shutdown_timeout` seconds long. The second one ends it at once.
"""

import asyncio
import contextlib
import gc
import logging
import os
import signal
import socket
import sys
import threading
import time
from types import FrameType
from typing import Any

import uvicorn

from lessons_lib.serving.admission import AdmissionControl
from lessons_lib.serving.async_engine import AsyncEngine
from lessons_lib.serving.engine_process import EngineProcess
from lessons_lib.serving.http.app import create_app
from lessons_lib.serving.http.connections import limited_by
from lessons_lib.serving.http.engine_recipe import EngineRecipe
from lessons_lib.serving.http.observability import BackgroundLog
from lessons_lib.serving.http.served_model import ServedModel
from lessons_lib.serving.http.settings import ServerSettings

LOG = logging.getLogger("lessons_lib.server")
LOG_FORMAT = "%(asctime)s %(levelname)s %(name)s %(message)s"
FLUSH_SECONDS = 3  # for the last bytes of answers, once everything has been computed
SWITCH_SECONDS = 0.0005  # after which a thread that runs Python lets another one run
BACKLOG = 4096  # connections that wait to be accepted
KEEP_ALIVE = 75  # seconds; clients (httpx 5, aiohttp 15) and proxies (nginx 60) close an unused connection first


class PortTaken(OSError):
    """The server can't listen there."""


class Server(uvicorn.Server):
    """uvicorn's server around a front, which isn't open yet: it opens the front, and drains it before it ends."""

    def __init__(self, config: uvicorn.Config, front: AsyncEngine, settings: ServerSettings):
        super().__init__(config)
        self.front, self.settings = front, settings
        self._draining: asyncio.Task[None] | None = None
        self._is_dead_logged = False

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve until a signal ends it. It doesn't listen before the engine is there."""
        self._event_loop = asyncio.get_running_loop()
        async with self.front:
            bound_pauses()
            await super().serve(sockets)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        port = sockets[0].getsockname()[1] if sockets else self.settings.port
        with contextlib.suppress(OSError):  # nothing reads it, or the disk is full
            print(ready_line(self.settings, port), flush=True)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """A signal has arrived, between any two lines of this thread."""
        self._event_loop.call_soon_threadsafe(self.end)

    def end(self) -> None:
        """Drain, then end. Called once more: end now."""
        if self._draining is None:
            self._draining = asyncio.ensure_future(self._drain())
        else:
            self.force_exit = self.should_exit = True

    async def on_tick(self, counter: int) -> bool:
        is_dead = self.front.error is not None
        if is_dead and not self._is_dead_logged and not self.should_exit:
            LOG.error("the engine is dead, /health says 503: %s", self.front.error)
        elif self._is_dead_logged and not is_dead:
            LOG.warning("a new engine serves")
        self._is_dead_logged = is_dead
        return await super().on_tick(counter)

    async def _drain(self) -> None:
        in_flight, seconds = self.front.admission.num_requests, self.settings.shutdown_timeout
        LOG.info("draining: %d requests have %g s to finish; another signal ends the server now", in_flight, seconds)
        try:
            aborted = await self.front.drain(seconds)
            LOG.info("drained: %d requests were aborted", aborted)
        finally:
            self.should_exit = True


def serve(
    recipe: EngineRecipe, settings: ServerSettings, engine: str = "process", *, until_stdin_closes: bool = False
) -> None:
    """Serve a model until a signal ends this process.

    Args:
        engine: "process" (of its own) or "thread" (of this process).
        until_stdin_closes: end as on SIGTERM when stdin closes, which is when the process at its other end has gone.

    Raises:
        PortTaken: another program listens there.
        Also what making the engine raises, and EngineDead.
    """
    listening = listen(settings)  # before minutes of loading, not after
    raise_file_limit()
    log = start_log(settings)
    try:
        front = make_front(recipe, settings, engine)
        app = make_app(front, recipe, settings)
        app.state.metrics.log = log
        server = Server(uvicorn_config(app, settings), front, settings)
        if until_stdin_closes:
            end_with_stdin(settings)
        server.run([listening])
    finally:
        listening.close()
        logging.getLogger().removeHandler(log)
        log.close()


def uvicorn_config(app: Any, settings: ServerSettings) -> uvicorn.Config:
    own: dict[str, Any] = dict(log_config=None, access_log=False, server_header=False, ws="none", backlog=BACKLOG)
    own |= dict(timeout_keep_alive=KEEP_ALIVE, timeout_graceful_shutdown=FLUSH_SECONDS)
    return uvicorn.Config(app, http=limited_by(settings), **own)


def make_front(recipe: EngineRecipe, settings: ServerSettings, engine: str) -> AsyncEngine:
    """The front of a new engine; opening it starts the engine's process, if it has one."""
    admission = AdmissionControl(settings.max_requests, settings.max_prompt_tokens)
    if engine == "thread":
        return AsyncEngine(recipe(), admission)
    return EngineProcess(recipe, admission, step_timeout=settings.step_timeout, restarts=True)


def make_app(front: AsyncEngine, recipe: EngineRecipe, settings: ServerSettings) -> Any:
    """The app of a server; see `create_app`. Raises what `load_model` raises."""
    config, tokenizer = recipe.text_side()
    served = ServedModel.of(settings.model_name, config, tokenizer, recipe.config.max_model_len)
    return create_app(front, settings, served)


def listen(settings: ServerSettings) -> socket.socket:
    """A socket that is bound, and doesn't listen yet: clients are refused until there is an engine to serve them.

    Raises:
        PortTaken: another program listens there, or the address isn't this machine's.
    """
    bound = socket.socket(socket.AF_INET6 if ":" in settings.host else socket.AF_INET)
    try:
        if os.name != "nt":  # where it would let two servers share the port
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((settings.host, settings.port))
    except OSError as error:
        bound.close()
        raise PortTaken(
            f"can't listen on port {settings.port} of {settings.host} ({error.strerror or error}). Choose another one "
            "with --port, any free one with --port 0, or an address of this machine with --host."
        ) from error
    return bound


def ready_line(settings: ServerSettings, port: int) -> str:
    """The line that a user, and ServerProcess, is waiting for."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(settings.host, settings.host)
    url = f"http://{f'[{host}]' if ':' in host else host}:{port}"
    return f"Serving {settings.model_name} at {url} (the page; OpenAI's API is under {url}/v1). Ctrl-C ends it."


def start_log(settings: ServerSettings) -> BackgroundLog:
    """Send all log lines to stderr, without ever waiting for it."""
    log = BackgroundLog()
    log.setFormatter(logging.Formatter(LOG_FORMAT))
    root = logging.getLogger()
    root.addHandler(log)
    root.setLevel(logging.WARNING)
    for name in ("lessons_lib", "uvicorn"):
        logging.getLogger(name).setLevel(settings.log_level.upper())
    return log


def bound_pauses() -> None:
    """Bound three things that would stop the event loop of a process that does nothing but serve."""
    gc.collect()
    gc.freeze()  # a full collection would look at all objects of all libraries
    sys.set_int_max_str_digits(640)  # the least possible: reading a number takes the square of its digits
    sys.setswitchinterval(SWITCH_SECONDS)  # 5 ms by default, and each token needs the GIL several times


def raise_file_limit() -> None:
    """A connection is an open file, and many systems start programs with 1,024 of them, though they allow more."""
    try:
        import resource
    except ImportError:  # Windows, which has no such limit
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        if hard != resource.RLIM_INFINITY and soft < hard:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def end_with_stdin(settings: ServerSettings) -> None:
    """End this process as SIGTERM does when stdin closes."""

    def wait_and_end() -> None:
        with contextlib.suppress(OSError, ValueError):
            while os.read(0, 4096):
                continue
        with contextlib.suppress(OSError):
            os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(settings.shutdown_timeout + FLUSH_SECONDS + 10)
        sys.stderr.flush()
        os._exit(1)  # it leaves no process behind

    threading.Thread(target=wait_and_end, daemon=True).start()
