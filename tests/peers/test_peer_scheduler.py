"""What the schedulers of other engines are tested for, asked of this one. No model: every sequence gets the same token."""

import pytest
from scheduling_cases import a_sequence, by_name, names

from lessons_lib.kv_cache.block_pool import BlockPool
from lessons_lib.kv_cache.invariants import audit
from lessons_lib.kv_cache.prefix_cache import PrefixCache
from lessons_lib.scheduling.policies import StrictPriority
from lessons_lib.scheduling.sequence import Sequence
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


def test_prompts_beyond_the_budget_are_computed_in_chunks_side_by_side():
    """The last prompt of a step gets what is left, and goes on before a new one is admitted."""
    scheduler = preemptive(max_num_batched_tokens=10, max_num_seqs=3)
    for n, length in enumerate((8, 8, 8)):
        scheduler.add(Sequence(str(n), range(length), 3, arrival_time=float(n)))
    counts = [by_name(step(scheduler).num_scheduled_tokens) for _ in range(4)]
    assert counts == [{"0": 8, "1": 2}, {"0": 1, "1": 6, "2": 3}, {"0": 1, "1": 1, "2": 5}, {"1": 1, "2": 1}]


@pytest.mark.parametrize("max_num_seqs", [1, 2, 9])
def test_priorities_and_arrivals_give_the_order(max_num_seqs):
    scheduler = preemptive(policy=StrictPriority(), max_num_seqs=max_num_seqs)
    for n, tier in enumerate([5, 1, 8, 3, 2, 7, 0, 1, 4]):
        scheduler.add(a_sequence(str(n), tier=tier, arrival_time=float(9 - n)))
    order = list("671438052")
    assert names(scheduler.schedule().admitted) == order[:max_num_seqs]
    assert names(scheduler.waiting) == order[max_num_seqs:]


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
