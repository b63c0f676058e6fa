"""Lesson 12: what changes the logits of one sequence before its next token is chosen.

Each rule looks at the tokens that the sequence has, and keeps nothing between two steps. So a sequence that was
preempted, or is one of several completions of a prompt, needs nothing special.
"""

from collections import Counter
from collections.abc import Collection
from collections.abc import Sequence as ListOf
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

import torch

from lessons_lib.engine.rules import NEVER, NO_TOKEN_ALLOWED, to_device
from lessons_lib.engine.sampling_params import SamplingParams
from lessons_lib.models.validate import BadRequest, shortened
from lessons_lib.scheduling.sequence import Sequence

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from lessons_lib.engine.guided import Grammar, GrammarState


def penalize_repetition(logits: torch.Tensor, token_ids: ListOf[int], penalty: float) -> None:
    """Make tokens that the prompt or the completion contains less likely: divide what is positive, multiply what is
    negative (Keskar et al. 2019)."""
    index = to_device(sorted(set(token_ids)), logits)
    own = logits[index]
    logits[index] = torch.where(own > 0, own / penalty, own * penalty)


def penalize_presence(logits: torch.Tensor, output_ids: ListOf[int], presence: float, frequency: float) -> None:
    """OpenAI's penalties: for each token of the completion, subtract `presence` once and `frequency` each time that it
    occurs."""
    counts = Counter(output_ids)
    amounts = [presence + frequency * count for count in counts.values()]
    logits[to_device([*counts], logits)] -= to_device(amounts, logits).to(logits.dtype)


def add_bias(logits: torch.Tensor, bias: dict[int, float]) -> None:
    """Add a bias to the logit of each token of the dict."""
    logits[to_device([*bias], logits)] += to_device([*bias.values()], logits).to(logits.dtype)


def ban(logits: torch.Tensor, token_ids: ListOf[int]) -> None:
    """Exclude tokens from the draw."""
    if token_ids:
        logits.index_fill_(0, to_device([*token_ids], logits), NEVER)


def allow_only(logits: torch.Tensor, token_ids: torch.Tensor) -> None:
    """Exclude all other tokens from the draw."""
    index = token_ids.to(logits.device, non_blocking=True)
    own = logits[index]
    logits.fill_(NEVER)
    logits[index] = own


def last_tokens_of_bad_words(output_ids: ListOf[int], bad_words: ListOf[ListOf[int]]) -> list[int]:
    """The tokens that would complete a bad word. Words are looked for in the completion, not in the prompt."""
    return [word[-1] for word in bad_words if len(word) == 1 or list(output_ids[-(len(word) - 1) :]) == list(word[:-1])]


@dataclass(frozen=True)
class LogitsRules:
    """The rules of a request in tokens, checked once, when it is added.

    Attributes:
        bad_words: each a list of tokens.
        grammar: the form that the text must have, or None.
        end_token: ends a completion whose rules leave no other token; None if the tokenizer has none.
    """

    params: SamplingParams
    bad_words: tuple[tuple[int, ...], ...] = ()
    grammar: "Grammar | None" = None
    end_token: int | None = None

    @cached_property
    def allowed_token_ids(self) -> torch.Tensor:
        """Those of `params`, made a tensor once: there may be as many as the vocabulary has, in each step."""
        ids = torch.tensor(self.params.allowed_token_ids)
        return ids.pin_memory() if torch.cuda.is_available() else ids

    def processor(self, sequence: Sequence) -> "LogitsProcessor":
        """The rules, for a completion that grows with a sequence."""
        return LogitsProcessor(self, sequence)


def rules_of(
    params: SamplingParams, stop_token_ids: Collection[int], *, tokenizer: "PreTrainedTokenizerBase", vocab_size: int
) -> LogitsRules | None:
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
        texts = begin["structured_outputs"] = grammar.begin().allowed((), vocab_size)
        if not (texts & ~mask_of([] if end_token is None else [end_token], vocab_size)).any():
            raise BadRequest("structured_outputs matches no text, or only the empty one; correct the rule.")
    if fields := guilty(begin):
        raise BadRequest(f"{' and '.join(fields)} leave no token to begin with; loosen one of them.")
    return LogitsRules(params, bad_words, grammar, end_token)


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


@dataclass
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

    def __call__(self, logits: torch.Tensor, position: int) -> torch.Tensor:
        """Apply the rules, in vLLM's order: functions of the user's, allowed tokens, bad words, min_tokens, bias,
        penalties. The grammar comes last, so that nothing overrules it. Temperature and cuts follow in
        `choose_tokens`.

        Args:
            logits: float32 [vocabulary]; may be changed in place.
            position: number of tokens of the completion. Some of them may be in flight, if no rule needs their ids.
        """
        params, prompt_ids, output_ids = self.rules.params, self.sequence.prompt_ids, self.sequence.output_ids
        for function in params.logits_processors:
            logits = _checked(function(list(prompt_ids), list(output_ids), logits), logits)
        if params.allowed_token_ids is not None:
            allow_only(logits, self.rules.allowed_token_ids)
        ban(logits, last_tokens_of_bad_words(output_ids, self.rules.bad_words))
        if position < params.min_tokens:
            ban(logits, [*self.sequence.stop_token_ids])
        if params.logit_bias:
            add_bias(logits, params.logit_bias)
        if params.repetition_penalty != 1:
            penalize_repetition(logits, [*prompt_ids, *output_ids], params.repetition_penalty)
        if output_ids and (params.presence_penalty or params.frequency_penalty):
            penalize_presence(logits, output_ids, params.presence_penalty, params.frequency_penalty)
        if self.grammar_state:
            allowed = self.grammar_state.allowed(output_ids, len(logits))
            logits.masked_fill_(~allowed.to(logits.device), NEVER)
        return logits


def _checked(result: object, logits: torch.Tensor) -> torch.Tensor:
    if not isinstance(result, torch.Tensor) or result.shape != logits.shape:
        what = list(result.shape) if isinstance(result, torch.Tensor) else type(result).__name__
        raise TypeError(f"a logits processor returned {what}; it must return logits, a tensor {list(logits.shape)}.")
    return result
