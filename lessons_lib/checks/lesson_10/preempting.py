"""Judges 10.2, `preempt_sequence`: the victim leaves the step and the batch, gives up its blocks, and waits again."""

from collections.abc import Callable, Iterable
from random import Random

from lessons_lib.checks.exercise import Mistake, call
from lessons_lib.checks.lesson_09.made_up import names_of
from lessons_lib.checks.lesson_10.pressed import Pressed, listed
from lessons_lib.kv_cache.block_pool import BlockPool
from lessons_lib.kv_cache.invariants import LostBlocks, audit
from lessons_lib.kv_cache.prefix_cache import PrefixCache
from lessons_lib.scheduling.policies import StrictPriority
from lessons_lib.scheduling.preemption import preempt_sequence
from lessons_lib.scheduling.sequence import FirstComeFirstServed, Sequence
from lessons_lib.scheduling.swapping import SwappingScheduler, never_swap


def check_preempt_sequence(attempt) -> None:
    _check_example(attempt)
    _check_others_in_the_batch(attempt)
    _check_partial_blocks(attempt)
    _check_place_in_queue(attempt)
    _check_swapped(attempt)
    _check_shared_block(attempt)
    for seed in range(8):
        _check_run(attempt, seed)


def _check_example(attempt) -> None:
    case = (
        "blocks of 4, none is free; A and B run, C and D wait. B has 5 prompt tokens and 4 answer tokens; 8 of these 9 "
        "are computed, in blocks 2 and 3. {} B is the victim."
    )
    scheduled = "This step has scheduled a token of B already, and now A needs a block."
    state = Pressed(attempt, case.format(scheduled), num_blocks=4)
    state.run("A", 8, answered=1, num_blocks=2, scheduled=1)
    state.run("B", 5, answered=4, num_blocks=2, scheduled=1)
    state.wait("C", "D")
    state.preempt("B")
    state = Pressed(attempt, case.format("No tokens of B are scheduled yet, and now A needs a block."), num_blocks=4)
    state.run("A", 8, answered=1, num_blocks=2)
    state.run("B", 5, answered=4, num_blocks=2)
    state.wait("C", "D")
    state.preempt("B")


def _check_others_in_the_batch(attempt) -> None:
    case = "A, B and C run, with tiers 0, 1 and 0; the policy is strict priority. B is the victim."
    state = Pressed(attempt, case, num_blocks=6, policy=StrictPriority())
    for name, tier in (("A", 0), ("B", 1), ("C", 0)):
        state.run(name, 7, answered=2, num_blocks=2, scheduled=1, tier=tier)
    state.preempt("B")
    case = "A and B run; this step has already preempted Z, which waits. Now A needs one more block. B is the victim."
    state = Pressed(attempt, case, num_blocks=4)
    for name in "AB":
        state.run(name, 7, answered=2, num_blocks=2, scheduled=1)
    state.preempted_before("Z")
    state.preempt("B")


def _check_partial_blocks(attempt) -> None:
    case = (
        "blocks of 4; A and B run. B's prompt has 12 tokens, and 5 of them are computed. The step has just given B a "
        "third block for its next tokens. B is the victim."
    )
    state = Pressed(attempt, case, num_blocks=5)
    state.run("A", 8, answered=1, num_blocks=2, scheduled=1)
    state.run("B", 12, computed=5, num_blocks=3, scheduled=7)
    state.preempt("B")


def _check_place_in_queue(attempt) -> None:
    case = "A and B run, nothing waits. B needs a block and is the victim."
    state = Pressed(attempt, case, num_blocks=4)
    for name in "AB":
        state.run(name, 8, answered=1, num_blocks=2)
    state.preempt("B")
    case = "first come, first served; A, B and C arrived at the same time, in this order. A and B run. B is the victim."
    state = Pressed(attempt, case, num_blocks=4)
    for name in "AB":
        state.run(name, 8, answered=1, num_blocks=2, arrival=1.0)
    state.wait("C", arrival=1.0)
    state.preempt("B")
    case = (
        "strict priority; A (tier 0) and B (tier 1) run, C (tier 0) has arrived since and waits, and so does "
        "D (tier 2). B is the victim."
    )
    state = Pressed(attempt, case, num_blocks=4, policy=StrictPriority())
    state.run("A", 8, answered=1, num_blocks=2)
    state.run("B", 8, answered=1, num_blocks=2, tier=1)
    state.wait("C", tier=0)
    state.wait("D", tier=2)
    state.preempt("B")


