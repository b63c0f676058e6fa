"""Lesson 15: where the blocks of six conversations are cached, if a policy chooses the replicas."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from lessons_lib.serving.router import RoutingPolicy, hash_prompt
from lessons_lib.serving.routing_simulation import simulate_routing


@dataclass(frozen=True)
class PrefixPlaces:
    """What the caches hold at the end of a run.

    Attributes:
        policy: its name.
        cached: conversation -> how many of its blocks each replica's cache holds.
        found: the share of all prompt tokens that were found in a cache, 0 to 1.
    """

    policy: str
    cached: Mapping[str, Sequence[int]]
    found: float


def six_conversations(seed: int = 3) -> tuple[dict[str, list[int]], list[list[int]]]:
    """Six conversations of five turns and 64 tokens a turn: name -> all its tokens, and the prompts in mixed order."""
    draw = random.Random(seed)
    conversations = {name: [draw.randrange(4096) for _ in range(320)] for name in "ABCDEF"}
    order = [name for name in "ABCDEF" for _ in range(5)]
    draw.shuffle(order)
    prompts = [conversations[name][: 64 * (1 + order[:index].count(name))] for index, name in enumerate(order)]
    return conversations, prompts


def record_places(
    policies: Sequence[RoutingPolicy], block_size: int, num_replicas: int = 2
) -> tuple[list[PrefixPlaces], dict[str, int]]:
    """What each policy leaves in the caches of the replicas, and how many blocks each conversation has."""
    conversations, prompts = six_conversations()
    hashes = {name: hash_prompt(tokens, block_size) for name, tokens in conversations.items()}
    places = []
    for policy in policies:
        result = simulate_routing(prompts, policy, num_replicas, num_blocks=200)
        cached = {
            name: [sum(block in cache for block in blocks) for cache in result.cached_blocks]
            for name, blocks in hashes.items()
        }
        places.append(PrefixPlaces(policy.name, cached, result.hit_rate))
    return places, {name: len(blocks) for name, blocks in hashes.items()}
