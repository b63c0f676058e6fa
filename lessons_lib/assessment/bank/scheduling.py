"""Questions on lesson 09: scheduling."""

import random

from lessons_lib.assessment.question import Asked, Redraw, asked, bug, design, item
from lessons_lib.kv_cache.block_pool import BlockPool, blocks_for
from lessons_lib.scheduling import FirstComeFirstServed, Scheduler, Sequence, ShortestJobFirst, StepCost, simulate
from lessons_lib.scheduling.arrivals import Arrival
from lessons_lib.scheduling.policies import Policy, StrictPriority
from lessons_lib.scheduling.scheduler import share_budget
from lessons_lib.viz.timelines import draw_gantts


@item("09", "picture", "Policies")
def policy_in_picture(draw: random.Random) -> Asked:
    answers = dict(zip("ABCDE", draw.sample(range(4, 30), 5)))
    tiers = {name: draw.randrange(2) for name in answers}
    requests = [
        Arrival(name, index / 1000, 8, answer, 64, tier=tiers[name], expected_tokens=answer)
        for index, (name, answer) in enumerate(answers.items())
    ]
    policies: list[Policy] = [FirstComeFirstServed(), ShortestJobFirst(), StrictPriority()]
    runs = [
        simulate(
            Scheduler(BlockPool(64, 16), max_num_seqs=1, max_num_batched_tokens=16, policy=policy),
            requests,
            StepCost(base=5e-3, per_token=1e-5, per_context_token=0.0),
            keep_steps=True,
        )
        for policy in policies
    ]
    orders = [tuple(sorted(run.times, key=lambda name: run.times[name].admitted)) for run in runs]
    if len(set(orders)) < 3:
        raise Redraw
    chosen = draw.randrange(3)
    whys = [
        "Requests run in the order in which they arrived.",
        "Of those that wait, the one with the shortest answer runs first.",
        "Of those that wait, tier 0 runs before tier 1, and in a tier the first that came.",
    ]
    nots = [
        "Then the requests would run in the order A, B, C, D, E.",
        "Then the bars behind the first would grow from top to bottom of the queue: the shortest answer next.",
        "Then no request of tier 1 would run while one of tier 0 waits.",
    ]
    names = [policy.name for policy in policies]
    return asked(
        "One request runs at a time. A to E arrive in this order, 1 ms apart; the tier is next to the name. Which "
        "policy is this?",
        (names[chosen], whys[chosen]),
        [(names[other], nots[other]) for other in range(3) if other != chosen]
        + [("last come, first served", "Then E would run right after A.")],
        lambda: draw_gantts({"one of the policies": runs[chosen]}, requests=requests),
    )


@item("09", "compute", "Build 1: share the budget")
def shares_of_a_budget(draw: random.Random) -> Asked:
    budget = draw.choice((16, 20, 24))
    wanted = [1, draw.randint(budget, 30), 1, draw.randint(4, 12)]
    sequences = [Sequence(name, range(40), 8, num_computed_tokens=40 - want) for name, want in zip("ABCD", wanted)]
    counts = share_budget(sequences, budget)
    right = [counts.get(sequence, 0) for sequence in sequences]
    in_order, left = [], budget
    for want in wanted:
        in_order.append(min(want, left))
        left -= in_order[-1]
    half = (budget - 2) // 2
    return asked(
        f"A and C decode; B and D have {wanted[1]} and {wanted[3]} prompt tokens left to compute. They were "
        f"admitted in the order A, B, C, D, and the budget is {budget} tokens. How many tokens does each compute in "
        f"this step, by the rule of lesson 09?",
        (right, "Decodes first, one token each; the prompts share the rest in order."),
        [
            (in_order, "C decodes, and decodes come before all prompts."),
            ([1, half, 1, half], "What is left isn't divided evenly: the first prompt takes what it can use."),
            ([1, min(wanted[1], budget), 1, 0], "The budget includes the decodes, so they leave B less than that."),
            ([1, 0, 1, min(wanted[3], budget - 2)], "B runs before D, so its prompt is served first."),
        ],
    )


@item("09", "compute", "Which requests may start")
def promised_blocks(draw: random.Random) -> Asked:
    prompts, limits = [draw.randint(10, 60) for _ in range(3)], [draw.randint(20, 80) for _ in range(3)]
    sequences = [Sequence(str(index), range(p), m) for index, (p, m) in enumerate(zip(prompts, limits))]
    right = sum(blocks_for(sequence.most_tokens, 16) for sequence in sequences)
    now = sum(blocks_for(prompt, 16) for prompt in prompts)
    naive = sum(blocks_for(prompt + limit, 16) for prompt, limit in zip(prompts, limits))
    if naive == right:
        raise Redraw
    told = ", ".join(f"{prompt} and {limit}" for prompt, limit in zip(prompts, limits))
    return asked(
        f"Three sequences have prompts and `max_new_tokens` of {told}. Blocks have 16 slots. How many blocks must a "
        "pool at least have, so that all three run at once and can never lack a block?",
        (right, "Each may come to hold prompt + max_new_tokens - 1 tokens, and rounds up on its own."),
        [
            (now, "That is the prompts. The answers may need blocks, too."),
            (blocks_for(sum(prompts) + sum(limits) - 3, 16), "Sequences don't share blocks: each one rounds up."),
            (naive, "The last token of an answer is never fed, so it needs no slot."),
            (sum(blocks_for(limit, 16) for limit in limits), "The prompt stays in the cache while the answer grows."),
        ],
    )


