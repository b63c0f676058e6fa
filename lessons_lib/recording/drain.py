"""A draining server: clients that connect before and after SIGTERM, and the end of its process."""

import json
from dataclasses import dataclass
from pathlib import Path

FILE = Path(__file__).parents[1] / "assets" / "recorded" / "drain.json"


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


def recorded_drain() -> DrainRun:
    """The recording that ships with the course."""
    saved = json.loads(FILE.read_text(encoding="utf-8"))
    return DrainRun(**{**saved, "requests": tuple(ClientRequest(**each) for each in saved["requests"])})
