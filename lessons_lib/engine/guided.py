"""Lesson 12: completions that match a regular expression, a JSON schema or a grammar.

A parser, llguidance's, follows the completion token by token. Before each token, it says which ones can be next; all
others get a probability of 0.
"""

import json
import re
import time
from collections import deque
from collections.abc import Sequence as ListOf
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary, WeakValueDictionary

import numpy as np
import torch

from lessons_lib.engine.grammar_process import LIMITS, GrammarProcess
from lessons_lib.models.validate import shortened

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

MAX_ERROR = 500  # characters: llguidance quotes the line, which may be the whole grammar
# CPU time that the masks of a completion may take, and for each of its tokens. A grammar that can read the same text in
# many ways takes ever longer, and all requests of a step wait for it.
MASK_SECONDS, MASK_SECONDS_PER_TOKEN = 0.25, 0.01


class Vocabulary:
    """The parser's knowledge of a tokenizer, which takes a second to build, and the grammars compiled for it.

    Attributes:
        parsers: a llguidance.LLTokenizer.
        process: compiles each grammar first.
        grammars: those in use, and the newest ones, by their texts.
    """

    def __init__(self, tokenizer: "PreTrainedTokenizerBase", size: int):
        known = text_only(tokenizer)
        # Tokens that only the model has, as padding of its last layer, are never allowed.
        self.parsers = import_module("llguidance").LLTokenizer(known, n_vocab=size, eos_token=tokenizer.eos_token_id)
        self.process = GrammarProcess([known, size, tokenizer.eos_token_id])
        self.grammars: WeakValueDictionary[str, Grammar] = WeakValueDictionary()
        self.newest: deque[Grammar] = deque(maxlen=32)

    @classmethod
    def of(cls, tokenizer: "PreTrainedTokenizerBase", size: int) -> "Vocabulary":
        """The vocabulary of this tokenizer; built once."""
        sizes = _vocabularies.setdefault(tokenizer, {})
        if size not in sizes:
            sizes[size] = cls(tokenizer, size)
        return sizes[size]

    def grammar(self, text: str) -> "Grammar":
        """Compile a grammar: in the other process, and if that survives it, here, where a thread that does so lets
        others run.

        Raises:
            ValueError: it can't be compiled.
        """
        if (known := self.grammars.get(text)) is not None:
            return known
        if error := self.process.error_of(text):
            raise ValueError(error)
        llguidance = import_module("llguidance")
        limits = llguidance.LLParserLimits(**LIMITS)
        parser = llguidance.LLMatcher(self.parsers, text, log_level=0, limits=limits)
        parser.compute_bitmask()  # the first one takes longest; copies of the parser have it
        if parser.is_error():
            raise ValueError(parser.get_error().strip())
        grammar = self.grammars[text] = Grammar(parser)
        self.newest.append(grammar)
        return grammar


_vocabularies: "WeakKeyDictionary[Any, dict[int, Vocabulary]]" = WeakKeyDictionary()


@dataclass(eq=False)
class Grammar:
    """Structured outputs of one request, compiled for a tokenizer. The first parser is copied, never used."""

    first: Any

    def begin(self) -> "GrammarState":
        """A completion that has no tokens yet."""
        return GrammarState(self)


class GrammarState:
    """The place in its grammar that a completion has reached."""

    def __init__(self, grammar: Grammar):
        self.grammar = grammar
        # (parser, how many tokens it has seen). None while it reads, so that an interrupt there leads to a new parser.
        self._seen: tuple[Any, int] | None = None
        self._seconds = 0.0

    def allowed(self, output_ids: ListOf[int], size: int) -> "np.ndarray[Any, Any]":
        """Find the tokens that can follow a completion.

        Args:
            output_ids: all its tokens.
            size: of the vocabulary.

        Returns:
            a bit for each, int32 [size / 32 rounded up]. If the text is complete, the end token is among them. None is
            left if the completion doesn't match, or if the parser has reached one of its limits or takes too long.
        """
        start = time.thread_time()
        parser, count = self._seen or (self.grammar.first.deep_copy(), 0)
        self._seen = None
        parser.consume_tokens(list(output_ids[count:]))
        bits = np.frombuffer(parser.compute_bitmask(), dtype=np.int32)
        self._seconds += time.thread_time() - start
        allowed = np.zeros(-(-size // 32), dtype=np.int32)
        self._seen = parser, len(output_ids)
        if parser.is_error() or self._seconds > MASK_SECONDS + MASK_SECONDS_PER_TOKEN * len(output_ids):
            return allowed
        allowed[: len(bits)] = bits[: len(allowed)]
        return allowed


def unpacked(bits: "np.ndarray[Any, Any]", size: int) -> torch.Tensor:
    """Bits, int32, as a mask: bool tensor [size]."""
    return torch.from_numpy(np.unpackbits(bits.view(np.uint8), bitorder="little", count=size).astype(np.bool_))


def text_only(tokenizer: "PreTrainedTokenizerBase") -> str:
    """The tokenizer as JSON, with special tokens under names that no text contains. Where only one text can follow,
    llguidance allows the tokens that the tokenizer makes of it: for the text of the end token, the end token.

    Raises:
        ValueError: the tokenizer has no such form.
    """
    backend: Any = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        raise ValueError("only fast tokenizers, which the tokenizers library runs, can be followed.")
    known = json.loads(backend.to_str())
    names = {each["content"]: f"\ufdd0{each['content']}" for each in known["added_tokens"] if each["special"]}
    model = known["model"]
    for each in known["added_tokens"]:
        each["content"] = names.get(each["content"], each["content"])
    vocab = model["vocab"]
    if isinstance(vocab, dict):
        model["vocab"] = {names.get(text, text): token for text, token in vocab.items()}
    else:  # of Unigram: pairs of text and score
        model["vocab"] = [[names.get(text, text), score] for text, score in vocab]
    if model.get("unk_token") in names:
        model["unk_token"] = names[model["unk_token"]]
    return json.dumps(known | {"padding": None, "truncation": None})


def in_one_line(error: str) -> str:
    """Shorten llguidance's message to MAX_ERROR characters; of an invalid regex, keep the fault and its place."""
    if "NoExtensionBias" in error:  # its word for a rule in which no text can ever end, such as one that is itself
        return "it matches no text; correct the rule."
    found = re.search(r"regex parse error:\n    (.*)\n    ( *)\^+.*\nerror: (.*)", error)
    if found:
        return f"the regex {shortened(found[1])} is invalid at character {len(found[2]) + 1}: {found[3].strip()}."
    line = " ".join(error.split())
    return line if len(line) <= MAX_ERROR else f"{line[:MAX_ERROR]}…"


@cache
def compiling_thread() -> ThreadPoolExecutor:
    """The thread that compiles grammars while the engine's loop goes on."""
    return ThreadPoolExecutor(1, thread_name_prefix="grammar")
