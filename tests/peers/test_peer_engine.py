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
