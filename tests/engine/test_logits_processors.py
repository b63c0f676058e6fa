"""What changes logits, one rule at a time and all together, against the processors of Hugging Face and against formulas."""

import random
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import (
    MinNewTokensLengthLogitsProcessor,
    NoBadWordsLogitsProcessor,
    PrefixConstrainedLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
)

from lessons_lib.engine.logits_processors import (
    LogitsProcessor,
    LogitsRules,
    last_tokens_of_bad_words,
    tokens_of_bad_words,
)
from lessons_lib.engine.rules import NO_TOKEN_ALLOWED, NoTokenAllowed, why_no_token
from lessons_lib.engine.rules_state import RulesState
from lessons_lib.engine.sampling import NO_TOKEN, choose_tokens
from lessons_lib.engine.sampling_params import SamplingParams
from lessons_lib.models.loading import load_model
from lessons_lib.scheduling.sequence import Sequence

VOCABULARY = 40
few = settings(max_examples=50, deadline=None)
seeds = st.integers(0, 10**6)


def a_case(seed):
    """(logits, prompt, output): tokens come again often."""
    rng = random.Random(seed)
    logits = torch.randn(VOCABULARY, generator=torch.Generator().manual_seed(seed)) * rng.choice([0.5, 3, 20])
    prompt, output = ([rng.randrange(12) for _ in range(rng.randint(least, 15))] for least in (1, 0))
    return logits, prompt, output


def processor_of(params, prompt=(1,), output=(), stop_token_ids=(), bad_words=()):
    rules = LogitsRules(params, RulesState(), tuple(bad_words))
    return LogitsProcessor(rules, Sequence("s", list(prompt), 99, frozenset(stop_token_ids), output_ids=list(output)))


def processed(logits, params, prompt=(1,), output=(), **kwargs):
    processor = processor_of(params, prompt, output, **kwargs)
    return processor.memory.process(logits[None], [processor], [len(output)])[0]


def repetition(rng, prompt, output):
    penalty = rng.choice([0.5, 0.9, 1.1, 1.5, 3.0])
    return dict(repetition_penalty=penalty), {}, RepetitionPenaltyLogitsProcessor(penalty), prompt + output


def presence_and_frequency(rng, prompt, output):
    """OpenAI's formula, in their API reference: mu[j] - c[j] * alpha_frequency - float(c[j] > 0) * alpha_presence."""
    presence, frequency = rng.uniform(-2, 2), rng.choice([0, rng.uniform(-2, 2)])
    counts = torch.bincount(torch.tensor(output, dtype=torch.int64), minlength=VOCABULARY).double()

    def formula(ids, logits):
        return logits.double() - counts * frequency - (counts > 0).double() * presence

    return dict(presence_penalty=presence, frequency_penalty=frequency), {}, formula, output


def bias(rng, prompt, output):
    biases = {token: rng.uniform(-100, 100) for token in rng.sample(range(VOCABULARY), 5)}
    theirs = SequenceBiasLogitsProcessor({(token,): amount for token, amount in biases.items()})
    return dict(logit_bias=biases), {}, theirs, prompt + output


def bad_words(rng, prompt, output):
    """vLLM looks at the completion only, so Hugging Face gets nothing else."""
    words = [[rng.randrange(12) for _ in range(rng.randint(1, 3))] for _ in range(6)]
    words += [[*output[-2:], 7]] if len(output) > 1 else []
    return dict(bad_words=["."]), dict(bad_words=words), NoBadWordsLogitsProcessor(words), output


def allowed(rng, prompt, output):
    tokens = rng.sample(range(VOCABULARY), 5)
    return dict(allowed_token_ids=tokens), {}, PrefixConstrainedLogitsProcessor(lambda *_: tokens, 1), prompt + output


def min_tokens(rng, prompt, output):
    least = rng.randint(0, 12)
    theirs = MinNewTokensLengthLogitsProcessor(len(prompt), least, [3, 8], device="cpu")
    return dict(min_tokens=least), dict(stop_token_ids=(3, 8)), theirs, prompt + output


@pytest.mark.parametrize("rule", [repetition, presence_and_frequency, bias, bad_words, allowed, min_tokens])
@few
@given(seed=seeds)
def test_rules_are_those_of_hugging_face(rule, seed):
    logits, prompt, output = a_case(seed)
    fields, others, theirs, token_ids = rule(random.Random(seed), prompt, output)
    expected = theirs(torch.tensor([token_ids], dtype=torch.int64), logits[None].clone())[0]
    found = processed(logits, SamplingParams(**fields), prompt, output, **others).to(expected.dtype)
    assert torch.equal(found == float("-inf"), expected == float("-inf")), "the same tokens can be drawn"
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)  # float32, up to 80 in size


