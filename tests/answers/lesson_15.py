"""Right answers to the exercises of lesson 15, written in other ways than the reference. The wrong ones are the checks'
lists."""

import random
from contextlib import closing

from lessons_lib.serving.failover import Chunk, ReplicaLost, request_to_go_on, stream_once

# 15.1 choose_replica


def in_a_loop(block_hashes, replicas, imbalance_limit):
    best, low = None, None
    for index, replica in enumerate(replicas):
        matched = 0
        while matched < len(block_hashes) and block_hashes[matched] in replica.sent_blocks:
            matched += 1
        key = (-matched, replica.load, replica.num_sent)
        if best is None or key < best[0]:
            best = (key, index)
        if low is None or key[1:] < low[0]:
            low = (key[1:], index)
    return low[1] if replicas[best[1]].load - low[0][0] > imbalance_limit else best[1]


def from_the_longest_prefix_down(block_hashes, replicas, imbalance_limit):
    by_load = lambda index: (replicas[index].load, replicas[index].num_sent)
    low = min(range(len(replicas)), key=by_load)
    for length in range(len(block_hashes), -1, -1):
        know = [i for i, one in enumerate(replicas) if all(block in one.sent_blocks for block in block_hashes[:length])]
        if know:
            best = min(know, key=by_load)
            return best if replicas[best].load <= replicas[low].load + imbalance_limit else low


# 15.2 request_to_go_on


def with_update(request, token_ids):
    made = dict(request)
    made["output_token_ids"] = list(request.get("output_token_ids") or []) + list(token_ids)
    return None if len(made["output_token_ids"]) >= made["max_tokens"] else made


def with_a_tuple(request, token_ids):
    tokens = (*(request.get("output_token_ids") or ()), *token_ids)
    return request | {"output_token_ids": tokens} if len(tokens) < request["max_tokens"] else None


def without_an_empty_field(request, token_ids):
    made = with_update(request, token_ids)
    if made and not made["output_token_ids"]:
        del made["output_token_ids"]
    return made


# 15.3 relay


def with_a_loop_of_its_own(request, replicas, choose, max_moves=2):
    if request.get("seed") is None:
        request = dict(request, seed=random.randrange(2**31))
    lost, tokens = set(), []
    while len(lost) <= max_moves and len(lost) < len(replicas):
        candidates = [one for one in replicas if id(one) not in lost]
        replica = candidates[choose(candidates)]
        replica.load += 1
        try:
            with closing(replica.stream(request_to_go_on(request, tokens))) as stream:
                for chunk in stream:
                    tokens.extend(chunk.token_ids)
                    yield Chunk(list(chunk.token_ids), chunk.finish_reason, chunk.error)
                    if chunk.finish_reason is not None:
                        return
        except ReplicaLost:
            pass
        except Exception as error:
            yield Chunk((), "error", f"{type(error).__name__}: {error}")
            return
        finally:
            replica.load -= 1
        lost.add(id(replica))
        if request_to_go_on(request, tokens) is None:
            yield Chunk([], "length")
            return
    yield Chunk([], "error", "no replica is left")


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
    "15.1": [in_a_loop, from_the_longest_prefix_down],
    "15.2": [with_update, with_a_tuple, without_an_empty_field],
    "15.3": [with_a_loop_of_its_own, in_recursion],
}