ITEMS = [
    policy_in_picture,
    shares_of_a_budget,
    promised_blocks,
    bug(
        "09", "The idea: two counters", "who_gets_a_token",
        task="`update` runs after a step. `counts` says how many tokens of each sequence the step computed, and "
        "`sampled` holds a token drawn for each of them.",
        code="""
def update(running, counts, sampled):
    finished = []
    for sequence, count in counts.items():
        sequence.num_computed_tokens += count
        if sequence.num_computed_tokens == sequence.num_tokens:
            sequence.append_token(sampled[sequence])
        if sequence.finish_reason:
            running.remove(sequence)
            finished.append(sequence)
    return finished
""",
        line=5, wrong="if sequence.num_computed_tokens >= len(sequence.prompt_ids):",
        why="A preempted sequence recomputes answer tokens, too. It would get a token before it has caught up. All "
        "known tokens, prompt and answer, have to be computed.",
        innocent={
            4: "The tokens that the step computed are in the cache now.",
            7: "The new token may have been the last one, so this comes after it is appended.",
            8: "A finished sequence leaves the batch. The loop is over `counts`, so `running` may change.",
        },
        setup="from lessons_lib.scheduling import Sequence",
        trial="""
lost = Sequence("A", [1, 2], 8, output_ids=[3, 4, 5])
running = [lost]
update(running, {lost: 3}, {lost: 9})
assert lost.output_ids == [3, 4, 5] and lost.num_computed_tokens == 3
update(running, {lost: 2}, {lost: 9})
assert lost.output_ids == [3, 4, 5, 9]
""",
    ),
    bug(
        "09", "Time", "times_of_a_run",
        task="`worst` returns a run's largest TTFT, latency and time between two tokens. Each request has `arrived`, "
        "`admitted` and `token_times`.",
        code="""
def worst(requests):
    ttfts, latencies, gaps = [], [], []
    for request in requests:
        times = request["token_times"]
        start = request["arrived"]
        ttfts.append(times[0] - start)
        latencies.append(times[-1] - start)
        gaps += [after - before for before, after in zip(times, times[1:])]
    return max(ttfts), max(latencies), max(gaps, default=0.0)
""",
        line=5, wrong='start = request["admitted"]',
        why="A user waits from the moment of asking. Counted from admission, a policy that leaves requests in the "
        "queue for minutes would look excellent.",
        innocent={
            6: "TTFT is the time to the first token.",
            7: "An answer is complete with its last token.",
            8: "The times between tokens don't include the wait for the first one.",
        },
        trial="""
one = {"arrived": 1.0, "admitted": 4.0, "token_times": [5.0, 5.5, 7.5]}
two = {"arrived": 2.0, "admitted": 2.0, "token_times": [3.0]}
assert worst([one, two]) == (4.0, 6.5, 2.0) and worst([two]) == (1.0, 1.0, 0.0)
""",
    ),
    design(
        "09", "Policies", "policy_for_a_mix",
        "A service has chat users, and batch jobs that must be done by morning. Under strict priority the chats are "
        "fast, but last night no batch job ran at all. What changes least and mends it?",
        ("Strict priority with aging by the time of arrival", "A job that has waited long enough goes before a "
         "chat that has just come; until then chats stay first."),
        ("Shortest job first, by the expected answer length", "Long jobs starve here as well, as long as short "
         "chats keep coming."),
        ("First come, first served, for chats and jobs alike", "Nothing starves, but each chat then waits "
         "behind every job that came before it."),
        ("A larger token budget and more sequences in a step", "A step of more tokens takes longer, and strict "
         "priority would fill it with chats."),
    ),
    design(
        "09", "Measure: a hundred thousand requests", "mean_or_tail",
        "Two policies are simulated on the same trace. One has a mean latency of 2.1 s and a p99 of 40 s, the other "
        "2.6 "
        "s and 9 s. Contracts promise that 99 of 100 requests are done in 10 s. Which one, and why?",
        ("The second: the promise is about the slowest requests", "9 s at the 99th percentile keeps it. A mean says "
         "nothing about the tail."),
        ("The first: its mean is lower, so most users are better off", "That may be, but one request in a hundred "
         "takes 40 s or more, and the promise is broken."),
        ("The first: a mean of 2.1 s leaves few requests above the 10 s", "Few, but more than are allowed: its p99 "
         "says that one in a hundred takes 40 s or longer."),
        ("Neither: the mean and the p99 have to be below the limit both", "Both means are below it. What differs is "
         "whether the tail is."),
    ),
]  # fmt: skip
