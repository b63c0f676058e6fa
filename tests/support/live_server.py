"""The whole server in a thread of this process, so that tests see the engine as well."""

import asyncio
import contextlib
import gc
import itertools
import socket
import threading
import time

from lessons_lib.engine.config import EngineConfig
from lessons_lib.engine.llm_engine import LLMEngine
from lessons_lib.models.loading import load_model
from lessons_lib.serving.admission import AdmissionControl
from lessons_lib.serving.async_engine import AsyncEngine
from lessons_lib.serving.http.app import create_app
from lessons_lib.serving.http.served_model import ServedModel
from lessons_lib.serving.http.server import Server, uvicorn_config
from lessons_lib.serving.http.settings import ServerSettings

MODEL = "lessons-bundled"
PATIENCE = 30  # seconds, for what takes milliseconds


class LiveServer:
    """Use as a context manager.

    Attributes:
        url: such as http://127.0.0.1:43211.
        engine: the LLMEngine.
        front: its AsyncEngine.
    """

    def __init__(self, parts=None, host_cache_bytes=0, **settings):
        self.parts, self.host_cache_bytes = parts, host_cache_bytes
        self.settings = ServerSettings(**{"model_name": MODEL, "access_log": False} | settings)

    def __enter__(self):
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True)
        self._thread.start()
        wait_until(lambda: not self._thread.is_alive() or getattr(getattr(self, "server", None), "started", False))
        assert self._thread.is_alive(), "the server did not start"
        return self

    def __exit__(self, *error):
        self.server.should_exit = True
        self.wait_until_ended()
        self._socket.close()
        gc.unfreeze()  # or nothing of this engine would ever be collected; see `bound_pauses`

    async def _serve(self):
        self._loop = asyncio.get_running_loop()
        model, self.tokenizer = load_model(device="cpu")
        config = EngineConfig(max_num_seqs=16, host_cache_bytes=self.host_cache_bytes)
        with contextlib.closing(LLMEngine(model, self.tokenizer, config, parts=self.parts)) as self.engine:
            self.front = AsyncEngine(self.engine, AdmissionControl(self.settings.max_requests))
            served = ServedModel.of(self.settings.model_name, model.config, self.tokenizer)
            app = create_app(self.front, self.settings, served)
            self.server = Server(uvicorn_config(app, self.settings), self.front, self.settings)
            await self.server.serve([self._socket])

    def end(self):
        """As a signal does."""
        self._loop.call_soon_threadsafe(self.server.end)

    def wait_until_ended(self):
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive()

    def is_idle(self):
        """Whether nothing is left of any request: not in the engine, not in its pool, not in the front."""
        with self.engine.core.lock:
            in_engine = len(self.engine.requests) + len(self.engine.scheduler.pool.used)
        return in_engine + self.front.admission.num_requests == 0

    def ended(self):
        """Reason -> how many requests have ended with it."""
        with self.engine.core.lock:
            return dict(self.engine.core.num_ended)


@contextlib.contextmanager
def failing_at(live, number):
    """In here, the model fails in one step, counted from 1."""
    forward, steps = live.engine.runner.forward, itertools.count(1)

    def fails(*arguments):
        if next(steps) == number:
            raise FloatingPointError("infinite logits")
        return forward(*arguments)

    live.engine.runner.forward = fails
    try:
        yield
    finally:
        live.engine.runner.forward = forward


def slow(forward):
    """A model's forward that takes a while."""

    def with_pause(*args, **kwargs):
        time.sleep(0.02)
        return forward(*args, **kwargs)

    return with_pause


def wait_until(holds, patience=PATIENCE):
    """Poll until something holds.

    Raises:
        AssertionError: it never did.
    """
    deadline = time.monotonic() + patience
    while not holds():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.005)
