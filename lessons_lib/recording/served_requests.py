"""Lesson 14: two recordings that ship with the course: a streamed request, and a server that drains.

Times are in seconds since the start of a recording. `provenance`: machine, versions, command and date, in one line.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[1] / "assets" / "recorded"


@dataclass(frozen=True)
class Message:
    """A message from lane `source` to lane `target`; its label is drawn once for a run of equal messages."""

    sent: float
    received: float
    source: str
    target: str
    label: str


@dataclass(frozen=True)
class Work:
    """A lane at work."""

    lane: str
    start: float
    end: float
    label: str


@dataclass(frozen=True)
class RequestPath:
    """One streamed request, seen by the client, the server and the engine's process, on one clock."""

    lanes: tuple[str, ...]
    messages: tuple[Message, ...]
    works: tuple[Work, ...]
    provenance: str = ""


@dataclass(frozen=True)
class ClientRequest:
    """One request, as its client saw it.

    Attributes:
        name: a letter.
        sent, ended: when it was sent, and when its last byte was read.
        status: status of the response; 0 if the connection was refused.
        num_tokens, asked: tokens received, and tokens requested.
    """

    name: str
    sent: float
    ended: float
    status: int
    num_tokens: int
    asked: int


@dataclass(frozen=True)
class DrainRun:
    """Clients that connect before and after SIGTERM, in the order of sending, and the end of the server's process."""

    requests: tuple[ClientRequest, ...]
    signaled: float
    exited: float
    exit_status: int
    provenance: str = ""


def recorded_path() -> RequestPath:
    saved = _saved("request_path.json")
    messages, works = ([kind(**one) for one in saved[name]] for name, kind in (("messages", Message), ("works", Work)))
    return RequestPath(tuple(saved["lanes"]), tuple(messages), tuple(works), saved["provenance"])


def recorded_drain() -> DrainRun:
    saved = _saved("drain.json")
    return DrainRun(**saved | {"requests": tuple(ClientRequest(**each) for each in saved["requests"])})


def _saved(name: str) -> dict[str, Any]:
    saved: dict[str, Any] = json.loads((FOLDER / name).read_text(encoding="utf-8"))
    return saved
