"""Lesson 14: text is made where it is read.

The engine sends tokens; their text, a decode for each of them, is work for the reader's side: the engine's next step
needn't wait for it. Only a request with stop strings needs its text inside the engine, which must know where to stop.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from lessons_lib.engine.detokenizer import IncrementalDetokenizer
from lessons_lib.engine.outputs import EngineRequest, NewToken


@dataclass(frozen=True)
class TextRules:
    """How the tokens of a request become text.

    Attributes:
        options: for `tokenizer.decode`.
        shows_stop_token: whether a token that ends a completion is part of its text.
    """

    options: dict[str, bool]
    shows_stop_token: bool

    @classmethod
    def of(cls, request: EngineRequest, tokenizer: Any) -> "TextRules | None":
        """None if the reader has nothing to do: no text is wanted, or the engine has made it."""
        params = request.params
        if not params.detokenize or params.stop:
            return None
        return cls(request.decode_options(tokenizer), params.include_stop_str_in_output)


class StreamText:
    """Adds the text to the tokens of one request while they are read.

    The text is the one that `LLMEngine` makes for `on_token`.
    """

    def __init__(self, tokenizer: Any, rules: TextRules, known: Iterable[int] = ()):
        """
        Args:
            known: tokens that the reader has already, if another engine has begun the completion. There is only one.
        """
        self.tokenizer, self.rules = tokenizer, rules
        self._detokenizers: dict[int, IncrementalDetokenizer] = {}
        for token in known:
            self._detokenizer(0).add(token)

    def add_to(self, tokens: list[NewToken]) -> list[NewToken]:
        """The same tokens with their text."""
        return [self._with_text(token) for token in tokens]

    def _with_text(self, token: NewToken) -> NewToken:
        request_id, index, token_id, _, finish_reason, logprobs, stop_reason = token
        detokenizer = self._detokenizer(index)
        # There are no stop strings, so what has stopped it is this token.
        is_shown = finish_reason != "stop" or self.rules.shows_stop_token
        text = detokenizer.add(token_id) if is_shown else ""
        if finish_reason:
            text += detokenizer.finish()
        return NewToken(request_id, index, token_id, text, finish_reason, logprobs, stop_reason)

    def _detokenizer(self, index: int) -> IncrementalDetokenizer:
        found = self._detokenizers.get(index)
        if found is None:
            found = self._detokenizers[index] = IncrementalDetokenizer(self.tokenizer, options=self.rules.options)
        return found
