"""A grammar that can't be compiled safely is refused by name, and the next one is compiled all the same."""

import json
import os
import signal

import pytest
from transformers import AutoTokenizer

from lessons_lib.engine import grammar_process, guided
from lessons_lib.engine.guided import GrammarState, Vocabulary
from lessons_lib.engine.logits_processors import rules_of
from lessons_lib.engine.sampling_params import SamplingParams
from lessons_lib.engine.structured_outputs import (
    MAX_CHARACTERS,
    MAX_CHOICES,
    MAX_SCHEMA_DEPTH,
    MAX_SCHEMA_VALUES,
    StructuredOutputsParams,
)
from lessons_lib.models.loading import BUNDLED_MODEL
from lessons_lib.models.validate import BadRequest

LLMatcher = pytest.importorskip("llguidance").LLMatcher
SIZE = 4096


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(str(BUNDLED_MODEL))


@pytest.fixture(scope="module")
def grammar_of(tokenizer):
    return lambda **rules: StructuredOutputsParams(**rules).compiled(tokenizer, SIZE)


def nested(depth):
    schema = {"type": "string"}
    while depth > 2:
        schema, depth = {"items": schema}, depth - 1
    return {"anyOf": schema} if depth == 2 else schema


def schema_of(count):
    return {"enum": [1] * (count - 2)}


AT_THE_LIMIT = [
    # rules for a size, the limit, what the message says
    (lambda size: {"choice": [str(number) for number in range(size)]}, MAX_CHOICES, "strings"),
    (lambda size: {"choice": ["a" * size]}, MAX_CHARACTERS["choice"], "characters"),
    (lambda size: {"regex": "a" * size}, MAX_CHARACTERS["regex"], "characters"),
    (lambda size: {"grammar": "start: /a/".ljust(size)}, MAX_CHARACTERS["grammar"], "characters"),
    (lambda size: {"json": "{}".ljust(size)}, MAX_CHARACTERS["json"], "characters"),
    (lambda size: {"json": {"const": "a" * (size - 5)}}, MAX_CHARACTERS["json"], "characters"),
    (lambda size: {"json": {"a" * size: 1}}, MAX_CHARACTERS["json"], "characters"),
    (lambda size: {"json": schema_of(size)}, MAX_SCHEMA_VALUES, "values"),
    (lambda size: {"json": json.dumps(schema_of(size))}, MAX_SCHEMA_VALUES, "values"),
    (lambda size: {"json": nested(size)}, MAX_SCHEMA_DEPTH, "levels"),
]


@pytest.mark.parametrize("rules_of, limit, unit", AT_THE_LIMIT)
def test_each_size_has_a_limit(rules_of, limit, unit):
    StructuredOutputsParams(**rules_of(limit))
    (name,) = rules_of(limit)
    for size in (limit + 1, limit + 2):
        with pytest.raises(BadRequest, match=rf"structured_outputs has a {name} of \d+ {unit}; the limit is {limit}\."):
            StructuredOutputsParams(**rules_of(size))


def test_a_schema_that_contains_itself_is_too_deep():
    schema = {}
    schema["items"] = schema
    with pytest.raises(BadRequest, match=f"levels; the limit is {MAX_SCHEMA_DEPTH}"):
        StructuredOutputsParams(json=schema)
    with pytest.raises(BadRequest, match="isn't JSON"):
        StructuredOutputsParams(json="[" * 60_000)


def references(count):
    chain = {f"d{number}": {"$ref": f"#/$defs/d{number + 1}"} for number in range(count)}
    return {"json": {"$ref": "#/$defs/d0", "$defs": {**chain, f"d{count}": {"type": "string"}}}}


def rules(count):
    chain = [f"r{number}: r{number + 1}" for number in range(count)]
    return {"grammar": "\n".join(["start: r0", *chain, f'r{count}: "a"'])}


@pytest.mark.skipif(not hasattr(signal, "SIGPROF"), reason="its limits are POSIX's")
@pytest.mark.parametrize("chain, deep", [(references, 1900), (rules, 1300)])
def test_a_grammar_that_overflows_the_stack_ends_only_the_other_process(grammar_of, chain, deep):
    with pytest.raises(BadRequest, match="structured_outputs can't be used: .* less deep"):
        grammar_of(**chain(deep))
    assert grammar_of(regex="after [a-z]+").begin() and grammar_of(**chain(20))


A = '{"grammars": [{"lark_grammar": "start: \\"%s\\""}]}'


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="its limits are POSIX's")
def test_a_grammar_that_takes_too_long_is_given_up(tokenizer, monkeypatch):
    slow = StructuredOutputsParams(json={"type": "integer", "multipleOf": 99_991})
    monkeypatch.setattr(grammar_process, "COMPILE_SECONDS", 0.01)
    vocabulary = Vocabulary(tokenizer, SIZE)
    with pytest.raises(ValueError, match="more than 0.01 s"):
        vocabulary.grammar(slow.text(LLMatcher))
    monkeypatch.setattr(grammar_process, "COMPILE_SECONDS", 60.0)
    assert vocabulary.grammar(A % "a")
    # llguidance encodes all 100,000 characters that must follow, before each token.
    many = LLMatcher.grammar_from_regex("a{100000}")
    assert "finding the next tokens takes" in vocabulary.process.error_of(many)
    assert vocabulary.process.error_of(LLMatcher.grammar_from_regex("a{1000}")) is None
    vocabulary.process._end()


def test_a_process_that_was_killed_or_interrupted_starts_again(tokenizer, monkeypatch):
    vocabulary = Vocabulary(tokenizer, SIZE)
    first = vocabulary.grammar(A % "a")
    assert vocabulary.grammar(A % "a") is first, "what is known isn't compiled again"
    os.kill(vocabulary.process.process.pid, signal.SIGKILL)
    with pytest.raises(ValueError, match="less deep"):
        vocabulary.grammar(A % "b")
    assert vocabulary.grammar(A % "b")
    exchange = grammar_process._exchange

    def interrupted(process, question):
        exchange(process, question)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(grammar_process, "_exchange", interrupted)
        vocabulary.grammar(A % "c")
    assert vocabulary.process.process is None
    assert vocabulary.grammar(A % "c")
    process = vocabulary.process.process
    del vocabulary
    assert process.poll() is not None, "it ends with what it belongs to"


def test_a_grammar_whose_masks_take_too_long_ends_its_request(grammar_of, monkeypatch):
    state = GrammarState(grammar_of(regex="[a-z]+"))
    state.allowed([], SIZE)
    now = iter([0.0, 0.2, 1.0, 1.04, 2.0, 2.11])
    monkeypatch.setattr(guided.time, "thread_time", lambda: next(now))
    state = GrammarState(state.grammar)
    state.allowed([], SIZE)  # 0.2 s of 0.25 s
    assert state._seconds == pytest.approx(0.2)
    assert state.allowed([], SIZE).any()
    assert not state.allowed([], SIZE).any(), "0.35 s"


def test_no_more_tokens_can_be_allowed_than_there_are(tokenizer):
    def rules(count):
        return rules_of(
            SamplingParams(allowed_token_ids=[5] * count), (), tokenizer=tokenizer, vocab_size=SIZE, memory=None
        )

    assert rules(SIZE)
    with pytest.raises(BadRequest, match=f"allowed_token_ids has {SIZE + 1} values; the vocabulary has {SIZE} tokens"):
        rules(SIZE + 1)
