"""What the schedulers of other engines are tested for, asked of this one. No model: every sequence gets the same token."""

import pytest
from scheduling_cases import a_sequence, names

from lessons_lib.kv_cache.block_pool import BlockPool
from lessons_lib.kv_cache.invariants import audit
from lessons_lib.kv_cache.prefix_cache import PrefixCache
from lessons_lib.scheduling.policies import StrictPriority
from lessons_lib.scheduling.swapping import SwappingScheduler

TOKEN = 90


def preemptive(num_blocks=100, *, block_size=4, swap_blocks=0, **limits):
    limits = dict(max_num_seqs=8, max_num_batched_tokens=64, share_prefixes=False) | limits
    pool, swap_space = PrefixCache(num_blocks, block_size), BlockPool(swap_blocks, block_size)
    return SwappingScheduler(pool, swap_space=swap_space, **limits)


def step(scheduler):
    scheduler_output = scheduler.schedule()
    scheduler.update(scheduler_output, [TOKEN] * len(scheduler_output.num_scheduled_tokens))
    audit(scheduler)
    return scheduler_output


@pytest.mark.parametrize("first, second", [("high", "low"), ("low", "high")])
def test_the_worst_tier_loses_its_blocks_whoever_needs_them(first, second):
    """The first is admitted a step earlier, and so the first that wants a third block."""
    scheduler = preemptive(4, policy=StrictPriority())
    for n, name in enumerate((first, second)):
        scheduler.add(a_sequence(name, 7, 9, tier={"high": 0, "low": 5}[name], arrival_time=float(n)))
        step(scheduler)
    while not scheduler.num_preempted:
        step(scheduler)
    assert names(scheduler.running) == ["high"] and names(scheduler.waiting) == ["low"]


def test_the_first_of_the_queue_is_never_preempted():
    scheduler = preemptive(8, max_num_seqs=4)
    for n in range(4):
        scheduler.add(a_sequence(str(n), 7, 14, arrival_time=float(n)))
    while scheduler.has_unfinished():
        oldest = min([*scheduler.running, *scheduler.waiting], key=lambda s: s.arrival_time)
        assert oldest not in step(scheduler).preempted
    assert scheduler.num_preempted
