"""The scoreboard of policies in lesson 09."""

import pytest

from lessons_lib.checks.lesson_09.scoreboard import policy_scoreboard
from lessons_lib.kv_cache.block_pool import BlockPool
from lessons_lib.scheduling import FirstComeFirstServed, Scheduler, ShortestJobFirst, StepCost, simulate, traffic

MANY = traffic(400, rate=480, prompt_median=24, answer_median=4)
COST = StepCost(base=0.02, per_token=20e-6, per_context_token=0.2e-6)


def serve(policy):
    return simulate(Scheduler(BlockPool(512, 16), max_num_seqs=8, policy=policy), MANY, COST)


class Mixed:
    def __init__(self, seconds_per_token):
        self.seconds_per_token = seconds_per_token

    def rank(self, sequence):
        return sequence.arrival_time + self.seconds_per_token * sequence.expected_tokens


@pytest.mark.parametrize(
    "policy, says",
    [
        (FirstComeFirstServed(), "its mean isn't below that of first come, first served"),
        (ShortestJobFirst(), "its p99 isn't below that of shortest job first"),
        (Mixed(0.01), "% of what shortest job first gains in the mean, with a better p99 than shortest job first"),
        (object(), "Your policy raised AttributeError"),
    ],
)
def test_what_is_said_of_a_policy(policy, says):
    runs = {each.name: serve(each) for each in (FirstComeFirstServed(), ShortestJobFirst())}
    table = policy_scoreboard(policy, serve, runs)
    assert says in table.verdict
    cost = "least cost first (prompt + 8 × answer)"
    assert [row[0] for row in table.rows] == ["first come, first served", "shortest job first", cost, "yours"]
    assert [row[-1] for row in table.rows[:2]] == ["0%", "100%"]
