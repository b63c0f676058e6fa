"""Lesson 15: choosing a replica. A router that remembers what it has sent saves computing a prefix again elsewhere."""

import itertools
import random
from collections import OrderedDict
from collections.abc import Callable
from collections.abc import Sequence as ListOf
from dataclasses import dataclass, field
from typing import Protocol

from lessons_lib.kv_cache.block_hashes import block_hash, salt_root


def hash_prompt(prompt: str | ListOf[int], block_size: int, cache_salt: str | None = None) -> list[bytes]:
    """Chained hashes of a prompt's full blocks, as `prefix_cache` computes them.

    Args:
        prompt: token ids; or text, whose characters then take the place of tokens. Equal beginnings of texts give equal
            hashes too, and the router needs no tokenizer.
        block_size: tokens, or characters, of a block.
        cache_salt: requests with different salts share no blocks.
    """
    units = [ord(character) for character in prompt] if isinstance(prompt, str) else list(prompt)
    hashes: list[bytes] = []
    for start in range(0, len(units) - block_size + 1, block_size):
        parent = hashes[-1] if hashes else salt_root(cache_salt)
        hashes.append(block_hash(parent, units[start : start + block_size]))
    return hashes


class SentBlocks:
    """The last `max_blocks` hashes sent to a replica, least recently sent first: a guess of what it has cached."""

    def __init__(self, max_blocks: int = 10_000):
        self.max_blocks = max_blocks
        self._hashes: OrderedDict[bytes, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._hashes)

    def __contains__(self, block: bytes) -> bool:
        return block in self._hashes

    def add(self, block_hashes: ListOf[bytes]) -> None:
        """Note that a prompt with these blocks was sent."""
        # The last block first: a block without those before it can't be found, so the ends of prompts are lost first.
        for block in reversed(block_hashes):
            self._hashes[block] = None
            self._hashes.move_to_end(block)
        while len(self._hashes) > self.max_blocks:
            self._hashes.popitem(last=False)


@dataclass
class Replica:
    """A router's view of a replica.

    Attributes:
        load: requests that it is serving now.
        num_sent: requests that it was sent in all.
        sent_blocks: the blocks of their prompts.
    """

    load: int = 0
    num_sent: int = 0
    sent_blocks: SentBlocks = field(default_factory=SentBlocks)

    def begin(self, block_hashes: ListOf[bytes]) -> None:
        """Count a request that is sent to it."""
        self.load += 1
        self.num_sent += 1
        self.sent_blocks.add(block_hashes)

    def end(self) -> None:
        """Count a request that has ended, in whatever way."""
        self.load -= 1


def choose_replica(block_hashes: list[bytes], replicas: "list[Replica]", imbalance_limit: int) -> int:
    """The replica that has been sent the longest beginning of a prompt, unless it is too busy.

    Args:
        block_hashes: of the prompt's full blocks, in order; each stands for everything up to the end of its block.
        replicas: those that can take a request, one or more.
        imbalance_limit: if the load of the replica with the longest beginning is more than this above the smallest
            load, the least loaded replica is chosen instead.

    Returns:
        the index of a replica. Ties go to the smaller load, then to the smaller `num_sent`, then to the first.
    """

    def num_matched(replica: Replica) -> int:
        for count, block in enumerate(block_hashes):
            if block not in replica.sent_blocks:
                return count
        return len(block_hashes)

    by_load = sorted(range(len(replicas)), key=lambda index: (replicas[index].load, replicas[index].num_sent))
    limit = replicas[by_load[0]].load + imbalance_limit
    # `max` returns the first of several that are equal.
    best = max(by_load, key=lambda index: num_matched(replicas[index]))
    return best if replicas[best].load <= limit else by_load[0]


class RoutingPolicy(Protocol):
    """A balancer's rule. The balancer calls `Replica.begin` itself."""

    name: str

    def choose(self, block_hashes: ListOf[bytes], replicas: ListOf[Replica]) -> int:
        """The index of one of the replicas; there is at least one."""


class RoundRobin:
    """One after the other."""

    name = "round robin"

    def __init__(self) -> None:
        self._numbers = itertools.count()

    def choose(self, block_hashes: ListOf[bytes], replicas: ListOf[Replica]) -> int:
        return next(self._numbers) % len(replicas)


class TwoChoices:
    """The less loaded of two drawn at random (Mitzenmacher 2001), so that routers with old figures differ."""

    name = "two choices"

    def __init__(self, seed: int = 0):
        self._random = random.Random(seed)

    def choose(self, block_hashes: ListOf[bytes], replicas: ListOf[Replica]) -> int:
        drawn = self._random.sample(range(len(replicas)), min(2, len(replicas)))
        return min(drawn, key=lambda index: replicas[index].load)


class PrefixAffinity:
    """See `choose_replica`. `rule` is a function like it."""

    name = "prefix affinity"

    def __init__(self, imbalance_limit: int = 4, rule: Callable[..., int] = choose_replica):
        self.imbalance_limit, self.rule = imbalance_limit, rule

    def choose(self, block_hashes: ListOf[bytes], replicas: ListOf[Replica]) -> int:
        return self.rule(block_hashes, replicas, self.imbalance_limit)
