"""Questions on lesson 10: memory pressure."""

import random

from lessons_lib.assessment.question import Asked, Redraw, asked, bug, design, item
from lessons_lib.engine import ModelRunner
from lessons_lib.kv_cache import PrefixCache
from lessons_lib.kv_cache.block_pool import blocks_for
from lessons_lib.models import tiny_model
from lessons_lib.recording import serve_recorded
from lessons_lib.scheduling import FirstComeFirstServed, PreemptiveScheduler, Sequence, ShortestJobFirst, never_swap
from lessons_lib.scheduling.preemption import last_in_rank
from lessons_lib.scheduling.simulator import StepCost
from lessons_lib.scheduling.swap_cost import PreemptionCost
from lessons_lib.viz.pressure import draw_pressure


@item("10", "picture", "Build 2: preemption")
def victim_in_picture(draw: random.Random) -> Asked:
    lengths, names = [draw.randint(5, 8) for _ in range(4)], draw.sample("ABCD", 4)
    scheduler = PreemptiveScheduler(
        PrefixCache(7, 4), max_num_seqs=4, max_num_batched_tokens=32, share_prefixes=False, should_swap=never_swap
    )
    sequences = [Sequence(name, [7 + index] * length, 8) for index, (name, length) in enumerate(zip(names, lengths))]
    steps = serve_recorded(ModelRunner(tiny_model(), 7, 4), scheduler, sequences)
    index = next((step.index for step in steps if step.preempted), 0)
    if not index or len(steps[index].preempted) != 1:
        raise Redraw
    before, step = steps[index - 1], steps[index]
    running = [name for name in names if any(name in owners for owners in before.owners.values())]
    victim = step.preempted[0]
    if len(running) < 3 or victim not in running:
        raise Redraw
    others = [name for name in running if name != victim]
    more = [
        (others[0], "It arrived first, so it ranks first: the last sequence to be preempted."),
        (others[-1], "Another running sequence ranks behind it."),
        ("none; the sequence waits", "It would wait with its blocks, and if all do, none ever finishes."),
        ("the one that has most blocks", "The victim is chosen by rank, whatever it holds."),
    ]
    return asked(
        f"First come, first served; the requests arrived in the order {', '.join(names)}. The next step needs more "
        "blocks than are free. Which sequence is preempted?",
        (victim, "The policy would serve it last of all that run, so it gives up its blocks."),
        more,
        lambda: draw_pressure(before),
    )


@item("10", "compute", "Build 2: preemption")
def recompute_after_preemption(draw: random.Random) -> Asked:
    prompt, answer, budget = draw.randint(20, 60), draw.randint(5, 30), draw.choice((16, 32))
    total = prompt + answer
    steps = blocks_for(total, budget)
    if total % budget == 0 or steps == blocks_for(prompt, budget):
        raise Redraw
    return asked(
        f"A sequence with {prompt} prompt tokens and {answer} answer tokens is preempted by recomputation. Later it "
        f"runs alone with a budget of {budget} tokens per step. After how many steps does it get its next token?",
        (steps, "All known tokens, prompt and answer, are computed in chunks. The last chunk gives the next token."),
        [
            (blocks_for(prompt, budget), "The answer so far has to be computed again, too."),
            (steps + 1, "The chunk that completes the known tokens gives the next token in the same step."),
            (blocks_for(prompt, budget) + answer, "Known tokens go through together. Only unknown ones come one by "
             "one."),
            (1, "The budget doesn't allow all of them in one step."),
        ],
    )  # fmt: skip


