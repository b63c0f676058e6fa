"""Lesson 12: from a request's tokens to what its caller gets: text, log-probabilities, and the output.

Stop strings end a completion here, since they are found in its text.
"""

import traceback
from typing import Any

from transformers import PreTrainedTokenizerBase

from lessons_lib.engine.detokenizer import IncrementalDetokenizer, decode_options, text_of
from lessons_lib.engine.logprobs import FlatLogprobs
from lessons_lib.engine.outputs import CompletionOutput, NewToken, RequestOutput
from lessons_lib.engine.request import Request, RequestGroup
from lessons_lib.engine.sampling_params import SamplingParams
from lessons_lib.scheduling.scheduler import SchedulerOutput


class OutputProcessor:
    """Makes text, log-probabilities and outputs of the tokens that requests have."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase):
        self.tokenizer = tokenizer

    def restart(self, request: Request) -> None:
        """Rebuild everything that follows from the tokens of a request; see `Request.restart`."""
        request.restart()
        params = request.params
        request.detokenizer = request.texts = None
        if params.detokenize and (params.stop or request.group.is_streamed):
            request.texts = []
            request.detokenizer = IncrementalDetokenizer(
                self.tokenizer, params.stop, options=self._decode_options(params),
                min_tokens=params.min_tokens, include_stop=params.include_stop_str_in_output,
            )  # fmt: skip
        if params.logprobs is not None:
            request.logprobs = (request.logprobs or FlatLogprobs())[: len(request.output_ids)]
        request.finish_reason = None
        for place, token in enumerate(request.output_ids, 1):
            request.finish_reason = request.reason_to_finish() if place == len(request.output_ids) else None
            if self.add_text(request, token):
                request.finish_reason = "stop"

    def note_admitted(self, output: SchedulerOutput, now: float) -> None:
        """Note when requests were admitted, and how many tokens of their prompts were in the cache."""
        for sequence in output.admitted:
            group: RequestGroup = sequence.group  # type: ignore[attr-defined]
            if group.num_cached_tokens is None:  # a preempted sequence is admitted once more
                # Of a resumed request, tokens of the completion may be cached, too.
                cached = min(output.cached.get(sequence, 0), len(group.prompt_ids))
                group.num_cached_tokens, group.admitted_at = cached, now

    def add_text(self, request: Request, token: int) -> bool:
        """Append a new token to the text.

        Returns:
            True if a stop string in it ends a completion that had not finished. Its `finish_reason` is the caller's to
            set, together with what else follows.
        """
        detokenizer, texts = request.detokenizer, request.texts
        if detokenizer is None or texts is None:
            return False
        is_running = not request.finish_reason
        is_shown = token not in request.stop_token_ids or request.params.include_stop_str_in_output
        text = detokenizer.add(token) if is_shown else ""
        if request.finish_reason:
            text += detokenizer.finish()
        texts.append(text)
        if detokenizer.stopped and not is_running:
            request.finish_reason = "stop"
        return is_running and detokenizer.stopped

    def launch_logprobs(self, output: SchedulerOutput, *logits_and_tokens: Any) -> Any:
        """Start to compute log-probabilities, if a request asks for them; see `StepLogprobs.launch`."""
        requests: dict[Any, int] = output.num_scheduled_tokens
        if not any(each.params.needs_logits for each in requests):
            return None
        from lessons_lib.engine.step_logprobs import StepLogprobs  # only here: few requests ask for them

        return StepLogprobs.launch(output, *logits_and_tokens)

    def new_token(self, request: Request, place: int) -> NewToken:
        """Make a NewToken.

        Args:
            place: of the token in the completion, from 0.
        """
        is_last = request.finish_reason and place == len(request.output_ids) - 1
        return NewToken(
            request.group.id, request.index, request.output_ids[place],
            "" if request.texts is None else request.texts[place],
            request.finish_reason if is_last else None, request.logprobs[place] if request.logprobs else None,
            self._stop_reason(request) if is_last else None,
        )  # fmt: skip

    def end(self, group: RequestGroup, error: BaseException | None) -> RequestOutput:
        """Set the output, and return it. A completion whose text can't be decoded keeps its tokens, and the request has
        the error."""
        completions = []
        for each in group.completions:
            try:
                completions.append(self._completion(each))
            except Exception as failure:  # of the tokenizer
                error = error or failure
                completions.append(CompletionOutput(each.index, list(each.output_ids), "", each.finish_reason))
        if error:
            drop_frames(error)
        found = group.prompt_logprobs, group.num_cached_tokens or 0
        group.output = output = RequestOutput(group.id, group.prompt_ids, completions, error, *found)
        return output

    def _completion(self, request: Request) -> CompletionOutput:
        params, tokens = request.params, list(request.output_ids)
        if request.detokenizer:
            text = request.detokenizer.text
        else:
            hides_last = tokens and tokens[-1] in request.stop_token_ids and not params.include_stop_str_in_output
            shown = tokens[:-1] if hides_last else tokens
            text = text_of(self.tokenizer, shown, self._decode_options(params)) if params.detokenize else ""
        # There is one more if the step failed after it was computed.
        logprobs = request.logprobs and request.logprobs[: len(tokens)]
        found = self._stop_reason(request), request.num_draft_tokens, request.num_accepted_tokens
        return CompletionOutput(request.index, tokens, text, request.finish_reason, logprobs, *found)

    def _stop_reason(self, request: Request) -> str | int | None:
        """The stop string, or the one of `stop_token_ids`, that ended it."""
        if request.detokenizer and request.detokenizer.stopped:
            return request.detokenizer.stop_string
        last = request.output_ids[-1] if request.output_ids else None
        is_named = request.finish_reason == "stop" and last in request.params.stop_token_ids
        return last if is_named and (request.params.ignore_eos or last != self.tokenizer.eos_token_id) else None

    def _decode_options(self, params: SamplingParams) -> dict[str, bool]:
        return decode_options(self.tokenizer, params.skip_special_tokens, params.spaces_between_special_tokens)


class TokenReader:
    """The tokens of a request as they come: everything behind a cursor.

    Attributes:
        num_read: for each completion, how many tokens have been read.
        is_read: whether the reader is done with the token that it was given.
    """

    def __init__(self, group: RequestGroup, outputs: OutputProcessor):
        self.group, self.outputs = group, outputs
        self.num_read = [len(each.output_ids) for each in group.completions]
        self.is_read = True

    @property
    def has_news(self) -> bool:
        """True if a token hasn't been read."""
        return any(self._num_readable(each) > num for each, num in zip(self.group.completions, self.num_read))

    def peek(self) -> list[NewToken]:
        """The tokens that haven't been read, in the order of the completions."""
        return [
            self.outputs.new_token(each, place)
            for each, start in zip(self.group.completions, self.num_read)
            for place in range(start, self._num_readable(each))
        ]

    @staticmethod
    def _num_readable(request: Request) -> int:
        # Those whose text is known. The last token has none if the tokenizer failed.
        return len(request.output_ids if request.texts is None else request.texts)

    def move_on(self, token: NewToken) -> None:
        """Move the cursor behind a token that was read."""
        self.num_read[token.index] += 1
        self.is_read = True


def drop_frames(error: BaseException) -> None:
    """Replace the traceback of an error by its text, in `error.__notes__`."""
    if error.__traceback__ is not None:
        text = "".join(traceback.format_exception(error))
        error.add_note(text)
    error.__traceback__ = error.__cause__ = error.__context__ = None
