"""Treat a server badly, and see what others notice.

    python -m tools.server_abuse                   a list of hostile requests, one after the other: a minute
    python -m tools.server_abuse --requests 20000  so many more, made from the API's schema and at random: some minutes

Beside the list runs an ordinary stream: its longest gap between two tokens, and the slowest answer of /health, are
printed for each request. Beside the others run 8 streams. Whatever a client sends, an answer is never 5xx, a token of
an ordinary stream is never lost or changed, no block is left, and memory doesn't grow.
"""

import argparse
import contextlib
import json
import os
import random
import resource
import socket
import statistics
import struct
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from lessons_lib.models.loading import BUNDLED_MODEL
from lessons_lib.serving.http.server_process import ServerProcess

PATIENCE = 600  # seconds; only what never happens takes as long, also on a busy machine
NUM_STREAMS, NUM_WORKERS, IDLE_STREAMS = 8, 3, 3
ARGUMENTS = ("--model", BUNDLED_MODEL, "--served-model-name", "m", "--num-blocks", 1000, "--no-access-log")
COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
HONEST = {"prompt": "Once upon a time", "ignore_eos": True, "stream": True, "return_token_ids": True, "temperature": 0}
HEAD = "POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {size}\r\n\r\n"


def guided(**rules: Any) -> tuple[str, dict[str, Any]]:
    return COMPLETIONS, {"prompt": "x", "max_tokens": 8, "structured_outputs": rules}


def lark(size: int, *more: str) -> str:
    return "\n".join(["start: r0", *(f"r{number}: r{number + 1}" for number in range(size)), f'r{size}: "a"', *more])


def references(size: int) -> dict[str, Any]:
    rest = {f"d{number}": {"$ref": f"#/$defs/d{number + 1}"} for number in range(size)}
    return {"$ref": "#/$defs/d0", "$defs": rest | {f"d{size}": {"type": "string"}}}


def nested(size: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(size):
        schema = {"items": schema}
    return schema


# What a request is called -> its path, and its body: JSON, or bytes that aren't.
HOSTILE: dict[str, tuple[str, Any]] = {
    "100,000 choices": guided(choice=[f"choice {number}" for number in range(100_000)]),
    "40,000 choices": guided(choice=[f"{number}" for number in range(40_000)]),
    "1,024 choices": guided(choice=[f"choice number {number}" for number in range(1024)]),
    "regex of 120 kB": guided(regex="a" * 120_000),
    "regex of 4 kB": guided(regex="a" * 4_096),
    "regex with many states": guided(regex=".*[a-f].{40}b"),
    "regex of nested repeats": guided(regex="((a{1,1000}){1,1000}){1,1000}"),
    "4,000 references": guided(json=references(4000)),
    "1,500 references": guided(json=references(1500)),
    "9,000 rules": guided(grammar=lark(9000)),
    "1,200 rules": guided(grammar=lark(1200)),
    "ambiguous grammar": guided(grammar='start: s\ns: s s | s s s | "a" | "b" | /[a-z ]/'),
    "schema 60 deep": guided(json=nested(60)),
    "schema 1,000 deep": guided(json=nested(900)),
    "schema that is slow": guided(json={"type": "integer", "multipleOf": 99_991}),
    "100,000 empty messages": (CHAT, {"messages": [{}] * 100_000}),
    "1 million empty messages": (CHAT, {"messages": [{}] * 1_000_000}),
    "2,048 messages": (CHAT, {"messages": [{"role": "user", "content": "a"}] * 2048, "max_tokens": 1}),
    "4,000 parts": (CHAT, {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}] * 4000}]}),
    "40,000 unknown fields": (COMPLETIONS, {"prompt": "a"} | {f"k{number}": 1 for number in range(40_000)}),
    "metadata of 40,000": (COMPLETIONS, {"prompt": "a", "metadata": {f"k{number}": 1 for number in range(40_000)}}),
    "1.5 million ids": (COMPLETIONS, {"prompt": [1] * 1_390_000}),
    "130,000 ids": (COMPLETIONS, {"prompt": [1] * 130_000}),
    "130,000 allowed tokens": (COMPLETIONS, {"prompt": "a", "allowed_token_ids": [5] * 130_000, "max_tokens": 8}),
    "130,000 wrong ids": (COMPLETIONS, {"prompt": [-1] * 130_000}),
    "1,024 prompts": (COMPLETIONS, {"prompt": ["a"] * 1024, "max_tokens": 1}),
    "prompt of 4 MB": (COMPLETIONS, {"prompt": "a, " * 1_300_000}),
    "prompt of 131 kB": (COMPLETIONS, {"prompt": "a" * 131_000}),
    "tokenize 131 kB": ("/tokenize", {"prompt": "a, b" * 32_000, "return_token_strs": True}),
    "detokenize 130,000": ("/detokenize", {"tokens": [300] * 130_000}),
    "field of 1 MB": (COMPLETIONS, {"prompt": "a", "k" * 10**6: 1}),
    "deep array": (COMPLETIONS, b"[" * 500_000),
    "deep object": (COMPLETIONS, b'{"a":' * 100_000),
    "5 MB of spaces": (COMPLETIONS, b" " * 5_000_000),
    "4 MB of quotes": (COMPLETIONS, b'{"prompt": ' + b'"' * 4_000_000),
    "4 MB of escapes": (COMPLETIONS, b'{"prompt": "' + b"\\\\" * 2_000_000 + b'"}'),
    "number of 4 MB": (COMPLETIONS, b'{"prompt": "a", "seed": ' + b"9" * 4_000_000 + b"}"),
    "many long numbers": (COMPLETIONS, b'{"prompt": [' + b",".join([b"9" * 4000] * 1000) + b"]}"),
}
ODD_BODIES = [
    b"",
    b"{",
    b"null",
    b"[]",
    b"\xff\xfe",
    b'"text"',
    b'{"prompt": "\\ud800"}',
    b'{"prompt": "\xed\xa0\x80"}',
]
ODD_VALUES: list[Any] = [
    *(None, True, False, 0, -1, 1, 2**31, 2**63, 10**400, 0.5, -0.5, 1e308, float("nan"), float("inf")),
    *("", "a", "\ud83d", "\0", "<|endoftext|>", "a" * 3000, "[", "\\", "é" * 300, [], {}, [[]], [None], ["a"] * 40),
    *([5] * 3000, [4096], [-1], {"a": 1}, {"5": 1}, {"5": 101}, {"type": "json_object"}, {"regex": "[a-z]+"}),
    *({"regex": "["}, {"regex": "yes\\"}, {"choice": ["yes", "no"]}, {"json": {"$ref": "#"}}, {"grammar": lark(700)}),
]  # fmt: skip
HEADS = [
    b"\r\n\r\n\r\n", b"GET\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", b"GET / HTTP/9.9\r\n\r\n",
    b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: localhost\r\nx: a\x00b\r\n\r\n",
    b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n",
    b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
    b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    b"GET /%0d%0aset-cookie:a HTTP/1.1\r\nHost: localhost\r\n\r\n",
]  # fmt: skip


