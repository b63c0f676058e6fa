"""Lesson 14: text is made where it is read.

Decoding each token is work for the reader's side: the engine's next step needn't wait for it. Only a request with stop
strings needs its text inside the engine, which must know where to stop.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from lessons_lib.engine.detokenizer import IncrementalDetokenizer, decode_options, text_of
from lessons_lib.engine.llm_engine import LLMEngine
from lessons_lib.engine.outputs import CompletionOutput, NewToken
from lessons_lib.engine.sampling_params import SamplingParams


@dataclass(frozen=True)
class TextRules:
    """Rules for turning the tokens of a request into text.

    Attributes:
        options: for `tokenizer.decode`.
        shows_stop_token: a token that ends a completion is part of its text.
    """

    options: dict[str, bool]
    shows_stop_token: bool

    @classmethod
    def of(cls, params: SamplingParams, engine: LLMEngine) -> "TextRules | None":
        """None if the reader has nothing to do: no text is wanted, or the engine must make it."""
        if not params.detokenize or params.stop or engine.fit.defaults.stop:
            return None
        options = decode_options(engine.tokenizer, params.skip_special_tokens, params.spaces_between_special_tokens)
        return cls(options, params.include_stop_str_in_output)


class StreamText:
    """Makes the text of one request as `LLMEngine` would: of its tokens as they are read, and of its completions when
    they have ended. If another engine has begun its only completion, the reader has the text of the `known` tokens."""

    def __init__(self, tokenizer: Any, rules: TextRules, known: Sequence[int] = ()):
        self.tokenizer, self.rules, self.known = tokenizer, rules, known
        self._detokenizers: dict[int, IncrementalDetokenizer] = {}
        self._finished: set[int] = set()

    def add_to(self, tokens: Iterable[NewToken]) -> list[NewToken]:
        """The same tokens with their text."""
        return [self._with_text(token) for token in tokens]

    def add_to_end(self, completion: CompletionOutput) -> CompletionOutput:
        """The same completion with its text."""
        if completion.index in self._finished:  # its reader has read all of it
            return replace(completion, text=self._detokenizers[completion.index].text)
        count = len(completion.token_ids) - self._hides_last(completion.finish_reason)
        return replace(completion, text=text_of(self.tokenizer, completion.token_ids[:count], self.rules.options))

    def _with_text(self, token: NewToken) -> NewToken:
        request_id, index, token_id, _, finish_reason, logprobs, stop_reason = token
        detokenizer = self._detokenizers.get(index) or self._begin(index)
        text = "" if self._hides_last(finish_reason) else detokenizer.add(token_id)
        if finish_reason:
            text += detokenizer.finish()
            self._finished.add(index)
        return NewToken(request_id, index, token_id, text, finish_reason, logprobs, stop_reason)

    def _hides_last(self, finish_reason: str | None) -> bool:
        # There are no stop strings, so its last token has stopped it.
        return finish_reason == "stop" and not self.rules.shows_stop_token

    def _begin(self, index: int) -> IncrementalDetokenizer:
        detokenizer = self._detokenizers[index] = IncrementalDetokenizer(self.tokenizer, options=self.rules.options)
        for token in self.known:
            detokenizer.add(token)
        return detokenizer
