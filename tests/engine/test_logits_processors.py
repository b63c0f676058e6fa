"""What changes logits, one rule at a time and all together, against the processors of Hugging Face and against formulas."""

import random
from collections import Counter
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from race_oracle import probabilities_of_the_race
from transformers import (
    MinNewTokensLengthLogitsProcessor,
    MinPLogitsWarper,
    NoBadWordsLogitsProcessor,
    PrefixConstrainedLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from lessons_lib.engine.logits_processors import (
    LogitsProcessor,
    LogitsRules,
    last_tokens_of_bad_words,
    tokens_of_bad_words,
)
from lessons_lib.engine.rules import NO_TOKEN_ALLOWED, NoTokenAllowed, process_logits, why_no_token
from lessons_lib.engine.sampling import NO_TOKEN, choose_tokens
from lessons_lib.engine.sampling_params import SamplingParams
from lessons_lib.models.loading import load_model
from lessons_lib.scheduling.sequence import Sequence

VOCABULARY = 40
few = settings(max_examples=80, deadline=None)
seeds = st.integers(0, 10**6)


def a_case(seed):
    """(logits, prompt, output): tokens come again often."""
    rng = random.Random(seed)
    logits = torch.randn(VOCABULARY, generator=torch.Generator().manual_seed(seed)) * rng.choice([0.5, 3, 20])
    prompt, output = ([rng.randrange(12) for _ in range(rng.randint(least, 15))] for least in (1, 0))
    return logits, prompt, output


def processor_of(params, prompt=(1,), output=(), stop_token_ids=(), bad_words=()):
    takes_prompt = (False,) * len(params.logits_processors)
    rules = LogitsRules(params, tuple(bad_words), None, takes_prompt)
    return LogitsProcessor(rules, Sequence("s", list(prompt), 99, frozenset(stop_token_ids), output_ids=list(output)))


def processed(logits, params, prompt=(1,), output=(), **kwargs):
    return process_logits(logits[None], [processor_of(params, prompt, output, **kwargs)], [len(output)])[0]


def by_hugging_face(processor, logits, token_ids):
    return processor(torch.tensor([list(token_ids)], dtype=torch.int64), logits[None].clone())[0]


def difference(found, expected):
    """The largest one; what can't be drawn must be the same on both sides."""
    assert torch.equal(found == float("-inf"), expected == float("-inf"))
    return float((found - expected).masked_fill(found == float("-inf"), 0.0).abs().max())


def check_repetition(seed):
    logits, prompt, output = a_case(seed)
    penalty = random.Random(seed).choice([0.5, 0.9, 1.1, 1.5, 3.0])
    expected = by_hugging_face(RepetitionPenaltyLogitsProcessor(penalty), logits, prompt + output)
    return difference(processed(logits, SamplingParams(repetition_penalty=penalty), prompt, output), expected)


def check_presence_and_frequency(seed):
    """OpenAI's formula, in their API reference: mu[j] - c[j] * alpha_frequency - float(c[j] > 0) * alpha_presence."""
    logits, prompt, output = a_case(seed)
    rng = random.Random(seed)
    presence, frequency = rng.uniform(-2, 2), rng.choice([0, rng.uniform(-2, 2)])
    counts = Counter(output)
    values = [float(logit) - counts[j] * frequency - float(counts[j] > 0) * presence for j, logit in enumerate(logits)]
    params = SamplingParams(presence_penalty=presence, frequency_penalty=frequency)
    return difference(processed(logits, params, prompt, output).double(), torch.tensor(values, dtype=torch.float64))


def check_bias(seed):
    logits, prompt, output = a_case(seed)
    rng = random.Random(seed)
    bias = {token: rng.uniform(-100, 100) for token in rng.sample(range(VOCABULARY), 5)}
    expected = by_hugging_face(SequenceBiasLogitsProcessor({(t,): b for t, b in bias.items()}), logits, prompt + output)
    return difference(processed(logits, SamplingParams(logit_bias=bias), prompt, output), expected)


def check_bad_words(seed):
    logits, prompt, output = a_case(seed)
    rng = random.Random(seed)
    words = [[rng.randrange(12) for _ in range(rng.randint(1, 3))] for _ in range(6)]
    words += [[*output[-2:], 7]] if len(output) > 1 else []
    # vLLM looks at the completion only, so Hugging Face gets nothing else.
    expected = by_hugging_face(NoBadWordsLogitsProcessor(words), logits, output)
    return difference(processed(logits, SamplingParams(bad_words=["."]), prompt, output, bad_words=words), expected)


def check_allowed(seed):
    logits, prompt, output = a_case(seed)
    allowed = random.Random(seed).sample(range(VOCABULARY), 5)
    expected = by_hugging_face(PrefixConstrainedLogitsProcessor(lambda batch, ids: allowed, 1), logits, prompt + output)
    return difference(processed(logits, SamplingParams(allowed_token_ids=allowed), prompt, output), expected)


def check_min_tokens(seed):
    logits, prompt, output = a_case(seed)
    least = random.Random(seed).randint(0, 12)
    oracle = MinNewTokensLengthLogitsProcessor(len(prompt), least, [3, 8], device="cpu")
    params = SamplingParams(min_tokens=least)
    return difference(
        processed(logits, params, prompt, output, stop_token_ids=(3, 8)),
        by_hugging_face(oracle, logits, prompt + output),
    )


def check_everything_together(seed):
    """The probabilities that a token is drawn with, by our rules and by Hugging Face's one after another."""
    logits, prompt, output = a_case(seed)
    logits, rng = logits.double(), random.Random(seed)
    words, allowed = [[rng.randrange(12)], [*output[-1:], 9]], rng.sample(range(VOCABULARY), 30)
    params = SamplingParams(
        temperature=rng.choice([0.4, 1.0, 2.5]), top_k=rng.choice([0, 3, 10]), top_p=rng.choice([1.0, 0.9, 0.4]),
        min_p=rng.choice([0.0, 0.05, 0.3]), presence_penalty=rng.uniform(-2, 2), frequency_penalty=rng.uniform(-2, 2),
        repetition_penalty=rng.choice([1.0, 0.8, 1.7]), logit_bias={2: rng.uniform(-5, 5), 30: 4.0}, min_tokens=8,
        allowed_token_ids=allowed, bad_words=["."],
    )  # fmt: skip
    counts = torch.bincount(torch.tensor(output, dtype=torch.int64), minlength=VOCABULARY)
    expected = logits
    for processor, ids in (
        (PrefixConstrainedLogitsProcessor(lambda batch, ids: allowed, 1), prompt + output),
        (NoBadWordsLogitsProcessor(words), output),
        (MinNewTokensLengthLogitsProcessor(len(prompt), 8, [3, 8], device="cpu"), prompt + output),
        (SequenceBiasLogitsProcessor({(t,): b for t, b in params.logit_bias.items()}), prompt + output),
        (RepetitionPenaltyLogitsProcessor(params.repetition_penalty), prompt + output),
        (lambda ids, scores: scores - counts * params.frequency_penalty - (counts > 0) * params.presence_penalty, []),
        (TemperatureLogitsWarper(params.temperature), []),
        (MinPLogitsWarper(params.min_p), []),
        (TopKLogitsWarper(params.top_k) if params.top_k else lambda ids, scores: scores, []),
        (TopPLogitsWarper(params.top_p) if params.top_p < 1 else lambda ids, scores: scores, []),
    ):
        expected = by_hugging_face(processor, expected, ids)
    expected = expected.softmax(-1)
    found = processed(logits, params, prompt, output, stop_token_ids=(3, 8), bad_words=words)
    found = probabilities_of_the_race(found, params)
    # Behind a sum that rounds to 1, we leave out what is left: nothing.
    assert torch.equal(found > 1e-12, expected > 1e-12)
    return float((found - expected).abs().max())


# Logits are float32, up to 80 in size. The formula is computed in float64.
CHECKS = {
    check_repetition: 0.0,
    check_presence_and_frequency: 1e-5,
    check_bias: 1e-5,
    check_bad_words: 0.0,
    check_allowed: 0.0,
    check_min_tokens: 0.0,
    check_everything_together: 1e-5,
}


@pytest.mark.parametrize("check", CHECKS)
@few
@given(seed=seeds)
def test_rules_are_those_of_hugging_face(check, seed):
    assert check(seed) <= CHECKS[check]


def test_rows_without_rules_and_the_argument_stay_as_they_are():
    logits = torch.randn(3, VOCABULARY, generator=torch.Generator().manual_seed(0))
    before = logits.clone()
    rules = processor_of(SamplingParams(repetition_penalty=2.0, logit_bias={4: 9}, allowed_token_ids=(4, 5)), [1, 2])
    found = process_logits(logits, [None, rules, None], [0, 0, 0])
    assert torch.equal(logits, before) and torch.equal(found[[0, 2]], before[[0, 2]])
    assert (found[1] > float("-inf")).nonzero().flatten().tolist() == [4, 5]


@few
@given(seeds, st.permutations(range(4)))
def test_a_row_is_drawn_by_its_own_rules_whoever_is_beside_it(seed, order):
    cases = [a_case(seed + row) for row in range(4)]
    params = [
        SamplingParams(temperature=1.0, min_p=0.1),
        SamplingParams(repetition_penalty=1.5, presence_penalty=1.0),
        SamplingParams(temperature=2.0, top_k=9, allowed_token_ids=range(20)),
        SamplingParams(temperature=0.5, logit_bias={1: 3}, min_p=0.2),
    ]

    def choose(rows):
        processors = [
            processor_of(params[row], *cases[row][1:]) if params[row].changes_logits else None for row in rows
        ]
        logits = torch.stack([cases[row][0] for row in rows])
        lengths = [len(cases[row][2]) for row in rows]
        return choose_tokens(logits, [params[row] for row in rows], [seed + row for row in rows], lengths, processors)

    assert choose(order).tolist() == [choose([row]).item() for row in order]


def test_min_p_rules_out_what_is_far_less_likely():
    logits = torch.tensor([[0.5, 0.3, 0.15, 0.05]]).log()
    params = SamplingParams(temperature=1.0, min_p=0.31)
    drawn = Counter(choose_tokens(logits, [params], [seed], [0]).item() for seed in range(400))
    assert drawn.keys() == {0, 1} and 100 < drawn[1] < 200, "0.15 is less than 0.31 of 0.5"
    assert {
        choose_tokens(logits, [SamplingParams(temperature=9.0, min_p=1)], [seed], [0]).item() for seed in range(40)
    } == {0}


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize(
    "end_token, stop_token_ids, expected", [(9, (3,), 9), (None, (8, 3), 3), (None, (), NO_TOKEN_ALLOWED)]
)
def test_a_row_that_nothing_is_left_of_gets_its_end_token(temperature, end_token, stop_token_ids, expected):
    logits = torch.randn(3, VOCABULARY, generator=torch.Generator().manual_seed(0))
    logits[2, 7] = float("nan")
    params = SamplingParams(temperature=temperature, bad_words=["."], allowed_token_ids=(5,))
    nothing = processor_of(params, bad_words=[[5]], stop_token_ids=stop_token_ids)
    nothing.rules = replace(nothing.rules, end_token=end_token)
    plain = SamplingParams(temperature=temperature, top_k=1)
    found = choose_tokens(logits, [plain, params, params], [0] * 3, [0] * 3, [None, nothing, nothing]).tolist()
    assert found == [int(logits[0].argmax()), expected, NO_TOKEN]
    assert isinstance(why_no_token(NO_TOKEN_ALLOWED, nothing), NoTokenAllowed)
    assert isinstance(why_no_token(found[2], nothing), FloatingPointError)


def test_functions_of_the_users_come_first_and_see_what_they_ask_for():
    seen = []

    def two(output_ids, logits):
        seen.append(output_ids)
        logits[3] = 100.0
        return logits

    def three(prompt_ids, output_ids, logits):
        seen.append((prompt_ids, output_ids))
        return logits * 2

    params = SamplingParams(logits_processors=[two, three], logit_bias={3: 1})
    rules = LogitsRules.of(params, None, VOCABULARY)
    processor = LogitsProcessor(rules, Sequence("s", [1, 2], 9, output_ids=[4]))
    logits = torch.zeros(1, VOCABULARY)
    found = process_logits(logits, [processor], [1])[0]
    assert seen == [[4], ([1, 2], [4])] and found[3] == 201 and not logits.any()
    assert processor.sequence.output_ids == [4]


@pytest.mark.parametrize("result", [None, torch.zeros(3), [0.0] * VOCABULARY])
def test_a_function_that_returns_no_logits_fails_its_own_row(result):
    bad = processor_of(SamplingParams(logits_processors=[lambda output_ids, logits: result]))
    logits = torch.randn(2, VOCABULARY, generator=torch.Generator().manual_seed(0))
    plain = SamplingParams()
    found = choose_tokens(logits, [plain, bad.rules.params], [0, 0], [0, 0], [None, bad]).tolist()
    assert found == [int(logits[0].argmax()), NO_TOKEN_ALLOWED]
    assert isinstance(why_no_token(found[1], bad), TypeError) and "must return logits" in str(bad.error)


def test_a_bad_word_is_its_tokens_at_the_beginning_and_behind_a_space():
    tokenizer = load_model()[1]
    words = tokens_of_bad_words(("dog", " The"), tokenizer)
    texts = [tokenizer.decode(list(word)) for word in words]
    assert texts == ["dog", " dog", "The", " The"]
    for before, word in (("The old", " dog"), ("", "The")):
        tokens = tokenizer(before + word).input_ids
        own = tokens_of_bad_words((word,), tokenizer)
        completes = [tokens[end] in last_tokens_of_bad_words(tokens[:end], own) for end in range(len(tokens))]
        assert completes == [False] * (len(tokens) - 1) + [True]
