"""What a model's generation_config asks for: the engine's tokens are those of `generate`, which obeys it, or the engine
is refused by name."""

import copy

import pytest
import torch
from engine_cases import LetterTokenizer, a_model, alone, check_that_nothing_is_left, greedy, run_out
from oracle import END, generate_alone
from transformers import GenerationConfig

from lessons_lib.compat.generation_defaults import HONORED, NOT_OFFERED, counts
from lessons_lib.engine.config import EngineConfig
from lessons_lib.engine.cuda_graphs import rerun
from lessons_lib.engine.gpu_model_runner import gpu_model_runner
from lessons_lib.engine.llm_engine import LLMEngine
from lessons_lib.models.configuration import UnsupportedModel
from lessons_lib.models.tiny_models import VOCAB_SIZE

PROMPTS = [[1, 2, 3], [7], [5, 6, 5, 6, 5], list(range(20, 41)), [3, 3]]
MAX_TOKENS = 14


class NoEndToken(LetterTokenizer):
    eos_token_id = None


class OtherEndToken(LetterTokenizer):
    eos_token_id = 87


def a_model_with(**fields):
    model = copy.deepcopy(a_model())
    for name, value in fields.items():
        setattr(model.generation_config, name, value)
    return model


def an_engine(model, tokenizer=None, overlapped=False, **config):
    sizes = dict(max_num_seqs=4, max_num_batched_tokens=12, block_size=4, num_blocks=14, max_model_len=40, probe=False)
    if overlapped:
        sizes |= dict(overlap=True, make_runner=gpu_model_runner(compiled=False, capture=rerun))
    return LLMEngine(model, tokenizer or LetterTokenizer(), EngineConfig(**sizes | config))


def of_generate(model, prompt, end_token_ids=(END,), max_tokens=MAX_TOKENS):
    return generate_alone(model, prompt, max_tokens, list(end_token_ids) or None)


A_FIELD = {
    "repetition_penalty": [1.3, 0.8],
    "no_repeat_ngram_size": [1],
    "bad_words_ids": [[[answer] for answer in range(20, 60)], [[44, 24], [10, 23], [85]]],
    "min_length": [9],
    "min_new_tokens": [5, MAX_TOKENS],
    "forced_bos_token_id": [44],
    "forced_eos_token_id": [END, 0],
    "exponential_decay_length_penalty": [(2, 1.8)],
    "suppress_tokens": [list(range(0, 90, 2))],
    "begin_suppress_tokens": [list(range(50))],
    "sequence_bias": [[[[8], 30.0], [[8, 9], 40.0]]],
    "encoder_repetition_penalty": [2.5],
    "encoder_no_repeat_ngram_size": [1],
    "remove_invalid_values": [True],
}


def test_every_field_that_is_honored_is_tested():
    assert A_FIELD.keys() == set(HONORED)


@pytest.mark.parametrize("name, value", [(name, value) for name, values in A_FIELD.items() for value in values])
def test_the_tokens_are_those_of_generate(name, value):
    model = a_model_with(**{name: value})
    expected = [of_generate(model, prompt) for prompt in PROMPTS]
    if name != "remove_invalid_values":
        assert expected != [alone("qwen2", prompt, MAX_TOKENS) for prompt in PROMPTS], "the field should matter"
    for overlapped in (False, True):
        with an_engine(model, overlapped=overlapped) as engine:
            assert engine.fit.defaults.honored == {name: value}
            assert [output.token_ids for output in engine.generate(PROMPTS, greedy(MAX_TOKENS))] == expected
            check_that_nothing_is_left(engine)


MANY = {
    "repetition_penalty": 1.2,
    "no_repeat_ngram_size": 3,
    "suppress_tokens": [4, 5, 6],
    "begin_suppress_tokens": [7, 8],
    "min_new_tokens": 3,
    "bad_words_ids": [[9, 10], [11]],
}


@pytest.mark.parametrize("overlapped", [False, True])
def test_many_fields_at_once_under_preemption(overlapped):
    model = a_model_with(**MANY)
    with an_engine(model, overlapped=overlapped, num_blocks=11) as engine:
        for index, prompt in enumerate(PROMPTS):
            engine.add_request(prompt, greedy(MAX_TOKENS, n=1 + index % 3), request_id=str(index))
        outputs = run_out(engine)
        for index, prompt in enumerate(PROMPTS):
            found = [each.token_ids for each in outputs[str(index)].completions]
            assert found == [of_generate(model, prompt)] * (1 + index % 3)
        assert engine.scheduler.num_preempted, "the pool should be too small"
        check_that_nothing_is_left(engine)


