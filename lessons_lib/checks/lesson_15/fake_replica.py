"""Replicas without a model, which fail where a case of 15.3 says so."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from lessons_lib.serving.failover import Chunk, ReplicaLost

TOKENS = [11, 12, 13, 14, 15]  # what every replica would answer
REQUEST = {"prompt": [5, 6], "max_tokens": 5, "seed": 7}


@dataclass(eq=False)
class FakeReplica:
    """Streams TOKENS, one a chunk, and the reason in a chunk of its own, unless something goes wrong. If `in_chunk` is
    above 1, the reason comes with the last tokens.

    Attributes:
        lost_after: it is lost after so many chunks of a stream; None for never.
        how: "raise", "end" as a cut connection does, or "refuse": the chunk raises a ValueError.
        refuses: what `stream` raises.
        in_chunk: the number of tokens in a chunk.
        is_lost: whether it was asked and lost.
        log: what has happened, in order: shared by the replicas of a case.
    """

    name: str
    lost_after: int | None = None
    how: str = "raise"
    refuses: Exception | None = None
    in_chunk: int = 1
    last: Chunk = field(default_factory=lambda: Chunk([], "length"))
    log: list = field(default_factory=list)
    load: int = 0
    is_lost: bool = False
    requests: list = field(default_factory=list)
    streams: list = field(default_factory=list)

    def __repr__(self) -> str:
        return f"<replica {self.name}>"

    def __deepcopy__(self, memo):
        return self  # `call` compares lists of replicas

    def stream(self, request):
        if not isinstance(request, dict):
            self.requests.append(None)  # not a Mistake yet: the learner's code may catch it
            raise ReplicaLost("asked for nothing")
        self.requests.append(dict(request))
        self.log.append((self.name, self.load))
        if self.refuses:
            self.is_lost = isinstance(self.refuses, ReplicaLost)
            raise self.refuses
        stream = FakeStream(self, list(TOKENS[len(request.get("output_token_ids", ())) :]))
        self.streams.append(stream)
        return stream


class FakeStream:
    """Like the generator that it stands for, it is closed once it has ended or raised."""

    def __init__(self, replica: FakeReplica, tokens: list[int]):
        self.replica, self.num_sent, self.is_closed = replica, 0, False
        size = replica.in_chunk
        parts = [tokens[start : start + size] for start in range(0, len(tokens), size)]
        if size == 1:
            self.chunks = [*map(Chunk, parts), replica.last]
        else:
            self.chunks = [*map(Chunk, parts[:-1]), Chunk(parts[-1], "length")]

    def __iter__(self) -> Iterator[Chunk]:
        return self

    def __next__(self) -> Chunk:
        try:
            return self._next_chunk()
        except BaseException:
            self.is_closed = True
            raise

    def _next_chunk(self) -> Chunk:
        if self.num_sent == self.replica.lost_after:
            self.replica.is_lost = self.replica.how != "refuse"
            if self.replica.how == "end":
                raise StopIteration
            if self.replica.how == "refuse":
                raise ValueError("max_tokens is -1")
            raise ReplicaLost(f"replica {self.replica.name} has gone")
        if self.num_sent == len(self.chunks):
            raise StopIteration
        self.num_sent += 1
        return self.chunks[self.num_sent - 1]

    def close(self) -> None:
        self.is_closed = True


class AskedAfter(FakeReplica):
    """Notes, when it is asked, the load of the replica before it."""

    def stream(self, request):
        self.load_before = self.before.load
        return super().stream(request)
