"""Treat a server badly, and see that others don't notice.

    python -m tools.server_abuse                     all of it: some minutes
    python -m tools.server_abuse vanish --times 100  one part, smaller

Each part starts with a server that is idle and ends with one: no request in the engine, no block in use, health 200.
The memory of both processes is printed. While a part runs, an ordinary client sends the same greedy request again and
again, and its answers must stay the same: what a rude client does costs time, never tokens.
"""

import argparse
import contextlib
import json
import os
import random
import resource
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from lessons_lib.models.loading import BUNDLED_MODEL
from lessons_lib.serving.http.server_process import ServerProcess

PATIENCE = 600  # seconds; only what never happens takes as long, also on a busy machine
STALL_TIMEOUT, STEP_TIMEOUT = 10, 10  # seconds, of the server
HEAD = (
    "POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n{more}Content-Length: {size}\r\n\r\n"
)
PROMPT = {"model": "m", "prompt": "Once upon a time", "temperature": 0, "ignore_eos": True}
BAD_BODIES = [
    b"",
    b"{",
    b"null",
    b"[]",
    b"\xff\xfe",
    b'"text"',
    b"[" * 500_000,
    b'{"a":' * 100_000,
    b'{"model": "m", "prompt": "\\ud800"}',
    b'{"model": "m", "prompt": "\xed\xa0\x80"}',
    b'{"model": "m", "prompt": "a", "max_tokens": ' + b"9" * 10_000 + b"}",
    b'{"model": "m", "prompt": "a", "temperature": NaN}',
    b'{"model": "m", "prompt": "a", "temperature": 1e999}',
    b'{"model": "m", "prompt": "a", "max_tokens": true}',
    b'{"model": "m", "prompt": "a", "max_tokens": "5"}',
    b'{"model": "m", "prompt": "a", "n": 100000}',
    b'{"model": "m", "prompt": "a", "stop": [[]]}',
    b'{"model": "m", "prompt": "a", "logit_bias": {"x": {}}}',
    b'{"model": "m", "prompt": {"a": 1}}',
    b'{"model": "m", "prompt": [1, "a"]}',
    b'{"model": "m", "prompt": [-1]}',
    b'{"model": "m", "prompt": [99999999999999999999]}',
    b'{"model": "m", "prompt": []}',
    b'{"model": "m", "prompt": [[]]}',
    b'{"model": ["m"], "prompt": "a"}',
    b'{"model": "m", "prompt": "' + b"a" * 4_000_000 + b'"}',
    b'{"model": "m", "prompt": "a", "stop": "' + b"a" * 1_000_000 + b'"}',
    b'{"model": "m", "prompt": "a", "' + b"k" * 1_000_000 + b'": 1}',
    b'{"model": "m", "prompt": "a", "seed": 1e400}',
    b" " * 5_000_000,
]
BAD_HEADS = [
    b"\r\n\r\n\r\n",
    b"GET\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",  # TLS
    b"GET / HTTP/9.9\r\n\r\n",
    b"GET /" + b"a" * 200_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: localhost\r\n" + b"".join(b"x%d: y\r\n" % i for i in range(20_000)) + b"\r\n",
    b"GET / HTTP/1.1\r\nHost: localhost\r\nx: a\x00b\r\n\r\n",
    b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n",
    b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
    b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    b"GET /%0d%0aset-cookie:a HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"GET /health HTTP/1.1\r\nHost: localhost\r\nx-request-id: a\r\n b\r\n\r\n",
]  # fmt: skip


