"""Lesson 15: a stream that goes on elsewhere. When a replica dies in the middle of a stream, another one can continue
from the tokens so far, and the client sees nothing of that.

It is exact because the server takes `output_token_ids` and goes on as if it had computed these tokens itself, and its
random numbers depend only on the seed and the number of tokens. So the balancer asks for token ids in every chunk,
gives each request a seed, and remembers the tokens that it has passed on.
"""

import json
import random
from typing import Any

# Of error events: the replica won't finish the request, and another one can.
LOST = ("engine_dead", "aborted", "draining")
DONE = b"data: [DONE]\n\n"
# More replicas that are asked after the first one was lost. Not all: the request itself may kill them. And not only
# one: a replica that drains sends its streams away, possibly to the one that is restarted next.
MAX_MOVES = 2


class ReplicaLost(Exception):
    """The replica will not finish the stream."""


class ContinuedStream:
    """The stream that one client gets, by whichever replica.

    Attributes:
        body: the client's request.
        token_ids: all tokens that were sent.
        has_begun, is_finished, has_usage, is_done: an event, the finish reason, the last chunk (which has no choices),
            everything was sent.
    """

    def __init__(self, body: dict[str, Any]):
        self.body = {"seed": random.getrandbits(63)} | {name: body[name] for name in body if body[name] is not None}
        self.token_ids: list[int] = []
        self.has_begun = self.is_finished = self.has_usage = self.is_done = False
        self._first: dict[str, Any] = {}

    @property
    def why_not(self) -> str | None:
        """The reason why another replica can't go on with it once it has begun; None if it can."""
        prompt = self.body.get("prompt", "")
        if self.body.get("n", 1) != 1:
            return f"it has {self.body['n']} completions"
        if isinstance(prompt, list) and not all(isinstance(token, int) for token in prompt):
            return "it has a list of prompts"
        return "it has echo" if self.body.get("echo") else None

    def next_body(self) -> dict[str, Any]:
        """The request to the next replica: for the rest."""
        # The end of a completion can't be asked for without its last token, which `accept` then leaves out.
        known = self.token_ids[:-1] if self.is_finished else self.token_ids
        return self.body | {"return_token_ids": True} | ({"output_token_ids": known} if known else {})

    def accept(self, event: bytes) -> bytes:
        """Turn an event of a replica into the client's; b"" for none.

        Raises:
            ReplicaLost: it says that the request won't be finished here, or it isn't an event of a completion.
        """
        if event == DONE:
            self.is_done = True
            return DONE
        try:
            return self._accept(json.loads(event.removeprefix(b"data: ")))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ReplicaLost(f"it sent {event[:100]!r}, which is no event of a completion") from error

    def _accept(self, chunk: dict[str, Any]) -> bytes:
        if "error" in chunk:
            if chunk["error"].get("code") in LOST:
                raise ReplicaLost(chunk["error"]["message"])
        elif self._is_repeated(chunk):
            return b""
        else:
            self._note(chunk)
        self.has_begun = True
        return b"data: " + json.dumps(chunk).encode("ascii") + b"\n\n"

    def _is_repeated(self, chunk: dict[str, Any]) -> bool:
        """True for a chunk of a later replica that tells the client nothing new."""
        has_role = any("role" in choice.get("delta", ()) for choice in chunk["choices"])
        return (self.is_finished or (has_role and self.has_begun)) if chunk["choices"] else self.has_usage

    def _note(self, chunk: dict[str, Any]) -> None:
        """Remember the tokens of a chunk, and give it the form that the client wants."""
        for choice in chunk["choices"]:
            self.token_ids += choice.get("token_ids") or []
            self.is_finished |= choice["finish_reason"] is not None and self.why_not is None
        self.has_usage |= not chunk["choices"]
        if not self.body.get("return_token_ids"):
            for choice in chunk["choices"]:
                choice.pop("token_ids", None)
        self._first = self._first or {name: chunk[name] for name in ("id", "created") if name in chunk}
        chunk |= self._first