@item("10", "compute", "When is swapping cheaper?")
def swap_or_recompute(draw: random.Random) -> Asked:
    tokens, per_token = draw.choice((320, 640, 960)), draw.choice((2, 5, 10))
    size, gigabytes = 16, draw.choice((10, 20, 25))
    block_bytes = size * 128 * 1024
    cost = PreemptionCost(StepCost(0.01, per_token * 1e-6, 0.0), block_bytes, gigabytes * 1e9)
    swap, again = 1000 * cost.swap_seconds(tokens // size), 1000 * cost.recompute_seconds(tokens)
    if abs(swap / again - 1) < 0.2:
        raise Redraw
    right, other = ("swap", "recompute") if swap < again else ("recompute", "swap")
    return asked(
        f"A victim has {tokens} tokens in blocks of 16, with 128 KiB of keys and values per token. Copies run at "
        f"{gigabytes} GB/s. A token more makes a step {per_token} µs longer. "
        "What is cheaper, and what does swapping take?",
        (f"{right}; {swap:.1f} ms", f"Out and in: {swap:.1f} ms. Recomputing adds {again:.1f} ms to a step that runs "
         "anyway."),
        [
            (f"{other}; {swap:.1f} ms", f"Recomputing adds {again:.1f} ms."),
            (f"{right}; {swap / 2:.1f} ms", "The blocks are copied twice: out, and back in."),
            (f"{other}; {swap / 2:.1f} ms", "The blocks are copied twice, and that has to be compared with "
             "recomputing."),
        ],
    )  # fmt: skip


@item("10", "compute", "Build 1: the victim")
def victim_by_policy(draw: random.Random) -> Asked:
    lengths = draw.sample(range(10, 90), 4)
    arrivals = draw.sample(range(1, 20), 4)
    sequences = [
        Sequence(name, [1], 99, arrival_time=arrival, expected_tokens=length)
        for name, arrival, length in zip("ABCD", arrivals, lengths)
    ]
    right = last_in_rank(sequences, ShortestJobFirst()).id
    by_arrival = last_in_rank(sequences, FirstComeFirstServed()).id
    if right == by_arrival:
        raise Redraw
    told = ", ".join(f"{s.id} at {s.arrival_time} s with {s.expected_tokens}" for s in sequences)
    whys = {
        by_arrival: "That is the latest arrival: the victim under first come, first served.",
        min(sequences, key=lambda s: s.expected_tokens or 0).id: "It is the shortest job, so it ranks first.",
        min(sequences, key=lambda s: s.arrival_time).id: "It arrived first, which this policy doesn't look at.",
    }
    return asked(
        f"The policy is shortest job first. These arrived, with their expected answer tokens: {told}. All run. A block "
        "is missing. Which one is the victim?",
        (right, "The policy would serve the longest job last."),
        [(name, whys.get(name, "A job that is expected to be longer ranks behind it.")) for name in "ABCD"],
    )


ITEMS = [
    victim_in_picture,
    recompute_after_preemption,
    swap_or_recompute,
    victim_by_policy,
    bug(
        "10", "Build 2: preemption", "preempt_a_sequence",
        task="`preempt` takes a running sequence out of the batch and of this step.",
        code="""
def preempt(scheduler, counts, victim):
    counts.pop(victim, None)
    victim.num_computed_tokens = 0
    scheduler.running.remove(victim)
    scheduler.waiting.add(victim)
    blocks = victim.blocks
    scheduler.pool.free(blocks)
    victim.blocks = []
    return blocks
""",
        line=3, wrong="victim.num_computed_tokens = len(victim.prompt_ids)",
        why="The keys of the prompt are lost with the blocks. Nothing is computed any more: 0.",
        innocent={
            2: "It may not be scheduled in this step yet, hence the `None`.",
            5: "The queue puts it in its place by the policy's rank.",
            8: "Its blocks belong to the pool now. Kept here, they would be freed twice.",
        },
        setup="""
from types import SimpleNamespace
from lessons_lib.kv_cache.block_pool import BlockPool
from lessons_lib.scheduling import Sequence
""",
        trial="""
pool = BlockPool(3, 4)
victim = Sequence("B", [1] * 5, 8, output_ids=[2, 3], blocks=pool.allocate(2), num_computed_tokens=6)
scheduler = SimpleNamespace(running=[victim], waiting=set(), pool=pool)
counts = {victim: 1}
preempt(scheduler, counts, victim)
assert not counts and not scheduler.running and victim in scheduler.waiting and len(pool.free_queue) == 3
assert victim.num_computed_tokens == 0 and victim.num_tokens == 7 and victim.blocks == []
""",
    ),
    bug(
        "10", "Build 1: the victim", "until_there_is_room",
        task="`sequence` needs `missing` free blocks. `make_room` preempts, and returns whether `sequence` may go on. "
        "`rank` is the policy's.",
        code="""
def make_room(running, sequence, missing, pool, rank):
    while len(pool.free_queue) < missing:
        ranked = sorted(running, key=rank)
        victim = ranked[-1]
        running.remove(victim)
        pool.free(victim.blocks)
        victim.blocks = []
        if victim is sequence:
            return False
    return True
""",
        line=4, wrong="victim = [each for each in ranked if each is not sequence][-1]",
        why="The last in rank gives way, even if it is the one that asks. Otherwise a newcomer takes the blocks of "
        "sequences that go before it, and two sequences can preempt each other in turn.",
        innocent={
            2: "With exactly `missing` free blocks there is room.",
            7: "Its blocks belong to the pool now. Kept here, they would be freed twice.",
            9: "A sequence that gave up its own blocks can't go on in this step.",
        },
        setup="""
from types import SimpleNamespace
from lessons_lib.kv_cache.block_pool import BlockPool
""",
        trial="""
pool = BlockPool(4, 4)
a, b, c = (SimpleNamespace(rank=rank, blocks=pool.allocate(count)) for rank, count in enumerate((2, 1, 1)))
running = [a, b, c]
assert make_room(running, a, 2, pool, lambda each: each.rank) and running == [a]
d = SimpleNamespace(rank=9, blocks=pool.allocate(2))
running = [a, d]
assert not make_room(running, d, 1, pool, lambda each: each.rank) and running == [a]
""",
    ),
    design(
        "10", "Watermarks and thrashing", "more_preemptions",
        "At peak load a server preempts 300 sequences a minute, and its throughput fell by a third. All slots of the "
        "batch are in use. Which knob first?",
        ("A higher watermark in the rule of admission", "New sequences then don't take the blocks into which "
         "the running ones are about to grow."),
        ("A larger token budget for each of the steps", "Prompts are then computed faster, and take blocks "
         "faster, too."),
        ("Swapping to the host instead of recomputing", "Each preemption may get cheaper, but there are as many "
         "as before."),
        ("A larger maximum of sequences in a step", "More sequences in the same memory mean more "
         "preemptions."),
    ),
    design(
        "10", "Prove it", "text_after_preemption",
        "Under pressure, the greedy answers of preempted requests differ from those served alone. Without preemption, "
        "all agree. Where is the mistake most likely?",
        ("In what is kept: a token, a position or a block too many or too few", "The tokens and positions after a "
         "preemption must be those from before it; then any recompute gives the same answer."),
        ("In the order: the victim should have been another running sequence", "Any sequence may be the victim. It "
         "changes when an answer comes, not what it says."),
        ("In the model: computing tokens together gives other values than alone", "Up to rounding they are the same, "
         "as every earlier lesson proved."),
        ("In the blocks: those it gets later still hold the keys of other sequences", "It computes its keys anew and "
         "writes them there. What was there before is never read."),
    ),
]  # fmt: skip
