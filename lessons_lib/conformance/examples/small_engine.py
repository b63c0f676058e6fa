"""The small size of the capstone: `batching_engine.py`, with refusals and streams."""

from collections import deque
from collections.abc import Iterator
from typing import Any

from lessons_lib.conformance.contract import Limits, NewTokens, Params
from lessons_lib.conformance.examples.batching_engine import BatchingEngine


class SmallEngine(BatchingEngine):
    """Continuous batching that keeps the whole contract.

    Attributes:
        unread: what `stream` has computed for other requests; the next `step` returns it.
        streams: id of a stream's request -> what its reader has yet to get.
    """

    def __init__(self, model: Any, limits: Limits):
        super().__init__(model, limits)
        self.unread: list[NewTokens] = []
        self.streams: dict[str, deque[NewTokens]] = {}

    def add_request(self, request_id: str, prompt_ids: list[int], params: Params) -> None:
        vocabulary = self.model.config.vocab_size
        if not prompt_ids:
            raise ValueError("the prompt has no tokens; give at least one.")
        if wrong := [token for token in prompt_ids if not 0 <= token < vocabulary]:
            raise ValueError(f"token {wrong[0]} isn't in the vocabulary; tokens are 0 to {vocabulary - 1}.")
        if params.max_tokens < 1:
            raise ValueError(f"max_tokens is {params.max_tokens}; it must be 1 or more.")
        # A stream that is still open aborts its id when it is closed.
        if request_id in self.streams.keys() | {sequence.request_id for sequence in [*self.waiting, *self.running]}:
            raise ValueError(f"request id {request_id!r} is in use; give each request an id of its own.")
        super().add_request(request_id, prompt_ids, params)

    def step(self) -> list[NewTokens]:
        computed = self.compute()  # if it raises, what is unread stays
        unread, self.unread = self.unread, []
        return unread + computed

    def compute(self) -> list[NewTokens]:
        """One pass; tokens of streams go to their readers, the others are returned."""
        events = super().step()
        for event in events:
            if event.request_id in self.streams:
                self.streams[event.request_id].append(event)
        return [event for event in events if event.request_id not in self.streams]

    def abort(self, request_id: str) -> None:
        super().abort(request_id)
        self.unread = [event for event in self.unread if event.request_id != request_id]
        if request_id in self.streams:
            self.streams[request_id].clear()
            self.streams[request_id].append(NewTokens(request_id, [], "abort"))

    def has_unfinished(self) -> bool:
        return super().has_unfinished() or bool(self.unread)

    def stream(self, request_id: str, prompt_ids: list[int], params: Params) -> Iterator[int]:
        self.add_request(request_id, prompt_ids, params)
        events = self.streams[request_id] = deque()
        try:
            reason = None
            while reason is None:
                while not events:
                    self.unread += self.compute()
                event = events.popleft()
                reason = event.finish_reason
                yield from event.token_ids
        finally:
            del self.streams[request_id]
            self.abort(request_id)


def make_engine(model: Any, limits: Limits, tokenizer: Any) -> Any:
    """A new engine that keeps the contract. It has the model to itself, and stays within these limits."""
    return SmallEngine(model, limits)