def request(path: str, body: Any) -> bytes:
    """The bytes of a request."""
    data = body if isinstance(body, bytes) else json.dumps({"model": "m"} | body).encode()
    return HEAD.format(path=path, size=len(data)).encode() + data


def connect(server: ServerProcess) -> socket.socket:
    address = urlsplit(server.url)
    return socket.create_connection((address.hostname or "", address.port or 0), PATIENCE)


def status_of(server: ServerProcess, data: bytes) -> int:
    """Of the answer, which is read to its end; 0 if the server closes the connection."""
    with connect(server) as connection, contextlib.suppress(OSError):
        with contextlib.suppress(OSError):
            connection.sendall(data)
        answer = connection.makefile("rb")
        status = int([*answer.readline().split(), b"0", b"0"][1])
        lengths = [line for line in iter(answer.readline, b"\r\n") if line.lower().startswith(b"content-length")]
        if lengths:
            answer.read(int(lengths[0].split(b":")[1]))
        else:
            next((line for line in answer if b"[DONE]" in line), None)
        return status
    return 0


def get(server: ServerProcess, path: str) -> bytes:
    with connect(server) as connection:
        connection.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
        return connection.makefile("rb").read().partition(b"\r\n\r\n")[2]


@dataclass
class Stream:
    """An ordinary client that asks for the same again and again, beside whatever happens.

    Attributes:
        expected: its tokens, as the first answer had them.
        gaps: seconds between two tokens, of all answers so far.
        wrong: answers that differ.
    """

    server: ServerProcess
    body: dict[str, Any]
    expected: list[int] = field(default_factory=list)
    gaps: list[float] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    num_answers: int = 0

    def answer(self) -> None:
        tokens, last, text = list[int](), 0.0, ""
        with connect(self.server) as connection, contextlib.suppress(OSError):
            connection.sendall(request(COMPLETIONS, self.body))
            for line in connection.makefile("rb"):
                if line.startswith(b"data: {"):
                    now, text = time.perf_counter(), line.decode()
                    if last:
                        self.gaps.append(now - last)
                    last = now
                    for choice in json.loads(line[6:]).get("choices", ()):
                        tokens += choice["token_ids"]
                elif b"[DONE]" in line:
                    break
        self.num_answers += 1
        self.expected = self.expected or tokens
        if tokens != self.expected or len(tokens) != self.body["max_tokens"]:
            self.wrong.append(f"{len(tokens)} tokens, the last event: {text[-300:]}")


