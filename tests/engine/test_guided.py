"""Guided decoding: whatever a hot model would rather write, the text matches; a text that is cut short is the beginning of
one that matches."""

import json
import random
import re
import sys
from types import SimpleNamespace

import pytest
import torch
from engine_cases import KINDS, engine_of_kind, run_out
from jsonschema import validate

from lessons_lib.engine.guided import GrammarState, unpacked
from lessons_lib.engine.sampling_params import SamplingParams
from lessons_lib.engine.structured_outputs import StructuredOutputsParams
from lessons_lib.models.loading import load_model
from lessons_lib.models.validate import BadRequest

pytest.importorskip("llguidance")
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 8},
        "age": {"type": "integer", "minimum": 0, "maximum": 99},
        "colors": {"type": "array", "items": {"enum": ["red", "grün", "\u9ed2"]}, "minItems": 1, "maxItems": 2},
    },
    "required": ["name", "age", "colors"],
    "additionalProperties": False,
}
REGEX = r"[A-Z][a-z]{2,7}( [a-z]{1,4}){0,3}[.!?]"
CHOICE = ('a "quoted" one\n', "é€🐶", "red", "reddish")


def matches_schema(text):
    validate(json.loads(text), SCHEMA)
    return True


RULES = {
    "regex": (dict(regex=REGEX), lambda text: re.fullmatch(REGEX, text)),
    "json": (dict(json=SCHEMA), matches_schema),
    "json as text": (dict(json=json.dumps(SCHEMA)), matches_schema),
    "choice": (dict(choice=CHOICE), lambda text: text in CHOICE),
    "grammar": (dict(grammar='start: "<" start ">" | /[a-d]{1,3}/'), lambda text: re.fullmatch("<*[a-d]{1,3}>*", text)),
}


@pytest.fixture(scope="module")
def loaded():
    return load_model(device="cpu")


@pytest.fixture
def an_engine(loaded):
    sizes = {"max_num_seqs": 6, "max_num_batched_tokens": 64, "num_blocks": 60}
    return lambda kind="waits", **config: engine_of_kind(kind, *loaded, **{**sizes, **config})


@pytest.fixture(scope="module")
def alone(loaded):
    """The tokens that a request gets in an engine of its own."""
    engine, found = engine_of_kind("waits", *loaded, num_blocks=60), {}

    def tokens(prompt, params):
        name = repr((prompt, params))
        if name not in found:
            found[name] = engine.generate([prompt], params)[0].token_ids
        return found[name]

    return tokens


def guided(max_tokens=120, temperature=1.5, seed=0, rules=None, **kwargs):
    structured = StructuredOutputsParams(**rules)
    return SamplingParams(
        max_tokens=max_tokens, temperature=temperature, seed=seed, structured_outputs=structured, **kwargs
    )


@pytest.mark.parametrize("engine_kind", KINDS)
@pytest.mark.parametrize("num_blocks", [60, 7])
def test_every_text_matches_in_any_company(an_engine, alone, engine_kind, num_blocks):
    engine, wanted, finished = an_engine(engine_kind, num_blocks=num_blocks), {}, 0
    for seed in range(2):
        kinds = {kind: guided(90, seed=seed, rules=rules) for kind, (rules, _) in RULES.items()}
        for kind, params in (kinds | {None: SamplingParams(max_tokens=30, temperature=1.0, seed=seed)}).items():
            wanted[engine.add_request("The old dog", params)] = kind, params
    outputs = run_out(engine)
    assert bool(engine.scheduler.num_preempted) == (num_blocks == 7)
    for name, (kind, params) in wanted.items():
        output = outputs[name]
        assert output.error is None
        assert output.token_ids == alone("The old dog", params)
        if kind and output.finish_reason == "stop":
            finished += 1
            assert RULES[kind][1](output.text), (kind, output.text)
            assert output.completions[0].stop_reason is None
    assert finished >= 8


