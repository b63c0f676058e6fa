"""Lesson 12: everything that a client may ask for in addition to the prompt. Names and meanings are vLLM's."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from lessons_lib.models.validate import BadRequest, check_fields, checked, flag, must, number, strings, token_ids, whole

MAX_SEED = 2**128
MAX_BIAS = 100.0  # as in OpenAI's API
MAX_PENALTY = 2.0
MAX_N = 128  # completions of a prompt; they all begin in one step
MAX_STOP_CHARACTERS = 128  # of one stop string or bad word: each beginning of it is looked for in every step
# The most values of a field; vocabularies bound the rest.
MAX_VALUES = {"stop": 32, "stop_token_ids": 1024, "bad_words": 256, "logit_bias": 1024}


def bias(name: str, value: Any) -> dict[int, float] | None:
    """A dict: token id -> what is added to its logit; None if it is empty."""
    must(isinstance(value, dict), name, value, "a dict: token id -> what is added to its logit")
    wanted = f"a number from -{MAX_BIAS:g} to {MAX_BIAS:g}"
    biases = {}
    for key, amount in value.items():
        # The keys of JSON objects are strings.
        token = int(key) if isinstance(key, str) and key.isdecimal() and len(key) < 20 else key
        token = whole(f"{name}, a key,", token, "a token id", 0)
        biases[token] = number(f"{name}, a value,", amount, wanted, lambda bias: abs(bias) <= MAX_BIAS)
    return biases or None


def short_strings(name: str, value: Any) -> tuple[str, ...]:
    """Strings that are not empty, and not too long: one, several, or None."""
    texts = strings(name, value, "strings that are not empty")
    wanted = f"strings of at most {MAX_STOP_CHARACTERS} characters"
    must(all(len(text) <= MAX_STOP_CHARACTERS for text in texts), name, value, wanted)
    return texts


def words(name: str, value: Any) -> tuple[str, ...]:
    """Short strings with more than spaces: one, several, or None."""
    texts = short_strings(name, value)
    must(all(text.strip() for text in texts), name, value, "strings with more than spaces")
    return texts


def some_token_ids(name: str, value: Any) -> tuple[int, ...]:
    """One token id or more."""
    tokens = token_ids(name, value, "token ids, such as (13,), or None for all tokens")
    must(bool(tokens), name, value, "one token id or more, or None for all tokens")
    return tokens


def functions(name: str, value: Any) -> tuple[Callable[..., Any], ...]:
    """A list of functions, or None."""
    given = () if value is None else value
    is_list = isinstance(given, list | tuple) and all(map(callable, given))
    must(is_list, name, value, "a list of functions (prompt_ids, output_ids, logits) -> logits")
    return tuple(given)


def structured_outputs(name: str, value: Any) -> Any:
    """A StructuredOutputsParams. Only the caller that makes one imports the parser of grammars."""
    is_rule = callable(getattr(value, "compiled", None))
    must(is_rule, name, value, "StructuredOutputsParams(json=...), or with regex, choice or grammar")
    return value


def penalty() -> Any:
    """A field for one of OpenAI's penalties."""
    return checked(0.0, number, "a number from -2 to 2", lambda value: abs(value) <= MAX_PENALTY)


def num_logprobs() -> Any:
    """A field for a number of log-probabilities."""
    return checked(None, whole, "a whole number from 0 on, -1 for all tokens, or None", -1)


