"""Lesson 12: the rules of a request, what changes logits before a token is chosen. `rules_state` applies them."""

from collections.abc import Collection
from collections.abc import Sequence as ListOf
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from lessons_lib.engine.guided import unpacked
from lessons_lib.engine.rules import NEVER, NO_TOKEN_ALLOWED, RulesMemory
from lessons_lib.engine.sampling_params import SamplingParams
from lessons_lib.models.validate import BadRequest, shortened
from lessons_lib.scheduling.sequence import Sequence

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from lessons_lib.engine.guided import Grammar, GrammarState


def last_tokens_of_bad_words(output_ids: ListOf[int], bad_words: ListOf[ListOf[int]]) -> list[int]:
    """The tokens that would complete a bad word. Words are looked for in the completion, not in the prompt."""
    return [word[-1] for word in bad_words if len(word) == 1 or list(output_ids[-(len(word) - 1) :]) == list(word[:-1])]


@dataclass(frozen=True)
class LogitsRules:
    """The rules of a request in tokens, checked once, when it is added.

    Attributes:
        memory: shared by the completions of an engine, see `rules_state`.
        bad_words: each a list of tokens.
        grammar: the form that the text must have, or None.
        end_token: ends a completion whose rules leave no other token; None if the tokenizer has none.
    """

    params: SamplingParams
    memory: RulesMemory
    bad_words: tuple[tuple[int, ...], ...] = ()
    grammar: "Grammar | None" = None
    end_token: int | None = None

    @property
    def penalties(self) -> tuple[float, float, float]:
        """The repetition, presence and frequency penalty."""
        params = self.params
        return params.repetition_penalty, params.presence_penalty, params.frequency_penalty

    @cached_property
    def has_penalties(self) -> bool:
        """True if tokens are counted."""
        return self.penalties != (1, 0, 0)

    @cached_property
    def has_biases(self) -> bool:
        """True if something is added to logits in each step."""
        bans = any(len(word) == 1 for word in self.bad_words)
        return bool(self.params.logit_bias or self.params.allowed_token_ids or bans)

    @cached_property
    def looks_at_tokens(self) -> bool:
        """True if the tokens that can follow are found on the host."""
        return self.grammar is not None or any(len(word) > 1 for word in self.bad_words)

    def processor(self, sequence: Sequence) -> "LogitsProcessor":
        """The rules, for a completion that grows with a sequence."""
        return LogitsProcessor(self, sequence)


def rules_of(
    params: SamplingParams, stop_token_ids: Collection[int], *,
    tokenizer: "PreTrainedTokenizerBase", vocab_size: int, memory: RulesMemory,
) -> LogitsRules | None:  # fmt: skip
    """The rules of a request; None if it has none.

    Args:
        stop_token_ids: tokens that `min_tokens` keeps away.

    Raises:
        BadRequest: a token is outside the vocabulary, `structured_outputs` can't be used, or the rules leave no token
            to begin with. If they leave none later, the completion gets the end token.
    """
    for name in ("stop_token_ids", "allowed_token_ids", "logit_bias"):
        outside = [token for token in getattr(params, name) or () if token >= vocab_size]
        if outside:
            raise BadRequest(
                f"{name} contains token id {shortened(outside[0])}; the vocabulary has ids 0 to {vocab_size - 1}. "
                "Leave it out."
            )
    if len(params.allowed_token_ids or ()) > vocab_size:
        raise BadRequest(
            f"allowed_token_ids has {len(params.allowed_token_ids or ())} values; the vocabulary has {vocab_size} "
            "tokens. Name each once."
        )
    if not params.changes_logits:
        return None
    form = params.structured_outputs
    if form:
        form.check_with(params)
    grammar = form.compiled(tokenizer, vocab_size) if form else None
    bad_words = tokens_of_bad_words(params.bad_words, tokenizer)
    end_token = getattr(tokenizer, "eos_token_id", None)
    begin: dict[str, torch.Tensor] = {}  # field -> the tokens that it lets a completion begin with
    if params.allowed_token_ids is not None:
        begin["allowed_token_ids"] = mask_of(params.allowed_token_ids, vocab_size)
    if banned := [word[0] for word in bad_words if len(word) == 1]:
        begin["bad_words"] = ~mask_of(banned, vocab_size)
    if params.min_tokens:
        name = "min_tokens and stop_token_ids" if params.stop_token_ids else "min_tokens"
        begin[name] = ~mask_of(stop_token_ids, vocab_size)
    if grammar:
        texts = begin["structured_outputs"] = unpacked(grammar.begin().allowed((), vocab_size), vocab_size)
        if not (texts & ~mask_of([] if end_token is None else [end_token], vocab_size)).any():
            raise BadRequest("structured_outputs matches no text, or only the empty one; correct the rule.")
    if fields := guilty(begin):
        raise BadRequest(f"{' and '.join(fields)} leave no token to begin with; loosen one of them.")
    return LogitsRules(params, memory, bad_words, grammar, end_token)


def mask_of(token_ids: Collection[int], vocab_size: int) -> torch.Tensor:
    """A mask of tokens: bool tensor [vocabulary]."""
    mask = torch.zeros(vocab_size, dtype=torch.bool)
    mask[[token for token in token_ids if token < vocab_size]] = True
    return mask


