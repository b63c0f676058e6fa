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
    """What has happened in a case so far."""

    replicas: "list[Scripted]" = field(default_factory=list)
    offered: list[Shown] = field(default_factory=list)  # what `choose` got, each time
    asked: list[Shown] = field(default_factory=list)  # each request to a replica
    loads: list[Shown] = field(default_factory=list)  # of all replicas, whenever one of them is asked
    seed: Any = None  # what the first replica was asked with
    num_read: int = 0  # how many chunks were read from the replicas


@dataclass(eq=False)
class Scripted:
    """A replica. Each would give the case's answer. Its fault is "2 lost" (ReplicaLost after two chunks), "2 cut" (the
    stream just ends), "2 refused" (an exception of REFUSALS), "call lost" and the like (`stream` itself raises), or ""
    for none."""

    name: str
    fault: str
    case: Any
    request: dict[str, Any]  # the reader's
    notes: Notes
    load: int = 0
    streams: list[Any] = field(default_factory=list)

    def __repr__(self) -> str:
        return f"<replica {self.name}>"

    def __deepcopy__(self, memo: Any) -> "Scripted":
        return self

    def stream(self, request: Any) -> Any:
        self.notes.asked.append(Shown(f"{self.name} {self.words(request)}"))
        self.notes.loads.append(Shown(" and ".join(f"{each.name} {each.load}" for each in self.notes.replicas)))
        if len(self.notes.asked) > 12:
            raise RuntimeError("replicas were asked more than 12 times for one stream")
        if not isinstance(request, dict):
            raise ReplicaLost("asked for nothing")
        if self.fault.startswith("call"):
            raise self.failure()
        self.streams.append(self.chunks(self.case.answer[len(request.get("output_token_ids") or ()) :]))
        return self.streams[-1]

    def chunks(self, tokens: list[int]) -> Iterator[Chunk]:
        size, last = self.case.size, self.case.last
        reason, error = last.strip("+"), "out of memory" if last == "error" else None
        parts = [tokens[start : start + size] for start in range(0, len(tokens), size)]
        parts += [] if last.endswith("+") and parts else [[]]
        for num_sent, part in enumerate([*parts, None]):
            if self.fault == f"{num_sent} cut":
                return
            if self.fault.startswith(f"{num_sent} "):
                raise self.failure()
            if part is not None:
                self.notes.num_read += 1
                yield Chunk(part) if num_sent < len(parts) - 1 else Chunk(part, reason, error)

    def failure(self) -> Exception:
        kind = self.fault.split()[1]
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
