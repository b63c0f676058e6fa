"""Streams through the loss of a replica: replicas that are engines in this process, and what their readers got."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from lessons_lib.engine.llm_engine import LLMEngine
from lessons_lib.engine.sampling_params import SamplingParams
from lessons_lib.serving.failover import Chunk, ReplicaLost
from lessons_lib.serving.router import Replica, hash_prompt

# Two beginnings of prompts, each of which is longer than two blocks of 16 tokens.
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
    """What one reader got.

    Attributes:
        tokens: (time, replica) of each token, in order.
        end: (time, reason) of the last chunk, or None if there was none.
        token_ids: the tokens themselves.
    """

    name: str
    tokens: list[tuple[int, int]] = field(default_factory=list)
    end: tuple[int, str] | None = None
    token_ids: list[int] = field(default_factory=list)


class EngineReplica(Replica):
    """An engine in this process as a replica. Set `is_alive` to False, and it is lost.

    Attributes:
        num_chunks: how many it has streamed.
    """

    def __init__(self, engine: LLMEngine, block_size: int = 16):
        super().__init__()
        self.engine, self.block_size = engine, block_size
        self.is_alive, self.num_chunks = True, 0

    def stream(self, request: dict[str, Any]) -> Iterator[Chunk]:
        """The chunks of a request. Raises ReplicaLost as soon as the replica isn't alive."""
        fields = dict(request)
        prompt, so_far = fields.pop("prompt"), fields.pop("output_token_ids", ())
        self._refuse_if_lost()
        self.num_sent += 1
        self.sent_blocks.add(hash_prompt(prompt, self.block_size))
        for token in self.engine.stream(prompt, SamplingParams(**fields), output_ids=so_far):
            self._refuse_if_lost()
            self.num_chunks += 1
            yield Chunk([token.token], token.finish_reason)

    def _refuse_if_lost(self) -> None:
        if not self.is_alive:
            raise ReplicaLost("the replica doesn't answer")


def compare_answers(answer: Sequence[int], expected: Sequence[int]) -> str:
    """Whether an answer has the tokens that are expected: "yes", or how many of them."""
    if list(answer) == list(expected):
        return "yes"
    same = sum(one == other for one, other in zip(answer, expected))
    if same == len(expected):
        return f"no: {len(answer)} tokens instead of {len(expected)}"
    return f"no: {same} of {len(expected)} tokens are"


def record_streams(
    readers: Mapping[str, Iterator[Chunk]], replicas: Sequence[EngineReplica], lost: int, lost_at: int
) -> list[StreamRecord]:
    """Read all streams, a chunk of each in turn, until they have ended.

    Args:
        readers: name -> the stream that a reader gets.
        lost, lost_at: the index of the replica that is lost, and after how many rounds.
    """
    records = {name: StreamRecord(name) for name in readers}
    time = 0
    while any(record.end is None for record in records.values()):
        replicas[lost].is_alive = time < lost_at
        for name, record in records.items():
            if record.end is None:
                _read_chunk(record, readers[name], replicas, time)
        time += 1
    return list(records.values())


def _read_chunk(record: StreamRecord, reader: Iterator[Chunk], replicas: Sequence[EngineReplica], time: int) -> None:
    before = [replica.num_chunks for replica in replicas]
    chunk = next(reader)
    # However the relay is written, the replica that computed the chunk has counted it.
    computed = [index for index, replica in enumerate(replicas) if replica.num_chunks > before[index]]
    record.token_ids += chunk.token_ids
    record.tokens += [(time, computed[-1])] * len(chunk.token_ids) if computed else []
    if chunk.finish_reason:
        record.end = time, chunk.finish_reason
