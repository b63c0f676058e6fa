"""Treat a server badly, and see what others notice.

    python -m tools.server_abuse --times 3         a list of hostile requests beside an ordinary stream, three times
    python -m tools.server_abuse --requests 20000  random requests next to 8 streams

Of the list, the stream's longest gap between two tokens is printed, as a multiple of the 99th percentile of its gaps
when it is alone, and the slowest answer of /health. Whatever a client sends, an answer is never 5xx, a token of an
ordinary stream is never lost or changed, no block is left, and memory doesn't grow.
"""

import argparse
import contextlib
import json
import random
import resource
import statistics
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from lessons_lib.models.loading import BUNDLED_MODEL
from lessons_lib.serving.http.server_process import ServerProcess

PATIENCE = 600  # seconds; only what never happens takes as long, also on a busy machine
ARGUMENTS = ("--model", BUNDLED_MODEL, "--served-model-name", "m", "--num-blocks", 1000, "--no-access-log")
TEXT, CHAT = "/v1/completions", "/v1/chat/completions"
HONEST = {"prompt": "Once upon a time", "ignore_eos": True, "stream": True, "return_token_ids": True, "temperature": 0}
CLIENT = httpx.Client(timeout=PATIENCE, headers={"content-type": "application/json"})
SIZE, VALUES = 270_000, 34_000  # of a body, in bytes and in values: nearly what the server takes by default
ENUM = {"enum": [f"{number}" for number in range(8000)]}


def guided(**rules: Any) -> tuple[str, dict[str, Any]]:
    return TEXT, {"prompt": "x", "max_tokens": 8, "structured_outputs": rules}


def chain(size: int) -> str:
    return "\n".join(["start: r0", *(f"r{number}: r{number + 1}" for number in range(size)), f'r{size}: "a"'])


def references(size: int) -> dict[str, Any]:
    names = {f"d{number}": {"$ref": f"#/$defs/d{number + 1}"} for number in range(size)}
    return {"$ref": "#/$defs/d0", "$defs": names | {f"d{size}": {"type": "string"}}}


def nested(size: int) -> dict[str, Any]:
    return {"items": nested(size - 1)} if size else {}


