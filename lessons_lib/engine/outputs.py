"""Lesson 12: what the engine returns: tokens as they come, and requests that have ended."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from lessons_lib.engine.logprobs import FlatLogprobs, TokenLogprobs


class NewToken(NamedTuple):
    """One token, as a reader gets it. A tuple: an engine makes tens of thousands of them in a second.

    Attributes:
        index: the completion of the request that it belongs to.
        text: what can be shown now and could not before; sometimes nothing.
        finish_reason: why the completion ends here, None if it goes on.
        logprobs: of the token, if they were asked for.
        stop_reason: see CompletionOutput; None while the completion goes on.
    """

    request_id: str
    index: int  # type: ignore[assignment]  # tuples have a method of this name
    token: int
    text: str
    finish_reason: str | None
    logprobs: TokenLogprobs | None = None
    stop_reason: str | int | None = None


OnToken = Callable[[NewToken], None]


@dataclass(frozen=True)
class CompletionOutput:
    """One completion of a request that has ended.

    Attributes:
        index: the place of the completion among those of its request.
        finish_reason: "stop" after a stop token or stop string, "length" at `max_tokens`, "abort", or "error".
        logprobs: one for each token, if they were asked for.
        stop_reason: the stop string, or the one of `stop_token_ids`, that ended it; None after the end token.
        num_draft_tokens, num_accepted_tokens: guesses that were computed for it, and those of them that were right.
    """

    index: int
    token_ids: list[int]
    text: str = ""
    finish_reason: str | None = None
    logprobs: FlatLogprobs | None = None
    stop_reason: str | int | None = None
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0


@dataclass(frozen=True)
class RequestOutput:
    """A request that has ended.

    Attributes:
        completions: `params.n` of them.
        error: what went wrong, None if nothing did. It has no traceback, whose frames would keep the tensors of the
            failed pass; the traceback's text is the last of `error.__notes__`.
        prompt_logprobs: one for each token of the prompt, if they were asked for. The first has none: no logits predict
            it. Others have none if the request ended before they were computed.
        num_cached_tokens: tokens of the prompt that were in the prefix cache when the request was admitted. If it was
            preempted later, what it found then doesn't count.
    """

    request_id: str
    prompt_ids: list[int]
    completions: list[CompletionOutput]
    error: BaseException | None = None
    prompt_logprobs: list[TokenLogprobs | None] | None = None
    num_cached_tokens: int = 0

    @property
    def text(self) -> str:
        """The text of the first completion."""
        return self.completions[0].text

    @property
    def token_ids(self) -> list[int]:
        """The tokens of the first completion."""
        return self.completions[0].token_ids

    @property
    def finish_reason(self) -> str | None:
        """The finish reason of the first completion."""
        return self.completions[0].finish_reason
