"""Sequences for a scheduler, and what must hold of it before and after each of its steps."""

from lessons_lib.kv_cache.block_pool import BlockPool, blocks_for
from lessons_lib.scheduling.policies import (
    BalancedLengths,
    PriorityWithAgeing,
    ShortestJobFirst,
    ShortestWithAgeing,
    StrictPriority,
)
from lessons_lib.scheduling.sequence import FirstComeFirstServed, Sequence
from lessons_lib.scheduling.stalling import Scheduler

POLICIES = [
    FirstComeFirstServed(), ShortestJobFirst(), StrictPriority(), PriorityWithAgeing(2, head_start=1),
    ShortestWithAgeing(3), BalancedLengths(20), BalancedLengths(5, window=2),
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
    assert sorted([*pool.free_queue, *pool.used]) == list(range(pool.num_blocks)), (
        "a block is lost, or free and used at once"
    )
    assert len(running) <= scheduler.max_num_seqs
    assert len({id(sequence) for sequence in [*running, *waiting]}) == len(running) + len(waiting), (
        "a sequence is there twice"
    )
    assert not any(sequence.finish_reason for sequence in [*running, *waiting])
    assert not any(sequence.blocks for sequence in waiting)
    for sequence in running:
        assert len(sequence.blocks) == blocks_for(sequence.num_computed_tokens, pool.block_size), (
            f"{sequence.id} has blocks that it does not need"
        )


def checked_schedule(scheduler):
    """A plan, and whether it keeps to all limits and leaves nothing lying that it could have given."""
    check_books(scheduler)
    running, waiting = list(scheduler.running), list(scheduler.waiting)
    blocks_before = {sequence: list(sequence.blocks) for sequence in running}
    wanted = {sequence: sequence.num_tokens - sequence.num_computed_tokens for sequence in [*running, *waiting]}
    scheduler_output = scheduler.schedule()
    budget, size = scheduler.max_num_batched_tokens, scheduler.pool.block_size
    assert scheduler_output.num_tokens == sum(scheduler_output.num_scheduled_tokens.values()) <= budget
    assert all(1 <= count <= wanted[sequence] for sequence, count in scheduler_output.num_scheduled_tokens.items())
    assert scheduler.running == running + scheduler_output.admitted and set(scheduler_output.admitted) <= set(waiting)
    assert set(waiting) - set(scheduler.waiting) == set(scheduler_output.admitted)
    assert scheduler_output.num_scheduled_tokens.keys() | set(scheduler_output.stalled) <= set(
        scheduler.running
    ) and not scheduler_output.num_scheduled_tokens.keys() & set(scheduler_output.stalled)
    for sequence, count in scheduler_output.num_scheduled_tokens.items():
        assert len(sequence.blocks) == max(
            blocks_for(sequence.num_computed_tokens + count, size), len(blocks_before.get(sequence, ()))
        )
    for sequence in scheduler_output.stalled:
        assert sequence.blocks == blocks_before[sequence], "half of the blocks were taken"
    decodes = [sequence for sequence in running if wanted[sequence] == 1]
    assert all(
        sequence in scheduler_output.num_scheduled_tokens or sequence in scheduler_output.stalled
        for sequence in decodes
    ), "a decode got nothing"
    order = [sequence for sequence in scheduler_output.num_scheduled_tokens if sequence in running]
    assert order == [s for s in running if s in scheduler_output.num_scheduled_tokens and wanted[s] == 1] + [
        s for s in running if s in scheduler_output.num_scheduled_tokens and wanted[s] > 1
    ]
    assert all(sequence in scheduler_output.num_scheduled_tokens for sequence in scheduler_output.admitted), (
        "admitted, and nothing to do"
    )
    if scheduler_output.num_tokens < budget and not scheduler_output.stalled:
        assert all(
            scheduler_output.num_scheduled_tokens.get(sequence) == wanted[sequence] for sequence in scheduler.running
        ), "budget is left, and a sequence wants more"
        if scheduler.waiting and len(scheduler.running) < scheduler.max_num_seqs:
            # All that `conservative` looks at is as it was when it said no; `optimistic` sees the same free blocks.
            assert not scheduler.admission(scheduler, scheduler.waiting.next(scheduler.running)), (
                "there is room, and a sequence waits"
            )
    return scheduler_output
