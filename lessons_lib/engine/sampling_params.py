"""Lesson 12: what a client may ask for besides the prompt. Names and meanings are vLLM's."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain
from typing import Any, ClassVar

from lessons_lib.models.validate import (
    BadRequest,
    flag,
    is_real,
    is_whole,
    must,
    number,
    shortened,
    strings,
    token_ids,
    whole,
)

MAX_SEED = 2**128
MAX_BIAS = 100.0  # as in OpenAI's API
MAX_PENALTY = 2.0
# Of structured outputs. What a grammar costs grows with its size: once to compile it, and in every step of the request.
MAX_CHOICES = 1024
MAX_CHARACTERS = {"choice": 32_768, "regex": 4_096, "grammar": 16_384, "json": 65_536}
MAX_SCHEMA_VALUES = 8_192
MAX_SCHEMA_DEPTH = 64


class _Fields:
    """Replaces each field by a checked value of its own type, or refuses it."""

    prefix: ClassVar[str] = ""  # of its fields' names in error texts

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)  # the dataclasses are frozen for everyone else

    def _check(self, name: str, check: Callable[..., object], *arguments: Any) -> None:
        self._set(name, check(self.prefix + name, getattr(self, name), *arguments))

    def _must(self, holds: bool, name: str, wanted: str) -> None:
        must(holds, self.prefix + name, getattr(self, name), wanted)


@dataclass(frozen=True)
class StructuredOutputsParams(_Fields):
    """What the text of a completion must look like. Exactly one is given.

    Attributes:
        json: a JSON schema, as a dict or as text. The text has the spaces that `json.dumps` writes, and no others.
        regex: a regular expression, in Rust's syntax, that the whole text must match.
        choice: strings, of which the text must be one.
        grammar: a grammar in Lark's syntax; its first rule is called `start`.
        json_object: True: any JSON object.

    Raises:
        BadRequest: none or several are given, or one has the wrong type.
    """

    prefix = "structured_outputs."

    json: str | dict[str, Any] | None = None
    regex: str | None = None
    choice: tuple[str, ...] | None = None
    grammar: str | None = None
    json_object: bool | None = None

    def __post_init__(self) -> None:
        given = [name for name, value in vars(self).items() if value is not None]
        if len(given) != 1:
            raise BadRequest(
                f"structured_outputs has {' and '.join(given) or 'no rule'}; give one of json, regex, choice, "
                "grammar, json_object."
            )
        self._must(self.json is None or isinstance(self.json, (str, dict)), "json", "a JSON schema: a dict, or text")
        for name in ("regex", "grammar"):
            value = getattr(self, name)
            self._must(value is None or (isinstance(value, str) and value != ""), name, "a string that is not empty")
        if self.choice is not None:
            self._check("choice", strings, "a list of strings that are not empty")
            self._must(bool(self.choice), "choice", "a list of one string or more")
        self._must(self.json_object in (None, True), "json_object", "True, or left out")
        self._check_size(*given)
        for regex in [self.regex] if self.regex else [] if self.json is None else self._regexes(self.json):
            # llguidance would drop the backslash.
            if (len(regex) - len(regex.rstrip("\\"))) % 2:
                raise BadRequest(
                    f"structured_outputs has the regex {shortened(regex)}, which ends with a backslash (character "
                    f"{len(regex)}) that escapes nothing; double or remove it."
                )

    def _check_size(self, name: str) -> None:
        """Refuse what would take long to compile, before anything is done with it."""
        value = getattr(self, name)
        if name == "choice":
            self._at_most(name, "strings", len(value), MAX_CHOICES)
            self._at_most(name, "characters", sum(map(len, value)), MAX_CHARACTERS[name])
        elif isinstance(value, str):
            self._at_most(name, "characters", len(value), MAX_CHARACTERS[name])

    def _regexes(self, schema: Any) -> list[str]:
        """The regular expressions in a JSON schema. One beyond the limits is refused, and isn't read to its end."""
        if isinstance(schema, str):
            try:
                schema = json.loads(schema)
            except (ValueError, RecursionError) as error:
                raise BadRequest(f"structured_outputs can't be used: its json isn't JSON ({error}).") from error
        regexes, level, depth, count, size = list[Any](), [schema], 1, 1, 0
        while level:
            objects = [each for each in level if isinstance(each, dict)]
            lists = [each for each in level if isinstance(each, (list, tuple))]
            if objects or lists:
                self._at_most("json", "levels", depth, MAX_SCHEMA_DEPTH)
            depth += 1
            count += sum(len(each) for each in objects) + sum(len(each) for each in lists)
            self._at_most("json", "values", count, MAX_SCHEMA_VALUES)
            size += sum(len(each) for each in [*level, *chain(*objects)] if isinstance(each, str))
            for each in objects:
                if "pattern" in each:
                    regexes.append(each["pattern"])
                if isinstance(by_name := each.get("patternProperties"), dict):
                    regexes += by_name
            level = [*chain(*map(dict.values, objects), *lists)]
        self._at_most("json", "characters", size, MAX_CHARACTERS["json"])
        return [regex for regex in regexes if isinstance(regex, str)]

    @staticmethod
    def _at_most(name: str, unit: str, count: int, most: int) -> None:
        if count > most:
            raise BadRequest(
                f"structured_outputs has a {name} of {count} {unit}; the limit is {most}. Make it smaller, or divide "
                "the task into several requests."
            )