def test_rows_without_rules_and_the_argument_stay_as_they_are():
    logits = torch.randn(3, VOCABULARY, generator=torch.Generator().manual_seed(0))
    before = logits.clone()
    rules = processor_of(SamplingParams(repetition_penalty=2.0, logit_bias={4: 9}, allowed_token_ids=(4, 5)), [1, 2])
    found = rules.memory.process(logits, [None, rules, None], [0, 0, 0])
    assert torch.equal(logits, before) and torch.equal(found[[0, 2]], before[[0, 2]])
    assert (found[1] > float("-inf")).nonzero().flatten().tolist() == [4, 5]


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


def test_functions_of_the_users_come_first_and_see_all_tokens():
    seen = []

    def double(prompt_ids, output_ids, logits):
        seen.append((prompt_ids, output_ids))
        logits[3] = 100.0
        return logits * 2

    logits = torch.zeros(VOCABULARY)
    found = processed(logits, SamplingParams(logits_processors=[double], logit_bias={3: 1}), [1, 2], [4])
    assert seen == [([1, 2], [4])] and found[3] == 201 and not logits.any()


@pytest.mark.parametrize("result", [None, torch.zeros(3), [0.0] * VOCABULARY])
def test_a_function_that_returns_no_logits_fails_its_own_row(result):
    bad = processor_of(SamplingParams(logits_processors=[lambda *args: result]))
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


def all_rules(rng):
    """Some rules of a request, and the tokens of its bad words."""
    fields = dict(
        repetition_penalty=rng.choice([1.0, 1.3, 0.7]), presence_penalty=rng.choice([0.0, 0.6]),
        frequency_penalty=rng.choice([0.0, -0.4]), min_tokens=rng.choice([0, 3, 6]),
        logit_bias=rng.choice([None, {rng.randrange(VOCABULARY): 7.0, 3: -2.0}]),
        allowed_token_ids=rng.choice([None, rng.sample(range(VOCABULARY), 20)]),
    )  # fmt: skip
    words = rng.choice([[], [[rng.randrange(12)]], [[5], [1, 2], [7, 1]]])
    return SamplingParams(**fields), words


@few
@given(seed=seeds)
def test_what_is_kept_on_the_device_is_what_would_be_filled_in_anew(seed):
    """Sequences come, leave, return and change places; some tokens are still in flight, others (of a chunk in the middle
    of a prompt) are thrown away."""
    rng, generator, memory = random.Random(seed), torch.Generator().manual_seed(seed), RulesState()
    rules = [all_rules(rng) for _ in range(9)]
    ends, known = frozenset([3, 8]), [[] for _ in rules]  # all tokens of each completion
    sequences = [Sequence(str(i), [rng.randrange(12) for _ in range(rng.randint(1, 9))], 99, ends) for i in range(9)]
    kept = [
        LogitsRules(own, memory, tuple(map(tuple, words))).processor(sequences[i])
        for i, (own, words) in enumerate(rules)
    ]
    batch = [0, 1]
    for _ in range(25):
        last = batch
        if rng.random() < 0.6:
            batch = rng.sample(range(9), rng.randint(1, 6))
        for i in range(9):  # a token in flight is of a sequence that stays, and whose rules don't look at it
            if i not in batch or i not in last or kept[i].needs_host or rng.random() < 0.5:
                sequences[i].output_ids = list(known[i])
        logits = torch.randn(len(batch), VOCABULARY, generator=generator)
        found = memory.process(logits, [kept[i] for i in batch], [len(known[i]) for i in batch])
        for row, i in enumerate(batch):
            params, words = rules[i]
            own = dict(prompt=sequences[i].prompt_ids, output=known[i], stop_token_ids=(3, 8), bad_words=words)
            assert torch.equal(found[row], processed(logits[row], params, **own))
        tokens = torch.tensor([rng.randrange(12) for _ in batch])
        memory.settle(tokens, torch.zeros(len(batch)))
        for i, token in zip(batch, tokens.tolist()):
            if known[i] or rng.random() < 0.6:
                known[i] = [*known[i], token]
