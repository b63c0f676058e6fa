"""Lesson 12: a request while the engine serves it, and what the engine returns."""

import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from transformers import PreTrainedTokenizerBase

from lessons_lib.engine.detokenizer import IncrementalDetokenizer, decode_options, text_of
from lessons_lib.engine.logits_processors import LogitsProcessor, LogitsRules
from lessons_lib.engine.sampling import TokenLogprobs, rows_of_logprobs, token_logprobs
from lessons_lib.engine.sampling_params import SamplingParams
from lessons_lib.scheduling.sequence import Sequence


class NewToken(NamedTuple):
    """One token, passed on as soon as it is there. A tuple: an engine makes tens of thousands of them in a second.

    Attributes:
        index: which completion of the request it belongs to.
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


@dataclass
class CompletionOutput:
    """One completion of a request: the engine lets it grow, and returns it when the request has ended.

    Attributes:
        index: which completion of the request it is.
        token_ids: its tokens.
        text: its text. While it grows, only if someone reads along.
        finish_reason: "stop" after a stop token or stop string, "length" at `max_tokens`, "abort", or "error". None
            while it grows.
        logprobs: one for each token, if they were asked for.
        stop_reason: the stop string, or the one of `stop_token_ids`, that ended it; None after the end token.
        request, sequence, seed, processor, detokenizer, first_token_time, last_token_time, num_offered, num_passed_on:
            the engine's own. The processor is None if no rule changes logits, the detokenizer if the text isn't
            streamed; times are on the engine's clock, when the first and the last token were passed on. `on_token` has
            been called with the first `num_offered` tokens, and has returned for `num_passed_on` of them.
    """

    index: int
    token_ids: list[int]
    text: str = ""
    finish_reason: str | None = None
    logprobs: list[TokenLogprobs] | None = None
    stop_reason: str | int | None = None
    request: "EngineRequest" = field(kw_only=True, repr=False, compare=False)
    sequence: Sequence = field(kw_only=True, repr=False, compare=False)
    seed: int = field(kw_only=True, repr=False, compare=False)
    processor: LogitsProcessor | None = field(default=None, kw_only=True, repr=False, compare=False)
    detokenizer: IncrementalDetokenizer | None = field(kw_only=True, repr=False, compare=False)
    first_token_time: float | None = field(default=None, repr=False, compare=False)
    last_token_time: float | None = field(default=None, repr=False, compare=False)
    num_offered: int = field(default=0, repr=False, compare=False)
    num_passed_on: int = field(default=0, repr=False, compare=False)

    def add_logprobs(self, logits: torch.Tensor, token: int) -> None:
        """Note the log-probabilities of a token, if they were asked for.

        Args:
            logits: [vocabulary].
        """
        if self.logprobs is not None and self.request.params.logprobs is not None:
            self.logprobs.append(token_logprobs(logits, token, self.request.params.logprobs))

    def add_text(self) -> str:
        """Append the newest token to the text. A stop string in it ends the sequence. Returns what can be shown now."""
        if self.detokenizer is None:
            return ""
        text = self.detokenizer.add(self.token_ids[-1]) if self._num_shown() == len(self.token_ids) else ""
        if self.sequence.finish_reason:
            text += self.detokenizer.finish()
        if self.detokenizer.stopped:
            self.sequence.finish_reason = "stop"
            self.stop_reason = self.detokenizer.stop_string
        self.text = self.detokenizer.text
        return text

    def new_token(self, text: str, tokenizer: PreTrainedTokenizerBase) -> NewToken:
        """The newest token as its reader gets it.

        Args:
            text: what `add_text` returned for it.
        """
        if reason := self.sequence.finish_reason:
            self._note_stop_token(tokenizer)
        logprobs = self.logprobs[-1] if self.logprobs else None
        return NewToken(self.request.id, self.index, self.token_ids[-1], text, reason, logprobs, self.stop_reason)

    def finish(self, tokenizer: PreTrainedTokenizerBase) -> None:
        """Nothing follows: take over the reason, and the whole text."""
        self.finish_reason = self.sequence.finish_reason
        self._note_stop_token(tokenizer)
        if self.detokenizer is None and self.request.params.detokenize:
            self.text = text_of(tokenizer, self.token_ids[: self._num_shown()], self.request.decode_options(tokenizer))

    def _note_stop_token(self, tokenizer: PreTrainedTokenizerBase) -> None:
        """If one of `stop_token_ids` has ended it, that is the reason."""
        if self.stop_reason is None and self._ends_with_stop_token():
            token, params = self.token_ids[-1], self.request.params
            if token in params.stop_token_ids and (params.ignore_eos or token != tokenizer.eos_token_id):
                self.stop_reason = token

    def _num_shown(self) -> int:
        """How many tokens the text has. A stop token is not part of it, unless that was asked for."""
        is_hidden = self._ends_with_stop_token() and not self.request.params.include_stop_str_in_output
        return len(self.token_ids) - is_hidden

    def _ends_with_stop_token(self) -> bool:
        return bool(self.token_ids) and self.token_ids[-1] in self.sequence.stop_token_ids


@dataclass(frozen=True)
class RequestOutput:
    """A request that has ended.

    Attributes:
        completions: `params.n` of them, fewer if the request failed or was aborted early.
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
        """Of the first completion."""
        return self.completions[0].text

    @property
    def token_ids(self) -> list[int]:
        """Of the first completion."""
        return self.completions[0].token_ids

    @property
    def finish_reason(self) -> str | None:
        """Of the first completion."""
        return self.completions[0].finish_reason


