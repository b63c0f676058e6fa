"""What the engines, samplers and detokenizers of other projects are tested for, asked of this one."""

import gc
import weakref

import pytest
import torch
from engine_cases import (
    KINDS,
    alone,
    an_engine,
    engine_of_kind,
    greedy,
    letter,
)

from lessons_lib.engine.logprobs import rows_of_logprobs
from lessons_lib.engine.plain_sampling import token_probabilities

PROMPT = [5, 6, 7]


@pytest.fixture(params=KINDS)
def make_engine(request):
    """function (**config) -> an engine of either kind."""
    sizes = dict(max_num_seqs=8, max_num_batched_tokens=32, block_size=4, num_blocks=150)
    return lambda **config: engine_of_kind(request.param, **sizes | config)


def finish(engine):
    """Steps until no request is left. Returns id -> output."""
    outputs = {}
    while engine.has_unfinished():
        outputs |= {output.request_id: output for output in engine.step()}
    return outputs


# Requests come and go


@pytest.mark.parametrize("after", [0, 1, 2, 5])
def test_an_aborted_request_s_output_stays_as_it_was_handed_over(make_engine, after):
    """Also if a step was in flight, and if the id is used again."""
    engine = make_engine()
    name = engine.add_request(PROMPT, greedy(20, ignore_eos=True), request_id="again")
    other = engine.add_request([9, 9], greedy(12, ignore_eos=True))
    for _ in range(after):
        engine.step()
    output = engine.abort(name)
    tokens, text = list(output.token_ids), output.text
    assert output.finish_reason == "abort" and text == "".join(map(letter, tokens))
    assert tokens == alone("qwen2", PROMPT, 20, ignore_eos=True)[: len(tokens)]
    engine.add_request([1, 2], greedy(4, ignore_eos=True), request_id="again")
    outputs = finish(engine)
    assert (output.token_ids, output.text, output.finish_reason) == (tokens, text, "abort")
    assert outputs["again"].token_ids == alone("qwen2", [1, 2], 4, ignore_eos=True) and other in outputs


def test_an_engine_that_is_no_longer_used_is_freed():
    engine = an_engine()
    engine.generate([PROMPT], greedy(3))
    cache = weakref.ref(engine.runner.cache.keys[0])
    seen = weakref.ref(engine)
    engine.close()
    del engine
    gc.collect()
    assert seen() is None and cache() is None


def test_weights_changed_in_place_count_from_the_next_request_on(make_engine):
    """Cached blocks hold keys and values of the old weights, so nothing is shared here."""
    engine = make_engine(share_prefixes=False)
    weight = engine.model.lm_head.weight
    (before,) = engine.generate([PROMPT], greedy(8, ignore_eos=True))
    with torch.no_grad():
        weight.neg_()
    try:
        (changed,) = engine.generate([PROMPT], greedy(8, ignore_eos=True))
        likeliest = int(engine.model(torch.tensor([PROMPT])).logits[0, -1].argmax())
    finally:
        with torch.no_grad():
            weight.neg_()
    (after,) = engine.generate([PROMPT], greedy(8, ignore_eos=True))
    assert before.token_ids == after.token_ids != changed.token_ids and changed.token_ids[0] == likeliest


def test_prompt_and_new_tokens_of_each_step_are_counted():
    """Prompts of 3 and 5 tokens, a step of decoding, and another prompt of 4 beside two decodes."""
    engine = an_engine()
    for length in (3, 5):
        engine.add_request([length] * length, greedy(9, ignore_eos=True))
    engine.step(), engine.step()
    engine.add_request([4] * 4, greedy(9, ignore_eos=True))
    engine.step(), engine.step()
    assert [(step.tokens, step.new_tokens, step.running) for step in engine.metrics.recent] == [
        (8, 2, 2), (2, 2, 2), (6, 3, 3), (3, 3, 3),
    ]  # fmt: skip


# Sampling


def test_top_k_alone_is_top_k_with_a_top_p_of_one():
    """And a top_k as large as the vocabulary is none."""
    logits = torch.rand(64, 128, generator=torch.Generator().manual_seed(33))
    top_k = torch.arange(64) % 9 + 1
    top_k[::2] = 128
    ones = torch.ones(64)
    probabilities, tokens = token_probabilities(logits, ones, top_k, ones)
    for row, k in enumerate(top_k.tolist()):
        values, indices = logits[row].double().topk(k)
        assert tokens[row, :k].tolist() == indices.tolist() and not probabilities[row, k:].any()
        torch.testing.assert_close(probabilities[row, :k], values.softmax(-1))


@pytest.mark.parametrize("count", [2, 3, 99])
def test_log_probabilities_are_those_before_temperature_and_cuts(count):
    """As many as there are tokens, at most."""
    logits = torch.tensor([2.0, 1.0, 0.0])
    expected = logits.log_softmax(-1).tolist()
    for token in range(3):
        (found,) = rows_of_logprobs(logits[None], [token], count)
        assert found.logprob == pytest.approx(expected[token])
        assert found.top == tuple(pytest.approx((n, expected[n])) for n in range(min(count, 3)))


def test_a_prompt_in_chunks_of_any_size_has_the_same_answer():
    prompt = list(range(10, 33))
    expected = alone("qwen2", prompt, 6, ignore_eos=True)
    for chunk in (1, 2, 5, 22, 23, 24):
        engine = an_engine(max_num_seqs=1, max_num_batched_tokens=chunk, num_blocks=20)
        (output,) = engine.generate([prompt], greedy(6, ignore_eos=True))
        assert output.token_ids == expected
        assert engine.metrics.steps == -(-len(prompt) // chunk) + 5
