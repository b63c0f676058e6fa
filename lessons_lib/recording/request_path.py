"""One streamed request, seen by the client, the server and the engine's process, on one clock."""

import asyncio
import http.client
import json
import os
import socket
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

FILE = Path(__file__).parents[1] / "assets" / "recorded" / "request_path.json"
LANES = ("client", "server", "engine")


@dataclass(frozen=True)
class Message:
    """A message from one lane to another.

    Attributes:
        sent, received: seconds since the start of the recording.
        source, target: names of lanes.
        label: a few words; drawn once for a run of equal messages.
    """

    sent: float
    received: float
    source: str
    target: str
    label: str


@dataclass(frozen=True)
class Work:
    """A lane at work, from `start` to `end`, in seconds since the start of the recording."""

    lane: str
    start: float
    end: float
    label: str


@dataclass(frozen=True)
class RequestPath:
    """A recording.

    Attributes:
        provenance: machine, versions, command and date, in one line.
    """

    lanes: tuple[str, ...]
    messages: tuple[Message, ...]
    works: tuple[Work, ...]
    provenance: str = ""

    def save(self, path: Path = FILE) -> None:
        path.write_text(json.dumps(asdict(self), indent=1) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, path: Path = FILE) -> "RequestPath":
        saved = json.loads(path.read_text(encoding="utf-8"))
        return cls(
            tuple(saved["lanes"]),
            tuple(Message(**message) for message in saved["messages"]),
            tuple(Work(**work) for work in saved["works"]),
            saved["provenance"],
        )


def recorded_path() -> RequestPath:
    """The recording that ships with the course."""
    return RequestPath.load()


def noting_engine(log: str) -> Any:
    """Build an engine, in the engine's process, that logs a line for each added request and each step."""
    from lessons_lib.engine.config import EngineConfig
    from lessons_lib.serving.http.engine_recipe import EngineRecipe, default_model

    engine = EngineRecipe(default_model(), "cpu", EngineConfig(max_num_seqs=4, num_blocks=64))()
    lines = open(log, "a", encoding="utf-8", buffering=1)  # noqa: SIM115 - open as long as its process lives
    add_request = engine.add_request

    def noted(*args: Any, **kwargs: Any) -> str:
        begun = time.perf_counter()
        name = add_request(*args, **kwargs)
        print(json.dumps(["add", begun, time.perf_counter()]), file=lines)
        return name

    engine.add_request = noted  # type: ignore[method-assign]

    def note(step: Any, requests: Any) -> None:
        start = step.watch.start
        print(json.dumps(["step", start, start + sum(step.watch.laps.values())]), file=lines)

    engine.core.observers.append(note)
    return engine


def record_path(max_tokens: int = 8, repeat: int = 20, provenance: str = "") -> RequestPath:
    """Start a server and its engine's process, send the same request `repeat` times, and keep the fastest.

    The processes share a clock on Linux, macOS and Windows: `time.perf_counter` counts from the start of the machine.
    """
    with tempfile.TemporaryDirectory() as folder:
        log = os.path.join(folder, "log")
        noted: list[tuple[str, float]] = []
        stop = threading.Event()
        address: list[tuple[str, int]] = []
        ready = threading.Event()
        thread = threading.Thread(target=lambda: asyncio.run(_serve(log, noted, address, ready, stop)))
        thread.start()
        try:
            while not ready.wait(0.1):
                if not thread.is_alive():
                    raise RuntimeError("the server didn't start; its error is above.")
            _ask(address[0], max_tokens)  # the first one loads code
            paths = []
            for _ in range(repeat):
                noted.clear()
                before = len(_lines(log))
                of_client = _ask(address[0], max_tokens)
                paths.append(_path(of_client, list(noted), _lines(log)[before:], provenance))
        finally:
            stop.set()
            thread.join()
        return min(paths, key=lambda path: path.messages[-1].received)


async def _serve(log: str, noted: list, address: list, ready: threading.Event, stop: threading.Event) -> None:
    import uvicorn

    from lessons_lib.serving.engine_process import EngineProcess
    from lessons_lib.serving.http.engine_recipe import EngineRecipe, default_model, model_name
    from lessons_lib.serving.http.server import make_app
    from lessons_lib.serving.http.settings import ServerSettings

    front = EngineProcess(partial(noting_engine, log))
    send, deliver = front._send, front._deliver

    def noting_send(command: Any) -> None:
        noted.append((type(command).__name__, time.perf_counter()))
        send(command)

    def noting_deliver(events: Any) -> None:
        events = list(events)
        noted.append((" ".join(type(event).__name__ for event in events), time.perf_counter()))
        deliver(events)

    front._send, front._deliver = noting_send, noting_deliver  # type: ignore[method-assign]
    async with front:
        settings = ServerSettings(model_name(default_model()))
        app = make_app(front, EngineRecipe(default_model()), settings)
        listening = socket.socket()
        listening.bind(("127.0.0.1", 0))
        address.append(listening.getsockname())
        server = uvicorn.Server(uvicorn.Config(_noting_app(app, noted), log_config=None, lifespan="off"))
        serving = asyncio.ensure_future(server.serve([listening]))
        while not server.started:
            await asyncio.sleep(0.01)
        ready.set()
        while not stop.is_set():
            await asyncio.sleep(0.02)
        server.should_exit = True
        await serving
        listening.close()


def _noting_app(app: Any, noted: list) -> Callable[..., Any]:
    async def noting(scope: Any, receive: Any, send: Any) -> None:
        noted.append(("request", time.perf_counter()))

        async def noting_send(message: Any) -> None:
            if message["type"] == "http.response.body" and message.get("body"):
                noted.append(("body", time.perf_counter()))
            await send(message)

        await app(scope, receive, noting_send)

    return noting


def _ask(address: tuple[str, int], max_tokens: int) -> list[float]:
    """Send a request; return the client's times of sending it and of reading each event."""
    connection = http.client.HTTPConnection(*address, timeout=60)
    connection.connect()
    body = {"prompt": "The old dog", "max_tokens": max_tokens, "ignore_eos": True, "temperature": 0, "stream": True}
    times = [time.perf_counter()]
    connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
    response = connection.getresponse()
    while line := response.readline():
        if line.startswith(b"data:"):
            times.append(time.perf_counter())
    connection.close()
    return times


def _lines(log: str) -> list[list]:
    return [json.loads(line) for line in Path(log).read_text(encoding="utf-8").splitlines()]


def _path(
    of_client: list[float], noted: list[tuple[str, float]], of_engine: list[list], provenance: str
) -> RequestPath:
    zero = of_client[0]

    def times(what: str) -> list[float]:
        return [when - zero for name, when in noted if what in name]

    client, server, engine = LANES
    added = next((begun - zero, done - zero) for kind, begun, done in of_engine if kind == "add")
    steps = [(begun - zero, done - zero) for kind, begun, done in of_engine if kind == "step"]
    messages = [
        Message(0.0, times("request")[0], client, server, "POST /v1/completions"),
        Message(times("AddRequest")[0], added[0], server, engine, "AddRequest"),
        Message(added[1], times("Accepted")[0], engine, server, "Accepted"),
    ]
    messages += [Message(done, at, engine, server, "NewTokens") for (_, done), at in zip(steps, times("NewTokens"))]
    sent = times("body")
    messages += [Message(at, when - zero, server, client, "data: {…}") for at, when in zip(sent, of_client[1:])]
    works = [Work(engine, *added, "add"), *(Work(engine, *step, "step") for step in steps)]
    return RequestPath(LANES, tuple(sorted(messages, key=lambda message: message.sent)), tuple(works), provenance)
