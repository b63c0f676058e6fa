"""Sequences for a scheduler, and what must hold of it before and after each of its steps."""

from lessons_lib.kv_cache.block_pool import BlockPool, blocks_for
from lessons_lib.scheduling.policies import (
    BalancedLengths,
    PriorityWithAging,
    ShortestJobFirst,
    ShortestWithAging,
    StrictPriority,
)
from lessons_lib.scheduling.sequence import FirstComeFirstServed, Sequence
from lessons_lib.scheduling.stalling import Scheduler

POLICIES = [
    FirstComeFirstServed(), ShortestJobFirst(), StrictPriority(), PriorityWithAging(2, head_start=1),
    ShortestWithAging(3), BalancedLengths(20), BalancedLengths(5, window=2),
]  # fmt: skip


def a_sequence(name, prompt=3, max_tokens=2, computed=0, answer=0, **kwargs):
    """A sequence in the middle of its life: so long a prompt, so many tokens computed, so many of the answer there."""
    return Sequence(name, range(prompt), max_tokens, num_computed_tokens=computed, output_ids=[7] * answer, **kwargs)


def a_scheduler(*sequences, blocks=100, block_size=4, **kwargs):
    scheduler = Scheduler(BlockPool(blocks, block_size), **kwargs)
    for sequence in sequences:
        scheduler.add(sequence)
    return scheduler


def by_name(counts):
    return {sequence.id: count for sequence, count in counts.items()}


def names(sequences):
    return [sequence.id for sequence in sequences]


def check_books(scheduler):
    """What holds between two steps: of the blocks, and of who is where."""
    pool, running, waiting = scheduler.pool, scheduler.running, list(scheduler.waiting)
    held = [block for sequence in running for block in sequence.blocks]
    assert len(set(held)) == len(held), "two sequences hold a block"
    assert set(held) == pool.used, "a block is used and no sequence holds it, or the other way round"
    assert sorted([*pool.free_queue, *pool.used]) == list(range(pool.num_blocks)), "a block is lost, or free and used"
    assert len(running) <= scheduler.max_num_seqs
    assert len({id(each) for each in [*running, *waiting]}) == len(running) + len(waiting), "a sequence is there twice"
    assert not any(sequence.finish_reason for sequence in [*running, *waiting])
    assert not any(sequence.blocks for sequence in waiting)
    for sequence in running:
        needed = blocks_for(sequence.num_computed_tokens, pool.block_size)
        assert len(sequence.blocks) == needed, f"{sequence.id} has blocks that it does not need"


def checked_schedule(scheduler):
    """A plan, and whether it keeps to all limits and leaves nothing lying that it could have given."""
    check_books(scheduler)
    running, waiting = list(scheduler.running), list(scheduler.waiting)
    blocks_before = {sequence: list(sequence.blocks) for sequence in running}
    wanted = {sequence: sequence.num_tokens - sequence.num_computed_tokens for sequence in [*running, *waiting]}
    step = scheduler.schedule()
    counts, budget, size = step.num_scheduled_tokens, scheduler.max_num_batched_tokens, scheduler.pool.block_size
    assert step.num_tokens == sum(counts.values()) <= budget
    assert all(1 <= count <= wanted[sequence] for sequence, count in counts.items())
    assert scheduler.running == running + step.admitted and set(step.admitted) <= set(waiting)
    assert set(waiting) - set(scheduler.waiting) == set(step.admitted)
    assert counts.keys() | set(step.stalled) <= set(scheduler.running) and not counts.keys() & set(step.stalled)
    for sequence, count in counts.items():
        needed = blocks_for(sequence.num_computed_tokens + count, size)
        assert len(sequence.blocks) == max(needed, len(blocks_before.get(sequence, ())))
    for sequence in step.stalled:
        assert sequence.blocks == blocks_before[sequence], "half of the blocks were taken"
    decodes = {sequence for sequence in running if wanted[sequence] == 1}
    assert decodes <= counts.keys() | set(step.stalled), "a decode got nothing"
    order = [sequence for sequence in running if sequence in counts]
    assert [sequence for sequence in counts if sequence in running] == sorted(order, key=lambda s: s not in decodes)
    assert set(step.admitted) <= counts.keys(), "admitted, and nothing to do"
    if step.num_tokens < budget and not step.stalled:
        assert all(counts.get(s) == wanted[s] for s in scheduler.running), "budget is left, and a sequence wants more"
        if scheduler.waiting and len(scheduler.running) < scheduler.max_num_seqs:
            # All that `conservative` looks at is as it was when it said no; `optimistic` sees the same free blocks.
            next_one = scheduler.waiting.next(scheduler.running)
            assert not scheduler.admission(scheduler, next_one), "there is room, and a sequence waits"
    return step
