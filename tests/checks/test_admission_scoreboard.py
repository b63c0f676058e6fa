"""The scoreboard of lesson 03 serves as `step_in_blocks` does, and says what a rule did."""

from lessons_lib.checks.lesson_03.scoreboard import (
    BLOCK_SIZE,
    NUM_BLOCKS,
    SEEDS,
    admission_scoreboard,
    admission_workload,
    count_steps,
    limits_fit,
    prompt_fits,
)
from lessons_lib.kv_cache.block_pool import BlockPool
from lessons_lib.kv_cache.block_serving import serve_in_blocks


def test_it_counts_what_the_exercise_does():
    requests = admission_workload(SEEDS[0])
    lengths = [(prompt, answer) for prompt, _, answer in requests]
    served = serve_in_blocks(lengths, BlockPool(NUM_BLOCKS, BLOCK_SIZE))
    assert count_steps(requests, prompt_fits) == (len(served), sum(step.restarted for step in served))


def test_the_limits_never_run_out_and_a_rule_in_between_does():
    requests = admission_workload(SEEDS[0])
    steps, restarts = count_steps(requests, limits_fit)
    fewer, some = count_steps(
        requests, lambda request, running, free: prompt_fits(request, running, free - len(running))
    )
    assert restarts == 0 < some and fewer < steps


def test_what_is_said():
    table = admission_scoreboard(limits_fit)
    assert table.rows[0][1:] == table.rows[1][1:] and table.rows[1][2] == "0"
    assert "admitted nothing" in admission_scoreboard(lambda *_: False).verdict
    assert "doesn't fit" in admission_scoreboard(lambda *_: True).verdict
