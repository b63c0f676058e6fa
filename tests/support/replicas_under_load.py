"""Streams from replicas, one of which is killed under load: what their clients see."""

import asyncio
import json
import os
import random
import signal
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import httpx
from fronts import until

from lessons_lib.serving.balancer import POLICIES, Balancer
from lessons_lib.serving.http.server_process import ServerProcess, start_together
from lessons_lib.serving.http.server_thread import ServerThread

DEADLINE = 120  # seconds for whatever is waited for


@dataclass
class Stream:
    """What a client saw.

    Attributes:
        text, usage, error: of its events.
        is_done: whether it ended with [DONE].
    """

    text: str = ""
    usage: dict[str, Any] | None = None
    error: str | None = None
    is_done: bool = False

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
    except httpx.TransportError:  # the connection to the balancer itself: nothing said so
        seen.error, seen.is_done = None, False
    return seen


def without_cache(usage: dict[str, Any] | None) -> dict[str, Any] | None:
    """What doesn't depend on what else was served."""
    return {name: usage[name] for name in ("prompt_tokens", "completion_tokens")} if usage else None


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


def outcomes(streams: list[Stream], wanted: list[Stream]) -> Counter[str]:
    return Counter(stream.outcome(other) for stream, other in zip(streams, wanted, strict=True))


async def kill_under_load(bodies: list[dict[str, Any]]) -> tuple[list[Counter[str]], list[int]]:
    """Two servers behind a balancer: first both live, then one is killed by SIGKILL and started again, then the other
    one is stopped by SIGTERM.

    Returns:
        (outcomes of each round's streams, compared with the first round's; how many of them went on elsewhere).
    """
    arguments = ("--max-num-seqs", 64)
    with ExitStack() as stack:
        servers = [ServerProcess(*arguments, shutdown_timeout=1.0) for _ in range(2)]
        stack.enter_context(start_together(*servers))
        balancer = Balancer([server.url for server in servers], POLICIES["round-robin"](), health_interval=0.2)
        url = stack.enter_context(ServerThread(balancer)).url
        num_events = sum(body["max_tokens"] for body in bodies) // 4

        async def kill_first() -> None:
            await asyncio.to_thread(kill, servers[0])

        async def stop_second() -> None:
            servers[1].process.send_signal(signal.SIGTERM)

        wanted = await load(url, bodies)
        continued = [balancer.counts["continued"]]
        killed = await load(url, bodies, num_events, kill_first)
        continued.append(balancer.counts["continued"])
        servers[0] = ServerProcess(*arguments, "--port", servers[0].url.rpartition(":")[2], shutdown_timeout=1.0)
        stack.enter_context(servers[0])
        await until(lambda: all(replica.is_up for replica in balancer.replicas))
        stopped = await load(url, bodies, num_events, stop_second)
        return [outcomes(streams, wanted) for streams in (wanted, killed, stopped)], continued
