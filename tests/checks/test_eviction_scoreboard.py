"""The eviction scoreboard of lesson 11 counts what one counts with a pencil."""

import pytest

from lessons_lib.checks.lesson_11.scoreboard import (
    NUM_BLOCKS,
    SEEDS,
    eviction_scoreboard,
    eviction_workload,
    found_blocks,
    found_knowing_the_future,
    least_recently_used,
)

# Blocks 1 and 2 come again; 3 to 6 come once in between.
PROMPTS = [(1, 2), (3, 4), (5, 6), (1, 2, 7)]


@pytest.mark.parametrize("num_blocks, lru, future", [(3, 0, 1), (4, 0, 2), (5, 1, 2), (6, 2, 2)])
def test_found_blocks(num_blocks, lru, future):
    assert found_blocks(PROMPTS, least_recently_used, num_blocks) == lru
    assert found_knowing_the_future(PROMPTS, num_blocks) == future


def test_a_better_rule_scores_more_and_none_more_than_the_future():
    prompts = eviction_workload(SEEDS[0])
    lru = found_blocks(prompts, least_recently_used, NUM_BLOCKS)
    often = found_blocks(prompts, lambda block: (block.uses == 1, block.last_use, block.index), NUM_BLOCKS)
    assert lru < often < found_knowing_the_future(prompts, NUM_BLOCKS)


def test_what_a_rule_gets_and_what_is_said():
    seen = []
    eviction_scoreboard(lambda block: seen.append(block) or 0)
    assert all(block.uses >= 1 and 1 <= block.last_use <= block.first_use for block in seen)
    assert "+0.0 percentage points" in eviction_scoreboard(least_recently_used).verdict
    assert "raised ZeroDivisionError" in eviction_scoreboard(lambda block: 1 // 0).verdict
