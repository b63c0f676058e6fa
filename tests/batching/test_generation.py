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
TINY_REQUESTS = by_day(30, 50)  # of each small model


@functools.cache
def tiny_requests(family):
    prompts, max_tokens_each = ragged_requests(TINY_REQUESTS, seed=3)
    return (
        prompts,
        max_tokens_each,
        [
            generate_alone(tiny_model(family, seed=3), ids, max_tokens, END)
            for ids, max_tokens in zip(prompts, max_tokens_each)
        ],
    )


@pytest.mark.parametrize("family", FAMILIES)
def test_tiny_models_write_varied_text(family):
    """A model that repeats one token would hide mistakes in masks and positions."""
    _, _, answers = tiny_requests(family)
    assert len({token for answer in answers for token in answer}) > VOCAB_SIZE // 3
    assert any(answer[-1] == END for answer in answers)


@pytest.mark.parametrize("family", FAMILIES)
def test_all_ways_on_random_models(family):
    model = tiny_model(family, seed=3)
    prompts, max_tokens_each, expected = tiny_requests(family)
    serve = dict(max_new_tokens=max_tokens_each)
    assert generate_one_by_one(model, TINY_TOKENIZER, prompts, **serve) == expected
    assert generate_one_by_one(model, TINY_TOKENIZER, prompts, **serve, greedy=greedy_without_cache) == expected
    for batch_size in (1, 3, 64):
        assert static_generate(model, TINY_TOKENIZER, prompts, **serve, batch_size=batch_size) == expected
        continuous = batch_generate(
            model, TINY_TOKENIZER, prompts, **serve, batch_size=batch_size, prefill_step=5 * batch_size, max_seq_len=80
        )
        assert continuous == expected
        assert ragged_generate(model, TINY_TOKENIZER, prompts, **serve, max_num_seqs=batch_size) == expected
    assert packed_generate(model, TINY_TOKENIZER, prompts, **serve) == expected
    by_loop = functools.partial(ragged_step, forward=loop_forward)
    assert ragged_generate(model, TINY_TOKENIZER, prompts, **serve, max_num_seqs=8, step=by_loop) == expected


request = st.tuples(st.integers(0, 6), st.integers(1, 40), st.integers(1, 24))


@settings(max_examples=15)
@given(
    family=st.sampled_from(FAMILIES),
    shapes=st.lists(request, max_size=7),
    batch_size=st.integers(1, 5),
    prefill_step=st.integers(1, 50),
)
def test_batching_changes_no_token(family, shapes, batch_size, prefill_step):
    model = tiny_model(family, seed=3)
    prompts = [ragged_requests(1, seed=seed, prompt_lengths=[length])[0][0] for seed, length, _ in shapes]
    max_tokens_each = [max_tokens for _, _, max_tokens in shapes]
    expected = generate_one_by_one(model, TINY_TOKENIZER, prompts, max_new_tokens=max_tokens_each)
    serve = dict(max_new_tokens=max_tokens_each, batch_size=batch_size)
    assert static_generate(model, TINY_TOKENIZER, prompts, **serve) == expected
    assert (
        batch_generate(model, TINY_TOKENIZER, prompts, **serve, prefill_step=prefill_step, max_seq_len=64) == expected
    )
    assert (
        ragged_generate(model, TINY_TOKENIZER, prompts, max_new_tokens=max_tokens_each, max_num_seqs=batch_size)
        == expected
    )
    assert packed_generate(model, TINY_TOKENIZER, prompts, max_new_tokens=max_tokens_each) == expected


@settings(max_examples=20)
@given(
    family=st.sampled_from(FAMILIES),
    arrivals=st.lists(
        st.tuples(st.integers(0, TINY_REQUESTS - 1), st.integers(0, 60)),
        min_size=1,
        max_size=12,
        unique_by=lambda arrival: arrival[0],
    ),
    max_num_seqs=st.integers(1, 5),
)
def test_the_order_of_arrival_changes_no_token(family, arrivals, max_num_seqs):
    """Some of the requests, in any order, each at a step of its own."""
    prompts, max_tokens_each, expected = tiny_requests(family)
    requests = {number: Request(str(number), prompts[number], max_tokens_each[number], END) for number, _ in arrivals}
    batch = RaggedBatch(tiny_model(family, seed=3), max_num_seqs)
    for step in range(61 + sum(max_tokens_each[number] for number in requests)):
        for number, at in arrivals:
            if at == step:
                batch.submit(requests[number])
        if batch.running:
            free = [request for request in batch.running if request.state is RequestState.FINISHED]
            assert not free and (len(batch.running) == max_num_seqs or not batch.waiting), (
                "a slot was free while a request waited"
            )
            ragged_step(batch)
    assert {number: request.output_ids for number, request in requests.items()} == {
        number: expected[number] for number in requests
    }
    assert not batch.caches, "a cache outlived its request"
