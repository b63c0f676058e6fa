"""One streamed request, seen by the client, the server and the engine's process, on one clock."""

import json
from dataclasses import dataclass
from pathlib import Path

FILE = Path(__file__).parents[1] / "assets" / "recorded" / "request_path.json"


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


def recorded_path() -> RequestPath:
    """The recording that ships with the course."""
    saved = json.loads(FILE.read_text(encoding="utf-8"))
    return RequestPath(
        tuple(saved["lanes"]),
        tuple(Message(**message) for message in saved["messages"]),
        tuple(Work(**work) for work in saved["works"]),
        saved["provenance"],
    )