def filled(before: str, each: str, after: str = "", size: int = SIZE) -> bytes:
    """A body of that size. What `each` ends with, separates."""
    return (before + (each * (size // len(each))).rstrip(",") + after).encode()


def message(content: str) -> str:
    return f'{{"role":"user","content":{content}}}'


# What a request is called -> its path, and its body: JSON, or bytes that may be none.
HOSTILE: dict[str, tuple[str, Any]] = {
    "an ordinary request": (TEXT, {"prompt": "x", "max_tokens": 8}),
    "1,024 choices": guided(choice=[f"choice number {number}" for number in range(1024)]),
    "20,000 choices": guided(choice=[f"{number}" for number in range(20_000)]),
    "regex of 120 kB": guided(regex="a" * 120_000),
    "regex of 4 kB": guided(regex="a" * 4_096),
    "regex with many states": guided(regex=".*[a-f].{40}b"),
    "regex with a long repeat": guided(regex="a{100000}"),
    "regex of nested repeats": guided(regex="((a{1,1000}){1,1000}){1,1000}"),
    "4,000 references": guided(json=references(4000)),
    "1,500 references": guided(json=references(1500)),
    "9,000 rules": guided(grammar=chain(9000)),
    "1,200 rules": guided(grammar=chain(1200)),
    "ambiguous grammar": guided(grammar='start: s\ns: s s | s s s | "a" | "b" | /[a-z ]/'),
    "schema 60 deep": guided(json=nested(60)),
    "schema 900 deep": guided(json=nested(900)),
    "schema of 8,000 values": guided(json=ENUM),
    "schema that is slow": guided(json={"type": "integer", "multipleOf": 99_991}),
    "empty messages": (CHAT, filled('{"messages":[', "{},", "]}")),
    "2,048 messages": (CHAT, {"messages": [{"role": "user", "content": "a"}] * 2048, "max_tokens": 1}),
    "4,900 parts": (CHAT, {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}] * 4900}]}),
    "unknown fields": (TEXT, {"prompt": "a"} | {f"k{number}": 1 for number in range(20_000)}),
    "metadata": (TEXT, {"prompt": "a", "metadata": {f"k{number}": 1 for number in range(20_000)}}),
    "ids": (TEXT, filled('{"prompt":[', "1,", "]}")),
    "fewer ids": (TEXT, filled('{"prompt":[', "1,", "]}", size=2 * VALUES)),
    "fewer allowed tokens": (TEXT, filled('{"prompt":"a","allowed_token_ids":[', "5,", "]}", size=2 * VALUES)),
    "fewer lists of ids": (TEXT, filled('{"prompt":[', "[1],", "]}", size=2 * VALUES)),
    "brackets in texts": (TEXT, filled('{"prompt":[', '"[",', "]}", size=4 * VALUES)),
    "values and halves": (TEXT, filled('{"user":"\\ud83d\\udc36","prompt":[', "1,", "]}", size=2 * VALUES)),
    "all tokens, 128 times": (TEXT, {"prompt": "a", "n": 128, "max_tokens": 8, "allowed_token_ids": [*range(4000)]}),
    "lists of ids": (TEXT, filled('{"prompt":[', "[1],", "]}")),
    "allowed tokens": (TEXT, filled('{"prompt":"a","max_tokens":8,"allowed_token_ids":[', "5,", "]}")),
    "wrong ids": (TEXT, filled('{"prompt":[', "-1,", "]}")),
    "1,024 prompts": (TEXT, {"prompt": ["a"] * 1024, "max_tokens": 1}),
    "prompt": (TEXT, filled('{"prompt":"', "a, ", '"}')),
    "prompt that could fit": (TEXT, filled('{"prompt":"', "a", '"}', size=131_000)),
    "name of a field": (TEXT, {"prompt": "a", "k" * SIZE: 1}),
    "deep array": (TEXT, b"[" * SIZE),
    "deep object": (TEXT, filled("", '{"a":')),
    "deep hint": (CHAT, filled('{"messages":[{"role":"user","content":"a","parsed":', "[", "}]}", size=900)),
    "5 MB": (TEXT, b" " * 5_000_000),
    "quotes": (TEXT, filled('{"prompt": ', '"')),
    "backslashes": (TEXT, filled('{"prompt":"', "\\\\", '"}')),
    "half characters": (TEXT, filled('{"prompt":"', "\\ud83d", '"}')),
    "a long number": (TEXT, filled('{"prompt":"a","seed":', "9", "}")),
    "long numbers": (TEXT, filled('{"prompt":[', "9" * 600 + ",", "]}")),
}  # fmt: skip
ODD_BODIES = [b"", b"{", b"null", b"[]", b"\xff\xfe", b'"a"', b'{"prompt":"\\ud800"}', b'{"prompt":"\xed\xa0\x80"}']
ODD_VALUES: list[Any] = [
    *(None, True, False, 0, -1, 1, 2**31, 2**63, 10**400, 0.5, -0.5, 1e308, float("nan"), float("inf")),
    *("", "a", "\ud83d", "\0", "<|endoftext|>", "a" * 3000, "[", "\\", "é" * 300, [], {}, [[]], [None], ["a"] * 40),
    *([5] * 3000, [4096], [-1], {"a": 1}, {"5": 1}, {"5": 101}, {"type": "json_object"}, {"regex": "[a-z]+"}),
    *({"regex": "["}, {"regex": "yes\\"}, {"choice": ["yes", "no"]}, {"json": {"$ref": "#"}}, {"grammar": chain(700)}),
]  # fmt: skip