def _check_swapped(attempt) -> None:
    case = (
        "B is the victim, and its 8 computed tokens are being copied to blocks 0 and 1 of the swap space: "
        "`victim.swapped` is [0, 1], and `block_copies` has the two copies."
    )
    state = Pressed(attempt, case, num_blocks=4)
    state.run("A", 8, answered=1, num_blocks=2, scheduled=1)
    state.run("B", 5, answered=4, num_blocks=2)
    state.swap("B")
    state.preempt("B")
    case = (
        "B is the victim. 5 of its 12 prompt tokens are computed, and this step has scheduled the other 7 already. The "
        "5 are being copied to blocks 0 and 1 of the swap space: `victim.swapped` is [0, 1], and `block_copies` has "
        "the two copies."
    )
    state = Pressed(attempt, case, num_blocks=5)
    state.run("A", 8, answered=1, num_blocks=2)
    state.run("B", 12, computed=5, num_blocks=3, scheduled=7)
    state.swap("B")
    state.preempt("B")


def _check_shared_block(attempt) -> None:
    case = (
        "blocks of 4; A and B run, and begin with the same 4 tokens: block 0 is the first of both (lesson 11 has such "
        "blocks). B is the victim."
    )
    state = Pressed(attempt, case, num_blocks=4)
    state.run("A", 8, answered=1, num_blocks=2)
    state.run("B", 8, answered=1, num_blocks=2)
    state.share_first_block("B", "A")
    state.preempt("B")


def _check_run(attempt, seed: int) -> None:
    """Serve without a model, and compare every step with the reference."""
    rng = Random(seed)
    shapes = [(rng.randint(1, 14), rng.randint(4, 20), float(i)) for i in range(6)]
    limits = dict(max_num_seqs=rng.choice((3, 6)), max_num_batched_tokens=32, watermark=rng.choice((0, 1)))
    policy = rng.choice((FirstComeFirstServed(), StrictPriority()))
    num_blocks, case = rng.randint(9, 12), f"random workload {seed}: six sequences in too few blocks of 4."
    want = _served(preempt_sequence, shapes, num_blocks, limits, policy, case)
    got = _served(attempt, shapes, num_blocks, limits, policy, case)
    for index in range(max(map(len, (want, got)))):
        mine, theirs = (steps[index] if index < len(steps) else "nothing: it has finished" for steps in (got, want))
        if mine != theirs:
            idea = (
                "Each call alone looked right. Does your function keep something between two calls, or change another "
                "sequence?"
            )
            what = f"step {index + 1} should compute {theirs}; with yours it computes {mine}."
            raise Mistake(what, case=case, idea=idea)


def _served(
    preempt: Callable, shapes: Iterable[tuple[int, int, float]], num_blocks: int, limits: dict, policy, case: str
) -> list[dict[str, int]]:
    scheduler = SwappingScheduler(
        PrefixCache(num_blocks, 4),
        preempt_sequence=lambda *args: call(lambda: preempt(*args), case=case),
        should_swap=never_swap,
        swap_space=BlockPool(0, 4),
        share_prefixes=False,
        policy=policy,
        **limits,
    )
    for index, (prompt, max_tokens, arrival) in enumerate(shapes):
        sequence = Sequence(f"s{index}", range(prompt), max_tokens, arrival_time=arrival, tier=index % 2)
        scheduler.add(sequence)
    steps = []
    while scheduler.has_unfinished() and len(steps) < 500:
        scheduler_output = scheduler.schedule()
        steps.append({sequence.id: count for sequence, count in scheduler_output.num_scheduled_tokens.items()})
        scheduler.update(scheduler_output, [0] * len(steps[-1]))
        try:
            audit(scheduler)
        except LostBlocks as error:
            lost = f"after step {len(steps)} the pool and the sequences disagree. {error}"
            raise Mistake(lost, case=case, idea=f"Waiting: {listed(names_of(scheduler.waiting))}.") from None
    return steps
