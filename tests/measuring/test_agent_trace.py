"""What agents ask for, replayed without a model."""

from itertools import pairwise

from lessons_lib.floors.eviction import cheapest_to_lose
from lessons_lib.measuring.agent_trace import Call, agent_calls, replay_calls


def call(*parts):
    return Call(0, 0.0, tuple(token for part in parts for token in [part] * 16), "turn")


def test_a_conversation_that_comes_back_finds_what_moved_down():
    calls = [call(1, 2, 3), call(4, 5, 6), call(1, 2, 3, 7)]
    assert replay_calls(calls, 4, 1) == 160 - 32, "one block is still in the pool, and one in the slot"
    assert replay_calls(calls, 4, 9) == 160 - 48


def test_calls_come_in_the_order_of_time_and_a_turn_begins_with_the_one_before():
    calls = agent_calls(num_agents=5, num_turns=3)
    assert [each.time for each in calls] == sorted(each.time for each in calls)
    turns = [each.prompt for each in calls if each.kind == "turn" and each.agent == 2]
    assert len(turns) == 3 and all(later[: len(turn)] == turn for turn, later in pairwise(turns))
    assert {each.kind for each in agent_calls()} == {"turn", "branch", "document"}


def test_the_order_that_knows_hits_saves_tokens_on_a_large_floor():
    calls = agent_calls()
    assert replay_calls(calls, 80, 240, cheapest_to_lose) < replay_calls(calls, 80, 240) < replay_calls(calls, 80, 1)
