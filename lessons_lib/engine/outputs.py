"""Lesson 12: a request as the engine keeps it, and what it gives back."""

from collections.abc import Callable
from dataclasses import dataclass, field

from lessons_lib.engine.detokenizer import IncrementalDetokenizer
from lessons_lib.engine.sampling import SamplingParams, TokenLogprobs, token_logprobs
from lessons_lib.scheduling.sequence import Sequence


@dataclass(frozen=True)
class NewToken:
    """One token, handed over as soon as it is there.

    Attributes:
        index: which of the request's answers it belongs to.
        text: what can be shown now and could not before; sometimes nothing.
        finish_reason: why the answer ends here, None if it goes on.
    """

    request_id: str
    index: int
    token: int
    text: str
    finish_reason: str | None


@dataclass(frozen=True)
class CompletionOutput:
    """One answer.

    Attributes:
        finish_reason: "stop" after a stop token or stop string, "length" at the cap, "abort", or "error".
        logprobs: one for each token, if they were asked for.
    """

    index: int
    token_ids: list[int]
    text: str
    finish_reason: str | None
    logprobs: list[TokenLogprobs] | None = None


@dataclass(frozen=True)
class RequestOutput:
    """A request that has ended.

    Attributes:
        completions: its answers, `params.n` of them, fewer if it failed or was aborted early.
        error: what went wrong, None if nothing did.
    """

    request_id: str
    prompt_ids: list[int]
    completions: list[CompletionOutput]
    error: Exception | None = None

    @property
    def text(self) -> str:
        """The first answer."""
        return self.completions[0].text

    @property
    def token_ids(self) -> list[int]:
        return self.completions[0].token_ids

    @property
    def finish_reason(self) -> str | None:
        return self.completions[0].finish_reason


@dataclass(eq=False)
class Answer:
    """One answer of a request while it grows.

    Attributes:
        sequence: its tokens, as the scheduler has them.
        seed: of its random draws.
        stream: its text; None where nobody looks at it before the end.
        first_token, last_token: when they were handed over.
        is_over: whether the last of its tokens was handed over.
    """

    request: "EngineRequest"
    index: int
    sequence: Sequence
    seed: int
    stream: IncrementalDetokenizer | None
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    first_token: float | None = None
    last_token: float | None = None
    is_over: bool = False

    @property
    def params(self) -> SamplingParams:
        return self.request.params

    @property
    def ended_by_token(self) -> bool:
        ids = self.sequence.output_ids
        return bool(ids) and ids[-1] in self.sequence.stop_token_ids

    def add_logprobs(self, logits, token: int) -> None:
        if self.params.logprobs is not None:
            self.logprobs.append(token_logprobs(logits, token, self.params.logprobs))

    def add_text(self) -> str:
        """Take the newest token into the text. A stop string in it ends the answer. Returns what can be shown now."""
        if self.stream is None:
            return ""
        text = "" if self.ended_by_token else self.stream.add(self.sequence.output_ids[-1])
        if self.sequence.finish_reason:
            text += self.stream.finish()
        if self.stream.stopped:
            self.sequence.finish_reason = "stop"
        return text

    def completion(self, tokenizer) -> CompletionOutput:
        ids = self.sequence.output_ids
        shown = ids[:-1] if self.ended_by_token else ids
        text = self.stream.text if self.stream else tokenizer.decode(shown, skip_special_tokens=True)
        return CompletionOutput(
            self.index,
            list(ids),
            text,
            self.sequence.finish_reason,
            self.logprobs if self.params.logprobs is not None else None,
        )


@dataclass(eq=False)
class EngineRequest:
    """A request that is being served.

    Attributes:
        arrival: when it came, on the engine's clock.
        on_token: called with each NewToken.
        answers: those that have begun. The others begin when the prompt is computed.
        is_admitted: whether it has had its first step.
        result: what it gave back, once it has ended.
    """

    id: str
    prompt_ids: list[int]
    params: SamplingParams
    arrival: float
    on_token: Callable[[NewToken], None] | None = None
    answers: list[Answer] = field(default_factory=list)
    is_admitted: bool = False
    result: RequestOutput | None = None

    def new_answer(self, sequence: Sequence, seed: int, tokenizer) -> Answer:
        is_watched = self.on_token or self.params.stop
        answer = Answer(
            self,
            len(self.answers),
            sequence,
            seed,
            IncrementalDetokenizer(tokenizer, self.params.stop) if is_watched else None,
        )
        self.answers.append(answer)
        return answer

    @property
    def is_finished(self) -> bool:
        return len(self.answers) == self.params.n and all(answer.is_over for answer in self.answers)

    def output(self, tokenizer, error: Exception | None = None) -> RequestOutput:
        return RequestOutput(self.id, self.prompt_ids, [answer.completion(tokenizer) for answer in self.answers], error)
