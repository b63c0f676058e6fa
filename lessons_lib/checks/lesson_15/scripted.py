"""Replicas without a model for 15.3, which do what a script says, and notes of what happens to them."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from lessons_lib.checks.diagnosis import Shown
from lessons_lib.checks.exercise import short
from lessons_lib.serving.failover import Chunk, ReplicaLost

REFUSALS = {"refused": ValueError, "mistyped": TypeError, "overloaded": RuntimeError}
REASON = "temperature is -1"


class Told(Shown):
    """What is compared, and what is shown: an answer may word its own messages as it likes."""

    shown: str

    def __new__(cls, compared: str, shown: str = "") -> "Told":
        made = super().__new__(cls, compared)
        made.shown = shown or compared
        return made

    def __repr__(self) -> str:
        return self.shown


@dataclass
class Notes:
    """What has happened in a case so far.

    Attributes:
        offered: what `choose` got, each time.
        asked: each request to a replica.
        loads: of all replicas, whenever one of them is asked.
        seed: what the first replica was asked with.
        num_read: how many chunks were read from the replicas.
    """

    replicas: "list[Scripted]" = field(default_factory=list)
    offered: list[Shown] = field(default_factory=list)
    asked: list[Shown] = field(default_factory=list)
    loads: list[Shown] = field(default_factory=list)
    seed: Any = None
    num_read: int = 0


@dataclass(eq=False)
class Scripted:
    """A replica. Like every other one, it would answer `answer`.

    Attributes:
        fault: "2 lost" (ReplicaLost after two chunks), "2 cut" (the stream just ends), "2 refused" (an exception of
            REFUSALS), "call lost" and the like (`stream` itself raises), or "" for none.
        size: tokens in a chunk.
        last: the reason; with a "+", it comes with the last tokens, not in a chunk of its own.
        request: the reader's.
    """

    name: str
    fault: str
    answer: list[int]
    size: int
    last: str
    request: dict[str, Any]
    notes: Notes
    load: int = 0
    streams: "list[Stream]" = field(default_factory=list)

    def __repr__(self) -> str:
        return f"<replica {self.name}>"

    def __deepcopy__(self, memo: Any) -> "Scripted":
        return self

    def stream(self, request: Any) -> "Stream":
        self.notes.asked.append(Shown(f"{self.name} {self.words(request)}"))
        self.notes.loads.append(Shown(" and ".join(f"{each.name} {each.load}" for each in self.notes.replicas)))
        if len(self.notes.asked) > 12:
            raise RuntimeError("replicas were asked more than 12 times for one stream")
        if not isinstance(request, dict):
            raise ReplicaLost("asked for nothing")
        if self.fault.startswith("call"):
            raise self.failure()
        stream = Stream(self, self.answer[len(request.get("output_token_ids") or ()) :])
        self.streams.append(stream)
        return stream

    def failure(self) -> Exception:
        """What its fault raises."""
        kind = self.fault.split()[1]
        if kind == "cut":
            return StopIteration()
        return ReplicaLost(f"replica {self.name} is gone") if kind == "lost" else REFUSALS[kind](REASON)

    def words(self, request: Any) -> str:
        """A request, with what differs from the reader's."""
        if not isinstance(request, dict):
            return f"for {short(request, 40)}, which is no request"
        text = f"with output_token_ids {list(request.get('output_token_ids') or ())}"
        mine = {key: value for key, value in request.items() if key not in ("output_token_ids", "seed")}
        want = {key: value for key, value in self.request.items() if key not in ("output_token_ids", "seed")}
        changed = sorted(key for key in {**want, **mine} if mine.get(key) != want.get(key))
        text += "".join(f", {key!r} {short(mine[key], 40)}" if key in mine else f", without {key!r}" for key in changed)
        seed, given = request.get("seed"), self.request.get("seed")
        if seed is None or seed == given:
            return f"{text}, seed {seed}"
        if given is not None:
            return f"{text}, another seed than the reader's"
        if type(seed) is not int:
            return f"{text}, a {type(seed).__name__} as the seed"
        if len(self.notes.asked) == 0:
            self.notes.seed = seed
        return f"{text}, {'a drawn seed' if seed == self.notes.seed else 'another seed than the first'}"


class Stream:
    """Like the generator that it stands for, it is closed once it has ended or raised."""

    def __init__(self, replica: Scripted, tokens: list[int]):
        self.replica, self.num_sent, self.is_closed = replica, 0, False
        parts = [tokens[start : start + replica.size] for start in range(0, len(tokens), replica.size)]
        reason = replica.last.strip("+")
        error = "out of memory" if reason == "error" else None
        if replica.last.endswith("+") and parts:
            self.chunks = [*map(Chunk, parts[:-1]), Chunk(parts[-1], reason, error)]
        else:
            self.chunks = [*map(Chunk, parts), Chunk([], reason, error)]

    def __iter__(self) -> Iterator[Chunk]:
        return self

    def __next__(self) -> Chunk:
        if not self.is_closed and self.replica.fault.split()[:1] == [str(self.num_sent)]:
            self.is_closed = True
            raise self.replica.failure()
        if self.is_closed or self.num_sent == len(self.chunks):
            self.is_closed = True
            raise StopIteration
        self.num_sent += 1
        self.replica.notes.num_read += 1
        return self.chunks[self.num_sent - 1]

    def close(self) -> None:
        self.is_closed = True


def told_chunk(got: Any) -> Any:
    """What a reader gets, in words: of an error only whether it has a message, or that of a refusal."""
    if not isinstance(got, Chunk):
        return got
    text = f"Chunk({list(got.token_ids)}, {got.finish_reason!r}"
    if got.finish_reason not in (None, "length", "stop", "error"):
        return Told("another reason", f"{text}, ...)")
    if got.error is None or got.error == "":
        return Told(f"{text})" if got.error is None else f"{text}, '')")
    if not isinstance(got.error, str):
        return Told(f"{text}, no str)", f"{text}, a {type(got.error).__name__} as the error)")
    message = next((each for each in (REASON, "out of memory") if each in str(got.error)), "a message")
    if str(got.error).startswith("every replica that was asked"):  # the reference's
        return Told(f"{text}, {message!r})", f"{text}, a message of yours)")
    if str(got.error) in [repr(kind(REASON)) for kind in REFUSALS.values()]:
        message = "an exception as Python writes it"
    return Told(f"{text}, {message!r})", f"{text}, {got.error!r})")