@contextlib.contextmanager
def again_and_again(*calls: Callable[[], object]) -> Iterator[None]:
    """Each call in a thread of its own, until the block ends."""
    is_over = threading.Event()

    def repeat(call: Callable[[], object]) -> None:
        while not is_over.is_set():
            call()

    threads = [threading.Thread(target=repeat, args=(call,)) for call in calls]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        is_over.set()
        for thread in threads:
            thread.join()


def child(pid: int) -> int:
    """The engine's process."""
    (found,) = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return int(found)


def megabytes(pid: int) -> float:
    """Resident memory of a process."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * resource.getpagesize() / 2**20


def num_files(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


def is_running(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def wait_until_idle(server: ServerProcess) -> None:
    """Until nothing is left in the engine: no request and no block."""
    deadline = time.monotonic() + PATIENCE
    while any((now := json.loads(get(server, "/cockpit")))[name] for name in ("running", "used_blocks", "requests")):
        if time.monotonic() > deadline:
            raise RuntimeError(f"something is left in the engine: {now}")
        time.sleep(0.05)


def run_list(server: ServerProcess) -> list[str]:
    """Each hostile request of the list beside one stream. Returns complaints."""
    stream, complaints = Stream(server, HONEST | {"max_tokens": 400}), list[str]()
    requests = {name: request(path, body) for name, (path, body) in HOSTILE.items()}
    health: list[float] = []

    def ask_health() -> None:
        start = time.perf_counter()
        get(server, "/health")
        health.append(time.perf_counter() - start)
        time.sleep(0.02)

    engine = child(server.process.pid)
    with again_and_again(ask_health):
        for _ in range(IDLE_STREAMS):
            stream.answer()
        idle = sorted(stream.gaps)
        p99 = statistics.quantiles(idle, n=100)[-1]
        print(f"alone: gaps p50 {1000 * statistics.median(idle):.1f} ms, p99 {1000 * p99:.1f} ms, longest "
              f"{1000 * idle[-1]:.1f} ms; /health at most {1000 * max(health):.0f} ms", flush=True)  # fmt: skip
        worst_gap, worst_health = 0.0, 0.0
        with again_and_again(stream.answer):
            for name, data in requests.items():
                stream.gaps, mark, start = [], len(health), time.perf_counter()
                status, seconds = status_of(server, data), time.perf_counter() - start
                time.sleep(0.3)  # what it has set off goes on for a moment
                gap, slow = max(stream.gaps, default=0.0), max(health[mark:], default=0.0)
                worst_gap, worst_health = max(worst_gap, gap), max(worst_health, slow)
                print(f"{name:28} {status} in {1000 * seconds:5.0f} ms; longest gap {1000 * gap:5.0f} ms, /health "
                      f"{1000 * slow:4.0f} ms", flush=True)  # fmt: skip
                if not 200 <= status < 500:
                    complaints.append(f"{name}: {status}")
    print(f"all: longest gap {1000 * worst_gap:.0f} ms = {worst_gap / p99:.1f} x p99 alone; /health at most "
          f"{1000 * worst_health:.0f} ms; {stream.num_answers} ordinary answers")  # fmt: skip
    if child(server.process.pid) != engine:
        complaints.append("the engine was ended")
    return complaints + stream.wrong


def from_schema(server: ServerProcess, num_requests: int, statuses: "Counter[int]") -> None:
    """What schemathesis makes of the API's own description, valid and invalid."""
    import hypothesis
    import schemathesis

    schema = schemathesis.openapi.from_url(f"{server.url}/openapi.json")
    operations = [("/v1/completions", 3), ("/v1/chat/completions", 3), ("/tokenize", 1), ("/detokenize", 1)]
    modes = (schemathesis.GenerationMode.POSITIVE, schemathesis.GenerationMode.NEGATIVE)
    for seed, ((path, weight), mode) in enumerate((each, mode) for each in operations for mode in modes):
        run_case = partial(send_case, server, path, statuses)
        settings = hypothesis.settings(
            max_examples=max(1, num_requests * weight // 16), deadline=None, database=None,
            suppress_health_check=list(hypothesis.HealthCheck), phases=[hypothesis.Phase.generate],
        )  # fmt: skip
        cases = schema[path]["POST"].as_strategy(generation_mode=mode)
        hypothesis.seed(seed)(settings(hypothesis.given(cases)(one_case(run_case))))()


def one_case(run: Callable[[Any], None]) -> Callable[[Any], None]:
    return lambda case: run(case)  # hypothesis wants a function with one argument


def send_case(server: ServerProcess, path: str, statuses: "Counter[int]", case: Any) -> None:
    """What schemathesis has made, bounded so that it doesn't take long if it is served."""
    body = case.body
    if isinstance(body, dict):
        body = body | {"model": "m"}
        for name, most in (("max_tokens", 4), ("max_completion_tokens", 4), ("n", 2)):
            if isinstance(body.get(name), int | float):
                body[name] = min(most, body[name])
    with contextlib.suppress(TypeError, ValueError):  # what has no JSON form
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        statuses[status_of(server, HEAD.format(path=path, size=len(data)).encode() + data)] += 1


def at_random(server: ServerProcess, rng: random.Random, fields: dict[str, list[str]]) -> int:
    """One more request: odd values in fields, odd bytes, or a client that leaves. Returns its status, 0 for none."""
    kind, path = rng.random(), rng.choice(list(fields))
    if kind < 0.05:
        with connect(server) as connection:
            connection.sendall(rng.choice(HEADS))
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_WR)
                return int([*connection.makefile("rb").readline().split(), b"0", b"0"][1])
        return 0
    body: Any = {
        "prompt": rng.choice(["A dog", [5, 6, 7], "Once upon a time " * 30]),
        "max_tokens": rng.randrange(1, 9),
    }
    if "chat" in path:
        body = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": rng.randrange(1, 9)}
    elif path == "/detokenize":
        body = {"tokens": [5, 6]}
    if kind < 0.15:
        body = rng.choice(ODD_BODIES)
    else:
        body["stream"] = rng.random() < 0.3
        for name in rng.sample(fields[path], rng.randrange(3)):
            body[name] = rng.choice(ODD_VALUES)
    data = request(path, body)
    if kind < 0.9:
        return status_of(server, data)
    with connect(server) as connection:  # it leaves while it sends, waits or reads, some with a reset
        with contextlib.suppress(OSError):
            connection.sendall(data[: rng.randrange(len(data))] if kind < 0.94 else data)
            connection.settimeout(rng.random() * 0.1 + 0.001)
            connection.recv(rng.choice([1, 500, 65_536]))
        if rng.random() < 0.5:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    return 0


