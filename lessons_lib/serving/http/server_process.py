"""Lesson 14: a server for a notebook: in a process of its own, on a free port, for as long as a `with` block."""

import atexit
import contextlib
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

LAST_LINES = 20  # of the log, in error messages
PATIENCE = 10  # seconds more than --shutdown-timeout, before the process is killed


class ServerFailed(RuntimeError):
    """The server's process didn't start, or didn't answer; the message has the end of its log."""


class ServerProcess:
    """`python -m lessons_lib.serving` as a process of its own.

        with ServerProcess("--max-num-seqs", 8) as server:
            print(server.url)

    It ends with the block, with `close()`, and with this process, in whatever way: the server reads from a pipe that
    closes when this process is gone. Ctrl-C in the notebook doesn't reach it.
    """

    def __init__(
        self, *arguments: object, env: dict[str, str] | None = None, start_timeout: float = 120.0,
        shutdown_timeout: float = 2.0,
    ):  # fmt: skip
        """
        Args:
            arguments: of `python -m lessons_lib.serving`. The port is a free one unless it is given.
            env: more environment variables.
            start_timeout, shutdown_timeout: seconds until the server must answer; for open requests when it ends.
        """
        self.arguments = [str(argument) for argument in arguments]
        self.env, self.start_timeout, self.shutdown_timeout = env or {}, start_timeout, shutdown_timeout
        self.url = ""

    def __enter__(self) -> "ServerProcess":
        return self.start()

    def __exit__(self, *error: object) -> None:
        self.close()

    def start(self) -> "ServerProcess":
        """Start the server, and wait until it answers.

        Raises:
            ServerFailed: it ended, or didn't answer in time. No process is left.
        """
        own = ["--port", "0", "--shutdown-timeout", str(self.shutdown_timeout), "--until-stdin-closes"]
        # This process's modules, wherever it found them.
        path = {"PYTHONPATH": os.pathsep.join(part or os.getcwd() for part in sys.path)}
        # Without a name: nothing is left of it, however this process ends.
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - `close` closes it
        self.process: subprocess.Popen[bytes] = subprocess.Popen(
            [sys.executable, "-m", "lessons_lib.serving", *own, *self.arguments],
            stdin=subprocess.PIPE,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            env={**os.environ, **path, **self.env},
            start_new_session=True,  # Ctrl-C goes to all processes of a session
        )
        atexit.register(self.close)
        try:
            self._wait_until_ready()
        except BaseException:
            self.close()
            raise
        return self

    def close(self) -> None:
        """End the server. Open requests get `shutdown_timeout` seconds."""
        atexit.unregister(self.close)
        if getattr(self, "process", None) is None:
            return
        with contextlib.suppress(OSError):
            assert self.process.stdin is not None
            self.process.stdin.close()
        try:
            self.process.wait(self.shutdown_timeout + PATIENCE if self.url else 0)  # at once if it hasn't served yet
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._log.close()

    def log(self) -> str:
        """The server's output so far. Empty once it was closed."""
        if self._log.closed:
            return ""
        # Not `read`: the server writes at the same place in the file.
        return os.pread(self._log.fileno(), os.fstat(self._log.fileno()).st_size, 0).decode("utf-8", "replace")

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + self.start_timeout
        while not (ready := re.search(r"^Serving .* at (http://\S+)", self.log(), re.MULTILINE)):
            if self.process.poll() is not None:
                raise ServerFailed(f"the server ended with exit status {self.process.returncode}. {self._end_of_log()}")
            if time.monotonic() > deadline:
                raise ServerFailed(
                    f"the server didn't answer within {self.start_timeout:g} s. Raise start_timeout if this machine is "
                    f"busy. {self._end_of_log()}"
                )
            time.sleep(0.02)  # between two looks; the condition decides
        self.url = ready[1]

    def _end_of_log(self) -> str:
        lines = self.log().splitlines()[-LAST_LINES:]
        return "Its last lines:\n" + "\n".join(lines) if lines else "It has written nothing."


@contextlib.contextmanager
def start_together(*servers: ServerProcess) -> Iterator[None]:
    """Start several servers at the same time. All of them end with the block, or if one doesn't start."""
    with contextlib.ExitStack() as ending:
        for server in servers:
            ending.callback(server.close)
        with ThreadPoolExecutor(len(servers)) as pool:
            list(pool.map(ServerProcess.start, servers))
        yield
