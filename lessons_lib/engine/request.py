"""Lesson 12: a request while the engine serves it, and what the engine returns.

What lasts of a request is its tokens. Whatever else an engine knows of it (its place in the scheduler, its blocks, its
text) follows from them, and is made again after a step that didn't finish.
"""

import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from transformers import PreTrainedTokenizerBase

from lessons_lib.engine.detokenizer import IncrementalDetokenizer, decode_options, text_of
from lessons_lib.engine.rules import Processor, Rules
from lessons_lib.engine.sampling import TokenLogprobs, rows_of_logprobs
from lessons_lib.engine.sampling_params import SamplingParams
from lessons_lib.scheduling.sequence import Sequence


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
    """

    index: int
    token_ids: list[int]
    text: str = ""
    finish_reason: str | None = None
    logprobs: list[TokenLogprobs] | None = None
    stop_reason: str | int | None = None


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
class Request(Sequence):
    """One completion while it grows: a Sequence that the scheduler serves, and how its tokens are drawn and shown.

    Attributes:
        group: the request that it is a completion of.
        has_begun: whether the scheduler has it, unless it has finished.
        index: its place among the completions of the group.
        seed: of its random numbers.
        processor: the rules that change its logits, or None.
        detokenizer: makes its text; None if the text isn't streamed and there are no stop strings.
        texts: what each token added to the text that can be shown; None without a detokenizer.
        logprobs: of each token, if they were asked for.
        stop_reason: see CompletionOutput.
        token_times: when each of the tokens that this engine computed arrived, in seconds on its clock.
    """

    group: "RequestGroup" = field(kw_only=True, repr=False)
    index: int = 0
    seed: int = 0
    has_begun: bool = False
    processor: Processor | None = field(default=None, repr=False)
    detokenizer: IncrementalDetokenizer | None = field(default=None, repr=False)
    texts: list[str] | None = field(default=None, repr=False)
    logprobs: list[TokenLogprobs] | None = None
    stop_reason: str | int | None = None
    token_times: list[float] = field(default_factory=list, repr=False)

    @property
    def params(self) -> SamplingParams:
        """The sampling parameters of the group."""
        return self.group.params

    @property
    def num_output_tokens(self) -> int:
        """Tokens of the completion, those in flight included."""
        return len(self.output_ids) + self.num_placeholders

    @property
    def num_readable(self) -> int:
        """Tokens that a reader can get: those whose text is known. The last token has none if the tokenizer failed."""
        return len(self.output_ids if self.texts is None else self.texts)

    def restart(self, tokenizer: PreTrainedTokenizerBase) -> None:
        """Keep the tokens, and make everything else from them: nothing is in the cache."""
        params = self.params
        self.has_begun = False
        self.num_computed_tokens = self.num_placeholders = 0
        self.blocks, self.swapped, self.block_hashes = [], [], []
        self.processor = self.group.rules.processor(self) if self.group.rules else None
        self.detokenizer = self.texts = None
        if params.detokenize and (params.stop or self.group.is_streamed):
            self.texts = []
            self.detokenizer = IncrementalDetokenizer(
                tokenizer, params.stop, options=self.group.decode_options(tokenizer),
                min_tokens=params.min_tokens, include_stop=params.include_stop_str_in_output,
            )  # fmt: skip
        if params.logprobs is not None:
            self.logprobs = (self.logprobs or [])[: len(self.output_ids)]
        self.finish_reason = self.stop_reason = None
        for place, token in enumerate(self.output_ids, 1):
            self.finish_reason = self.reason_to_finish() if place == len(self.output_ids) else None
            self.read(token)

    def read(self, token: int) -> None:
        """Append a new token to the text. A stop string in it ends the completion."""
        if self.detokenizer is None or self.texts is None:
            return
        is_shown = token not in self.stop_token_ids or self.params.include_stop_str_in_output
        text = self.detokenizer.add(token) if is_shown else ""
        if self.finish_reason:
            text += self.detokenizer.finish()
        if self.detokenizer.stopped:
            self.finish_reason, self.stop_reason = "stop", self.detokenizer.stop_string
        self.texts.append(text)

    def new_token(self, place: int, tokenizer: PreTrainedTokenizerBase) -> NewToken:
        """A token as a reader gets it.

        Args:
            place: of the token in the completion, from 0.
        """
        is_last = self.finish_reason and place == len(self.output_ids) - 1
        return NewToken(
            self.group.id, self.index, self.output_ids[place], "" if self.texts is None else self.texts[place],
            self.finish_reason if is_last else None, self.logprobs[place] if self.logprobs else None,
            self.reason_of_stop(tokenizer) if is_last else None,
        )  # fmt: skip

    def reason_of_stop(self, tokenizer: PreTrainedTokenizerBase) -> str | int | None:
        """The stop string, or the one of `stop_token_ids`, that ended it."""
        last = self.output_ids[-1] if self.output_ids else None
        if self.stop_reason is None and self.finish_reason == "stop" and last in self.params.stop_token_ids:
            return last if self.params.ignore_eos or last != tokenizer.eos_token_id else None
        return self.stop_reason

    def output(self, tokenizer: PreTrainedTokenizerBase) -> CompletionOutput:
        """The completion as it is returned."""
        params, tokens = self.params, list(self.output_ids)
        if self.detokenizer:
            text = self.detokenizer.text
        else:
            hides_last = tokens and tokens[-1] in self.stop_token_ids and not params.include_stop_str_in_output
            shown = tokens[:-1] if hides_last else tokens
            text = text_of(tokenizer, shown, self.group.decode_options(tokenizer)) if params.detokenize else ""
        reason = self.reason_of_stop(tokenizer)
        return CompletionOutput(self.index, tokens, text, self.finish_reason, self.logprobs, reason)


@dataclass(eq=False)
class RequestGroup:
    """What a caller asked for: a prompt, and `params.n` completions of it.

    Attributes:
        arrival: when it arrived, in seconds on the engine's clock.
        rules: what changes its logits, or None.
        on_token: called with each NewToken after the step, in the thread that called it.
        is_streamed: whether its text is wanted as it grows.
        is_awaited: whether `generate` or `stream` waits for it, so that `step` doesn't return its output.
        error: why it is to end, if it was cancelled because of an error.
        completions: one Request each. The second and those after it begin once the prompt is computed, and find it in
            the prefix cache.
        num_cached_tokens: see RequestOutput. None until it is admitted.
        admitted_at: when its first step began. None until it is admitted.
        output: what it returned, once it has ended.
    """

    id: str
    prompt_ids: list[int]
    params: SamplingParams
    arrival: float
    rules: Rules | None = None
    on_token: OnToken | None = None
    is_streamed: bool = False
    is_awaited: bool = False
    error: BaseException | None = None
    completions: list[Request] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprobs | None] | None = None
    num_cached_tokens: int | None = None
    admitted_at: float | None = None
    output: RequestOutput | None = None

    def __post_init__(self) -> None:
        if self.params.prompt_logprobs is not None:
            self.prompt_logprobs = [None] * len(self.prompt_ids)

    @property
    def needs_logits(self) -> bool:
        """Whether log-probabilities are wanted."""
        return self.params.logprobs is not None or self.params.prompt_logprobs is not None

    @property
    def needs_host(self) -> bool:
        """Whether no step can be launched before the host has the logits or the token of the one before."""
        return self.needs_logits or self.params.needs_last_token

    @property
    def begun(self) -> list[Request]:
        """The completions that can be served: the first, and all of them once the prompt is computed."""
        return self.completions if self.completions[0].output_ids else self.completions[:1]

    @property
    def is_finished(self) -> bool:
        """Whether all completions have finished."""
        return all(each.finish_reason for each in self.completions)

    def decode_options(self, tokenizer: PreTrainedTokenizerBase) -> dict[str, bool]:
        """How its tokens become text."""
        return decode_options(tokenizer, self.params.skip_special_tokens, self.params.spaces_between_special_tokens)

    def add_prompt_logprobs(self, start: int, logits: torch.Tensor) -> None:
        """Note the log-probabilities of tokens of the prompt. After a preemption they may be there already, and are the
        same.

        Args:
            start: position of the first token that was computed.
            logits: [count, vocabulary], after each token that was computed.
        """
        if self.prompt_logprobs is not None and self.params.prompt_logprobs is not None:
            tokens = self.prompt_ids[start + 1 : start + 1 + len(logits)]
            found = rows_of_logprobs(logits[: len(tokens)], tokens, self.params.prompt_logprobs)
            self.prompt_logprobs[start + 1 : start + 1 + len(tokens)] = found

    def end(self, error: BaseException | None, tokenizer: PreTrainedTokenizerBase) -> None:
        """Set the output. A completion whose text can't be decoded keeps its tokens, and the request has the error."""
        completions = []
        for each in self.completions:
            try:
                completions.append(each.output(tokenizer))
            except Exception as failure:  # of the tokenizer
                error = error or failure
                completions.append(CompletionOutput(each.index, list(each.output_ids), "", each.finish_reason))
        if error:
            drop_frames(error)
        found = self.prompt_logprobs, self.num_cached_tokens or 0
        self.output = RequestOutput(self.id, self.prompt_ids, completions, error, *found)


