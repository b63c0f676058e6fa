"""What the reader of a stream is told with each token is what the output of the request has at the end."""

import pytest
from engine_cases import KINDS, engine_of_kind, letter, run_out
from oracle import END

from lessons_lib.engine.sampling_params import SamplingParams

ROOMY = dict(num_blocks=150, max_num_seqs=6, max_num_batched_tokens=24, block_size=4)


@pytest.fixture(params=KINDS)
def an_engine(request):
    return lambda **config: engine_of_kind(request.param, **{**ROOMY, **config})


def served(engine, requests):
    """(id -> output, id -> NewTokens) of requests: id -> (prompt, params)."""
    told = {name: [] for name in requests}
    for name, (prompt, params) in requests.items():
        engine.add_request(prompt, params, request_id=name, on_token=told[name].append)
    outputs = run_out(engine)
    return outputs, told


@pytest.mark.parametrize("blocks", [dict(), dict(num_blocks=14), dict(num_blocks=14, num_swap_blocks=12)])
def test_each_token_has_its_logprobs(an_engine, blocks):
    engine = an_engine(**blocks)
    requests = {
        "one": ([5, 9, 2, 8, 1, 7], SamplingParams(max_tokens=12, logprobs=2)),
        "forks": ([4, 4, 3], SamplingParams(max_tokens=12, logprobs=0, n=3, temperature=1.0, seed=1)),
        "none": ([8, 8, 8], SamplingParams(max_tokens=12)),
    }
    outputs, told = served(engine, requests)
    assert bool(engine.scheduler.num_preempted) == bool(blocks)
    for name, output in outputs.items():
        for completion in output.completions:
            own = [token for token in told[name] if token.index == completion.index]
            assert [token.token for token in own] == completion.token_ids
            assert [token.logprobs for token in own] == (completion.logprobs or [None] * len(own))
    assert [entry.token for entry in outputs["one"].completions[0].logprobs] == outputs["one"].token_ids


def test_the_last_token_says_what_ended_the_completion(an_engine):
    (plain,) = an_engine().generate([[5, 9, 2]], SamplingParams(max_tokens=8))
    ids = plain.token_ids
    assert ids[3] not in ids[:3] and END not in ids, "this prompt shows little"
    requests = {
        "token": ([5, 9, 2], SamplingParams(max_tokens=8, stop_token_ids=[ids[3]])),
        "string": ([5, 9, 2], SamplingParams(max_tokens=8, stop=[letter(ids[2]) + letter(ids[3])])),
        "string in the last token": ([5, 9, 2], SamplingParams(max_tokens=4, stop=[letter(ids[3])])),
        "length": ([5, 9, 2], SamplingParams(max_tokens=4)),
        "token without text": ([5, 9, 2], SamplingParams(max_tokens=8, stop_token_ids=[ids[3]], detokenize=False)),
        "end": ([5, 9, 2], SamplingParams(max_tokens=8, logit_bias={END: 100.0})),
    }
    expected = {
        "token": ("stop", ids[3]),
        "string": ("stop", letter(ids[2]) + letter(ids[3])),
        "string in the last token": ("stop", letter(ids[3])),
        "length": ("length", None),
        "token without text": ("stop", ids[3]),
        "end": ("stop", None),
    }
    outputs, told = served(an_engine(), requests)
    for name, output in outputs.items():
        (completion,) = output.completions
        *others, last = told[name]
        assert (last.finish_reason, last.stop_reason) == expected[name], name
        assert (completion.finish_reason, completion.stop_reason) == expected[name], name
        assert all((token.finish_reason, token.stop_reason) == (None, None) for token in others)
