"""Every way of serving requests gives what `generate` gives for each of them alone, token for token."""

import functools

import pytest
from how_many import by_day
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle import END, TINY_TOKENIZER, generate_alone, ragged_requests

from lessons_lib.batching.continuous_batching import batch_generate
from lessons_lib.batching.greedy import generate_one_by_one, greedy_without_cache
from lessons_lib.batching.packed_logits import packed_generate
from lessons_lib.batching.ragged_batching import RaggedBatch, loop_forward, ragged_generate, ragged_step
from lessons_lib.batching.request import Request, RequestState
from lessons_lib.batching.static_batching import static_generate
from lessons_lib.models.tiny_models import VOCAB_SIZE, tiny_model

FAMILIES = ["gpt2", "llama", "qwen2"]
TINY_REQUESTS = by_day(20, 50)  # of each small model


@functools.cache
def tiny_requests(family):
    prompts, max_tokens_each = ragged_requests(TINY_REQUESTS, seed=3)
    model = tiny_model(family, seed=3)
    answers = [generate_alone(model, ids, max_tokens, END) for ids, max_tokens in zip(prompts, max_tokens_each)]
    return prompts, max_tokens_each, answers


@pytest.mark.parametrize("family", FAMILIES)
def test_tiny_models_write_varied_text(family):
    """A model that repeats one token would hide mistakes in masks and positions."""
    _, _, answers = tiny_requests(family)
    assert len({token for answer in answers for token in answer}) > VOCAB_SIZE // 3
    assert any(answer[-1] == END for answer in answers)


@pytest.mark.parametrize("family", FAMILIES)
def test_all_ways_on_random_models(family):
    prompts, max_tokens_each, expected = tiny_requests(family)

    def answers(way, **options):
        return way(tiny_model(family, seed=3), TINY_TOKENIZER, prompts, max_new_tokens=max_tokens_each, **options)

    assert answers(generate_one_by_one) == expected
    assert answers(generate_one_by_one, greedy=greedy_without_cache) == expected
    for size in (1, 3, 64):
        assert answers(static_generate, batch_size=size) == expected
        assert answers(batch_generate, batch_size=size, prefill_step=5 * size, max_seq_len=80) == expected
        assert answers(ragged_generate, max_num_seqs=size) == expected
    assert answers(packed_generate) == expected
    by_loop = functools.partial(ragged_step, forward=loop_forward)
    assert answers(ragged_generate, max_num_seqs=8, step=by_loop) == expected


@settings(max_examples=20)
@given(
    family=st.sampled_from(FAMILIES),
    arrivals=st.dictionaries(st.integers(0, TINY_REQUESTS - 1), st.integers(0, 60), min_size=1, max_size=12),
    max_num_seqs=st.integers(1, 5),
)
def test_the_order_of_arrival_changes_no_token(family, arrivals, max_num_seqs):
    """Some of the requests, in any order, each at a step of its own."""
    prompts, max_tokens_each, expected = tiny_requests(family)
    requests = {number: Request(str(number), prompts[number], max_tokens_each[number], END) for number in arrivals}
    batch = RaggedBatch(tiny_model(family, seed=3), max_num_seqs)
    for step in range(61 + sum(max_tokens_each[number] for number in requests)):
        for number, at in arrivals.items():
            if at == step:
                batch.submit(requests[number])
        if batch.running:
            assert not any(request.state is RequestState.FINISHED for request in batch.running)
            assert len(batch.running) == max_num_seqs or not batch.waiting, "a slot was free while a request waited"
            ragged_step(batch)
    for number, request in requests.items():
        assert request.output_ids == expected[number]
    assert not batch.caches, "a cache outlived its request"
