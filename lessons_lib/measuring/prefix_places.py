"""Lesson 15: the replicas that cache the blocks of six conversations under a routing policy."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from lessons_lib.measuring.routing_simulation import simulate_routing
from lessons_lib.serving.router import RoutingPolicy, hash_prompt


@dataclass(frozen=True)
class PrefixPlaces:
    """The caches after a run: conversation -> its blocks in each replica; share of prompt tokens found, 0 to 1."""

    policy: str
    cached: Mapping[str, Sequence[int]]
    found: float


def six_conversations() -> tuple[dict[str, list[int]], list[list[int]]]:
    """Six conversations of five turns of 64 tokens: name -> all its tokens, and the prompts in shuffled order."""
    draw = random.Random(3)
    conversations = {name: [draw.randrange(4096) for _ in range(320)] for name in "ABCDEF"}
    order = [name for name in "ABCDEF" for _ in range(5)]
    draw.shuffle(order)
    prompts = [conversations[name][: 64 * (1 + order[:index].count(name))] for index, name in enumerate(order)]
    return conversations, prompts


def record_places(policies: Sequence[RoutingPolicy], block_size: int) -> tuple[list[PrefixPlaces], dict[str, int]]:
    """Record the final caches of two replicas under each policy, and the number of blocks of each conversation."""
    conversations, prompts = six_conversations()
    hashes = {name: hash_prompt(tokens, block_size) for name, tokens in conversations.items()}
    places = []
    for policy in policies:
        result = simulate_routing(prompts, policy, num_replicas=2, num_blocks=200)
        cached = {
            name: [sum(block in cache for block in blocks) for cache in result.cached_blocks]
            for name, blocks in hashes.items()
        }
        places.append(PrefixPlaces(policy.name, cached, result.hit_rate))
    return places, {name: len(blocks) for name, blocks in hashes.items()}
