"""Lesson 15: the share of prompts that a routing policy finds in a cache. Only caches are simulated; no model runs."""

import random
from collections import deque
from collections.abc import Sequence as ListOf
from dataclasses import dataclass

from lessons_lib.kv_cache.block_pool import OutOfBlocks, blocks_for
from lessons_lib.kv_cache.prefix_cache import PrefixCache
from lessons_lib.serving.router import Replica, RoutingPolicy, hash_prompt


def chat_prompts(
    num_sessions: int = 150,
    turns: int = 6,
    num_systems: int = 4,
    system_tokens: int = 64,
    turn_tokens: int = 48,
    open_sessions: int = 24,
    seed: int = 0,
) -> list[list[int]]:
    """Prompts of conversations, in the order of arrival. A prompt is a system prompt, which many conversations share,
    and all turns of its conversation so far.

    Args:
        turns: of a conversation, on average.
        turn_tokens: tokens of a turn, on average: half as many to half as many again.
        open_sessions: conversations that go on at the same time. One that has ended is replaced by a new one.
    """
    draw = random.Random(seed)

    def tokens(count: int) -> list[int]:
        return [draw.randrange(1_000_000) for _ in range(count)]

    systems = [tokens(system_tokens) for _ in range(num_systems)]
    waiting = [(draw.choice(systems)[:], draw.randint(1, 2 * turns - 1)) for _ in range(num_sessions)]
    sessions, prompts = [waiting.pop() for _ in range(min(open_sessions, num_sessions))], []
    while sessions:
        place = draw.randrange(len(sessions))
        history, turns_left = sessions[place]
        history += tokens(draw.randint(turn_tokens // 2, turn_tokens * 3 // 2))
        prompts.append(history[:])
        if turns_left > 1:
            sessions[place] = history, turns_left - 1
        elif waiting:
            sessions[place] = waiting.pop()
        else:
            sessions.pop(place)
    return prompts


class SimulatedReplica:
    """The prefix cache of a replica, without the model that would fill it. `running` has the blocks of requests that
    haven't ended, oldest first."""

    def __init__(self, num_blocks: int, block_size: int):
        self.cache = PrefixCache(num_blocks, block_size)
        self.running: deque[list[int]] = deque()

    def serve(self, num_tokens: int, block_hashes: list[bytes]) -> int:
        """Serve a prompt. Returns how many of its tokens were cached. As in the engine, the last token is always
        computed, since its logits choose the next one.

        Raises:
            OutOfBlocks: running requests leave too few blocks; nothing changes.
        """
        block_size = self.cache.block_size
        found = self.cache.match_prefix(block_hashes[: (num_tokens - 1) // block_size])
        self.cache.touch(found)
        try:
            new = self.cache.allocate(blocks_for(num_tokens, block_size) - len(found))
        except OutOfBlocks:
            self.cache.free(found)
            raise
        for block, block_hash in zip([*found, *new], block_hashes):
            self.cache.cache_full_block(block, block_hash)
        self.running.append(found + new)
        return len(found) * block_size

    def end_oldest(self) -> None:
        """End the request that arrived first. Its blocks stay cached until they are needed."""
        self.cache.free(self.running.popleft())


@dataclass(frozen=True)
class RoutingResult:
    """The result of a policy.

    Attributes:
        prompt_tokens, cached_tokens: of all requests; those that were found in a cache.
        requests: number of requests of each replica.
        highest_load: the most requests that one replica had running at the same time.
        cached_blocks: of each replica, the hashes of the blocks in its cache at the end.
    """

    prompt_tokens: int
    cached_tokens: int
    requests: list[int]
    highest_load: int
    cached_blocks: list[set[bytes]]

    @property
    def hit_rate(self) -> float:
        """The share of prompt tokens that were found in a cache, 0 to 1."""
        return self.cached_tokens / self.prompt_tokens if self.prompt_tokens else 0.0


def simulate_routing(
    prompts: ListOf[list[int]],
    policy: RoutingPolicy,
    num_replicas: int,
    num_blocks: int = 400,
    block_size: int = 16,
    num_running: int = 16,
) -> RoutingResult:
    """Send prompts to replicas by a policy, and count the tokens that were found in a cache.

    Args:
        prompts: token ids, in the order of arrival.
        num_blocks: of each replica.
        num_running: requests that are running at the same time, over all replicas: when one more arrives, the one that
            has been running for longest ends.

    Raises:
        ValueError: a replica is too small for the requests that it has to run at the same time.
    """
    caches = [SimulatedReplica(num_blocks, block_size) for _ in range(num_replicas)]
    replicas = [Replica() for _ in range(num_replicas)]
    for replica in replicas:
        replica.sent_blocks.max_blocks = num_blocks
    served_by: deque[int] = deque()
    cached_tokens = highest_load = 0
    for prompt in prompts:
        if len(served_by) == num_running:
            oldest = served_by.popleft()
            caches[oldest].end_oldest()
            replicas[oldest].end()
        block_hashes = hash_prompt(prompt, block_size)
        chosen = policy.choose(block_hashes, replicas)
        replicas[chosen].begin(block_hashes)
        try:
            cached_tokens += caches[chosen].serve(len(prompt), block_hashes)
        except OutOfBlocks as error:
            raise ValueError(
                f"replica {chosen} has {num_blocks} blocks and can't hold {replicas[chosen].load} requests at the same "
                f"time: {error} Give it more blocks, or let fewer than {num_running} requests run."
            ) from error
        served_by.append(chosen)
        highest_load = max(highest_load, replicas[chosen].load)
    return RoutingResult(
        sum(map(len, prompts)),
        cached_tokens,
        [replica.num_sent for replica in replicas],
        highest_load,
        [set(simulated.cache.hash_to_block) for simulated in caches],
    )
