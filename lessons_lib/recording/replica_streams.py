"""Streams across the loss of a replica: replicas as server processes, and records of their readers."""

import http.client
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

from lessons_lib.serving.failover import Chunk, ReplicaLost
from lessons_lib.serving.router import Replica, hash_prompt

# Two prompt prefixes, each longer than two blocks of 16 tokens.
KIND = (
    "Here is a story for small children. It is short, it is kind, and no one is hurt in it. The words are easy. There "
    "is one problem, and in the end the friends solve it together. "
)
NIGHT = (
    "This is a story for the end of the day, when it is dark and the lamp is on. It is quiet, it is warm, and everyone "
    "in it goes to bed. "
)


@dataclass
class StreamRecord:
    """The stream that one reader received.

    Attributes:
        tokens: (time, replica) of each token, in order.
        end: (time, reason) of the last chunk, or None if there was none.
        token_ids: the token ids.
        longest_wait: longest wait for a chunk after the first, in seconds.
    """

    name: str
    tokens: list[tuple[int, int]] = field(default_factory=list)
    end: tuple[int, str] | None = None
    token_ids: list[int] = field(default_factory=list)
    longest_wait: float = 0.0

    @property
    def has_moved(self) -> bool:
        """True if more than one replica computed its tokens."""
        return len({replica for _, replica in self.tokens}) > 1


class ProcessReplica(Replica):
    """A server process at "127.0.0.1:8001", say, as a replica that counts its chunks; lost if the connection breaks."""

    def __init__(self, url: str, block_size: int = 16):
        super().__init__()
        self.host, self.block_size, self.num_chunks = url.removeprefix("http://"), block_size, 0

    def stream(self, request: dict[str, Any]) -> Iterator[Chunk]:
        """Stream the chunks of a request, greedy by default. ReplicaLost: the connection failed or broke."""
        self.num_sent += 1
        self.sent_blocks.add(hash_prompt(request["prompt"], self.block_size))
        asked = {"temperature": 0, **request, "stream": True, "return_token_ids": True}
        try:
            with closing(http.client.HTTPConnection(self.host, timeout=60)) as connection:
                connection.request("POST", "/v1/completions", json.dumps(asked), {"Content-Type": "application/json"})
                with connection.getresponse() as response:
                    yield from self._chunks(response)
        except (OSError, http.client.HTTPException) as error:
            raise ReplicaLost(f"the connection broke ({type(error).__name__})") from error

    def _chunks(self, response: http.client.HTTPResponse) -> Iterator[Chunk]:
        if response.status != 200:
            raise ValueError(json.loads(response.read())["error"]["message"])
        for line in response:
            if line.startswith(b"data: {") and line.endswith(b"\n"):  # not half an event
                event = json.loads(line.removeprefix(b"data: "))
                if "error" in event:
                    raise ReplicaLost(event["error"]["message"])
                for choice in event["choices"]:
                    self.num_chunks += 1
                    yield Chunk(choice["token_ids"], choice["finish_reason"])


def compare_answers(answer: Sequence[int], expected: Sequence[int]) -> str:
    """Compare an answer with the expected tokens: "yes", or "no" and the number of equal tokens."""
    if list(answer) == list(expected):
        return "yes"
    same = sum(one == other for one, other in zip(answer, expected))
    if same == len(expected):
        return f"no: {len(answer)} tokens instead of {len(expected)}"
    return f"no: {same} of {len(expected)} tokens are"


def record_streams(
    readers: Mapping[str, Iterator[Chunk]], replicas: Sequence[Any], lost_at: int, lose: Callable[[], None]
) -> list[StreamRecord]:
    """Read all streams, one chunk of each in turn, until they have ended.

    Args:
        readers: name -> the reader's stream.
        replicas: such as `ProcessReplica`; each counts its streamed chunks in `num_chunks`.
        lost_at: number of rounds before `lose` is called, which ends a replica.
    """
    records = {name: StreamRecord(name) for name in readers}
    time = 0
    while any(record.end is None for record in records.values()):
        if time == lost_at:
            lose()
        for name, record in records.items():
            if record.end is None:
                _read_chunk(record, readers[name], replicas, time)
        time += 1
    return list(records.values())


def _read_chunk(record: StreamRecord, reader: Iterator[Chunk], replicas: Sequence[Any], time: int) -> None:
    before, start = [replica.num_chunks for replica in replicas], perf_counter()
    chunk = next(reader)
    if time:
        record.longest_wait = max(record.longest_wait, perf_counter() - start)
    # The replica that computed the chunk has counted it, whatever the relay's implementation.
    computed = [index for index, replica in enumerate(replicas) if replica.num_chunks > before[index]]
    record.token_ids += chunk.token_ids
    record.tokens += [(time, computed[-1])] * len(chunk.token_ids) if computed else []
    if chunk.finish_reason:
        record.end = time, chunk.finish_reason