class TokenReader:
    """The tokens of a request as they come: everything behind a cursor.

    Attributes:
        num_read: for each completion, how many tokens have been read.
        is_read: whether the reader is done with the token that it was given.
    """

    def __init__(self, group: RequestGroup, tokenizer: Any):
        self.group, self.tokenizer = group, tokenizer
        self.num_read = [len(each.output_ids) for each in group.completions]
        self.is_read = True

    @property
    def has_news(self) -> bool:
        """Whether a token hasn't been read."""
        return any(each.num_readable > num for each, num in zip(self.group.completions, self.num_read))

    def peek(self) -> list[NewToken]:
        """The tokens that haven't been read, in the order of the completions."""
        return [
            each.new_token(place, self.tokenizer)
            for each, start in zip(self.group.completions, self.num_read)
            for place in range(start, each.num_readable)
        ]

    def move_on(self, token: NewToken) -> None:
        """The token has been read."""
        self.num_read[token.index] += 1
        self.is_read = True


def drop_frames(error: BaseException) -> None:
    """Replace the traceback of an error by its text, in `error.__notes__`."""
    if error.__traceback__ is not None:
        text = "".join(traceback.format_exception(error))
        notes: list[str] = getattr(error, "__notes__", [])
        error.__dict__["__notes__"] = [*notes, text]
    error.__traceback__ = error.__cause__ = error.__context__ = None