def guilty(allowed: dict[str, torch.Tensor]) -> list[str]:
    """Find the fewest fields that leave no token together; none if all of them leave one.

    Args:
        allowed: field -> mask of the tokens that it allows.
    """

    def leave_none(fields: list[str]) -> bool:
        return bool(fields) and not torch.stack([allowed[each] for each in fields]).all(dim=0).any()

    fields = [*allowed]
    if not leave_none(fields):
        return []
    for name in allowed:
        if leave_none(others := [each for each in fields if each != name]):
            fields = others
    return fields


def tokens_of_bad_words(words: ListOf[str], tokenizer: "PreTrainedTokenizerBase") -> tuple[tuple[int, ...], ...]:
    """The tokens of each word, as it is written at the beginning of a text and behind a space."""
    texts = [prefix + word.lstrip() for word in words for prefix in ("", " ")]
    encoded = [tuple(tokenizer.encode(text, add_special_tokens=False)) for text in texts]
    return tuple(dict.fromkeys(filter(None, encoded)))


@dataclass(eq=False)
class LogitsProcessor:
    """The rules of a request, applied to one of its completions.

    Attributes:
        sequence: the prompt, and the completion as it grows.
        grammar_state: the place in the grammar that the text has reached.
        error: the reason why no token could be chosen.
    """

    rules: LogitsRules
    sequence: Sequence
    error: Exception | None = None
    grammar_state: "GrammarState | None" = field(init=False)

    def __post_init__(self) -> None:
        self.grammar_state = self.rules.grammar.begin() if self.rules.grammar else None

    @property
    def end_token(self) -> int:
        """The token to choose where the rules leave none: NO_TOKEN_ALLOWED if a rule has failed, or nothing can end the
        completion."""
        # A user's function that leaves nothing has a fault, which its author should see.
        if self.error or self.rules.params.logits_processors:
            return NO_TOKEN_ALLOWED
        if self.rules.end_token is not None:
            return self.rules.end_token
        return min(self.sequence.stop_token_ids, default=NO_TOKEN_ALLOWED)

    def check(self, vocab_size: int) -> None:
        """Refuse a completion that another engine began and that doesn't match the grammar.

        Raises:
            BadRequest: nothing can follow it.
        """
        output_ids = self.sequence.output_ids
        if self.grammar_state and not self.grammar_state.allowed(output_ids, vocab_size).any():
            raise BadRequest("output_ids don't match the request's structured_outputs; leave out one of them.")

    @property
    def memory(self) -> RulesMemory:
        """See LogitsRules."""
        return self.rules.memory

    @property
    def needs_host(self) -> bool:
        """See Processor."""
        return self.looks_at_tokens or bool(self.rules.params.logits_processors)

    @property
    def looks_at_tokens(self) -> bool:
        """See LogitsRules."""
        return self.rules.looks_at_tokens

    def missing_tokens(self, position: int) -> int:
        """Number of tokens that a completion with `position` tokens still needs before `min_tokens` allows its end."""
        return self.rules.params.min_tokens - position

    def biases(self, is_beginning: bool, vocab_size: int) -> tuple[float, dict[int, float]]:
        """The amounts added to logits: first to those of all tokens that aren't named, then to some by their ids."""
        params, others = self.rules.params, 0.0
        added = dict(params.logit_bias or {})
        if params.allowed_token_ids is not None:
            others, added = NEVER, {token: added.get(token, 0.0) for token in params.allowed_token_ids}
        banned = {word[0] for word in self.rules.bad_words if len(word) == 1}
        banned |= self.sequence.stop_token_ids if is_beginning else set()
        return others, added | dict.fromkeys((token for token in banned if token < vocab_size), NEVER)

    def after_functions(self, logits: torch.Tensor) -> torch.Tensor:
        """The logits, float32 [vocabulary], after the user's functions. They may be changed in place.

        Raises:
            TypeError: a function doesn't return logits.
        """
        sequence = self.sequence
        for function in self.rules.params.logits_processors:
            logits = _checked(function(list(sequence.prompt_ids), list(sequence.output_ids), logits), logits)
        return logits

    def mask(self, vocab_size: int) -> "np.ndarray[Any, Any]":
        """The tokens that the grammar and bad words of several tokens allow: a bit for each, int32 [words]."""
        output_ids = self.sequence.output_ids
        if self.grammar_state:
            allowed = self.grammar_state.allowed(output_ids, vocab_size)
        else:
            allowed = np.full(-(-vocab_size // 32), -1, np.int32)
        banned = np.array(last_tokens_of_bad_words(output_ids, self.rules.bad_words), np.int64)
        np.bitwise_and.at(allowed, banned // 32, ~(1 << banned % 32).astype(np.int32))
        return allowed


def _checked(result: object, logits: torch.Tensor) -> torch.Tensor:
    if not isinstance(result, torch.Tensor) or result.shape != logits.shape:
        what = list(result.shape) if isinstance(result, torch.Tensor) else type(result).__name__
        raise TypeError(f"a logits processor returned {what}; it must return logits, a tensor {list(logits.shape)}.")
    return result
