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
    """

    id: str
    prompt_ids: list[int]
    max_new_tokens: int
    eos_token_id: int | None = None
    state: RequestState = RequestState.WAITING
    num_computed_tokens: int = 0
    output_ids: list[int] = field(default_factory=list)

    @property
    def is_done(self) -> bool:
        """True if the answer is complete: it ends with the end token, or has reached its limit."""
        return len(self.output_ids) >= self.max_new_tokens or self.eos_token_id in self.output_ids[-1:]

    def append_token(self, token: int) -> None:
        """Append one token to the answer.

        The end token, or the last one within the limit, finishes the request. After another one it is decoding.

        Raises:
            RuntimeError: the request is waiting or has finished; nothing changes.
        """
        if self.state in (RequestState.WAITING, RequestState.FINISHED):
            raise RuntimeError(f"request {self.id!r} is {self.state.value}; it gets no token.")
        self.output_ids.append(token)
        self.state = RequestState.FINISHED if self.is_done else RequestState.DECODING


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
        raise BadRequest(f"request id {twice[0]!r} is used {names.count(twice[0])} times; give each its own id.")
    return names
