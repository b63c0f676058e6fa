"""Requests with every rule of SamplingParams through both engines: the tokens of a loop without cache, batch or engine, in
any company and after any preemption."""

import random

import engine_cases
import pytest
import race_oracle
import torch
from engine_cases import KINDS, check_that_nothing_is_left, engine_of_kind, letter, run_out
from oracle import END
from transformers import (
    MinNewTokensLengthLogitsProcessor,
    NoBadWordsLogitsProcessor,
    PrefixConstrainedLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
)

from lessons_lib.engine.sampling_params import SamplingParams
from lessons_lib.kv_cache.invariants import audit
from lessons_lib.models.tiny_models import VOCAB_SIZE

ROOMY = dict(num_blocks=150, max_num_seqs=6, max_num_batched_tokens=24, block_size=4)
CONFIGS = {
    "roomy": ROOMY,
    "tight": {**ROOMY, "num_blocks": 18},
    "swapping": {**ROOMY, "num_blocks": 18, "num_swap_blocks": 20},
}


class SpellingTokenizer(engine_cases.LetterTokenizer):
    """It can spell words, too; it has no token for a space."""

    def encode(self, text, add_special_tokens=False):
        return [ord(char) - ord("!") for char in text if char != " "]


def an_engine(kind="waits", **config):
    return engine_of_kind(kind, tokenizer=SpellingTokenizer(), **{**ROOMY, "max_logprobs": -1, **config})


def some_rules(rng):
    """Each rule now and then; penalties, bad words and functions look at the tokens before."""
    some = {
        "top_k": rng.choice([3, 20]),
        "top_p": 0.9,
        "min_p": rng.choice([0.05, 0.3]),
        "presence_penalty": rng.uniform(-2, 2),
        "frequency_penalty": rng.uniform(-2, 2),
        "repetition_penalty": rng.choice([0.7, 1.3, 2.0]),
        "logit_bias": {rng.randrange(VOCAB_SIZE): rng.uniform(-30, 30) for _ in range(4)},
        "allowed_token_ids": rng.sample(range(VOCAB_SIZE), 60),
        "bad_words": ["".join(letter(rng.randrange(VOCAB_SIZE)) for _ in range(rng.randint(1, 2))) for _ in range(30)],
        "min_tokens": rng.randint(1, 5),
        "stop_token_ids": rng.sample(range(VOCAB_SIZE), 12),
    }
    return {name: value for name, value in some.items() if rng.random() < 0.4}


def a_workload(seed, count=14):
    """(prompt, params); many prompts begin alike."""
    rng = random.Random(seed)
    words = [rng.randrange(VOCAB_SIZE) for _ in range(60)]
    requests = []
    for number in range(count):
        prompt = words[: rng.choice([0, 8, 20])] + [rng.randrange(VOCAB_SIZE) for _ in range(rng.randint(1, 9))]
        rules = some_rules(rng) if rng.random() < 0.7 else {}
        temperature = rng.choice([0.0, 0.8, 1.5])
        max_tokens = rng.choice([5, 12, 20])
        requests.append((prompt, SamplingParams(max_tokens=max_tokens, temperature=temperature, seed=number, **rules)))
    return requests


