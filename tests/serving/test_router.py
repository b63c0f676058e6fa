"""Routing: the replica that was sent the longest beginning of a prompt, unless it is too busy; and what that saves."""

import random

import pytest

from lessons_lib.kv_cache.block_hashes import hash_full_blocks
from lessons_lib.measuring.routing_simulation import chat_prompts, simulate_routing
from lessons_lib.scheduling.sequence import Sequence
from lessons_lib.serving.router import Replica, RoundRobin, SentBlocks, TwoChoices, choose_replica, hash_prompt


def replica(load: int, prompt: tuple[int, ...] | list[int] = (), num_sent: int = 0) -> Replica:
    made = Replica(load=load, num_sent=num_sent)
    made.sent_blocks.add(hash_prompt(prompt, 4))
    return made


PROMPT = list(range(16))
HASHES = hash_prompt(PROMPT, 4)


@pytest.mark.parametrize("salt", [None, "mine"])
def test_hashes_are_those_of_the_prefix_cache(salt):
    for length in range(20):
        sequence = Sequence("0", list(range(length)), 1, cache_salt=salt)
        assert hash_prompt(list(range(length)), 4, salt) == hash_full_blocks(sequence, 4)


def test_equal_beginnings_of_texts_have_equal_hashes():
    one, other = hash_prompt("Once upon a time", 4), hash_prompt("Once upon a hill", 4)
    assert one[:3] == other[:3] and one[3] != other[3]
    assert not set(hash_prompt("xnce upon a time", 4)) & set(one)


def test_any_choice_agrees_with_the_rule_spelled_out():
    draw = random.Random(0)
    for _ in range(500):
        replicas = [
            replica(draw.randrange(5), PROMPT[: draw.choice([0, 4, 8, 16])], draw.randrange(3))
            for _ in range(draw.randint(1, 5))
        ]
        limit = draw.randrange(4)
        least = min(each.load for each in replicas)
        matched = [sum(block in each.sent_blocks for block in HASHES) for each in replicas]
        allowed = [index for index, each in enumerate(replicas) if each.load == least]
        longest = [index for index, count in enumerate(matched) if count == max(matched)]
        longest = [index for index in longest if replicas[index].load == min(replicas[other].load for other in longest)]
        if replicas[longest[0]].load <= least + limit:
            allowed = longest
        fewest = min(replicas[index].num_sent for index in allowed)
        wanted = next(index for index in allowed if replicas[index].num_sent == fewest)
        assert choose_replica(HASHES, replicas, limit) == wanted


def test_sent_blocks_are_bounded_and_lose_the_ends_of_old_prompts_first():
    sent = SentBlocks(max_blocks=6)
    old, new = hash_prompt([1] * 16, 4), hash_prompt([2] * 16, 4)
    sent.add(old)
    sent.add(new)
    assert len(sent) == 6
    assert [block in sent for block in old] == [True, True, False, False]
    assert all(block in sent for block in new)
    sent.add(old[:1])  # used again: now the rest of `new` is older
    sent.add(hash_prompt([3] * 12, 4))
    assert [block in sent for block in old] == [True, False, False, False]


def test_round_robin_goes_around_and_survives_that_a_replica_goes():
    policy = RoundRobin()
    replicas = [Replica() for _ in range(3)]
    assert [policy.choose([], replicas) for _ in range(6)] == [0, 1, 2, 0, 1, 2]
    assert {policy.choose([], replicas[:2]) for _ in range(4)} == {0, 1}
    assert policy.choose([], replicas[:1]) == 0


def test_two_choices_never_takes_the_busiest_and_repeats_by_its_seed():
    replicas = [replica(load) for load in (3, 1, 2)]
    drawn = [TwoChoices(seed=7).choose([], replicas) for _ in range(3)]
    assert len(set(drawn)) == 1
    policy = TwoChoices()
    chosen = [policy.choose([], replicas) for _ in range(300)]
    assert 0 not in chosen
    assert 60 <= chosen.count(2) <= 140  # the only pair without replica 1 is one of three
    assert policy.choose([], replicas[:1]) == 0


def longest_common_beginning(one: list[int], other: list[int]) -> int:
    return next((index for index, (a, b) in enumerate(zip(one, other)) if a != b), min(len(one), len(other)))


def test_cached_tokens_are_the_longest_beginnings_that_came_before():
    prompts = chat_prompts(num_sessions=8, turns=3, open_sessions=3, system_tokens=20, turn_tokens=10)
    prompts.append(prompts[0][:8])  # wholly cached, in full blocks: its last token is computed all the same
    result = simulate_routing(prompts, RoundRobin(), 1, num_blocks=10_000, block_size=4)
    wanted = 0
    for index, prompt in enumerate(prompts):
        common = max((longest_common_beginning(prompt, before) for before in prompts[:index]), default=0)
        wanted += min(common, len(prompt) - 1) // 4 * 4
    assert result.cached_tokens == wanted > 0
    assert result.prompt_tokens == sum(map(len, prompts))


def test_a_replica_that_cannot_hold_its_requests_says_so():
    with pytest.raises(ValueError, match=r"replica 0 has 10 blocks and can't hold \d+ requests at the same time"):
        simulate_routing(chat_prompts(), RoundRobin(), 1, num_blocks=10)
