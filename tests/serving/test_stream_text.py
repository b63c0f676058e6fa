"""Text is made where it is read, and is the one that the engine would have passed on."""

import itertools

import pytest
from fronts import counting_engine
from hypothesis import given, settings
from hypothesis import strategies as st

from lessons_lib.engine.outputs import NewToken
from lessons_lib.engine.sampling_params import SamplingParams
from lessons_lib.models.loading import load_model
from lessons_lib.serving.engine_loop import EngineLoop
from lessons_lib.serving.messages import Accepted, AddRequest, NewTokens, RequestEnded
from lessons_lib.serving.stream_text import StreamText, TextRules

prompts = st.lists(st.integers(3, 90), min_size=1, max_size=5)
all_params = st.builds(
    SamplingParams,
    max_tokens=st.integers(1, 12),
    n=st.integers(1, 3),
    temperature=st.just(0.0),
    stop=st.sampled_from([(), (), (), ("-",), ("01", "9")]),
    stop_token_ids=st.sampled_from([(), (20,), (40, 60, 80)]),
    include_stop_str_in_output=st.booleans(),
    ignore_eos=st.booleans(),
    detokenize=st.just(True),
    skip_special_tokens=st.booleans(),
    logprobs=st.sampled_from([None, 1]),
)


def passed_on(engine, prompt, params, **options):
    """(tokens, completions) of an engine's caller."""
    tokens = []
    engine.add_request(prompt, params, request_id="a", on_token=tokens.append, **options)
    while engine.has_unfinished():
        outputs = engine.step()
    return tokens, [(each.text, each.finish_reason, each.stop_reason) for each in outputs[0].completions]


def read(engine, prompt, params, is_read_first=True, **options):
    """The same as a front's reader gets it."""
    loop = EngineLoop(engine)
    events = loop.turn([AddRequest("a", prompt, params, options)])
    while engine.has_unfinished():
        events += loop.turn([])
    accepted, *_ = (event for event in events if isinstance(event, Accepted))
    steps = [event.tokens for event in events if isinstance(event, NewTokens)]
    tokens = list(itertools.chain.from_iterable(steps))
    (end,) = (event for event in events if isinstance(event, RequestEnded))
    completions = end.completions
    if accepted.text_rules:
        assert not any(token.text for token in tokens) and not any(each.text for each in completions)
        text = StreamText(engine.tokenizer, accepted.text_rules, options.get("output_ids", ()))
        if is_read_first:
            tokens = [token for step in steps for token in text.add_to(step)]
        completions = [text.add_to_end(each) for each in completions]
        if not is_read_first:
            tokens = text.add_to(tokens)
    return tokens, [(each.text, each.finish_reason, each.stop_reason) for each in completions]


@settings(max_examples=60, deadline=None)
@given(prompts, all_params, st.booleans())
def test_readers_get_what_the_engine_would_have_passed_on(prompt, params, is_read_first):
    assert read(counting_engine(), prompt, params, is_read_first) == passed_on(counting_engine(), prompt, params)


@pytest.mark.parametrize("stop", [(), ("5",)])
def test_a_completion_that_goes_on(stop):
    params, known = SamplingParams(max_tokens=8, stop=stop, ignore_eos=True), [11, 12, 13]
    found = read(counting_engine(), [10], params, output_ids=known)
    assert found == passed_on(counting_engine(), [10], params, output_ids=known)
    assert found[1][0][0].endswith("".join(token.text for token in found[0])), "what is known has been shown"


def test_only_stop_strings_need_their_text_in_the_engine():
    loop = EngineLoop(counting_engine())
    own = {"a": {}, "b": {"stop": ("x",)}, "c": {"detokenize": False}}
    commands = [AddRequest(name, [4], SamplingParams(max_tokens=2, **fields)) for name, fields in own.items()]
    silent, with_stop, without = loop.apply(commands)
    assert silent.text_rules and with_stop.text_rules is None and without.text_rules is None
    (of_step,) = (event for event in loop.step() if isinstance(event, NewTokens))
    assert {token.request_id for token in of_step.tokens if token.text} == {"b"}


@pytest.mark.parametrize("num_known", range(6))
def test_characters_of_several_tokens(num_known):
    """Whatever the reader has already, and also if the last character isn't complete."""
    tokenizer = load_model()[1]
    token_ids = [token for character in "a🐶é" for token in tokenizer(character).input_ids][:-1]
    assert len(token_ids) > num_known > -1 and len(token_ids) > len("a🐶é"), "bytes"
    last = len(token_ids) - 1
    tokens = [NewToken("a", 0, token, "", "length" if at == last else None) for at, token in enumerate(token_ids)]
    rules = TextRules({"skip_special_tokens": True}, shows_stop_token=False)
    whole = [token.text for token in StreamText(tokenizer, rules).add_to(tokens)]
    assert "".join(whole) == tokenizer.decode(token_ids)
    rest = StreamText(tokenizer, rules, token_ids[:num_known]).add_to(tokens[num_known:])
    assert [token.text for token in rest] == whole[num_known:]
