"""Lesson 15: the core of a balancer. One replica serves a stream; if it fails, another goes on where it stopped."""

import random
from collections.abc import Callable, Iterator
from collections.abc import Sequence as ListOf
from dataclasses import dataclass
from typing import Any, Protocol

from lessons_lib.serving.continuation import MAX_MOVES as MAX_MOVES
from lessons_lib.serving.continuation import ReplicaLost as ReplicaLost

Request = dict[str, Any]


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
    """What a balancer needs of a replica.

    Attributes:
        load: how many streams it is serving.
    """

    load: int

    def stream(self, request: Request) -> Any:
        """An iterator of Chunks with a method `close`, which aborts the request if it still runs."""


def request_to_go_on(request: "Request", token_ids: list[int]) -> "Request | None":
    """The request that lets another replica continue a stream.

    Args:
        request: what the first replica was asked: "prompt" (token ids), "max_tokens", and any other fields. If
            "output_token_ids" is among them, the completion had begun before this request.
        token_ids: the tokens that the reader got in answer to this request.

    Returns:
        a new dict like `request`, with all tokens of the completion so far in "output_token_ids"; None if the
        completion has all its tokens: `max_tokens` of them, or the last one is in "stop_token_ids".

    Raises:
        ValueError: "n" is given and above 1.
    """
    if (request.get("n") or 1) > 1:
        raise ValueError(f"n is {request['n']}; only one completion can be continued.")
    output_token_ids = [*(request.get("output_token_ids") or ()), *token_ids]
    if len(output_token_ids) >= request["max_tokens"]:
        return None
    if output_token_ids and output_token_ids[-1] in (request.get("stop_token_ids") or ()):
        return None
    return {**request, "output_token_ids": output_token_ids}


def relay(
    request: "Request",
    replicas: "list[Server]",
    choose: "Callable[[list[Server]], int]",
    max_moves: int = MAX_MOVES,
) -> "Iterator[Chunk]":
    """Serve a request by one of several replicas, and pass its stream on. If a replica fails, another one continues.

    Args:
        request: see `request_to_go_on`. If its "seed" is missing or None, one is drawn, the same for all replicas.
        replicas: those that can be asked.
        choose: function from the replicas that haven't failed to the index of one of them.
        max_moves: how many more replicas are asked after the first one. Not all of them: it may be the request that
            kills them.

    Yields:
        Chunks, each token once. Only the last has a `finish_reason`, which is "error" if the answer isn't complete.
    """
    if request.get("seed") is None:
        request = {**request, "seed": random.getrandbits(31)}
    token_ids, remaining = [], list(replicas)
    # A completion that had begun may be complete already.
    asked = request_to_go_on(request, []) if request.get("output_token_ids") else request
    while asked is not None and remaining and max_moves >= 0:
        replica, stream = remaining.pop(choose(remaining)), None
        replica.load += 1
        try:
            stream = replica.stream(asked)
            for chunk in stream:
                token_ids += chunk.token_ids
                yield chunk
                if chunk.finish_reason:
                    return
        except ReplicaLost:
            pass  # as if its stream had ended without a reason: the connection was cut
        except Exception as error:  # every replica would refuse this request
            yield Chunk([], "error", str(error))
            return
        finally:
            replica.load -= 1
            if stream is not None:
                stream.close()
        max_moves -= 1
        asked = request_to_go_on(request, token_ids)
    if asked is None:  # the reader has every token; only the reason is missing
        all_tokens = [*(request.get("output_token_ids") or ()), *token_ids]
        is_stopped = set(all_tokens[-1:]) & set(request.get("stop_token_ids") or ())
        yield Chunk([], "stop" if is_stopped else "length")
        return
    yield Chunk([], "error", f"every replica that was asked was lost; the stream ends after {len(token_ids)} tokens.")
