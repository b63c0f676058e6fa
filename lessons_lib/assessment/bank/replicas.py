"""Questions on lesson 15: replicas."""

import random

from lessons_lib.assessment.question import Asked, Redraw, asked, bug, design, item
from lessons_lib.serving.failover import request_to_go_on
from lessons_lib.serving.router import (
    PrefixAffinity,
    Replica,
    RoundRobin,
    RoutingPolicy,
    TwoChoices,
    choose_replica,
    hash_prompt,
)
from lessons_lib.serving.routing_simulation import simulate_routing
from lessons_lib.viz.replicas import PrefixPlaces, draw_prefix_places


@item("15", "picture", "The idea: send a prompt where its beginning is")
def policy_of_the_caches(draw: random.Random) -> Asked:
    chats = {name: [draw.randrange(4096) for _ in range(128)] for name in "ABCD"}
    order = [name for name in "ABCD" for _ in range(4)]
    draw.shuffle(order)
    prompts = [chats[name][: 32 * (1 + order[:index].count(name))] for index, name in enumerate(order)]
    policies: list[RoutingPolicy] = [RoundRobin(), TwoChoices(seed=1), PrefixAffinity(4)]
    places = []
    for policy in policies:
        result = simulate_routing(prompts, policy, 2, num_blocks=100, num_running=4)
        cached = {
            name: [sum(one in cache for one in hash_prompt(tokens, 16)) for cache in result.cached_blocks]
            for name, tokens in chats.items()
        }
        places.append(PrefixPlaces("a policy", cached, result.hit_rate))
    split = [sum(min(of) > 0 for of in place.cached.values()) for place in places]
    if split[2] or split[0] < 3:
        raise Redraw
    chosen = draw.choice((0, 2))
    doubled = split[chosen]
    whys = {
        0: "Turns of a conversation go to both replicas, so both caches hold parts of it, and fewer tokens are found.",
        2: "Each conversation is in one cache only: every turn went to where its beginning was.",
    }
    nots = {
        0: "With affinity, each conversation would be in one cache only.",
        2: "Round robin would send turns of a conversation to both replicas.",
    }
    return asked(
        "Four conversations of four turns, in mixed order, on two replicas. How many conversations take up memory in "
        "both caches, and which policy fits that?",
        (f"{doubled}; {'round robin' if chosen == 0 else 'prefix affinity'}", whys[chosen]),
        [
            (f"{doubled}; {'prefix affinity' if chosen == 0 else 'round robin'}", nots[chosen]),
            (f"{4 - doubled}; {'round robin' if chosen == 0 else 'prefix affinity'}", "Count the rows in which both "
             "cells are filled."),
            (f"{4 - doubled}; {'prefix affinity' if chosen == 0 else 'round robin'}", "Count the rows in which both "
             "cells are filled. Affinity fills one, round robin mostly both."),
            (f"{doubled - 1 if doubled else 1}; round robin", "Count the rows in which both cells are filled."),
        ],
        lambda: draw_prefix_places([places[chosen]], dict.fromkeys(chats, 8)),
    )  # fmt: skip


@item("15", "compute", "Build 1: which replica")
def chosen_replica(draw: random.Random) -> Asked:
    blocks = [bytes([index]) for index in range(6)]
    loads, matched, limit = [draw.randint(0, 9) for _ in range(4)], draw.sample(range(7), 4), draw.choice((2, 3, 4))
    replicas = [Replica(load=load, num_sent=load) for load in loads]
    for replica, count in zip(replicas, matched):
        replica.sent_blocks.add(blocks[:count])
    right = choose_replica(blocks, replicas, limit)
    least, best = loads.index(min(loads)), matched.index(max(matched))
    by_the_mean = loads[best] <= sum(loads) / len(loads) + limit
    if len(set(loads)) < 4 or least == best or by_the_mean == (right == best):
        raise Redraw  # a limit above the mean would choose the same

    def why(index: int) -> str:
        if index == best:
            return f"Its load of {loads[index]} is more than {limit} above the lowest, {loads[least]}."
        if index == least:
            return "It has the lowest load, but the one with the longest prefix is within the limit."
        return "It has neither the longest prefix nor the lowest load."

    reason = (
        f"It was sent the longest beginning, and its load is within {limit} of the lowest."
        if right == best
        else f"Replica {best} has the longest beginning, but its load is too high. So the least loaded one is chosen."
    )
    told = "; ".join(f"{index}: load {load}, {count} blocks" for index, (load, count) in enumerate(zip(loads, matched)))
    return asked(
        f"Prefix affinity with an imbalance limit of {limit}. The replicas, and how many blocks of this prompt each "
        f"was "
        f"sent: {told}. Which one does lesson 15's rule choose?",
        (f"replica {right}", reason),
        [(f"replica {index}", why(index)) for index in range(4) if index != right],
    )


