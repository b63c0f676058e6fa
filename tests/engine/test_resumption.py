"""A completion that begins behind tokens of another engine continues exactly what that engine would have gone on with."""

import math
from functools import cache

import pytest
from engine_cases import (
    a_model,
    an_engine,
    check_that_nothing_is_left,
    engine_of_kind,
    run_out,
    run_out_with_an_observer_that_raises,
)

from lessons_lib.engine.llm_engine import EngineConfig, LLMEngine
from lessons_lib.engine.sampling_params import SamplingParams
from lessons_lib.engine.structured_outputs import StructuredOutputsParams
from lessons_lib.models.loading import load_model
from lessons_lib.models.validate import BadRequest


def streamed(engine, prompt, params, output_ids=()):
    """(text, token, finish_reason, logprobs) of each new token."""
    seen = []
    engine.add_request(prompt, params, on_token=seen.append, output_ids=output_ids)
    run_out(engine)
    check_that_nothing_is_left(engine)
    return [(new.text, new.token, new.finish_reason, new.stop_reason, new.logprobs) for new in seen]


@cache
def bundled():
    return load_model(device="cpu")


def bundled_engine():
    return LLMEngine(*bundled(), EngineConfig(num_blocks=20))


DRAWN = dict(temperature=1.2, seed=11)
RULES = {
    "greedy": {},
    "drawn": DRAWN,
    "penalties": {**DRAWN, "presence_penalty": 1.5, "frequency_penalty": 1.0, "repetition_penalty": 1.3},
    "bad words": {"bad_words": ("the", "a")},
    "min_tokens": {**DRAWN, "min_tokens": 14},
    "logprobs": {**DRAWN, "logprobs": 2},
    "grammar": {**DRAWN, "structured_outputs": StructuredOutputsParams(regex=r"[a-z]{3,9}( [a-z]{3,9}){2,4}\.")},
}


@pytest.mark.parametrize("rules", RULES)
def test_it_goes_on_behind_any_token(rules):
    if rules == "grammar":
        pytest.importorskip("llguidance")
    engine, params = bundled_engine(), SamplingParams(max_tokens=16, **RULES[rules])
    whole = streamed(engine, "Once upon a time", params)
    assert len(whole) > 5
    for cut in (1, len(whole) - 1):
        rest = streamed(engine, "Once upon a time", params, [new[1] for new in whole[:cut]])
        assert [new[:4] for new in rest] == [new[:4] for new in whole[cut:]]
        for (*_, one), (*_, other) in zip(rest, whole[cut:]):
            assert (one is None) == (other is None) == (rules != "logprobs")
            assert one is None or math.isclose(one.logprob, other.logprob, abs_tol=1e-4)


def test_tokens_that_break_the_grammar_are_refused():
    pytest.importorskip("llguidance")
    engine, params = bundled_engine(), SamplingParams(max_tokens=16, **RULES["grammar"])
    with pytest.raises(BadRequest, match="output_ids don't match the request's structured_outputs"):
        engine.add_request("Once upon a time", params, output_ids=bundled()[1](" !").input_ids)
    check_that_nothing_is_left(engine)


def test_a_stop_string_across_the_cut_ends_it():
    engine = bundled_engine()
    plain = streamed(engine, "Once upon a time", SamplingParams(max_tokens=16))
    stop = "".join(new[0] for new in plain)[8:20]  # over several tokens
    params = SamplingParams(max_tokens=16, stop=(stop,))
    whole = streamed(engine, "Once upon a time", params)
    assert whole[-1][2:4] == ("stop", stop) and 3 < len(whole) < 16
    for cut in range(1, len(whole)):
        assert streamed(engine, "Once upon a time", params, [new[1] for new in whole[:cut]]) == whole[cut:]


def test_letters_of_several_tokens_across_the_cut_stay_whole():
    engine, tokenizer = bundled_engine(), bundled()[1]
    tokens = tokenizer("año 🦜", add_special_tokens=False).input_ids
    assert len(tokens) > 5  # the bundled tokenizer has no such letters: bytes
    for cut in range(1, len(tokens) + 1):
        shown = []
        params = SamplingParams(max_tokens=len(tokens) + 2)
        engine.add_request("Once", params, on_token=shown.append, output_ids=tokens[:cut])
        (completion,) = next(iter(engine.requests.values())).completions
        before = completion.detokenizer.text
        (output,) = run_out(engine).values()
        assert output.token_ids[:cut] == tokens[:cut]
        assert before + "".join(new.text for new in shown) == output.text
        assert output.text == tokenizer.decode(output.token_ids, skip_special_tokens=True)


def test_the_overlapped_engine_goes_on_too():
    params = SamplingParams(max_tokens=12, presence_penalty=1.0, ignore_eos=True, **DRAWN)
    tokens = [new[1] for new in streamed(an_engine(), [3, 4, 5], params)]
    engine = engine_of_kind("overlaps", block_size=4, num_blocks=60)
    assert [new[1] for new in streamed(engine, [3, 4, 5], params, tokens[:4])] == tokens[4:]


def test_interrupts_after_that_lose_and_repeat_nothing():
    prompt, params = [1, 2, 3, 4, 5], SamplingParams(max_tokens=12, ignore_eos=True, logprobs=1)
    tokens = [new[1] for new in streamed(an_engine(), prompt, params)]
    engine, seen = an_engine(num_blocks=6), []
    engine.add_request(prompt, params, on_token=seen.append, output_ids=tokens[:5])
    engine.add_request([7, 8], params)
    engine.core.is_whole = False  # an interrupted step: the next one begins again
    engine.step()
    engine.core.is_whole = False
    outputs, _ = run_out_with_an_observer_that_raises(engine, lambda: None)
    assert [new.token for new in seen] == tokens[5:]
    assert outputs["0"].token_ids == tokens
    check_that_nothing_is_left(engine)


@pytest.mark.parametrize(
    "options, output_ids, message",
    [
        (dict(n=2), [1], "output_ids is given, and n is 2; one completion can go on: set n to 1."),
        (
            dict(max_tokens=3),
            [1, 2, 3],
            "output_ids has 3 tokens, and the completion ends with number 3 of them, by 'le",
        ),
        (dict(max_tokens=2), [1, 2, 3], "ends with number 2 of them"),
        (dict(stop_token_ids=(2,)), [1, 2, 3], "ends with number 2 of them, by 'stop'"),
        (dict(stop=("$",)), [1, 3, 2], "ends with number 2 of them, by 'stop'"),
        ({}, [97], "output_ids contains token id 97; the vocabulary has ids 0 to 96"),
        ({}, ["x"], "output_ids contains 'x'"),
    ],
)
def test_what_cannot_go_on_is_refused(options, output_ids, message):
    engine = an_engine(model=a_model())
    with pytest.raises(BadRequest) as error:
        engine.add_request([5, 6], SamplingParams(**options), output_ids=output_ids, on_token=lambda new: None)
    assert message in str(error.value)
    check_that_nothing_is_left(engine)


def test_cached_tokens_of_a_resumed_request_are_those_of_its_prompt():
    engine, prompt = an_engine(block_size=4), [1, 2, 3, 4, 5]
    params = SamplingParams(max_tokens=12, ignore_eos=True)
    (first,) = engine.generate([prompt], params)
    engine.add_request(prompt, params, request_id="again", output_ids=first.token_ids[:10])
    assert run_out(engine)["again"].num_cached_tokens == len(prompt)
