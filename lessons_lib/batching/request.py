"""Lesson 02: a request, and the states it goes through."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum

from lessons_lib.models.validate import BadRequest


class RequestState(Enum):
    WAITING = "waiting"  # in the queue, without a slot
    PREFILLING = "prefilling"  # has a slot; part of its prompt is computed
    DECODING = "decoding"  # its prompt is computed; it gets one token per step
    FINISHED = "finished"  # has its whole answer; its slot goes to the next request


NEXT_STATES: dict[RequestState, set[RequestState]] = {
    RequestState.WAITING: {RequestState.PREFILLING},
    # The prefill yields the first token. If that token ends the answer, there is nothing to decode.
    RequestState.PREFILLING: {RequestState.DECODING, RequestState.FINISHED},
    RequestState.DECODING: {RequestState.FINISHED},
    RequestState.FINISHED: set(),
}


class IllegalTransition(RuntimeError):
    """A request was moved to a state that can't follow its current one."""


@dataclass
class Request:
    """One request and its progress.

    Attributes:
        id: its name, unique among the requests of a run.
        prompt_ids: token ids of the prompt.
        max_new_tokens: maximum number of new tokens.
        eos_token_id: the token that ends an answer; it is part of the answer.
        state: the current state.
        num_computed_tokens: tokens of prompt and answer whose keys and values are in the cache.
        output_ids: the answer so far.
        finish_reason: "stop" after the end token, "length" at the token limit, None before.
    """

    id: str
    prompt_ids: list[int]
    max_new_tokens: int
    eos_token_id: int | None = None
    state: RequestState = RequestState.WAITING
    num_computed_tokens: int = 0
    output_ids: list[int] = field(default_factory=list)
    finish_reason: str | None = None

    @property
    def is_done(self) -> bool:
        """True if the answer is complete: it ends with the end token, or has reached its limit."""
        return len(self.output_ids) >= self.max_new_tokens or self.eos_token_id in self.output_ids[-1:]

    def move_to(self, state: RequestState) -> None:
        """Change the state; `NEXT_STATES` lists the allowed transitions.

        Raises:
            IllegalTransition: `state` can't follow the current one; the request doesn't change.
        """
        if state not in NEXT_STATES[self.state]:
            allowed = " or ".join(sorted(s.value for s in NEXT_STATES[self.state]))
            can = f"only {allowed} can" if allowed else "nothing can"
            raise IllegalTransition(f"request {self.id!r} is {self.state.value}; {state.value} can't follow, {can}.")
        self.state = state

    def append_token(self, token: int) -> None:
        """Append one token to the answer.

        The end token finishes the request with "stop"; the last token within the limit, with "length". If a token is
        both, the reason is "stop". Otherwise a prefilling request starts decoding.

        Raises:
            IllegalTransition: the request is waiting or has finished; nothing changes.
        """
        is_end = token == self.eos_token_id
        is_last = len(self.output_ids) + 1 == self.max_new_tokens
        # Change the state first: if that raises, nothing has changed.
        if is_end or is_last:
            self.move_to(RequestState.FINISHED)
            self.finish_reason = "stop" if is_end else "length"
        elif self.state is not RequestState.DECODING:
            self.move_to(RequestState.DECODING)
        self.output_ids.append(token)


def request_names(names: Sequence[str] | None, count: int) -> list[str]:
    """Validate the names of `count` requests; by default "0", "1", ...

    Raises:
        BadRequest: there are too few or too many names, or one is used twice.
    """
    names = [str(index) for index in range(count)] if names is None else list(names)
    if len(names) != count:
        raise BadRequest(f"{len(names)} names for {count} prompts; give one name for each prompt, or none.")
    twice = [name for name in dict.fromkeys(names) if names.count(name) > 1]
    if twice:
        raise BadRequest(
            f"request id {twice[0]!r} is used {names.count(twice[0])} times; give every request its own id."
        )
    return names
