"""Every field of SamplingParams is checked completely when it is made: nothing strange comes as far as a step."""

import dataclasses
from fractions import Fraction
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lessons_lib.engine.logits_processors import rules_of
from lessons_lib.engine.sampling_params import SamplingParams
from lessons_lib.engine.structured_outputs import StructuredOutputsParams
from lessons_lib.models.validate import BadRequest
from lessons_lib.scheduling.sequence import Sequence

NAN, INF, HUGE = float("nan"), float("inf"), 10**400
FIELDS = [field.name for field in dataclasses.fields(SamplingParams)]
WRONG = {
    "max_tokens": (0, -1, 2.5, "4", True, [4]),
    "temperature": (-0.1, NAN, INF, 1e-9, "1", None, True, HUGE, 1j),
    "top_k": (-2, 1.5, NAN, True, None, "3"),
    "top_p": (0, -0.5, 1.01, NAN, True, None, "1", HUGE),
    "min_p": (-0.1, 1.01, NAN, True, None, "0", HUGE),
    "seed": ("s", 1.5, True, 10**5000, -HUGE),
    "stop": ("", ("a", ""), (5,), (text for text in "ab"), {"a", "b"}, b"a", 7),
    "stop_token_ids": (5, ("a",), (1.5,), (True,), (-1,), "ab"),
    "ignore_eos": (1, None, "yes"),
    "logprobs": (-2, 0.5, True, "1"),
    "prompt_logprobs": (-2, 0.5, True, "1"),
    "n": (0, -2, 1.5, True, None),
    "presence_penalty": (-2.1, 2.1, NAN, None, True, "1", HUGE),
    "frequency_penalty": (-2.1, 2.1, NAN, None, True, HUGE),
    "repetition_penalty": (0, -1, NAN, INF, None, True, HUGE),
    "logit_bias": (
        5,
        [(1, 2.0)],
        *({key: 1} for key in (1.5, "a", -1, True)),
        *({3: bias} for bias in (101, NAN, "1")),
    ),
    "allowed_token_ids": ((), [], set(), 5, (1.5,), (True,), (-1,), ("a",)),
    "bad_words": ("", (5,), (" ",), ("a", ""), {"a"}, 7),
    "min_tokens": (-1, 1.5, None, True, "3", 65),
    "include_stop_str_in_output": (1, None),
    "detokenize": (0, None),
    "skip_special_tokens": (1, "no"),
    "spaces_between_special_tokens": (1, None),
    "logits_processors": (5, (5,), max, (None,)),
    "structured_outputs": ("a+", {"regex": "a"}),
}


def test_every_field_has_wrong_values_here():
    assert WRONG.keys() == set(FIELDS)


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_value_is_refused_by_name(name):
    for value in WRONG[name]:
        with pytest.raises(BadRequest) as refused:
            SamplingParams(**{name: value})
        message = str(refused.value)
        assert message.startswith(name) and message.endswith(".") and len(message) < 500


strange = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=3), st.binary(max_size=3), st.just(HUGE),
    st.lists(st.integers(-2, 200), max_size=3), st.lists(st.text(max_size=2), max_size=3), st.just(object()),
    st.dictionaries(st.integers(-1, 9), st.floats(), max_size=2), st.fractions(), st.complex_numbers(),
)  # fmt: skip


@settings(max_examples=100, deadline=None)
@given(st.sampled_from(FIELDS), strange)
def test_any_value_is_taken_or_refused(name, value):
    try:
        params = SamplingParams(**{name: value})
    except BadRequest:
        return
    assert isinstance(params.changes_logits, bool)
    again = {name: getattr(params, name)}  # what was taken can be given again
    assert SamplingParams(**again) == params


def test_values_have_the_type_of_their_field():
    params = SamplingParams(
        max_tokens=np.int64(9), temperature=1, top_p=Fraction(1, 2), top_k=-1, seed=np.int32(4), stop=None, n=np.int8(2),
        logit_bias={"7": 1, 3: np.float32(0.5)}, stop_token_ids=[np.int64(3)], allowed_token_ids={5}, bad_words=None,
        logits_processors=None,
    )  # fmt: skip
    assert (params.max_tokens, params.temperature, params.top_p, params.top_k) == (9, 1.0, 0.5, 0)
    assert params.logit_bias == {7: 1.0, 3: 0.5} and params.stop == params.bad_words == params.logits_processors == ()
    assert params.stop_token_ids == (3,) and params.allowed_token_ids == (5,)
    for name in ("max_tokens", "seed", "n"):
        assert type(getattr(params, name)) is int
    assert type(params.temperature) is type(params.top_p) is type(params.logit_bias[7]) is float


def test_limits_are_taken():
    SamplingParams(max_tokens=None, min_tokens=10**9, logprobs=-1, prompt_logprobs=-1, min_p=1, top_k=HUGE, n=1)
    SamplingParams(presence_penalty=-2, frequency_penalty=2, logit_bias={0: -100, 1: 100})
    assert SamplingParams(stop="end").stop == ("end",) == SamplingParams(stop=["end"]).stop
    assert SamplingParams(logit_bias={}).logit_bias is None


@pytest.mark.parametrize(
    "fields, says",
    [
        (dict(max_tokens=8, min_tokens=9), "min_tokens is 9 and max_tokens 8"),
        (dict(stop="a", detokenize=False), "stop is given, and detokenize is False"),
        (dict(structured_outputs=StructuredOutputsParams(regex="a"), ignore_eos=True), "ignore_eos"),
    ],
)
def test_values_that_contradict_each_other_are_refused(fields, says):
    with pytest.raises(BadRequest, match=says):
        SamplingParams(**fields)


@pytest.mark.parametrize(
    "rules",
    [{}, {"regex": "a", "json": {}}, {"regex": 5}, {"choice": []}, {"choice": ["a", ""]}, {"json_object": False}],
)
def test_structured_outputs_have_one_rule(rules):
    with pytest.raises(BadRequest):
        StructuredOutputsParams(**rules)


@pytest.mark.parametrize(
    "name, value", [("stop_token_ids", (97,)), ("allowed_token_ids", (3, 97)), ("logit_bias", {10**5000: 1})], ids="abc"
)
def test_tokens_outside_the_vocabulary_are_refused(name, value):
    with pytest.raises(BadRequest, match=rf"^{name} contains token id .* the vocabulary has ids 0 to 96\."):
        rules_of(SamplingParams(**{name: value}), (), tokenizer=None, vocab_size=97, memory=None)


def test_which_rules_change_logits_and_look_at_tokens_on_the_host():
    tokenizer = SimpleNamespace(eos_token_id=0, encode=lambda text, **_: [ord(char) - 32 for char in text.strip()])

    def rules(**fields):
        params = SamplingParams(**fields)
        found = rules_of(params, (), tokenizer=tokenizer, vocab_size=97, memory=None)
        assert (found is not None) == params.changes_logits
        return found and found.processor(Sequence("s", [1], 9))

    assert rules(temperature=1.0, top_k=5, min_p=0.1, seed=3, stop="a", logprobs=2) is None
    on_device = dict(
        logit_bias={1: 2}, allowed_token_ids=(1, 2), min_tokens=3, presence_penalty=1, frequency_penalty=1,
        repetition_penalty=1.1, bad_words=["a"],
    )  # fmt: skip
    for name, value in on_device.items():
        assert not rules(**{name: value}).needs_host
    for fields in (dict(bad_words=["ab"]), dict(logits_processors=[max])):
        assert rules(**fields).needs_host
