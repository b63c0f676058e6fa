"""A draining server: clients that connect before and after SIGTERM, and the end of its process."""

import http.client
import json
import signal
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

FILE = Path(__file__).parents[1] / "assets" / "recorded" / "drain.json"
REFUSED = 0  # in place of a status: the connection was refused


@dataclass(frozen=True)
class ClientRequest:
    """One request, as its client saw it.

    Attributes:
        name: a letter.
        sent, ended: times at which it was sent and its last byte was read, in seconds since the start of the recording.
        status: status of the response; 0 if the connection was refused.
        num_tokens: tokens received.
        asked: tokens requested.
    """

    name: str
    sent: float
    ended: float
    status: int
    num_tokens: int
    asked: int


@dataclass(frozen=True)
class DrainRun:
    """A recording.

    Attributes:
        requests: in the order of sending.
        signaled, exited: times at which SIGTERM was sent and the server's process ended, in seconds.
        exit_status: exit status of that process.
        provenance: machine, versions, command and date, in one line.
    """

    requests: tuple[ClientRequest, ...]
    signaled: float
    exited: float
    exit_status: int
    provenance: str = ""

    def save(self, path: Path = FILE) -> None:
        path.write_text(json.dumps(asdict(self), indent=1) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, path: Path = FILE) -> "DrainRun":
        saved = json.loads(path.read_text(encoding="utf-8"))
        return cls(**{**saved, "requests": tuple(ClientRequest(**each) for each in saved["requests"])})


def recorded_drain() -> DrainRun:
    """The recording that ships with the course."""
    return DrainRun.load()


def record_drain(
    early: Sequence[int] = (60, 300, 450), late: Sequence[int] = (60, 60), provenance: str = ""
) -> DrainRun:
    """Start a server, send requests, send SIGTERM once the first has ended, then send more.

    Args:
        early, late: tokens of the requests before and after the signal. One more is sent after the server has ended.
    """
    from lessons_lib.serving.http.server_process import ServerProcess

    server = ServerProcess("--max-num-seqs", 8, "--num-blocks", 256, shutdown_timeout=300.0).start()
    try:
        host = server.url.removeprefix("http://")
        _Client(host, "warm-up", 4, time.perf_counter).join()  # the first one loads code
        zero = time.perf_counter()

        def clock() -> float:
            return time.perf_counter() - zero

        names = iter("ABCDEFGHIJ")
        clients = []
        for count in early:
            clients.append(_Client(host, next(names), count, clock))
            clients[-1].wait_for(min(8, count))
        clients[0].join()
        signaled = clock()
        server.process.send_signal(signal.SIGTERM)
        for number, count in enumerate(late):
            clients[1].wait_for(clients[1].num_tokens + 30 + 40 * number)
            clients.append(_Client(host, next(names), count, clock))
            clients[-1].join()
        exit_status = server.process.wait(300)
        exited = clock()
        clients.append(_Client(host, next(names), late[-1], clock))
        for client in clients:
            client.join()
    finally:
        server.close()
    return DrainRun(tuple(client.seen() for client in clients), signaled, exited, exit_status, provenance)


class _Client:
    """A client in a thread that counts the tokens it reads."""

    def __init__(self, host: str, name: str, count: int, clock: Callable[[], float]):
        self.host, self.name, self.asked, self.clock = host, name, count, clock
        self.status, self.num_tokens, self.ended = REFUSED, 0, 0.0
        self._news = threading.Condition()
        self.sent = clock()
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def wait_for(self, count: int) -> None:
        """Wait until the client has read `count` tokens or has ended."""
        with self._news:
            self._news.wait_for(lambda: self.num_tokens >= count or self.ended, timeout=300)

    def join(self) -> None:
        self.thread.join()

    def seen(self) -> ClientRequest:
        return ClientRequest(
            self.name, round(self.sent, 4), round(self.ended, 4), self.status, self.num_tokens, self.asked
        )

    def _run(self) -> None:
        try:
            self._read()
        except ConnectionRefusedError:
            pass
        finally:
            with self._news:
                self.ended = self.clock()
                self._news.notify_all()

    def _read(self) -> None:
        connection = http.client.HTTPConnection(self.host, timeout=300)
        body: dict[str, Any] = {"prompt": "The old dog", "max_tokens": self.asked, "ignore_eos": True, "stream": True}
        body |= {"return_token_ids": True, "temperature": 0}
        connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
        response = connection.getresponse()
        self.status = response.status
        while line := response.readline():
            if not line.startswith(b"data: {"):
                continue
            choices = json.loads(line[6:]).get("choices") or []
            with self._news:
                self.num_tokens += sum(len(choice.get("token_ids") or ()) for choice in choices)
                self._news.notify_all()
        connection.close()