def status_of(server: ServerProcess, path: str, data: bytes, timeout: float = PATIENCE) -> int:
    """Of the answer, which is read to its end; 0 if there is none, or if the client has left after `timeout`."""
    with contextlib.suppress(httpx.TransportError):
        return CLIENT.post(server.url + path, content=data, timeout=timeout).status_code
    return 0


def body_of(value: Any) -> bytes:
    return value if isinstance(value, bytes) else json.dumps({"model": "m"} | value).encode()


def get(server: ServerProcess, path: str) -> Any:
    return CLIENT.get(server.url + path).json()


@dataclass
class Stream:
    """An ordinary client that asks for the same again and again. `gaps` are seconds between two of its tokens."""

    server: ServerProcess
    body: dict[str, Any]
    expected: list[int] = field(default_factory=list)
    gaps: list[float] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    num_answers: int = 0

    def answer(self) -> None:
        tokens, last, line = list[int](), 0.0, ""
        with CLIENT.stream("POST", f"{self.server.url}{TEXT}", json=self.body) as answer:
            for line in filter(None, answer.iter_lines()):
                now = time.perf_counter()
                self.gaps += [now - last] if last else []
                last = now
                if line != "data: [DONE]":
                    tokens += json.loads(line[6:])["choices"][0]["token_ids"]
        self.num_answers += 1
        self.expected = self.expected or tokens
        if tokens != self.expected or len(tokens) != self.body["max_tokens"]:
            self.wrong.append(f"an ordinary stream: {len(tokens)} tokens, the last event {line[-300:]}")


@contextlib.contextmanager
def again_and_again(*calls: Callable[[], object]) -> Iterator[None]:
    """Each call in a thread of its own, until the block ends."""
    is_over = threading.Event()
    threads = [
        threading.Thread(target=lambda call=call: [call() for _ in iter(is_over.is_set, True)]) for call in calls
    ]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        is_over.set()
        for thread in threads:
            thread.join()


def run_list(server: ServerProcess, times: int) -> list[str]:
    """Each hostile request of the list beside one stream, `times` times. Returns complaints."""
    stream, complaints, health = Stream(server, HONEST | {"max_tokens": 400}), list[str](), list[float]()
    ratios: dict[str, list[float]] = {name: [] for name in HOSTILE}
    slowest: dict[str, list[float]] = {name: [] for name in HOSTILE}
    requests = {name: (path, body_of(body)) for name, (path, body) in HOSTILE.items()}

    def ask_health() -> None:
        start = time.perf_counter()
        get(server, "/health")
        health.append(1000 * (time.perf_counter() - start))
        time.sleep(0.02)

    with again_and_again(ask_health):
        for _ in range(times):
            stream.gaps.clear()
            for _ in range(3):
                stream.answer()
            p99 = statistics.quantiles(stream.gaps, n=100)[-1]
            print(f"alone: gaps p50 {1000 * statistics.median(stream.gaps):.1f} ms, p99 {1000 * p99:.1f} ms, longest "
                  f"{max(stream.gaps) / p99:.1f} x p99", flush=True)  # fmt: skip
            with again_and_again(stream.answer):
                for name, (path, data) in requests.items():
                    stream.gaps, mark = [], len(health)
                    if not 200 <= (status := status_of(server, path, data)) < 500:
                        complaints.append(f"{name}: {status}")
                    time.sleep(0.3)  # what it has set off goes on for a moment
                    ratios[name].append(max(stream.gaps, default=0.0) / p99)
                    slowest[name].append(max(health[mark:], default=0.0))
    for name, found in ratios.items():
        print(f"{name:26} longest gap {statistics.median(found):4.1f} x p99 alone, /health "
              f"{statistics.median(slowest[name]):4.0f} ms at most (medians)")  # fmt: skip
    print(f"{sum(statistics.median(found) > 2 for found in ratios.values())} of {len(ratios)} above 2 x p99")
    return complaints + stream.wrong


