"""`python -m tools.replicas`: two servers behind the balancer, and one is killed under load.

    python -m tools.replicas --streams 32 --tokens 96

Every stream is asked for three times: while both servers live, while one is killed by SIGKILL, and while the other one
is stopped by SIGTERM. What the streams say must be the same each time. Exits with 1 if a stream ended without an error
event and isn't complete, or says something else.
"""

import argparse
import asyncio
import json
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx
import uvicorn

from lessons_lib.serving.balancer import POLICIES, Balancer
from lessons_lib.serving.http.server_process import ServerProcess
from lessons_lib.viz.tables.table import Table

DEADLINE = 120  # seconds for whatever is waited for


@dataclass
class Stream:
    """What a client saw.

    Attributes:
        text, usage, error: of its events.
        is_done: whether it ended with [DONE].
        arrivals: when each event came.
    """

    text: str = ""
    usage: dict[str, Any] | None = None
    error: str | None = None
    is_done: bool = False
    arrivals: list[float] = field(default_factory=list)

    @property
    def longest_gap(self) -> float:
        """Seconds between two events."""
        return max((later - earlier for earlier, later in zip(self.arrivals, self.arrivals[1:])), default=0.0)

    def outcome(self, wanted: "Stream | None" = None) -> str:
        """In a word. Compared with another run if one is given."""
        if self.error:
            return "error event"
        if not self.is_done:
            return "cut silently"
        if wanted and (self.text != wanted.text or self.usage != wanted.usage):
            return "complete, and different"
        return "complete"


