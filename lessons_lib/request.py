"""Lesson 02: a request, and the states it goes through."""

from dataclasses import dataclass, field
from enum import Enum


class RequestState(Enum):
    WAITING = "waiting"  # in the queue, without a slot
    PREFILLING = "prefilling"  # has a slot; part of its prompt is computed
    DECODING = "decoding"  # its prompt is computed; gets one token a step
    FINISHED = "finished"  # has its whole answer; its slot is free again


NEXT_STATES = {
    RequestState.WAITING: {RequestState.PREFILLING},
    # A prompt's prefill gives the first token. When that one ends the answer, there is nothing to decode.
    RequestState.PREFILLING: {RequestState.DECODING, RequestState.FINISHED},
    RequestState.DECODING: {RequestState.FINISHED},
    RequestState.FINISHED: set(),
}


class IllegalTransition(RuntimeError):
    """A request was moved to a state that can't follow its present one."""


@dataclass
class Request:
    """One request and how far it has come.

    Attributes:
        id: its name, unique among the requests of a run.
        prompt_ids: token ids of the prompt.
        max_new_tokens: the most tokens to add.
        eos_token_id: the token that ends an answer; it is part of the answer.
        state: where it stands.
        num_computed_tokens: tokens of prompt and answer whose keys and values are in the cache.
        output_ids: the answer so far.
        finish_reason: "stop" after the end token, "length" at the cap, None before.
    """

    id: str
    prompt_ids: list[int]
    max_new_tokens: int
    eos_token_id: int | None = None
    state: RequestState = RequestState.WAITING
    num_computed_tokens: int = 0
    output_ids: list[int] = field(default_factory=list)
    finish_reason: str | None = None

    def move_to(self, state: RequestState) -> None:
        """Go to another state. `NEXT_STATES` says which states may follow which.

        Raises:
            IllegalTransition: `state` can't follow the present one; the request stays as it was.
        """
        if state not in NEXT_STATES[self.state]:
            allowed = ", ".join(sorted(s.value for s in NEXT_STATES[self.state])) or "nothing"
            raise IllegalTransition(f"request {self.id!r} is {self.state.value}; {state.value} can't follow, only {allowed}.")
        self.state = state

    def append_token(self, token: int) -> None:
        """Take one more token into the answer, and finish when it is the end token or the last that the cap allows.

        Going on from PREFILLING, a request becomes DECODING, or FINISHED at once.
        """
        self.output_ids.append(token)
        if token == self.eos_token_id:
            self.finish_reason = "stop"
        elif len(self.output_ids) == self.max_new_tokens:
            self.finish_reason = "length"
        if self.finish_reason is not None:
            self.move_to(RequestState.FINISHED)
        elif self.state is RequestState.PREFILLING:
            self.move_to(RequestState.DECODING)