@dataclass(frozen=True)
class SamplingParams(_Fields):
    """What a user asks for besides the prompt.

    Attributes:
        max_tokens: the most tokens to add; None for as many as the context has room for.
        temperature: logits are divided by it, 1e-5 or more; 0 takes the likeliest token every time.
        top_k: only this many of the likeliest tokens may be drawn; 0 or -1 for all.
        top_p: only the likeliest tokens that together have this probability may be drawn; 1 for all.
        seed: the same seed draws the same completion; None for another one every time.
        stop: strings that end the completion. They are not part of it.
        stop_token_ids: tokens that end the completion, besides the model's end token.
        ignore_eos: go on after the end token.
        logprobs: None, or for how many of the likeliest tokens log-probabilities are returned, besides those of the
            chosen ones; -1 for all tokens.
        n: how many completions are drawn for the prompt.
        min_p: only tokens that are at least this many times as likely as the likeliest may be drawn; 0 for all.
        presence_penalty: subtracted from the logit of each token that the completion contains.
        frequency_penalty: subtracted from the logit of a token each time that the completion contains it.
        repetition_penalty: the logit of each token that the prompt or the completion contains is divided by it if the
            logit is positive, and multiplied by it otherwise. 1 changes nothing.
        logit_bias: token -> what is added to its logit, -100 to 100.
        allowed_token_ids: only these tokens may be drawn; None for all.
        bad_words: strings whose tokens the completion will not contain in a row, with or without a space in front.
        min_tokens: no stop token before the completion has this many tokens, and no stop string that ends in them.
            A text that is complete by `structured_outputs` ends all the same.
        include_stop_str_in_output: the stop string, or the text of the stop token, is part of the text.
        detokenize: whether completions have a text at all.
        skip_special_tokens: leave special tokens, such as the end token, out of the text.
        spaces_between_special_tokens: for tokenizers that can leave out these spaces; most never write them.
        prompt_logprobs: None, or as `logprobs`, for the tokens of the prompt. Its whole prompt is computed then, and
            nothing of it is taken from the prefix cache.
        logits_processors: functions (output_ids, logits) or (prompt_ids, output_ids, logits) -> logits, called for each
            token before all other rules; logits are float32 [vocabulary] and may be changed in place.
        structured_outputs: what the text must look like.
        best_of, typical_p: not offered; refused by name.

    Rules that leave no token to begin with are refused when the request is added. If they leave none later, the
    completion gets the end token: it has the text so far, and finish reason "stop" (with `ignore_eos`, it goes on).

    Raises:
        BadRequest: a value makes no sense.
    """

    max_tokens: int | None = 64
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    logprobs: int | None = None
    n: int = 1
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: dict[int, float] | None = None
    allowed_token_ids: tuple[int, ...] | None = None
    bad_words: tuple[str, ...] = ()
    min_tokens: int = 0
    include_stop_str_in_output: bool = False
    detokenize: bool = True
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    prompt_logprobs: int | None = None
    logits_processors: tuple[Callable[..., Any], ...] = ()
    structured_outputs: StructuredOutputsParams | None = None
    best_of: int | None = None
    typical_p: float = 1.0

    def __post_init__(self) -> None:
        self._check_lengths()
        self._check_cuts()
        self._check_rules()
        self._check_text()
        self._refuse_what_is_not_offered()

    @property
    def needs_last_token(self) -> bool:
        """Whether a token can only be chosen when the ids of all tokens before it are known."""
        return bool(
            self.presence_penalty
            or self.frequency_penalty
            or self.repetition_penalty != 1
            or self.bad_words
            or self.logits_processors
            or self.structured_outputs
        )

    @property
    def changes_logits(self) -> bool:
        """Whether a rule changes logits before the temperature does."""
        return bool(self.needs_last_token or self.logit_bias or self.allowed_token_ids or self.min_tokens)

    def _check_lengths(self) -> None:
        if self.max_tokens is not None:
            self._check("max_tokens", whole, "a whole number from 1 on, or None", 1)
        self._check("min_tokens", whole, "a whole number from 0 on", 0)
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise BadRequest(f"min_tokens is {self.min_tokens} and max_tokens {self.max_tokens}; it must not be more.")
        self._check("n", whole, "a whole number from 1 on", 1)
        self._check("stop_token_ids", token_ids, "token ids, such as (13,)")
        self._check("ignore_eos", flag)

    def _check_cuts(self) -> None:
        # A logit divided by less than 1e-5 might overflow.
        self._check("temperature", number, "0, or a number from 1e-5 on", lambda value: value == 0 or value >= 1e-5)
        self._check("top_k", whole, "a whole number: 0 or -1 for all tokens, or more", -1)
        self._set("top_k", max(0, self.top_k))
        self._check("top_p", number, "above 0 and at most 1", lambda value: 0 < value <= 1)
        self._check("min_p", number, "a number from 0 to 1", lambda value: 0 <= value <= 1)
        if self.seed is not None:
            self._check("seed", whole, "a whole number of 128 bits, or None", 1 - MAX_SEED, MAX_SEED - 1)

    def _check_rules(self) -> None:
        for name in ("presence_penalty", "frequency_penalty"):
            self._check(name, number, f"a number from -{MAX_PENALTY:g} to 2", lambda value: abs(value) <= MAX_PENALTY)
        self._check(
            "repetition_penalty", number, "a number from 1e-5 to 1e5; 1 is none", lambda value: 1e-5 <= value <= 1e5
        )
        self._check_bias()
        if self.allowed_token_ids is not None:
            self._check("allowed_token_ids", token_ids, "token ids, such as (13,), or None for all tokens")
            self._must(
                bool(self.allowed_token_ids), "allowed_token_ids", "one token id or more, or None for all tokens"
            )
        self._check("bad_words", strings, "strings that are not empty")
        self._must(all(word.strip() for word in self.bad_words), "bad_words", "strings with more than spaces")
        processors = () if self.logits_processors is None else self.logits_processors
        is_list = isinstance(processors, (list, tuple)) and all(map(callable, processors))
        self._must(is_list, "logits_processors", "a list of functions (output_ids, logits) -> logits")
        self._set("logits_processors", tuple(processors))
        rules = self.structured_outputs
        self._must(rules is None or isinstance(rules, StructuredOutputsParams), "structured_outputs",
                   "StructuredOutputsParams(json=...), or with regex, choice or grammar")  # fmt: skip
        if rules and self.ignore_eos:
            raise BadRequest(
                "structured_outputs is given, and ignore_eos is True; a text that is complete can only go on with the "
                "end token. Leave out one of them."
            )

    def _check_bias(self) -> None:
        bias = {} if self.logit_bias is None else self.logit_bias
        self._must(isinstance(bias, dict), "logit_bias", "a dict: token id -> what is added to its logit")
        for token, value in bias.items():
            # The keys of JSON objects are strings.
            is_id = is_whole(token, 0) or (isinstance(token, str) and token.isdecimal() and len(token) < 20)
            is_bias = is_real(value) and abs(value) <= MAX_BIAS
            if not (is_id and is_bias):
                raise BadRequest(
                    f"logit_bias has {shortened(token)}: {shortened(value)}; it must have token ids with numbers from "
                    f"-{MAX_BIAS:g} to {MAX_BIAS:g}."
                )
        self._set("logit_bias", {int(token): float(value) for token, value in bias.items()} or None)

    def _check_text(self) -> None:
        self._check("stop", strings, "a string, or a list of strings, that are not empty")
        for name in (
            "include_stop_str_in_output",
            "detokenize",
            "skip_special_tokens",
            "spaces_between_special_tokens",
        ):
            self._check(name, flag)
        if self.stop and not self.detokenize:
            raise BadRequest("stop is given, and detokenize is False; stop strings are found in text. Change one.")
        for name in ("logprobs", "prompt_logprobs"):
            if getattr(self, name) is not None:
                self._check(name, whole, "a whole number from 0 on, -1 for all tokens, or None", -1)

    def _refuse_what_is_not_offered(self) -> None:
        if self.best_of not in (None, self.n) or isinstance(self.best_of, bool):
            raise BadRequest(
                f"best_of is {shortened(self.best_of)}; it isn't offered. Ask for n completions with logprobs=0, and "
                "keep those whose log-probabilities have the largest sum."
            )
        if self.typical_p not in (None, 1):
            raise BadRequest(f"typical_p is {shortened(self.typical_p)}; it isn't offered. Use min_p or top_p.")
