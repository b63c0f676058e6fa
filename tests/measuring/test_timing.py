"""Timing in rounds, and the timed batches: what they contain, and that lessons 05 and 06 compute the same on them."""

import torch

from lessons_lib.batching.paged_batching import paged_step
from lessons_lib.batching.ragged_batching import ragged_step
from lessons_lib.measuring.decoding_batches import decoding_paged, decoding_ragged
from lessons_lib.measuring.random_batches import random_row
from lessons_lib.measuring.timing import median_ms, times_in_rounds
from lessons_lib.models.tiny_models import tiny_model


def test_functions_take_turns_and_the_first_turn_is_not_counted():
    called = []
    times = times_in_rounds([lambda: called.append("a"), lambda: called.append("b")], 3)
    assert called == ["a", "b"] * 4
    assert [len(own) for own in times] == [3, 3]
    assert len(median_ms([called.clear], 2)) == 1


def test_decoding_batches_decode_at_the_given_context_for_so_many_steps():
    model, steps = tiny_model("qwen2"), 6
    ragged, paged = decoding_ragged(model, 3, 20, steps), decoding_paged(model, 3, 20, steps, block_size=4)
    for step in range(steps):
        ragged_step(ragged), paged_step(paged)
        for batch in (ragged, paged):
            assert batch.packed.new_lens == [1, 1, 1] and batch.packed.cached_lens == [20 + step] * 3
        answers = [[request.output_ids for request in batch.running] for batch in (ragged, paged)]
        assert answers[0] == answers[1] and len(answers[0]) == 3


def test_a_random_row_holds_numbers_where_tokens_are_and_nan_elsewhere():
    row = random_row([(5, 1), (0, 3)], 2, 1, 4, dtype=torch.float16)
    slots = [int(row.block_tables[0, position // 4]) * 4 + position % 4 for position in range(6)]
    slots += [int(row.block_tables[1, 0]) * 4 + cell for cell in range(3)]
    for cache in (row.keys, row.values):
        empty = cache.flatten(0, 1).isnan().all(dim=-1).flatten()
        assert (~empty).nonzero()[:, 0].tolist() == sorted(slots)
        assert cache.dtype == row.query.dtype == torch.float16