def requests_of(count: int, max_tokens: int, seed: int) -> list[dict[str, Any]]:
    """Different ways to ask: greedy, drawn by a seed, with penalties, with a stop string, as a chat."""
    draw = random.Random(seed)
    names = ["Tom", "Lily", "Ben", "Mia", "Sam", "Anna", "Max", "Sue"]
    made = []
    for number in range(count):
        prompt = f"Once upon a time, {draw.choice(names)} and {draw.choice(names)} went to the "
        body: dict[str, Any] = {"max_tokens": max_tokens, "stream": True, "stream_options": {"include_usage": True}}
        body |= [
            {"temperature": 0},
            {"seed": number},
            {"seed": number, "presence_penalty": 1.0, "frequency_penalty": 0.5, "repetition_penalty": 1.1},
            {"seed": number, "stop": ["happy", "friend", "sad"]},
            {"seed": number, "min_tokens": max_tokens // 2, "top_p": 0.9, "logprobs": 1},
        ][number % 5]
        made.append(body | {"prompt": prompt, "ignore_eos": True})
    return made


async def read_stream(
    client: httpx.AsyncClient, url: str, body: dict[str, Any], on_event: Callable[[], None]
) -> Stream:
    """Ask, and read to the end."""
    seen, buffer = Stream(), b""
    try:
        async with client.stream("POST", f"{url}/v1/completions", json=body) as response:
            if response.status_code != 200:
                seen.error = (await response.aread()).decode()
                return seen
            async for part in response.aiter_raw():
                *events, buffer = (buffer + part).split(b"\n\n")
                for event in events:
                    seen.arrivals.append(time.perf_counter())
                    data = event.removeprefix(b"data: ")
                    if data == b"[DONE]":
                        seen.is_done = True
                        continue
                    chunk = json.loads(data)
                    if "error" in chunk:
                        seen.error = chunk["error"]["message"]
                        continue
                    seen.text += "".join(choice["text"] for choice in chunk["choices"])
                    seen.usage = without_cache(chunk.get("usage")) or seen.usage
                    on_event()
    except httpx.TransportError as error:  # the connection to the balancer itself: nothing said so
        seen.arrivals.append(time.perf_counter())
        seen.error = None
        seen.is_done = False
        print(f"a stream was cut: {type(error).__name__}")
    return seen


def without_cache(usage: dict[str, Any] | None) -> dict[str, Any] | None:
    """What doesn't depend on what else was served."""
    return {name: usage[name] for name in ("prompt_tokens", "completion_tokens")} if usage else None


@asynccontextmanager
async def serving(balancer: Balancer) -> Any:
    """The balancer on a port of its own. Yields its URL."""
    config = uvicorn.Config(balancer, host="127.0.0.1", port=0, lifespan="on", log_level="warning", ws="none")
    server = uvicorn.Server(config)
    running = asyncio.create_task(server.serve())
    try:
        await until(lambda: server.started or running.done())
        port = server.servers[0].sockets[0].getsockname()[1]
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        await running


async def until(condition: Callable[[], bool]) -> float:
    """Wait until something is so. Returns the seconds that it took."""
    start = time.perf_counter()
    while not condition():
        if time.perf_counter() - start > DEADLINE:
            raise TimeoutError(f"still not so after {DEADLINE} s")
        await asyncio.sleep(0.01)
    return time.perf_counter() - start


async def load(url: str, bodies: list[dict[str, Any]], after_events: int = 0, then: Any = None) -> list[Stream]:
    """All streams at the same time. After so many events of all of them, something happens."""
    count = 0
    tasks = []

    def on_event() -> None:
        nonlocal count
        count += 1
        if count == after_events:
            tasks.append(asyncio.create_task(then()))

    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(timeout=DEADLINE, limits=limits, trust_env=False) as client:
        streams = await asyncio.gather(*(read_stream(client, url, body, on_event) for body in bodies))
    await asyncio.gather(*tasks)
    return streams


def kill(server: ServerProcess) -> None:
    """SIGKILL for the server and its engine's process."""
    os.killpg(server.process.pid, signal.SIGKILL)
    server.process.wait()


@dataclass
class Run:
    """What one round of streams showed.

    Attributes:
        outcomes: outcome -> how many streams.
        continued: how many streams went on elsewhere, by the balancer's count.
        longest_gap: the longest wait of any stream between two events, in seconds.
        tokens_per_second: over all streams, from the first event to the last.
    """

    name: str
    outcomes: Counter[str]
    continued: int
    longest_gap: float
    tokens_per_second: float

    @classmethod
    def of(cls, name: str, streams: list[Stream], wanted: list[Stream] | None, continued: int) -> "Run":
        outcomes = Counter(stream.outcome(other) for stream, other in zip(streams, wanted or [None] * len(streams)))
        times = [moment for stream in streams for moment in stream.arrivals]
        tokens = sum(stream.usage["completion_tokens"] for stream in streams if stream.usage)
        gap = max(stream.longest_gap for stream in streams)
        return cls(name, outcomes, continued, gap, tokens / max(max(times) - min(times), 1e-9))


async def kill_under_load(bodies: list[dict[str, Any]], policy: str) -> tuple[list[Run], dict[str, float]]:
    """(what the streams saw, seconds until something was so again)."""
    seconds: dict[str, float] = {}
    arguments = ("--max-num-seqs", 64)
    async with AsyncExitStack() as stack:
        start = time.perf_counter()
        servers = [ServerProcess(*arguments, shutdown_timeout=1.0) for _ in range(2)]
        for server in servers:
            stack.callback(server.close)
        await asyncio.gather(*(asyncio.to_thread(server.start) for server in servers))
        seconds["both servers ready"] = time.perf_counter() - start
        balancer = Balancer([server.url for server in servers], POLICIES[policy](), health_interval=0.2)
        url = await stack.enter_async_context(serving(balancer))
        num_events = sum(body["max_tokens"] for body in bodies) // 4

        async def round_of(name: str, then: Any = None, wanted: list[Stream] | None = None) -> list[Stream]:
            before = balancer.counts["continued"]
            streams = await load(url, bodies, num_events if then else 0, then)
            runs.append(Run.of(name, streams, wanted, balancer.counts["continued"] - before))
            return streams

        runs: list[Run] = []
        wanted = await round_of("both live")

        async def kill_first() -> None:
            await asyncio.to_thread(kill, servers[0])

        await round_of("one is killed", kill_first, wanted)
        start = time.perf_counter()
        port = servers[0].url.rpartition(":")[2]
        servers[0] = ServerProcess(*arguments, "--port", port, shutdown_timeout=1.0)
        stack.callback(servers[0].close)
        await asyncio.to_thread(servers[0].start)
        await until(lambda: all(replica.is_up for replica in balancer.replicas))
        seconds["two again after a restart"] = time.perf_counter() - start

        async def stop_second() -> None:
            servers[1].process.send_signal(signal.SIGTERM)

        await round_of("the other is stopped", stop_second, wanted)
        return runs, seconds


def outcome_table(runs: list[Run]) -> Table:
    """A row for each round."""
    names = ["complete", "complete, and different", "error event", "cut silently"]
    rows = [
        [run.name, *(str(run.outcomes[name]) for name in names), str(run.continued), f"{run.longest_gap:.2f} s",
         f"{run.tokens_per_second:.0f}"]
        for run in runs
    ]  # fmt: skip
    return Table(["round", *names, "continued", "longest gap", "tokens/s"], rows)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.replicas", description=__doc__)
    parser.add_argument("--streams", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--policy", choices=list(POLICIES), default="round-robin")
    wanted = parser.parse_args()
    bodies = requests_of(wanted.streams, wanted.tokens, wanted.seed)
    runs, seconds = asyncio.run(kill_under_load(bodies, wanted.policy))
    print(outcome_table(runs))
    for name, value in seconds.items():
        print(f"{name}: {value:.1f} s")
    return int(any(run.outcomes["cut silently"] or run.outcomes["complete, and different"] for run in runs))


if __name__ == "__main__":
    raise SystemExit(main())