@dataclass(eq=False)
class EngineRequest:
    """A request that is being served.

    Attributes:
        arrival: when it arrived, in seconds on the engine's clock.
        on_token: called with each NewToken.
        completions: those that have begun. The others begin when the prompt is computed.
        rules: what changes its logits, or None.
        prompt_logprobs, num_cached_tokens: see RequestOutput.
        is_admitted: whether it has had its first step.
        awaited: the unfinished requests whose results `generate` or `stream` looks for, this one among them; None if
            `step` returns its output.
        result: what it returned, once it has ended.
    """

    id: str
    prompt_ids: list[int]
    params: SamplingParams
    arrival: float
    on_token: OnToken | None = None
    rules: LogitsRules | None = None
    prompt_logprobs: list[TokenLogprobs | None] | None = None
    completions: list[CompletionOutput] = field(default_factory=list)
    num_cached_tokens: int = 0
    is_admitted: bool = False
    awaited: "dict[EngineRequest, None] | None" = field(default=None, repr=False)
    result: RequestOutput | None = None

    def __post_init__(self) -> None:
        if self.params.prompt_logprobs is not None:
            self.prompt_logprobs = [None] * len(self.prompt_ids)

    def new_completion(self, sequence: Sequence, seed: int, tokenizer: PreTrainedTokenizerBase) -> CompletionOutput:
        """One more completion, which grows with a sequence."""
        completion = self.make_completion(len(self.completions), sequence, seed, tokenizer)
        self.completions.append(completion)
        return completion

    def make_completion(
        self, index: int, sequence: Sequence, seed: int, tokenizer: PreTrainedTokenizerBase
    ) -> CompletionOutput:
        """A completion of this request, which isn't among its completions yet."""
        return CompletionOutput(
            index, sequence.output_ids, logprobs=None if self.params.logprobs is None else [],
            request=self, sequence=sequence, seed=seed, detokenizer=self._detokenizer(tokenizer),
            processor=self.rules.processor(sequence) if self.rules else None,
        )  # fmt: skip

    def _detokenizer(self, tokenizer: PreTrainedTokenizerBase) -> IncrementalDetokenizer | None:
        params = self.params
        if not params.detokenize or not (self.on_token or params.stop):
            return None
        return IncrementalDetokenizer(
            tokenizer, params.stop, options=self.decode_options(tokenizer),
            min_tokens=params.min_tokens, include_stop=params.include_stop_str_in_output,
        )  # fmt: skip

    def decode_options(self, tokenizer: PreTrainedTokenizerBase) -> dict[str, bool]:
        """How its tokens become text."""
        return decode_options(tokenizer, self.params.skip_special_tokens, self.params.spaces_between_special_tokens)

    def add_prompt_logprobs(self, start: int, logits: torch.Tensor) -> None:
        """Note the log-probabilities of tokens of the prompt, if they were asked for. After a preemption they may be
        there already, and are the same.

        Args:
            start: position of the first token that was computed.
            logits: [count, vocabulary], after each token that was computed.
        """
        if self.prompt_logprobs is not None and self.params.prompt_logprobs is not None:
            tokens = self.prompt_ids[start + 1 : start + 1 + len(logits)]
            found = rows_of_logprobs(logits[: len(tokens)], tokens, self.params.prompt_logprobs)
            self.prompt_logprobs[start + 1 : start + 1 + len(tokens)] = found

    @property
    def is_finished(self) -> bool:
        """Whether all its completions have begun and finished."""
        return len(self.completions) == self.params.n and all(each.finish_reason for each in self.completions)


def drop_frames(error: BaseException) -> None:
    """Replace the traceback of an error by its text, in `error.__notes__`."""
    if error.__traceback__ is not None:
        text = "".join(traceback.format_exception(error))
        notes: list[str] = getattr(error, "__notes__", [])
        error.__dict__["__notes__"] = [*notes, text]
    error.__traceback__ = error.__cause__ = error.__context__ = None