@torch.inference_mode()
def by_hand(prompt, params):
    """The completion of one prompt: the whole forward pass for each token, and Hugging Face's processors."""
    model, output = engine_cases.a_model(), []
    ends = {*params.stop_token_ids, *(() if params.ignore_eos else (END,))}
    words = [SpellingTokenizer().encode(word) for word in params.bad_words]
    least = MinNewTokensLengthLogitsProcessor(len(prompt), params.min_tokens, sorted(ends), device="cpu")
    biases = {(token,): bias for token, bias in (params.logit_bias or {}).items()}
    # each processor, whether it is asked for, and whether it looks at the prompt, too
    processors = [
        (PrefixConstrainedLogitsProcessor(lambda *_: params.allowed_token_ids, 1), params.allowed_token_ids, True),
        (words and NoBadWordsLogitsProcessor(words), words, False),
        (least, params.min_tokens, True),
        (biases and SequenceBiasLogitsProcessor(biases), biases, True),
        (RepetitionPenaltyLogitsProcessor(params.repetition_penalty), params.repetition_penalty != 1, True),
    ]
    while len(output) < params.max_tokens and not (output and output[-1] in ends):
        own, everything = torch.tensor([output], dtype=torch.int64), torch.tensor([prompt + output])
        scores = model(input_ids=everything).logits[:, -1].float()
        for process, is_wanted, sees_prompt in processors:
            scores = process(everything if sees_prompt else own, scores) if is_wanted else scores
        counts = torch.bincount(own[0], minlength=VOCAB_SIZE)
        scores = scores - counts * params.frequency_penalty - (counts > 0) * params.presence_penalty
        output.append(race_oracle.drawn(scores[0].tolist(), params, params.seed, len(output)))
    return output


def serve(engine, workload, seed):
    """Requests that come bit by bit. Returns id -> output."""
    rng, outputs = random.Random(seed), {}
    for number, (prompt, params) in enumerate(workload):
        engine.add_request(prompt, params, request_id=str(number))
        for _ in range(rng.choice([0, 0, 1, 3])):
            outputs |= {output.request_id: output for output in engine.step()}
    while engine.has_unfinished():
        outputs |= {output.request_id: output for output in engine.step()}
        audit(engine.scheduler)
    check_that_nothing_is_left(engine)
    return outputs


@pytest.mark.parametrize("engine_kind", KINDS)
@pytest.mark.parametrize("config", CONFIGS)
@pytest.mark.parametrize("seed", range(2))
def test_tokens_are_those_of_a_loop_alone(seed, config, engine_kind):
    workload = a_workload(seed)
    engine = an_engine(engine_kind, **CONFIGS[config])
    outputs = serve(engine, workload, seed)
    for number, (prompt, params) in enumerate(workload):
        assert outputs[str(number)].token_ids == by_hand(prompt, params), params
    assert bool(engine.scheduler.num_preempted) == (config != "roomy")


def waits_of(engine, **fields):
    """How often the host waited for tokens in flight before it chose the next ones."""
    process, depths = engine.core.process, []
    engine.core.process = lambda depth: (depths.append(depth), process(depth))[1]
    for seed in range(4):
        engine.add_request([seed + 1, 7], SamplingParams(max_tokens=9, temperature=1.0, seed=seed, **fields))
    for output in run_out(engine).values():
        params = SamplingParams(max_tokens=9, temperature=1.0, seed=output.prompt_ids[0] - 1, **fields)
        assert output.token_ids == by_hand(output.prompt_ids, params)
    return depths[:8].count(0)


def test_only_rules_that_look_at_tokens_on_the_host_make_it_wait():
    sparse = dict(logit_bias={3: 5}, allowed_token_ids=range(50), min_tokens=6, min_p=0.01, stop_token_ids=range(9))
    penalties = dict(repetition_penalty=1.2, presence_penalty=0.5, frequency_penalty=-0.5, logprobs=2)
    assert waits_of(an_engine("overlaps"), **sparse) == waits_of(an_engine("overlaps"), **penalties) == 0
    assert waits_of(an_engine("overlaps"), bad_words=["a b"]) == 4, "once a step, beside the one after the launch"


@torch.inference_mode()
def logprobs_of_prompt(prompt):
    return engine_cases.a_model()(input_ids=torch.tensor([prompt])).logits[0].log_softmax(-1)


