"""Lesson 15: the core of a balancer. One replica serves a stream; if it fails, another goes on where it stopped."""

import random
from collections.abc import Callable, Generator, Iterator
from collections.abc import Sequence as ListOf
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Protocol

# Not all: the request itself may kill replicas. Not only one: a replica that drains may send its streams to the next.
MAX_MOVES = 2
Request = dict[str, Any]


class ReplicaLost(Exception):
    """The replica will not finish the stream."""


@dataclass(frozen=True)
class Chunk:
    """A piece of a stream.

    Attributes:
        token_ids: new tokens, often one; there may be none in the last chunk.
        finish_reason: "stop", "length" or "error" in the last chunk; None before.
        error: what went wrong, if the reason is "error".
    """

    token_ids: ListOf[int]
    finish_reason: str | None = None
    error: str | None = None


class Server(Protocol):
    """A replica, as a balancer needs it. `load` is the number of streams that it is serving."""

    load: int

    def stream(self, request: Request) -> Any:
        """An iterator of Chunks with a method `close`, which aborts the request if it still runs."""


def stream_once(replica: Server, request: Request) -> Generator[Chunk, None, None]:
    """The chunks of one replica. However it ends, the stream is closed and the replica's load lowered."""
    replica.load += 1
    stream = None
    try:
        stream = replica.stream(request)
        for chunk in stream:
            yield chunk
            if chunk.finish_reason:
                return
        raise ReplicaLost("its stream has ended without a reason")
    except ReplicaLost:
        raise
    except Exception as error:  # a refusal: every replica would refuse this request
        yield Chunk([], "error", str(error))
    finally:  # also if the reader leaves
        replica.load -= 1
        if stream is not None:
            stream.close()


def request_to_go_on(request: "Request", token_ids: list[int]) -> "Request | None":
    """The request that lets another replica continue a stream.

    Args:
        request: what the first replica was asked: "prompt" (token ids), "max_tokens", and any other fields. If
            "output_token_ids" is among them, the completion had begun before this request.
        token_ids: the tokens that the reader got in answer to this request.

    Returns:
        a new dict like `request`, with all tokens of the completion so far in "output_token_ids"; None if the
        completion has `max_tokens` of them.
    """
    output_token_ids = [*(request.get("output_token_ids") or ()), *token_ids]
    if len(output_token_ids) >= request["max_tokens"]:
        return None
    return {**request, "output_token_ids": output_token_ids}


def relay(
    request: "Request", replicas: "list[Server]", choose: "Callable[[list[Server]], int]", max_moves: int = MAX_MOVES
) -> "Iterator[Chunk]":
    """Serve a request by one of several replicas, and pass its stream on. If a replica fails, another one continues.

    Args:
        request: see `request_to_go_on`. If its "seed" is missing or None, one is drawn, the same for all replicas.
        replicas: those that can be asked.
        choose: function from the replicas that haven't failed to the index of one of them.
        max_moves: the most replicas that are asked after the first one. Not all of them: the request itself may kill
            them.

    Yields:
        Chunks, each token once. Only the last has a `finish_reason`, which is "error" if the answer isn't complete.
    """
    if request.get("seed") is None:
        request = {**request, "seed": random.getrandbits(31)}
    token_ids: list[int] = []
    remaining = list(replicas)
    asked: Request | None = request
    while asked is not None and remaining and max_moves >= 0:
        replica = remaining.pop(choose(remaining))
        try:
            with closing(stream_once(replica, asked)) as chunks:
                for chunk in chunks:
                    token_ids += chunk.token_ids
                    yield chunk
            return
        except ReplicaLost:
            max_moves -= 1
            asked = request_to_go_on(request, token_ids)
    if asked is None:  # the reader has every token; only the reason is missing
        yield Chunk([], "length")
    else:
        yield Chunk([], "error", f"every replica that was asked was lost; there are only {len(token_ids)} tokens.")