def test_a_text_that_is_cut_short_is_a_beginning(an_engine):
    engine = an_engine("overlaps")
    (whole,) = engine.generate(["Once"], guided(rules=RULES["json"][0]))
    assert matches_schema(whole.text)
    count = len(whole.token_ids)
    for limit in (1, count - 1, count):
        (output,) = engine.generate(["Once"], guided(limit, rules=RULES["json"][0]))
        assert output.token_ids == whole.token_ids[:limit] and whole.text.startswith(output.text)
        assert output.finish_reason == ("stop" if limit == count else "length")
    # without the end token, the text is complete all the same
    assert (output.text, output.finish_reason) == (whole.text, "stop")


@pytest.mark.parametrize("rules", [
    dict(choice=["<|endoftext|>"]), dict(regex=r"<\|endoftext\|>"), dict(json={"const": "<|endoftext|>"}),
    dict(grammar='start: "<|endof" "text|>"'),
], ids=str)  # fmt: skip
def test_the_text_of_a_special_token_in_a_rule_is_text(an_engine, rules):
    (found,) = an_engine().generate(["x"], guided(rules=rules))
    assert found.text.strip('"') == "<|endoftext|>" and found.finish_reason == "stop"
    assert 0 not in found.token_ids[:-1]


def test_each_of_several_completions_is_guided_and_other_rules_hold_beside_it(an_engine, loaded):
    rules = guided(n=4, rules=dict(regex="[a-z ]{30,60}"), bad_words=["e"], repetition_penalty=1.2, min_tokens=12)
    (output,) = an_engine("overlaps").generate(["Once"], rules)
    bad = {loaded[1].encode(text)[0] for text in ("e", " e")}
    assert len({own.text for own in output.completions}) > 1
    for own in output.completions:
        assert re.fullmatch("[a-z ]{30,60}", own.text) and len(own.token_ids) >= 12 and not bad & {*own.token_ids}


def test_a_state_follows_whatever_it_is_shown(loaded):
    """The tokens that it allows are those that a new state allows, however the completion came about, and after an
    interrupt too."""
    _, tokenizer = loaded
    grammar = StructuredOutputsParams(regex=REGEX).compiled(tokenizer, len(tokenizer))
    state, rng, tokens = GrammarState(grammar), random.Random(0), []
    for _ in range(12):
        expected = unpacked(GrammarState(grammar).allowed(tokens, len(tokenizer)), len(tokenizer))
        assert torch.equal(unpacked(state.allowed(tokens, len(tokenizer)), len(tokenizer)), expected)
        state._seen = rng.choice([state._seen, None])
        if rng.random() < 0.3 and len(tokens) > 2:
            state = GrammarState(grammar)
        choice = expected.nonzero().flatten().tolist()
        tokens = [*tokens, rng.choice(choice)]
        if tokens[-1] == tokenizer.eos_token_id:
            break
    padded = StructuredOutputsParams(regex=REGEX).compiled(tokenizer, len(tokenizer) + 60)
    allowed = unpacked(GrammarState(padded).allowed([], len(tokenizer) + 60), len(tokenizer) + 60)
    assert allowed.any() and not allowed[len(tokenizer) :].any()


@pytest.mark.parametrize("rules", [dict(regex="["), dict(json="{"), dict(json={"type": "nonsense"}), dict(grammar="x")])
def test_rules_that_cant_be_compiled_are_refused_before_anything_changes(an_engine, rules):
    engine = an_engine()
    with pytest.raises(BadRequest, match="structured_outputs can't be used: "):
        engine.add_request("Once", guided(rules=rules))
    assert not engine.requests and not engine.has_unfinished()


def test_without_the_library_it_says_what_to_install(an_engine, monkeypatch):
    monkeypatch.setitem(sys.modules, "llguidance", None)
    with pytest.raises(BadRequest, match="pip install"):
        an_engine().add_request("Once", guided(rules=dict(regex="a")))
    assert an_engine().generate(["Once"], SamplingParams(max_tokens=2))[0].token_ids


def test_a_tokenizer_that_the_library_cant_read_is_refused():
    tokenizer = type("OtherTokenizer", (SimpleNamespace,), {"__hash__": object.__hash__})(eos_token_id=0)
    with pytest.raises(BadRequest, match="fast tokenizers"):
        StructuredOutputsParams(regex="a").compiled(tokenizer, 10)