# End tokens


@pytest.mark.parametrize("ends", [53, [53], [53, 87, 61], torch.tensor([53, 61]), []], ids=str)
@pytest.mark.parametrize("tokenizer", [NoEndToken(), OtherEndToken()])
def test_each_end_token_of_the_model_and_of_the_tokenizer_ends(ends, tokenizer):
    listed = ends.tolist() if isinstance(ends, torch.Tensor) else [ends] if isinstance(ends, int) else ends
    both = {*listed, *([] if tokenizer.eos_token_id is None else [87])}
    prompts = [[n, n + 1] for n in range(8)]
    expected = [of_generate(a_model(), prompt, both) for prompt in prompts]
    for overlapped in (False, True):
        with an_engine(a_model_with(eos_token_id=ends), tokenizer, overlapped) as engine:
            assert engine.fit.defaults.end_token_ids == both
            outputs = engine.generate(prompts, greedy(MAX_TOKENS))
            assert [output.token_ids for output in outputs] == expected
            reached = {output.token_ids[-1] for output in outputs if output.finish_reason == "stop"}
            assert reached <= both and len(reached) >= min(2, len(both))
            (on,) = engine.generate([[1, 2]], greedy(MAX_TOKENS, ignore_eos=True))
            assert on.token_ids == alone("qwen2", [1, 2], MAX_TOKENS, ignore_eos=True)


def test_a_tokenizer_may_lack_the_attribute():
    class Bare:
        decode = LetterTokenizer.decode

    assert an_engine(a_model_with(), Bare()).fit.defaults.end_token_ids == frozenset()


def test_a_stop_string_of_the_model_ends_a_completion_too():
    answer = alone("qwen2", [1, 2, 3], MAX_TOKENS)
    text = LetterTokenizer().decode(answer)
    engine = an_engine(a_model_with(stop_strings=text[4:6]))
    (output,) = engine.generate([[1, 2, 3]], greedy(MAX_TOKENS))
    assert output.token_ids == answer[: text.index(text[4:6]) + 2] and output.finish_reason == "stop"
    assert engine.fit.defaults.stop == (text[4:6],)


# What isn't taken


@pytest.mark.parametrize("name", NOT_OFFERED)
def test_what_would_give_other_tokens_is_refused_by_name(name):
    model = a_model_with(**{name: 4})
    with pytest.raises(UnsupportedModel, match=rf"{name}=.*generation_config\.{name} = None.*generation_config=False"):
        an_engine(model)
    setattr(model.generation_config, name, None)
    an_engine(model)


@pytest.mark.parametrize(
    "fields", [{"repetition_penalty": -1.0}, {"sequence_bias": [[[VOCAB_SIZE], 1.0]]}, {"suppress_tokens": ["a"]}]
)
def test_a_value_that_cannot_be_obeyed_is_found_when_the_engine_is_made(fields):
    with pytest.raises(UnsupportedModel, match="generation_config can't be obeyed.*Correct it, or ignore it"):
        an_engine(a_model_with(**fields))


def test_a_generation_config_can_be_ignored():
    engine = an_engine(a_model_with(num_beams=4, eos_token_id=[40], **MANY), generation_config=False)
    assert engine.fit.defaults.end_token_ids == {END} and not engine.fit.defaults.honored
    outputs = engine.generate(PROMPTS, greedy(MAX_TOKENS))
    assert [output.token_ids for output in outputs] == [alone("qwen2", prompt, MAX_TOKENS) for prompt in PROMPTS]


def test_neutral_values_are_nothing():
    fields = dict(GenerationConfig._get_default_generation_params())
    neutral = {name: value for name, value in fields.items() if name in (*HONORED, *NOT_OFFERED)}
    assert neutral and not [name for name, value in neutral.items() if counts(name, value)]


def test_a_field_of_the_request_replaces_that_of_the_model():
    engine = an_engine(a_model_with(repetition_penalty=1.4))
    outputs = engine.generate(PROMPTS, greedy(MAX_TOKENS, repetition_penalty=1.2))
    other = a_model_with(repetition_penalty=1.2)
    assert [output.token_ids for output in outputs] == [of_generate(other, prompt) for prompt in PROMPTS]


def test_greedy_stays_greedy_if_the_model_asks_for_sampling():
    (output,) = an_engine(a_model_with(do_sample=True, temperature=0.6)).generate([[1, 2, 3]], greedy(MAX_TOKENS))
    assert output.token_ids == alone("qwen2", [1, 2, 3], MAX_TOKENS)