@item("15", "compute", "Build 2: the request that goes on")
def prefill_after_a_loss(draw: random.Random) -> Asked:
    prompt, done, limit = draw.randint(40, 200), draw.randint(5, 60), draw.choice((80, 100, 120))
    request = {"prompt": [1] * prompt, "max_tokens": limit, "seed": 3}
    further = request_to_go_on(request, [7] * done)
    assert further is not None
    kept = len(further["output_token_ids"])
    return asked(
        f"A request has a prompt of {prompt} tokens and max_tokens = {limit}. Its replica is lost after {done} tokens "
        "of the answer. What does the new replica prefill, and how many tokens may it still generate?",
        (f"{prompt + kept} and {limit - kept}", "The prompt and the answer so far; `max_tokens` counts the whole "
         "answer."),
        [
            (f"{prompt} and {limit}", "Then the reader would get the first tokens twice."),
            (f"{prompt + kept} and {limit}", "The answer would be longer than the client asked for."),
            (f"{kept} and {limit - kept}", "The cache is lost with the replica, that of the prompt too."),
            (f"{prompt} and {limit - kept}", "The next token depends on the answer so far, so that is computed, too."),
        ],
    )  # fmt: skip


ITEMS = [
    policy_of_the_caches,
    chosen_replica,
    prefill_after_a_loss,
    bug(
        "15", "Build 1: which replica", "longest_prefix",
        task="`choose` returns the index of the replica that was sent the longest beginning of a prompt, or of the "
        "least loaded one if the loads are too unequal for that: `limit` is the imbalance limit of prefix affinity.",
        code="""
def choose(hashes, replicas, limit):
    loads = [replica.load for replica in replicas]
    allowed = min(loads) + limit
    matched = []
    for replica in replicas:
        count = 0
        while count < len(hashes) and hashes[count] in replica.sent:
            count += 1
        matched.append(count)
    best = max(range(len(replicas)), key=lambda i: (matched[i], -loads[i]))
    return best if loads[best] <= allowed else loads.index(min(loads))
""",
        line=3, wrong="allowed = sum(loads) / len(loads) + limit",
        why="A busy replica raises the mean itself, so it may be far above an idle one and still be chosen. The limit "
        "counts from the lowest load.",
        innocent={
            7: "Only this prompt's blocks in a row, from its beginning, are found in that replica's cache.",
            10: "The most blocks of this prompt, counted from its beginning; among equals, the lower load.",
            11: "A load that is just at the limit is still allowed; else the least loaded replica serves.",
        },
        setup="from types import SimpleNamespace",
        trial="""
one = SimpleNamespace(load=1, sent={"a", "x", "y", "z"})
two = SimpleNamespace(load=3, sent={"a", "b"})
assert choose(["a", "b", "c"], [one, two], 2) == 1 and choose(["a", "b", "c"], [one, two], 1) == 0
""",
    ),
    bug(
        "15", "Build 3: the core of a balancer", "relay_of_a_stream",
        task="`relay` passes a stream on. If its replica is lost, another one goes on. `go_on(request, tokens)` makes "
        "a request whose answer begins with that of `request`, followed by `tokens`.",
        code="""
def relay(request, replicas, max_moves):
    tokens, asked = [], request
    for replica in replicas[: max_moves + 1]:
        try:
            for chunk in replica(asked):
                tokens += chunk
                yield chunk
            return
        except ReplicaLost:
            asked = go_on(request, tokens)
    yield "error"
""",
        line=10, wrong="asked = go_on(asked, tokens)",
        why="`tokens` are all tokens so far, and after the first loss `asked` holds some of them already. At the "
        "second loss they would be there twice. They have to follow the first request.",
        innocent={
            3: "Each move takes one replica more than the first, and a request that crashes them all is stopped.",
            6: "What the reader has got so far is what the next replica has to know.",
            8: "The stream ended as it should, so no other replica is asked.",
        },
        setup="""
class ReplicaLost(Exception): pass
def go_on(request, tokens):
    return {"output": request.get("output", []) + tokens}
""",
        trial="""
def dies(request):
    yield [len(request.get("output", [])) + 1]
    raise ReplicaLost
def serves(request):
    for token in [1, 2, 3, 4, 5][len(request.get("output", [])):]:
        yield [token]
assert list(relay({}, [dies, serves], 1)) == [[1], [2], [3], [4], [5]]
assert list(relay({}, [dies, dies, serves], 2)) == [[1], [2], [3], [4], [5]]
assert list(relay({}, [dies, serves], 0)) == [[1], "error"]
""",
    ),
    design(
        "15", "Build 1: which replica", "imbalance_limit",
        "Three replicas with prefix affinity. One shared system prompt begins 95% of all requests. Replica 1 has 40 "
        "requests, the others 3 each. Which setting is to blame, and what do you change?",
        ("The imbalance limit is too high; lower it", "Then a busy replica isn't chosen for its prefix, and the others "
         "learn the prompt, too."),
        ("The imbalance limit is too low; make it higher", "A higher limit sends still more to replica 1."),
        ("The blocks are too large; take smaller ones", "The shared prompt is found with any block size. It's the "
         "reason for the imbalance."),
        ("The caches are too small; give them more blocks", "More blocks keep more prefixes, and replica 1 still has "
         "the longest."),
    ),
    design(
        "15", "A replica dies", "errors_or_moves",
        "Engines crash about once a week, and the cause isn't known. What should the balancer do with streams whose "
        "replica is lost?",
        ("Move each stream, but only a small number of times", "Ordinary streams survive a crash. If a request was "
         "the cause, it takes one or two replicas with it at most."),
        ("Move each stream until a replica has completed it", "If one request is the cause, it takes down every "
         "replica in turn."),
        ("End each stream with an error, and move none at all", "Safe against a request that crashes engines, but "
         "each crash costs all readers of that replica their answers."),
        ("Hold each stream until its own replica is back again", "The cache is lost, so nothing is gained by waiting "
         "for minutes."),
    ),
]  # fmt: skip
