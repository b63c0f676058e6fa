"""The scoreboard of lesson 03 serves as `step_in_blocks` does, and says what a rule did."""

from answers.lesson_03 import keeps_eight_blocks, keeps_half_of_what_is_left

from lessons_lib.checks.lesson_03.scoreboard import (
    BLOCK_SIZE,
    GOAL,
    NUM_BLOCKS,
    PRICE,
    SEEDS,
    admission_scoreboard,
    admission_workload,
    count_steps,
    limits_fit,
    prompt_fits,
    steps_and_restarts,
)
from lessons_lib.kv_cache.block_pool import BlockPool
from lessons_lib.kv_cache.block_serving import may_admit, serve_in_blocks


def cost(rule, price=PRICE):
    steps, restarts = steps_and_restarts(rule)
    return steps + price * restarts


def test_it_counts_what_the_exercise_does():
    requests = admission_workload(SEEDS[0])
    lengths = [(prompt, answer) for prompt, _, answer in requests]
    served = serve_in_blocks(lengths, BlockPool(NUM_BLOCKS, BLOCK_SIZE))
    assert count_steps(requests, prompt_fits) == (len(served), sum(step.restarted for step in served))


def test_what_is_said():
    table = admission_scoreboard(limits_fit)
    assert table.rows[0][1:] == table.rows[1][1:] and table.rows[1][2] == "0"
    assert "admitted nothing" in admission_scoreboard(lambda *_: False).verdict
    assert "doesn't fit" in admission_scoreboard(lambda *_: True).verdict
    assert table.rows[1][0] == "yours says so"
    assert admission_scoreboard(may_admit).rows[1][0] == "the reference says so"


def test_both_given_rules_miss_the_goal_and_the_reference_meets_it():
    costs = [cost(rule) for rule in (prompt_fits, limits_fit, may_admit)]
    assert costs[0] > costs[1] > GOAL > costs[2]


def test_the_lesson_tells_what_rules_cost():
    assert cost(prompt_fits) == 9607 and cost(limits_fit) == 6072
    assert cost(prompt_fits, price=1) == 4009 < cost(limits_fit, price=1)
    assert cost(may_admit) < min(cost(keeps_eight_blocks), cost(keeps_half_of_what_is_left))
    assert max(cost(keeps_eight_blocks), cost(keeps_half_of_what_is_left)) < 1.1 * cost(may_admit)
