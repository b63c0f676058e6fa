"""Lesson 14: uvicorn in a thread, so that a notebook can ask its own application, and look at its engine."""

import contextlib
import socket
import threading
import time
from typing import Any

import uvicorn

PATIENCE = 10.0  # seconds, for what takes milliseconds


class ServerThread:
    """Serves an ASGI application on a free port of this machine, until `close`. It is a context manager, too.

    Raises:
        RuntimeError: the application didn't start.
    """

    def __init__(self, app: Any):
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.host = f"127.0.0.1:{self._socket.getsockname()[1]}"
        self.url = f"http://{self.host}"
        config = uvicorn.Config(app, log_level="warning", access_log=False, lifespan="on", timeout_graceful_shutdown=1)
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        deadline = time.monotonic() + PATIENCE
        while not self._server.started:
            if not self._thread.is_alive() or time.monotonic() > deadline:
                self.close()
                raise RuntimeError("the application didn't start; the server's log says why.")
            time.sleep(0.005)

    def close(self) -> None:
        """End the server; what still runs has a second."""
        self._server.should_exit = True
        self._thread.join(PATIENCE)
        self._socket.close()

    def __enter__(self) -> "ServerThread":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _run(self) -> None:
        with contextlib.suppress(SystemExit):  # how uvicorn says that the application's start failed
            self._server.run([self._socket])
