"""The scoreboard of lesson 08 counts every byte that kernels move, and lets nothing but kernels read the caches."""

import torch

from lessons_lib.checks.lesson_08.scoreboard import (
    HEAD_DIM,
    KV_HEADS,
    Q_HEADS,
    CountedBatch,
    by_groups,
    by_lesson_07,
    bytes_scoreboard,
)


def test_bytes_are_those_that_one_counts_with_a_pencil():
    batch = CountedBatch.of(1, (5, 17), seed=0)
    query_and_output, lengths = 2 * 2 * Q_HEADS * HEAD_DIM * 4, 4
    keys = 2 * (21 + 33) * KV_HEADS * HEAD_DIM * 4
    # Every program loads one length. Per tile, a position loads one table entry; per block, lesson 07's program does.
    assert batch.bytes_of(by_groups) == keys + query_and_output + KV_HEADS * (2 * lengths + (21 + 33) * 4)
    assert batch.bytes_of(by_lesson_07) == 2 * keys + query_and_output + Q_HEADS * (2 * lengths + (2 + 3) * 4)


def test_the_caches_can_be_read_by_kernels_only():
    def gathers(counted, q, k_cache, v_cache, block_tables, context_lens, scale):
        assert torch.isnan(k_cache).all()
        return q * v_cache.sum()

    assert "the attention is wrong" in bytes_scoreboard(gathers).verdict
    assert "100%" in bytes_scoreboard(by_groups).verdict
