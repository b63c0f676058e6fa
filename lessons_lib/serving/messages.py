"""Lesson 14: the messages between a front and an engine. They can be pickled, because the engine may run in another
process."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from lessons_lib.engine.logprobs import TokenLogprobs
from lessons_lib.engine.metrics import EngineGauges
from lessons_lib.engine.outputs import CompletionOutput, NewToken, RequestOutput
from lessons_lib.engine.sampling_params import SamplingParams
from lessons_lib.serving.stream_text import TextRules

STEP_TIMEOUT = 300.0  # seconds; as vLLM's VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS


class Draining(RuntimeError):
    """The front finishes what it has, and takes no new requests."""


class EngineDead(RuntimeError):
    """The engine has stopped. Make a new one, unless its front does."""


@dataclass(frozen=True)
class AddRequest:
    """Serve this request. `options` are those of `LLMEngine.add_request`, such as `tier`, and `pin_seconds`."""

    request_id: str
    prompt: str | Sequence[int]
    params: SamplingParams | None = None
    options: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class AbortRequest:
    """Stop serving this request. Does nothing if it has ended."""

    request_id: str


@dataclass(frozen=True)
class Accepted:
    """The engine serves the request. Its reader makes the text of its tokens, if there are `text_rules`."""

    request_id: str
    num_prompt_tokens: int
    text_rules: TextRules | None = None


@dataclass(frozen=True)
class Refused:
    """The engine doesn't serve the request: `LLMEngine.add_request` raised this error."""

    request_id: str
    error: Exception


@dataclass(frozen=True)
class NewTokens:
    """The tokens that one step computed, for all requests."""

    tokens: list[NewToken]

    def __reduce__(self) -> tuple[Any, ...]:
        # Sent after every step: pickle writes a plain tuple for each field in a sixth of the time.
        return _new_tokens, (tuple(zip(*self.tokens)),)


def _new_tokens(columns: tuple[tuple[Any, ...], ...]) -> NewTokens:
    return NewTokens(list(map(NewToken._make, zip(*columns))))


@dataclass(frozen=True)
class RequestEnded:
    """A request has ended. Nothing follows.

    Attributes:
        num_cached_tokens: tokens of the prompt that were in the prefix cache.
        error: its type and message; None if nothing went wrong.
    """

    request_id: str
    num_prompt_tokens: int
    num_cached_tokens: int = 0
    completions: list[CompletionOutput] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprobs | None] | None = None
    error: str | None = None

    @classmethod
    def of(cls, output: RequestOutput) -> "RequestEnded":
        """The engine's output, without anything that belongs to the engine."""
        error = error_text(output.error) if output.error else None
        counts = len(output.prompt_ids), output.num_cached_tokens
        return cls(output.request_id, *counts, output.completions, output.prompt_logprobs, error)

    @property
    def is_aborted(self) -> bool:
        """True if it was stopped before it was complete."""
        return any(each.finish_reason == "abort" for each in self.completions)


@dataclass(frozen=True)
class EngineStatus:
    """The state of the engine. `metrics` is `EngineMetrics.snapshot()`, or None if they were sent a moment ago."""

    gauges: EngineGauges
    metrics: dict[str, Any] | None = None


@dataclass(frozen=True)
class EngineReady:
    """The engine's process has made its engine. The front gets the model's tokenizer."""

    tokenizer: Any


@dataclass(frozen=True)
class EngineDied:
    """The last words of an engine's process."""

    error: str


Command: TypeAlias = AddRequest | AbortRequest
Event: TypeAlias = Accepted | Refused | NewTokens | RequestEnded | EngineStatus | EngineReady | EngineDied


def error_text(error: BaseException) -> str:
    """The type and the message of an error, as the last line of a traceback has them."""
    message = str(error)
    return f"{type(error).__name__}: {message}" if message else type(error).__name__