@pytest.mark.parametrize("engine_kind", KINDS)
@pytest.mark.parametrize("config", [dict(), dict(max_num_batched_tokens=6), dict(num_blocks=14), dict(num_blocks=14, num_swap_blocks=30)])  # fmt: skip
def test_prompt_logprobs_are_those_of_one_forward_pass(engine_kind, config):
    engine, rng = an_engine(engine_kind, **config), random.Random(1)
    shared = [rng.randrange(VOCAB_SIZE) for _ in range(12)]
    wanted, outputs = {}, {}
    for number, count in enumerate((0, 3, -1, None, 2, 1, 3)):
        prompt = shared[: 4 * number] + [rng.randrange(VOCAB_SIZE) for _ in range(rng.choice([1, 2, 9, 17]))]
        n = 2 if number == 4 else 1
        name = engine.add_request(
            prompt, SamplingParams(max_tokens=8, prompt_logprobs=count, n=n, temperature=1.0, seed=1)
        )
        wanted[name] = count
        outputs |= {output.request_id: output for output in engine.step()}
    outputs |= run_out(engine)
    check_that_nothing_is_left(engine)
    assert bool(engine.scheduler.num_preempted) == ("num_blocks" in config)
    for name, count in wanted.items():
        output = outputs[name]
        if count is None:
            assert output.prompt_logprobs is None
            continue
        expected = logprobs_of_prompt(output.prompt_ids)
        assert len(output.prompt_logprobs) == len(output.prompt_ids) and output.prompt_logprobs[0] is None
        for position, found in enumerate(output.prompt_logprobs[1:], start=1):
            row = expected[position - 1]
            assert found.token == output.prompt_ids[position]
            assert found.logprob == pytest.approx(float(row[found.token]), abs=1e-4)
            values, tokens = row.topk(VOCAB_SIZE if count < 0 else count)
            assert [value for _, value in found.top] == pytest.approx(values.tolist(), abs=1e-4)
            assert len({token for token, _ in found.top} - {*tokens.tolist()}) <= 1, "two alike may change places"


def test_prompt_logprobs_read_nothing_from_the_prefix_cache():
    engine = an_engine()
    prompt = [*range(20)]
    engine.generate([prompt], SamplingParams(max_tokens=3))
    cached = []
    engine.core.observers.append(lambda step, requests: cached.extend(step.output.cached.values()))
    (output,) = engine.generate([prompt], SamplingParams(max_tokens=3, prompt_logprobs=0))
    assert sum(cached) == 0 and None not in output.prompt_logprobs[1:]
    engine.generate([prompt], SamplingParams(max_tokens=3))
    assert sum(cached) == 16, "others do"


@pytest.mark.parametrize("engine_kind", KINDS)
def test_logprobs_are_the_models_own_whatever_the_rules(engine_kind):
    params = SamplingParams(max_tokens=5, logprobs=2, allowed_token_ids=(5, 6), ignore_eos=True)
    (output,) = an_engine(engine_kind).generate([[5, 6, 7]], params)
    expected = logprobs_of_prompt([5, 6, 7, *output.token_ids])[2:]
    for row, logprobs in zip(expected, output.completions[0].logprobs):
        assert logprobs.token in (5, 6) and logprobs.logprob == pytest.approx(float(row[logprobs.token]), abs=1e-4)
        assert [value for _, value in logprobs.top] == pytest.approx(row.topk(2).values.tolist(), abs=1e-4)


@pytest.mark.parametrize("engine_kind", KINDS)
def test_rules_that_fail_fail_their_own_request(engine_kind):
    def broken(prompt_ids, output_ids, logits):
        return logits if len(output_ids) < 3 else 1 / 0

    engine, prompt, params = an_engine(engine_kind), [5, 9, 2], SamplingParams(max_tokens=12, temperature=1.0, seed=3)
    engine.add_request(prompt, params, request_id="good")
    engine.add_request(prompt, SamplingParams(max_tokens=12, logits_processors=[broken]), request_id="broken")
    outputs = run_out(engine)
    check_that_nothing_is_left(engine)
    assert outputs["good"].token_ids == by_hand(prompt, params) and outputs["good"].error is None
    assert isinstance(outputs["broken"].error, ZeroDivisionError) and len(outputs["broken"].token_ids) == 3