@dataclass(frozen=True)
class SamplingParams:
    """The settings of a request.

    Attributes:
        max_tokens: the most tokens to add; None for as many as the context has room for.
        temperature: logits are divided by it, 1e-5 or more; 0 takes the likeliest token every time.
        top_k: only this many of the likeliest tokens may be drawn; 0 or -1 for all.
        top_p: only the likeliest tokens that together have this probability may be drawn; 1 for all.
        seed: the same seed draws the same completion; None for a different one every time.
        stop: strings that end the completion. They are not part of it.
        stop_token_ids: tokens that end the completion, in addition to the model's end token.
        ignore_eos: go on after the end token.
        logprobs: number of the likeliest tokens that log-probabilities are returned for, in addition to those of the
            chosen ones; -1 for all tokens, None for no log-probabilities.
        n: number of completions drawn for the prompt.
        min_p: only tokens that are at least this many times as likely as the likeliest may be drawn; 0 for all.
        presence_penalty: subtracted from the logit of each token that the completion contains.
        frequency_penalty: subtracted from the logit of a token each time that the completion contains it.
        repetition_penalty: the logit of each token that the prompt or the completion contains is divided by it if the
            logit is positive, and multiplied by it otherwise. 1 changes nothing.
        logit_bias: token -> what is added to its logit, -100 to 100.
        allowed_token_ids: only these tokens may be drawn; None for all.
        bad_words: strings whose tokens the completion will not contain in a row, with or without a space in front.
        min_tokens: no stop token before the completion has this many tokens, and no stop string that ends in them.
            A text that is complete by `structured_outputs` ends nevertheless.
        include_stop_str_in_output: the stop string, or the text of the stop token, is part of the text.
        detokenize: completions have a text.
        skip_special_tokens: leave special tokens, such as the end token, out of the text.
        spaces_between_special_tokens: for tokenizers that can leave out these spaces; most never write them.
        prompt_logprobs: None, or as `logprobs`, for the tokens of the prompt. Its whole prompt is computed then, and
            nothing of it is taken from the prefix cache.
        logits_processors: functions (prompt_ids, output_ids, logits) -> logits, called for each token before all other
            rules; logits are float32 [vocabulary] and may be changed in place.
        structured_outputs: a StructuredOutputsParams, the form that the text must have.

    Rules that leave no token to begin with are refused when the request is added. If they leave none later, the
    completion gets the end token: it has the text so far, and finish reason "stop" (with `ignore_eos`, it goes on).

    Raises:
        BadRequest: a value makes no sense.
    """

    max_tokens: int | None = checked(64, whole, "a whole number from 1 on, or None", 1)
    # A logit divided by less than 1e-5 might overflow.
    temperature: float = checked(0.0, number, "0, or a number from 1e-5 on", lambda value: value == 0 or value >= 1e-5)
    top_k: int = checked(0, whole, "a whole number: 0 or -1 for all tokens, or more", -1)
    top_p: float = checked(1.0, number, "above 0 and at most 1", lambda value: 0 < value <= 1)
    seed: int | None = checked(None, whole, "a whole number of 128 bits, or None", 1 - MAX_SEED, MAX_SEED - 1)
    stop: tuple[str, ...] = checked((), short_strings)
    stop_token_ids: tuple[int, ...] = checked((), token_ids, "token ids, such as (13,)")
    ignore_eos: bool = checked(False, flag)
    logprobs: int | None = num_logprobs()
    n: int = checked(1, whole, f"a whole number from 1 to {MAX_N}", 1, MAX_N)
    min_p: float = checked(0.0, number, "a number from 0 to 1", lambda value: 0 <= value <= 1)
    presence_penalty: float = penalty()
    frequency_penalty: float = penalty()
    repetition_penalty: float = checked(1.0, number, "a number from 1e-5 to 1e5; 1 is none", lambda x: 1e-5 <= x <= 1e5)
    logit_bias: dict[int, float] | None = checked(None, bias)
    allowed_token_ids: tuple[int, ...] | None = checked(None, some_token_ids)
    bad_words: tuple[str, ...] = checked((), words)
    min_tokens: int = checked(0, whole, "a whole number from 0 on", 0)
    include_stop_str_in_output: bool = checked(False, flag)
    detokenize: bool = checked(True, flag)
    skip_special_tokens: bool = checked(True, flag)
    spaces_between_special_tokens: bool = checked(True, flag)
    prompt_logprobs: int | None = num_logprobs()
    logits_processors: tuple[Callable[..., Any], ...] = checked((), functions)
    structured_outputs: Any | None = checked(None, structured_outputs)

    def __post_init__(self) -> None:
        check_fields(self)
        for name, most in MAX_VALUES.items():
            if len(getattr(self, name) or ()) > most:
                raise BadRequest(f"{name} has {len(getattr(self, name))} values; a request may have {most}.")
        object.__setattr__(self, "top_k", max(0, self.top_k))
        self._check_together()

    def _check_together(self) -> None:
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise BadRequest(f"min_tokens is {self.min_tokens} and max_tokens {self.max_tokens}; it must not be more.")
        if self.stop and not self.detokenize:
            raise BadRequest("stop is given, and detokenize is False; stop strings are found in text. Change one.")
        if self.structured_outputs and self.ignore_eos:
            raise BadRequest(
                "structured_outputs is given, and ignore_eos is True; a text that is complete can only go on with the "
                "end token. Leave out one of them."
            )

    @cached_property
    def needs_logits(self) -> bool:
        """True if log-probabilities are wanted."""
        return self.logprobs is not None or self.prompt_logprobs is not None

    @property
    def changes_logits(self) -> bool:
        """True if a rule changes logits before the temperature does."""
        penalties = self.presence_penalty or self.frequency_penalty or self.repetition_penalty != 1
        tokens = self.logit_bias or self.allowed_token_ids or self.bad_words or self.min_tokens
        return bool(penalties or tokens or self.logits_processors or self.structured_outputs)
