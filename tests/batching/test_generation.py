"""Every way of serving requests gives what `generate` gives for each of them alone, token for token."""

import functools

import pytest
from how_many import by_day
from oracle import END, TINY_TOKENIZER, generate_alone, ragged_requests

from lessons_lib.batching.continuous_batching import batch_generate
from lessons_lib.batching.greedy import generate_one_by_one, greedy_without_cache
from lessons_lib.batching.packed_logits import packed_generate
from lessons_lib.batching.ragged_batching import loop_forward, ragged_generate, ragged_step
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
    for size in (3, 64):
        assert answers(static_generate, batch_size=size) == expected
        assert answers(batch_generate, batch_size=size, prefill_step=5 * size, max_seq_len=80) == expected
        assert answers(ragged_generate, max_num_seqs=size) == expected
    assert answers(packed_generate) == expected
    by_loop = functools.partial(ragged_step, forward=loop_forward)
    assert answers(ragged_generate, max_num_seqs=8, step=by_loop) == expected
