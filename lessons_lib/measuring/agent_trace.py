"""Lesson 20: what agents ask an engine for: long shared prompts, many turns, pauses, and branches that are dropped."""

from dataclasses import dataclass
from random import Random
from typing import Any

from lessons_lib.floors.floor import EvictionOrder
from lessons_lib.floors.floored_pool import FlooredPrefixCache
from lessons_lib.floors.host_floor import HostFloor
from lessons_lib.kv_cache.block_hashes import hash_full_blocks
from lessons_lib.scheduling.sequence import Sequence

VOCABULARY = 4096


@dataclass(frozen=True)
class Call:
    """One request of an agent.

    Attributes:
        agent: its number.
        time: when it comes, in seconds.
        prompt: token ids: the instructions of its kind, and all that the agent has kept so far.
        kind: "turn", "branch" (tried and dropped) or "document" (read once).
    """

    agent: int
    time: float
    prompt: tuple[int, ...]
    kind: str


def agent_calls(num_agents: int = 16, num_turns: int = 6, seed: int = 20) -> list[Call]:
    """The calls of agents of three kinds, in the order of time.

    An agent's next turn comes 5 to 15 seconds after the last or, one time in four, after 1 to 5 minutes. Behind one
    turn in four it tries a branch, and drops it; behind one in ten, 5 to 8 helpers read a document each.
    """
    draw = Random(seed)

    def text(least: int, most: int) -> tuple[int, ...]:
        return tuple(draw.randrange(1, VOCABULARY) for _ in range(draw.randint(least, most)))

    instructions = [text(190, 290) for _ in range(3)]
    calls = []
    for agent in range(num_agents):
        kept, time = draw.choice(instructions), draw.uniform(0, 120)
        for _ in range(num_turns):
            kept += text(40, 100)
            calls.append(Call(agent, time, kept, "turn"))
            if draw.random() < 0.25:
                calls.append(Call(agent, time + draw.uniform(1, 4), kept + text(60, 120), "branch"))
            for _ in range(draw.randint(5, 8) if draw.random() < 0.1 else 0):
                calls.append(Call(agent, time + draw.uniform(1, 4), text(300, 600), "document"))
            time += draw.uniform(5, 15) if draw.random() < 0.75 else draw.uniform(60, 300)
    return sorted(calls, key=lambda call: call.time)


class NoCopies:
    """A mover for replays without a model."""

    def __init__(self, num_slots: int, block_size: int):
        self.host: Any = type("Slots", (), {"num_blocks": num_slots, "block_size": block_size})

    def ignore(self, *args: Any) -> None:
        pass

    store = load = wait = guard = ignore


def replay_calls(
    calls: list[Call], num_blocks: int, num_slots: int, choose: EvictionOrder | None = None, size: int = 16
) -> int:
    """Serve calls one after the other, without a model, with a pool and a host floor.

    Returns:
        prompt tokens that had to be computed.
    """
    pool = FlooredPrefixCache(num_blocks, size)
    pool.below = HostFloor(NoCopies(num_slots, size), None, choose)  # type: ignore[arg-type]
    computed = 0
    for call in calls:
        hashes = hash_full_blocks(Sequence("", list(call.prompt), 1), size)
        blocks = pool.load(hashes[: (len(call.prompt) - 1) // size], 0)
        found = len(blocks)
        blocks += pool.allocate(len(hashes) - found)
        for depth, (block, block_hash) in enumerate(zip(blocks, hashes)):
            pool.cache_full_block(block, block_hash)
            pool.depths[block] = depth
        computed += len(call.prompt) - found * size
        pool.free(blocks)
    return computed
