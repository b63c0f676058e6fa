"""Lesson 12: completions that match a regular expression, a JSON schema or a grammar.

A parser follows the completion token by token. Before each token, it says which ones can be next; all others get a
probability of 0. The parser is llguidance's, an optional dependency.
"""

import json
import re
from collections.abc import Sequence as ListOf
from importlib import import_module
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import numpy as np
import torch

from lessons_lib.engine.sampling_params import StructuredOutputsParams, told
from lessons_lib.models.prompts import BadRequest

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

# Otherwise a model may write spaces and new lines between two parts until it has no tokens left.
AS_PYTHON_WRITES_IT = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}

# What the parser knows of a tokenizer takes a second to build.
_vocabularies: "WeakKeyDictionary[Any, dict[int, Any]]" = WeakKeyDictionary()


class Grammar:
    """Structured outputs of one request, compiled for a tokenizer.

    Attributes:
        first: a parser at the beginning of the text; it is copied, never used.
    """

    def __init__(self, first: Any):
        self.first = first

    @classmethod
    def of(cls, rules: StructuredOutputsParams, tokenizer: "PreTrainedTokenizerBase", vocab_size: int) -> "Grammar":
        """
        Raises:
            BadRequest: llguidance isn't installed, can't use the tokenizer, or can't compile the rules.
        """
        try:
            llguidance = import_module("llguidance")
        except ImportError as error:
            raise BadRequest(
                "structured_outputs needs llguidance, which isn't installed. Run `pip install llguidance`."
            ) from error
        try:
            first = llguidance.LLMatcher(_vocabulary(tokenizer, vocab_size), _compiled(llguidance.LLMatcher, rules))
        except Exception as error:
            raise BadRequest(f"structured_outputs can't be used: {error}") from error
        if first.is_error():
            raise BadRequest(f"structured_outputs can't be used: {in_one_line(first.get_error())}")
        return cls(first)

    def begin(self) -> "GrammarState":
        """A completion that has no tokens yet."""
        return GrammarState(self)


class GrammarState:
    """How far one completion is in its grammar."""

    def __init__(self, grammar: Grammar):
        self.grammar = grammar
        # (parser, how many tokens it has seen). None while it reads, so that an interrupt there leads to a new parser.
        self._seen: tuple[Any, int] | None = None

    def allowed(self, output_ids: ListOf[int], size: int) -> torch.Tensor:
        """Which tokens can follow a completion.

        Args:
            output_ids: all its tokens.
            size: of the vocabulary.

        Returns:
            bool tensor [size], on the CPU. If the text is complete, the end token is among them. None is left if the
            completion doesn't match, or if the parser has reached one of its limits.
        """
        parser, count = self._seen or (self.grammar.first.deep_copy(), 0)
        self._seen = None
        parser.consume_tokens(list(output_ids[count:]))
        bits = np.frombuffer(parser.compute_bitmask(), dtype=np.uint8)
        allowed = torch.zeros(size, dtype=torch.bool)
        self._seen = parser, len(output_ids)
        if parser.is_error():
            return allowed
        known = np.unpackbits(bits, bitorder="little")[:size]
        allowed[: len(known)] = torch.from_numpy(known.astype(np.bool_))
        return allowed


def in_one_line(error: str) -> str:
    """llguidance's message; of an invalid regex, what is wrong with it and where."""
    found = re.search(r"regex parse error:\n    (.*)\n    ( *)\^+.*\nerror: (.*)", error)
    if found:
        return f"the regex {told(found[1])} is invalid at character {len(found[2]) + 1}: {found[3].strip()}."
    return " ".join(error.split())


def _compiled(matcher: Any, rules: StructuredOutputsParams) -> Any:
    if rules.json is not None:
        return matcher.grammar_from_json_schema(rules.json, defaults=AS_PYTHON_WRITES_IT)
    if rules.regex is not None:
        return matcher.grammar_from_regex(rules.regex)
    if rules.choice is not None:
        return matcher.grammar_from_lark("start: " + " | ".join(json.dumps(text) for text in rules.choice))
    if rules.grammar is not None:
        return matcher.grammar_from_lark(rules.grammar)
    return matcher.grammar_from_json_schema({"type": "object"}, defaults=AS_PYTHON_WRITES_IT)


def _vocabulary(tokenizer: "PreTrainedTokenizerBase", vocab_size: int) -> Any:
    sizes = _vocabularies.setdefault(tokenizer, {})
    if vocab_size not in sizes:
        # Tokens that only the model has, as padding of its last layer, are never allowed.
        sizes[vocab_size] = import_module("llguidance.hf").from_tokenizer(tokenizer, vocab_size)
    return sizes[vocab_size]
