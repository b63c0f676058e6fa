"""Lesson 14: what a front and an engine say to each other. All of it can be pickled, because the engine may run in
another process."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from lessons_lib.engine.llm_engine import LLMEngine
from lessons_lib.engine.logprobs import TokenLogprobs
from lessons_lib.engine.metrics import EngineGauges
from lessons_lib.engine.outputs import CompletionOutput, NewToken, RequestOutput
from lessons_lib.engine.sampling_params import SamplingParams
from lessons_lib.models.configuration import context_length
from lessons_lib.serving.stream_text import TextRules


class Draining(RuntimeError):
    """The front finishes what it has, and takes no new requests."""


class EngineDead(RuntimeError):
    """The engine has stopped. Make a new one, unless its front does."""


@dataclass(frozen=True)
class AddRequest:
    """Serve this request.

    Attributes:
        options: keyword arguments of `LLMEngine.add_request`, such as `tier` and `cache_salt`.
    """

    request_id: str
    prompt: str | Sequence[int]
    params: SamplingParams | None = None
    options: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class AbortRequest:
    """Stop serving this request. Does nothing if it has ended."""

    request_id: str


@dataclass(frozen=True)
class FrontJoined:
    """One more front wants to be served. Only the process that has started the engine's process says this.

    Attributes:
        number: of the front, from 1 on.
        address: where its socket listens.
        secret: the keys that the connection needs; none for a Unix socket.
    """

    number: int
    address: str
    secret: list[str] = field(default_factory=list, repr=False)


@dataclass(frozen=True)
class FrontLeft:
    """A front has ended, or has died: its requests have no reader any more."""

    number: int


@dataclass(frozen=True)
class Accepted:
    """The engine serves the request.

    Attributes:
        text_rules: how its reader makes the text of its tokens; None if they have it, or if no text is wanted.
    """

    request_id: str
    num_prompt_tokens: int
    text_rules: TextRules | None = None


@dataclass(frozen=True)
class Refused:
    """The engine doesn't serve the request.

    Attributes:
        error: what `LLMEngine.add_request` raised.
    """

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
        prompt_logprobs: see `RequestOutput`.
        error: the type and the message of what went wrong, None if nothing did.
    """

    request_id: str
    num_prompt_tokens: int
    num_cached_tokens: int = 0
    completions: list[CompletionOutput] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprobs | None] | None = None
    error: str | None = None

    @classmethod
    def of(cls, output: RequestOutput) -> "RequestEnded":
        """What the engine returned, without anything that belongs to the engine."""
        return cls(
            output.request_id,
            len(output.prompt_ids),
            output.num_cached_tokens,
            output.completions,
            output.prompt_logprobs,
            error_text(output.error) if output.error else None,
        )

    @property
    def is_aborted(self) -> bool:
        """Whether it was stopped before it was complete."""
        return any(each.finish_reason == "abort" for each in self.completions)


@dataclass(frozen=True)
class EngineStatus:
    """How the engine is doing.

    Attributes:
        metrics: `EngineMetrics.snapshot()`, or None if they were sent a moment ago.
    """

    gauges: EngineGauges
    metrics: dict[str, Any] | None = None


@dataclass(frozen=True)
class EngineInfo:
    """What stays the same as long as the engine lives.

    Attributes:
        tokenizer: the model's.
        max_model_len: the longest sequence, prompt and completion together; None if there is no limit.
        vocab_size: token ids are below it.
        max_logprobs: the most log-probabilities that a request may ask for.
        num_blocks, block_size, max_num_seqs, max_num_batched_tokens: see EngineConfig.
    """

    tokenizer: Any
    max_model_len: int | None
    vocab_size: int
    max_logprobs: int
    num_blocks: int
    block_size: int
    max_num_seqs: int
    max_num_batched_tokens: int

    @classmethod
    def of(cls, engine: LLMEngine) -> "EngineInfo":
        """What can be said of an engine."""
        config = engine.config
        return cls(
            engine.tokenizer,
            config.max_model_len or context_length(engine.model.config),
            engine.model.config.get_text_config().vocab_size,
            config.max_logprobs,
            engine.scheduler.pool.num_blocks,
            config.block_size,
            config.max_num_seqs,
            config.max_num_batched_tokens,
        )


@dataclass(frozen=True)
class EngineReady:
    """The engine's process has made its engine."""

    info: EngineInfo


@dataclass(frozen=True)
class EngineDied:
    """The last words of an engine's process.

    Attributes:
        error: the type and the message of what went wrong.
    """

    error: str


Command: TypeAlias = AddRequest | AbortRequest
FrontChange: TypeAlias = FrontJoined | FrontLeft
Event: TypeAlias = Accepted | Refused | NewTokens | RequestEnded | EngineStatus | EngineReady | EngineDied


def error_text(error: BaseException) -> str:
    """The type and the message of an error, as the last line of a traceback has them."""
    message = str(error)
    return f"{type(error).__name__}: {message}" if message else type(error).__name__
