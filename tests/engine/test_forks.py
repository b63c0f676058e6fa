"""The completions of one prompt are sampled together, with the tokens that each would get alone."""

import pytest
import torch
from engine_cases import KINDS, check_that_nothing_is_left, engine_of_kind, run_out
from oracle import END

from lessons_lib.engine.sampling import choose_tokens
from lessons_lib.engine.sampling_params import SamplingParams


@pytest.fixture(params=KINDS)
def an_engine(request):
    sizes = dict(num_blocks=150, max_num_seqs=6, max_num_batched_tokens=24, block_size=4)
    return engine_of_kind(request.param, **sizes)


@pytest.mark.parametrize(
    "rules",
    [dict(), dict(top_k=7, repetition_penalty=1.4, logprobs=2), dict(max_tokens=1), dict(logit_bias={END: 3.0})],
)
def test_forks_have_the_tokens_of_requests_alone(an_engine, monkeypatch, rules):
    rules, prompt, sizes = {"temperature": 1.5, "max_tokens": 5, **rules}, [5, 9, 2, 4, 4], []

    def counted(logits, *args):
        sizes.append(len(logits))
        return choose_tokens(logits, *args)

    monkeypatch.setattr(an_engine.core, "sampler", counted)
    (together,) = an_engine.generate([prompt], SamplingParams(n=15, seed=30, **rules))
    assert sizes[0] == 1 and 6 in sizes[1:3], "one computes the prompt, then as many as a step has sequences"
    alone = an_engine.generate([prompt] * 15, [SamplingParams(seed=30 + index, **rules) for index in range(15)])
    for index, (own, output) in enumerate(zip(together.completions, alone, strict=True)):
        (other,) = output.completions
        assert (own.index, own.token_ids, own.finish_reason) == (index, other.token_ids, other.finish_reason)
        assert [entry.token for entry in own.logprobs or []] == [entry.token for entry in other.logprobs or []]
    check_that_nothing_is_left(an_engine)


@pytest.mark.parametrize("fails", [1, 4, 6, 8])
def test_a_fork_without_a_token_fails_its_request_alone(an_engine, fails):
    """By a rule that leaves it nothing: of the forks that were made with it, none keeps a block."""
    calls = []

    def rule(prompt_ids, token_ids, logits):
        if not token_ids:
            calls.append(len(calls))
            if len(calls) == fails + 1:
                return torch.full_like(logits, float("-inf"))
        return logits

    params = SamplingParams(n=9, temperature=1.0, seed=2, max_tokens=4, logits_processors=[rule])
    an_engine.add_request([3, 3, 8], params, request_id="fails")
    an_engine.add_request([3, 3, 8], SamplingParams(max_tokens=6), request_id="other")
    outputs = run_out(an_engine)
    assert outputs["fails"].error and len(outputs["fails"].completions) == 9
    assert "error" in {each.finish_reason for each in outputs["fails"].completions} <= {"error", "length", "stop"}
    assert outputs["other"].error is None and len(outputs["other"].token_ids) in range(1, 7)
    check_that_nothing_is_left(an_engine)
