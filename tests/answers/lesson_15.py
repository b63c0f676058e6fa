"""Right answers to the exercises of lesson 15, written in other ways than the reference. The wrong ones are the checks'
lists."""

import random

from answers import rights
from lessons_lib.serving.failover import Chunk, ReplicaLost, relay, request_to_go_on, stream_once
from lessons_lib.serving.router import choose_replica

# 15.1 choose_replica


def from_the_longest_prefix_down(block_hashes, replicas, imbalance_limit):
    by_load = lambda index: (replicas[index].load, replicas[index].num_sent)
    low = min(range(len(replicas)), key=by_load)
    for length in range(len(block_hashes), -1, -1):
        know = [i for i, one in enumerate(replicas) if all(block in one.sent_blocks for block in block_hashes[:length])]
        if know:
            best = min(know, key=by_load)
            return best if replicas[best].load <= replicas[low].load + imbalance_limit else low


IN_ONE_SEARCH = """
One key for everything.
- for count, block ... return len
+ return [block in replica.sent_blocks for block in [*block_hashes, b""]].index(False)
= best = min(by_load[::-1], key=lambda i: (-num_matched(replicas[i]), replicas[i].load, replicas[i].num_sent, i))
"""

# 15.2 request_to_go_on

REQUESTS = """
A tuple.
= output_token_ids = (*(request.get("output_token_ids") or ()), *token_ids)
No empty field.
- return {
+ made = {name: value for name, value in request.items() if name != "output_token_ids"}
+ return made | {"output_token_ids": list(output_token_ids)} if output_token_ids else made
"""

# 15.3 relay

OF_ONE = """
Tuples, and a message with more words.
~ yield chunk => yield Chunk(tuple(chunk.token_ids), chunk.finish_reason, chunk.error)
~ Chunk([], "error", str(error)) => Chunk((), "error", f"{type(error).__name__}: {error}")
"""
RELAYS = """
A loop of its own, and another list after each loss.
~ stream_once( => of_one(
~ token_ids += chunk.token_ids => token_ids.extend(chunk.token_ids)
- replica = remaining.pop
+ replica = remaining[choose(remaining)]
+ remaining = [each for each in remaining if each is not replica]
~ random.getrandbits(31) => random.randrange(2**31)
"""


def in_recursion(request, replicas, choose, max_moves=2):
    if request.get("seed") is None:
        request = {**request, "seed": random.randint(0, 10**6)}
    if not replicas or max_moves < 0:
        yield Chunk([], "error", "lost")
        return
    index, tokens = choose(replicas), []
    try:
        for chunk in stream_once(replicas[index], request):
            tokens += chunk.token_ids
            yield chunk
        return
    except ReplicaLost:
        rest = request_to_go_on(request, tokens)
    if rest is None:
        yield Chunk([], "length")
    else:
        yield from in_recursion(rest, replicas[:index] + replicas[index + 1 :], choose, max_moves - 1)


WRONG: dict[str, list] = {}
RIGHT = {
    "15.1": [from_the_longest_prefix_down, *rights(choose_replica, IN_ONE_SEARCH)],
    "15.2": rights(request_to_go_on, REQUESTS),
    "15.3": [in_recursion, *rights(relay, RELAYS, of_one=rights(stream_once, OF_ONE)[0])],
}