def run_many(server: ServerProcess, num_requests: int) -> list[str]:
    """Many hostile requests beside 8 streams: a tenth from the schema, the others at random. Returns complaints."""
    streams = [
        Stream(server, HONEST | {"max_tokens": 100, "seed": index, "temperature": 0.7 * (index % 2)})
        for index in range(NUM_STREAMS)
    ]
    for stream in streams:
        stream.answer()
    document = json.loads(get(server, "/openapi.json"))["components"]["schemas"]
    kinds = {COMPLETIONS: "CompletionRequest", CHAT: "ChatRequest", "/detokenize": "DetokenizeRequest"}
    fields = {path: sorted(document[kind]["properties"]) for path, kind in kinds.items()}
    statuses, complaints, memory = Counter[int](), list[str](), list[tuple[float, float]]()
    pids = server.process.pid, child(server.process.pid)

    def measured() -> tuple[float, float]:
        return megabytes(pids[0]), megabytes(pids[1])

    def worker(number: int, numbers: Iterator[int], num: int) -> None:
        rng = random.Random(number)
        while next(numbers) < num:
            state = rng.getstate()
            if (status := at_random(server, rng, fields)) >= 500:
                complaints.append(f"{status}, after random state {hash(state)}")
            statuses[status] += 1

    start = time.monotonic()
    with again_and_again(*(stream.answer for stream in streams)):
        for share in (0.1, 0.9):  # memory is compared once everything has been used
            numbers, num = count(), int(0.9 * share * num_requests)
            workers = [threading.Thread(target=worker, args=(each, numbers, num)) for each in range(NUM_WORKERS)]
            for each in workers:
                each.start()
            from_schema(server, int(0.1 * share * num_requests), statuses)
            for each in workers:
                each.join()
            memory.append(measured())
    wait_until_idle(server)
    memory.append(measured())
    told = " -> ".join(f"{api:.0f} + {engine:.0f}" for api, engine in memory)
    print(f"{sum(statuses.values())} requests in {time.monotonic() - start:.0f} s, by status (0: no answer): "
          f"{dict(sorted(statuses.items()))}")  # fmt: skip
    print(f"memory of server + engine, after a tenth, after all, and idle: {told} MB")
    print(f"{sum(stream.num_answers for stream in streams)} ordinary answers, no block left")
    complaints += [f"{num} answers of {status}" for status, num in statuses.items() if status >= 500]
    if child(server.process.pid) != pids[1]:
        complaints.append("the engine was ended")
    return complaints + [wrong for stream in streams for wrong in stream.wrong]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.server_abuse", description=__doc__.split("\n\n")[0])
    parser.add_argument("--requests", type=int, help="so many requests beside 8 streams, in place of the list")
    options = parser.parse_args(arguments)
    with ServerProcess(*ARGUMENTS) as server:
        complaints = run_many(server, options.requests) if options.requests else run_list(server)
        wait_until_idle(server)
        for complaint in complaints:
            print(f"WRONG: {complaint}")
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main())