def at_random(server: ServerProcess, rng: random.Random, fields: dict[str, list[str]]) -> int:
    """Send one more request: odd values in fields, odd bytes, a client that leaves. Returns its status or 0."""
    kind, path, length = rng.random(), rng.choice(list(fields)), rng.randrange(1, 9)
    bodies: dict[str, dict[str, Any]] = {
        TEXT: {"prompt": rng.choice(["A dog", [5, 6, 7], "Once upon a time " * 30]), "max_tokens": length},
        CHAT: {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": length},
    }
    odd = {name: rng.choice(ODD_VALUES) for name in rng.sample(fields[path], rng.randrange(3))}
    body = rng.choice(ODD_BODIES) if kind < 0.1 else bodies[path] | {"stream": rng.random() < 0.3} | odd
    return status_of(server, path, body_of(body), PATIENCE if kind < 0.9 else 0.001 + 0.1 * rng.random())


def run_many(server: ServerProcess, num_requests: int) -> list[str]:
    """Many hostile requests at random beside 8 streams. Returns complaints."""
    bodies = [HONEST | {"max_tokens": 100, "seed": seed, "temperature": 0.7 * (seed % 2)} for seed in range(8)]
    streams = [Stream(server, body) for body in bodies]
    for stream in streams:
        stream.answer()
    document = get(server, "/openapi.json")["components"]["schemas"]
    kinds = {TEXT: "CompletionRequest", CHAT: "ChatRequest"}
    fields = {path: sorted(document[kind]["properties"]) for path, kind in kinds.items()}
    statuses, start = Counter[int](), time.monotonic()
    with again_and_again(*(stream.answer for stream in streams)), ThreadPoolExecutor(3) as pool:
        for part in range(10):  # memory is compared once everything has been used
            seeds = range(part * num_requests // 10, (part + 1) * num_requests // 10)
            statuses.update(pool.map(lambda seed: at_random(server, random.Random(seed), fields), seeds))
            print(f"{statuses.total()} requests in {time.monotonic() - start:.0f} s, by status (0: no answer) "
                  f"{dict(sorted(statuses.items()))}; server + engine {measured(server)} MB", flush=True)  # fmt: skip
    wait_until_idle(server)
    print(
        f"{sum(stream.num_answers for stream in streams)} ordinary answers, no block left; idle {measured(server)} MB"
    )
    return [f"{num} answers of {status}" for status, num in statuses.items() if status >= 500] + [
        wrong for stream in streams for wrong in stream.wrong
    ]


def engine_of(server: ServerProcess) -> int:
    """The engine's process."""
    return int(Path(f"/proc/{server.process.pid}/task/{server.process.pid}/children").read_text().split()[0])


def measured(server: ServerProcess) -> list[int]:
    """Resident megabytes of both processes."""
    pages = [Path(f"/proc/{pid}/statm").read_text().split()[1] for pid in (server.process.pid, engine_of(server))]
    return [int(each) * resource.getpagesize() >> 20 for each in pages]


def wait_until_idle(server: ServerProcess) -> None:
    """Until nothing is left in the engine: no request and no block."""
    deadline = time.monotonic() + PATIENCE
    while any((now := get(server, "/cockpit"))[name] for name in ("running", "used_blocks", "requests")):
        if time.monotonic() > deadline:
            raise RuntimeError(f"something is left in the engine: {now}")
        time.sleep(0.05)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.server_abuse", description=__doc__.split("\n\n")[0])
    parser.add_argument("--times", type=int, default=1, help="how many times the list is run; medians are printed")
    parser.add_argument("--requests", type=int, help="so many requests beside 8 streams, in place of the list")
    options = parser.parse_args(arguments)
    with ServerProcess(*ARGUMENTS) as server:
        engine = engine_of(server)
        complaints = run_many(server, options.requests) if options.requests else run_list(server, options.times)
        wait_until_idle(server)
        complaints += ["the engine was ended"] if engine_of(server) != engine else []
        for complaint in complaints:
            print(f"WRONG: {complaint}")
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main())
