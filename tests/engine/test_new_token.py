"""What the reader of a stream is told with each token is what the output of the request has at the end."""

import pytest
from engine_cases import KINDS, alone, engine_of_kind, letter, run_out
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


PROMPT = [5, 9, 2]
IDS = alone("qwen2", PROMPT, 8, ignore_eos=True)
TEXT = "".join(map(letter, IDS))
INCLUDED, LIKELY_END = dict(include_stop_str_in_output=True), dict(logit_bias={END: 100.0}, stop_token_ids=[END])
# what is asked for; the text, the tokens, and what ended them
ENDS = {
    "token": (dict(stop_token_ids=[IDS[3]]), TEXT[:3], IDS[:4], "stop", IDS[3]),
    "token, included": (dict(stop_token_ids=[IDS[3]], **INCLUDED), TEXT[:4], IDS[:4], "stop", IDS[3]),
    "string": (dict(stop=[TEXT[2:4], "no"]), TEXT[:2], IDS[:4], "stop", TEXT[2:4]),
    "string, included": (dict(stop=[TEXT[2:4], "no"], **INCLUDED), TEXT[:4], IDS[:4], "stop", TEXT[2:4]),
    "string in the last token": (dict(stop=[TEXT[3]], max_tokens=4), TEXT[:3], IDS[:4], "stop", TEXT[3]),
    "length": (dict(max_tokens=4), TEXT[:4], IDS[:4], "length", None),
    "token without text": (dict(stop_token_ids=[IDS[3]], detokenize=False), "", IDS[:4], "stop", IDS[3]),
    "end": (dict(min_tokens=3, ignore_eos=False, **LIKELY_END), TEXT[:3], [*IDS[:3], END], "stop", None),
    "end as a stop token": (dict(min_tokens=3, **LIKELY_END), TEXT[:3], [*IDS[:3], END], "stop", END),
}


def test_the_last_token_says_what_ended_the_completion(an_engine):
    assert IDS[3] not in IDS[:3] and END not in IDS, "this prompt shows little"
    params = {
        name: SamplingParams(**dict(max_tokens=8, ignore_eos=True) | fields) for name, (fields, *_) in ENDS.items()
    }
    outputs, told = served(an_engine(), {name: (PROMPT, each) for name, each in params.items()})
    unread = an_engine().generate([PROMPT] * len(params), list(params.values()))
    for (name, (_, *expected)), no_reader in zip(ENDS.items(), unread):
        for output in (outputs[name], no_reader):
            (own,) = output.completions
            assert [own.text, own.token_ids, own.finish_reason, own.stop_reason] == expected, name
        *others, last = told[name]
        assert [last.finish_reason, last.stop_reason] == expected[2:], name
        assert all((token.finish_reason, token.stop_reason) == (None, None) for token in others)
        assert "".join(token.text for token in told[name]) == expected[0]
