"""Lesson 12: the form that a completion must have, as a request gives it. `guided` compiles it."""

import json
from concurrent.futures import Future
from dataclasses import dataclass, fields
from importlib import import_module
from itertools import chain
from typing import TYPE_CHECKING, Any

from lessons_lib.engine.guided import Grammar, Vocabulary, compiling_thread, in_one_line
from lessons_lib.models.validate import BadRequest, must, shortened, strings

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from lessons_lib.engine.sampling_params import SamplingParams

# The cost of a grammar grows with its size: once to compile it, and in every step of the request.
MAX_CHOICES = 1024
MAX_CHARACTERS = {"choice": 32_768, "regex": 4_096, "grammar": 65_536, "json": 65_536}
MAX_SCHEMA_VALUES = 8_192
MAX_SCHEMA_DEPTH = 64
# Otherwise a model may write spaces and new lines between two parts until it has no tokens left.
AS_PYTHON_WRITES_IT = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}


@dataclass(frozen=True)
class StructuredOutputsParams:
    """The form of a completion's text. Exactly one field is given.

    Attributes:
        json: a JSON schema, as a dict or as text. The text has the spaces that `json.dumps` writes, and no others.
        regex: a regular expression, in Rust's syntax, that the whole text must match.
        choice: strings, of which the text must be one.
        grammar: a grammar in Lark's syntax; its first rule is called `start`.
        json_object: True: any JSON object.

    Raises:
        BadRequest: none or several are given, or one has the wrong type.
    """

    json: str | dict[str, Any] | None = None
    regex: str | None = None
    choice: tuple[str, ...] | None = None
    grammar: str | None = None
    json_object: bool | None = None

    def __post_init__(self) -> None:
        given = {each.name: value for each in fields(self) if (value := getattr(self, each.name)) is not None}
        if len(given) != 1:
            raise BadRequest(
                f"structured_outputs has {' and '.join(given) or 'no rule'}; give one of json, regex, choice, "
                "grammar, json_object."
            )
        ((name, value),) = given.items()
        label = f"structured_outputs.{name}"
        if name == "json":
            must(isinstance(value, str | dict), label, value, "a JSON schema: a dict, or text")
        elif name == "choice":
            value = strings(label, value, "a list of strings that are not empty")
            must(bool(value), label, value, "a list of one string or more")
            object.__setattr__(self, "choice", value)
        elif name == "json_object":
            must(value is True, label, value, "True, or left out")
        else:
            must(isinstance(value, str) and value != "", label, value, "a string that is not empty")
        if name == "choice":
            _at_most(name, "strings", len(value), MAX_CHOICES)
            _at_most(name, "characters", sum(map(len, value)), MAX_CHARACTERS[name])
        elif isinstance(value, str):
            _at_most(name, "characters", len(value), MAX_CHARACTERS[name])
        for regex in [value] if name == "regex" else regexes_of(value) if name == "json" else []:
            # llguidance would drop the backslash.
            if (len(regex) - len(regex.rstrip("\\"))) % 2:
                raise BadRequest(
                    f"structured_outputs has the regex {shortened(regex)}, which ends with a backslash (character "
                    f"{len(regex)}) that escapes nothing; double or remove it."
                )

    def compiled(self, tokenizer: "PreTrainedTokenizerBase", vocab_size: int) -> Grammar:
        """Compile it for a tokenizer.

        Raises:
            BadRequest: llguidance isn't installed, can't use the tokenizer, or can't compile the rules.
        """
        try:
            matcher = import_module("llguidance").LLMatcher
        except ImportError as error:
            raise BadRequest(
                "structured_outputs needs llguidance, which isn't installed. Run `pip install llguidance`."
            ) from error
        try:
            return Vocabulary.of(tokenizer, vocab_size).grammar(self.text(matcher))
        except Exception as error:
            raise BadRequest(f"structured_outputs can't be used: {in_one_line(str(error))}") from error

    def compiled_soon(self, tokenizer: "PreTrainedTokenizerBase", vocab_size: int) -> "Future[Grammar]":
        """Start to compile it in another thread."""
        return compiling_thread().submit(self.compiled, tokenizer, vocab_size)

    def check_with(self, params: "SamplingParams") -> None:
        """Refuse parameters that no text of `choice` can satisfy.

        Raises:
            BadRequest: names both fields.
        """
        if not self.choice:
            return
        longest = max(len(text.encode("utf-8", "replace")) for text in self.choice)
        if params.min_tokens > longest:  # no token is shorter than a byte
            raise BadRequest(
                f"min_tokens is {params.min_tokens}, but the longest text of structured_outputs.choice has "
                f"{longest} bytes, so at most {longest} tokens; lower min_tokens."
            )
        if all(any(word.strip() in text for word in params.bad_words) for text in self.choice):
            raise BadRequest(
                "bad_words contains a part of each text of structured_outputs.choice, so none can be written; "
                "leave out one of them."
            )

    def text(self, matcher: Any) -> str:
        """Convert the rules by llguidance's LLMatcher to the form of its parser."""
        if self.json is not None:
            return str(matcher.grammar_from_json_schema(self.json, defaults=AS_PYTHON_WRITES_IT))
        if self.regex is not None:
            return str(matcher.grammar_from_regex(self.regex))
        if self.choice is not None:
            return str(matcher.grammar_from_lark("start: " + " | ".join(json.dumps(text) for text in self.choice)))
        if self.grammar is not None:
            return str(matcher.grammar_from_lark(self.grammar))
        return str(matcher.grammar_from_json_schema({"type": "object"}, defaults=AS_PYTHON_WRITES_IT))


def regexes_of(schema: Any) -> list[str]:
    """The regular expressions in a JSON schema. One beyond the limits is refused, and isn't read to its end."""
    if isinstance(schema, str):
        try:
            schema = json.loads(schema)
        except (ValueError, RecursionError) as error:
            raise BadRequest(f"structured_outputs can't be used: its json isn't JSON ({error}).") from error
    regexes, level, depth, count, size = list[Any](), [schema], 1, 1, 0
    while level:
        objects = [each for each in level if isinstance(each, dict)]
        lists = [each for each in level if isinstance(each, list | tuple)]
        if objects or lists:
            _at_most("json", "levels", depth, MAX_SCHEMA_DEPTH)
        depth += 1
        count += sum(len(each) for each in objects) + sum(len(each) for each in lists)
        _at_most("json", "values", count, MAX_SCHEMA_VALUES)
        size += sum(len(each) for each in [*level, *chain(*objects)] if isinstance(each, str))
        for each in objects:
            if "pattern" in each:
                regexes.append(each["pattern"])
            if isinstance(by_name := each.get("patternProperties"), dict):
                regexes += by_name
        level = [*chain(*map(dict.values, objects), *lists)]
    _at_most("json", "characters", size, MAX_CHARACTERS["json"])
    return [regex for regex in regexes if isinstance(regex, str)]


def _at_most(name: str, unit: str, count: int, most: int) -> None:
    if count > most:
        raise BadRequest(
            f"structured_outputs has a {name} of {count} {unit}; the limit is {most}. Make it smaller, or divide "
            "the task into several requests."
        )