class Rude:
    """One connection, without any manners."""

    def __init__(self, server: ServerProcess, receive_buffer: int | None = None):
        self.socket = socket.socket()
        self.socket.settimeout(PATIENCE)
        if receive_buffer:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        address = urlsplit(server.url)
        self.socket.connect((address.hostname, address.port))

    def send(self, data: bytes) -> "Rude":
        with contextlib.suppress(OSError):
            self.socket.sendall(data)
        return self

    def ask(self, body: bytes | dict, path: str = "/v1/completions", more: str = "") -> "Rude":
        if isinstance(body, dict):
            body = json.dumps(body).encode()
        return self.send(HEAD.format(path=path, size=len(body), more=more).encode() + body)

    def status(self) -> int:
        """Of the answer; 0 if there is none."""
        return int([*self.read_until(b"\r\n").split(), b"0", b"0"][1])

    def read_until(self, end: bytes) -> bytes:
        found = b""
        with contextlib.suppress(OSError):
            while end not in found and (more := self.socket.recv(65536)):
                found += more
        return found

    def vanish(self) -> None:
        """Close with a reset, as a client that crashes behind a router seems to."""
        with contextlib.suppress(OSError):
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
        self.socket.close()


def ask(server: ServerProcess, path: str, body: dict | None = None) -> bytes:
    """The body of an answer to an ordinary client."""
    rude = Rude(server)
    if body is None:
        rude.send(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
    else:
        rude.ask(body, path, "Connection: close\r\n")
    answer = rude.read_until(b"\0never\0")
    rude.socket.close()
    head, _, found = answer.partition(b"\r\n\r\n")
    if not head.startswith(b"HTTP/1.1 200"):
        raise RuntimeError(f"{path}: {answer[:500]!r}")
    return found


def cockpit(server: ServerProcess) -> dict:
    return json.loads(ask(server, "/cockpit"))


def wait_until(holds: Callable[[], bool], complaint: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while not holds():
        if time.monotonic() > deadline:
            raise RuntimeError(complaint)
        time.sleep(0.05)


def wait_until_idle(server: ServerProcess) -> dict:
    """The cockpit, once nothing is left in the engine: no request and no block."""
    now = {}

    def is_idle() -> bool:
        now.update(cockpit(server))
        return not any(now[name] for name in ("running", "waiting", "used_blocks", "requests"))

    wait_until(is_idle, "something is left in the engine")
    return now


def child(pid: int) -> int:
    """The engine's process."""
    (found,) = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return int(found)


def megabytes(pid: int) -> float:
    """Resident memory of a process."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * resource.getpagesize() / 2**20


def num_files(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


@dataclass
class Ordinary:
    """An ordinary client beside the abuse.

    Attributes:
        wrong: answers that weren't the first one.
        slowest: seconds.
    """

    server: ServerProcess
    count: int = 0
    slowest: float = 0.0
    wrong: list[str] = field(default_factory=list)

    def __enter__(self) -> "Ordinary":
        self.expected = self.text()
        self.is_over = threading.Event()
        self.thread = threading.Thread(target=self.run)
        self.thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.is_over.set()
        self.thread.join()

    def text(self) -> str:
        return json.loads(ask(self.server, "/v1/completions", PROMPT | {"max_tokens": 20}))["choices"][0]["text"]

    def run(self) -> None:
        while not self.is_over.wait(0.05):
            start = time.monotonic()
            try:
                if (text := self.text()) != self.expected:
                    self.wrong.append(text)
            except Exception as error:
                self.wrong.append(repr(error))
            self.count += 1
            self.slowest = max(self.slowest, time.monotonic() - start)


def malformed(server: ServerProcess, times: int) -> str:
    """Bodies and heads that make no sense: an answer of 4xx, or a closed connection; never 5xx."""
    statuses: dict[int, int] = {}
    for _ in range(times):
        for body in BAD_BODIES:
            for path in ("/v1/completions", "/v1/chat/completions", "/tokenize"):
                rude = Rude(server).ask(body, path)
                status = rude.status()
                rude.socket.close()
                statuses[status] = statuses.get(status, 0) + 1
                if not (400 <= status < 500 or (status == 200 and path == "/tokenize")):
                    raise RuntimeError(f"{path} answers {status} to {body[:80]!r}")
        for head in BAD_HEADS:
            rude = Rude(server).send(head)
            with contextlib.suppress(OSError):  # the server has closed it already
                rude.socket.shutdown(socket.SHUT_WR)
            status = rude.status()
            rude.socket.close()
            statuses[status] = statuses.get(status, 0) + 1
            if status >= 500:
                raise RuntimeError(f"{status} for {head[:80]!r}")
    return f"answers by status (0: closed): {dict(sorted(statuses.items()))}"


def endless(server: ServerProcess, times: int) -> str:
    """Chunked bodies without an end: 413, however much comes."""
    chunk = b"10000\r\n" + b"a" * 65536 + b"\r\n"
    sent = 0
    for _ in range(times):
        rude = Rude(server)
        rude.send(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n")
        for _ in range(400):  # 26 MB
            rude.send(chunk)
            sent += len(chunk)
        if rude.status() != 413:
            raise RuntimeError("an endless body was not refused with 413")
        rude.socket.close()
    return f"{sent / 2**20:.0f} MB were sent"


def connections(server: ServerProcess, times: int) -> str:
    """Many open connections: a third silent, a third with half a request, a third kept alive."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    open_now: list[Rude] = []
    for index in range(times):
        rude = Rude(server)
        if index % 3 == 1:
            rude.send(b"POST /v1/completions HTTP/1.1\r\nHost: localh")
        elif index % 3 == 2:
            rude.send(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        open_now.append(rude)
    deadline = time.monotonic() + 4  # seconds; then the server begins to close those that are kept alive and idle
    while num_files(server.process.pid) < times and time.monotonic() < deadline:
        time.sleep(0.1)  # until it has accepted all of them
    files, memory = num_files(server.process.pid), megabytes(server.process.pid)
    start = time.monotonic()
    ask(server, "/health")
    seconds = time.monotonic() - start
    for rude in open_now:
        rude.socket.close()
    wait_until(lambda: num_files(server.process.pid) <= 150, "files are left open")
    return f"{files} files open at {memory:.0f} MB; /health took {1000 * seconds:.0f} ms"


def unread(server: ServerProcess, times: int) -> str:
    """Streams that are never read. The engine goes on, and their blocks are free when they are complete. Every fourth
    answer has more megabytes than the system keeps for a connection, so it waits in the server, until it is dropped."""
    files = num_files(server.process.pid)
    small = PROMPT | {"prompt": "A", "max_tokens": 450, "stream": True}
    large = small | {"logprobs": 20, "n": 8}
    rudes = [Rude(server, 4096).ask(small if index % 4 else large) for index in range(times)]
    for rude in rudes:
        rude.socket.recv(1, socket.MSG_PEEK)  # the answer has begun; looking takes nothing
    wait_until_idle(server)
    memory = megabytes(server.process.pid)
    wait_until(lambda: num_files(server.process.pid) <= files + 2, "connections are left")  # 2 of ordinary clients
    dropped = sum(b"[DONE]" not in rude.read_until(b"[DONE]") for rude in rudes)
    for rude in rudes:
        rude.vanish()
    if dropped != (times + 3) // 4:
        raise RuntimeError(f"{dropped} connections were dropped as stalled, not every fourth of {times}")
    return f"with all answers computed and unread: {memory:.0f} MB; {dropped} were dropped as stalled"


def vanish(server: ServerProcess, times: int) -> str:
    """Clients that leave in any phase: while they send, while they wait, while they read; some with a reset."""
    chance = random.Random(0)
    for _ in range(times):
        body = PROMPT | {
            "prompt": chance.choice(["A", "Once upon a time " * 20, [chance.randrange(100) for _ in range(50)]]),
            "max_tokens": chance.randrange(1, 400),
            "stream": chance.random() < 0.6,
            "n": chance.choice([1, 1, 3]),
        }
        data = json.dumps(body).encode()
        data = HEAD.format(path="/v1/completions", size=len(data), more="").encode() + data
        rude = Rude(server, 4096 if chance.random() < 0.2 else None)
        phase = chance.random()
        rude.send(data[: chance.randrange(len(data))] if phase < 0.2 else data)
        if phase > 0.5:
            with contextlib.suppress(OSError):
                rude.socket.settimeout(chance.random() * 0.2)
                for _ in range(chance.randrange(1, 6)):
                    rude.socket.recv(chance.choice([1, 500, 65536]))
        rude.vanish() if chance.random() < 0.5 else rude.socket.close()
    return ""


PARTS: dict[str, tuple[Callable[[ServerProcess, int], str], int]] = {
    "malformed": (malformed, 3),
    "endless": (endless, 10),
    "connections": (connections, 10_000),
    "unread": (unread, 20),
    "vanish": (vanish, 1000),
}


def run_part(name: str, server: ServerProcess, times: int) -> str:
    """Run one part with an ordinary client beside it, and audit the server."""
    work, _ = PARTS[name]
    engine = child(server.process.pid)
    wait_until_idle(server)
    before, start = (megabytes(server.process.pid), megabytes(engine)), time.monotonic()
    with Ordinary(server) as ordinary:
        said = work(server, times)
        seconds = time.monotonic() - start
    now = wait_until_idle(server)
    after = megabytes(server.process.pid), megabytes(engine)
    if ordinary.wrong:
        raise RuntimeError(f"{name}: an ordinary client got {ordinary.wrong[:3]} in place of {ordinary.expected!r}")
    ask(server, "/health")
    return (
        f"{name} x {times}: {seconds:.0f} s; server {before[0]:.0f} -> {after[0]:.0f} MB, engine {before[1]:.0f} -> "
        f"{after[1]:.0f} MB; {now['used_blocks']} blocks left; {ordinary.count} ordinary answers, all equal, the "
        f"slowest took {ordinary.slowest:.2f} s. {said}"
    )


def signals(arguments: list[object]) -> str:
    """SIGTERM and SIGKILL of each process, and an engine that is stopped: streams end or finish, no process is left."""
    body = PROMPT | {"max_tokens": 300, "stream": True}
    found = []
    whats = [("server", "SIGTERM"), ("engine", "SIGKILL"), ("engine", "SIGTERM"), ("engine", "SIGSTOP")]
    for who, what in (*whats, ("server", "SIGKILL")):
        with ServerProcess(*arguments, "--shutdown-timeout", 60, "--step-timeout", STEP_TIMEOUT) as server:
            pids = {"server": server.process.pid, "engine": child(server.process.pid)}
            streams = [Rude(server).ask(body) for _ in range(8)]
            for stream in streams:
                stream.read_until(b"data: ")
            os.kill(pids[who], getattr(signal, what))
            ends = [stream.read_until(b"[DONE]") for stream in streams]
            finished = sum(b'"finish_reason": "length"' in end for end in ends)
            failed = sum(b'"error"' in end for end in ends)
            deadline = time.monotonic() + PATIENCE
            gone = ["engine"] if who == "engine" and what in ("SIGKILL", "SIGSTOP") else []
            gone = ["server", "engine"] if who == "server" else gone
            while any(is_running(pids[each]) for each in gone):
                if time.monotonic() > deadline:
                    raise RuntimeError(f"{what} to the {who}: a process is left")
                time.sleep(0.05)
            found.append(
                f"{what} to the {who}: {finished} finished, {failed} error events, {8 - finished - failed} cut"
            )
        if any(is_running(pid) for pid in pids.values()):
            raise RuntimeError(f"{what} to the {who}: a process is left")
    return "; ".join(found)


def is_running(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.server_abuse", description=__doc__.split("\n\n")[0])
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"{', '.join(PARTS)} or signals; all if none is named")
    parser.add_argument("--times", type=int, help="how often, in place of each part's own number")
    options = parser.parse_args(arguments)
    parts = options.parts or [*PARTS, "signals"]
    if unknown := set(parts) - {*PARTS, "signals"}:
        parser.error(f"there is no part {min(unknown)!r}; there are {', '.join(PARTS)} and signals.")
    server_arguments: list[object] = ["--model", BUNDLED_MODEL, "--served-model-name", "m", "--num-blocks", 1000]
    server_arguments += ["--max-requests", 2000, "--max-prompt-tokens", 10**6, "--no-access-log"]
    server_arguments += ["--max-num-seqs", 64, "--stall-timeout", STALL_TIMEOUT]
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(ServerProcess(*server_arguments)) if set(parts) - {"signals"} else None
        for part in parts:
            if part == "signals":
                print(signals(server_arguments), flush=True)
            elif server:
                print(run_part(part, server, options.times or PARTS[part][1]), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
