"""The scheduler of lessons 10 and 11: victims, swaps, cached blocks, forks, block copies, the books."""

import random

import pytest
import torch
from scheduling_cases import a_sequence, names

from lessons_lib.kv_cache.block_copies import COPY, SWAP_IN, SWAP_OUT, BlockCopy, copy_blocks
from lessons_lib.kv_cache.block_pool import BlockPool
from lessons_lib.kv_cache.invariants import LostBlocks, audit
from lessons_lib.kv_cache.paged_kv_cache import PagedKVCache
from lessons_lib.kv_cache.prefix_cache import PrefixCache
from lessons_lib.models.tiny_models import tiny_model
from lessons_lib.scheduling.policies import StrictPriority
from lessons_lib.scheduling.scheduler import SchedulerOutput
from lessons_lib.scheduling.sequence import Sequence
from lessons_lib.scheduling.shared_blocks import CopyOnWriteScheduler, fork


def make(num_blocks, block_size=4, swap_blocks=0, **limits):
    limits = dict(max_num_seqs=4, max_num_batched_tokens=64) | limits
    pool, swap_space = PrefixCache(num_blocks, block_size), BlockPool(swap_blocks, block_size)
    return CopyOnWriteScheduler(pool, swap_space=swap_space, **limits)


def sequence(name="A", prompt=5, max_tokens=20, arrival=0.0, first=0):
    """A sequence whose prompt is first, first + 1, ..."""
    return Sequence(name, list(range(first, first + prompt)), max_tokens, arrival_time=arrival)


def go(scheduler, steps=1, token=90):
    """Steps without a model: all sequences get the same token. Returns the plan of the last."""
    for _ in range(steps):
        step = scheduler.schedule()
        scheduler.update(step, [token] * len(step.num_scheduled_tokens))
        audit(scheduler)
    return step


def run_out(scheduler, most=500):
    """All plans. Nothing is lost."""
    steps = []
    while scheduler.has_unfinished():
        assert len(steps) < most, "it never ends"
        steps.append(go(scheduler))
    for pool in (scheduler.pool, scheduler.swap_space):
        assert len(pool.free_queue) == pool.num_blocks
    return steps


# --- the victim


def two_that_grow(swap_blocks=0):
    """Two of 7 tokens in 4 blocks of 4: both want a third block with their ninth token, and none is free."""
    scheduler = make(4, swap_blocks=swap_blocks, share_prefixes=False)
    a, b = sequence("A", 7, 9), sequence("B", 7, 9, arrival=1.0, first=40)
    scheduler.add(a), scheduler.add(b)
    go(scheduler, 2)
    assert [s.num_computed_tokens for s in (a, b)] == [8, 8] and not scheduler.pool.free_queue
    return scheduler, a, b


@pytest.mark.parametrize("swap_blocks", [0, 1, 2])
def test_a_victim_is_swapped_whole_or_computed_again(swap_blocks):
    scheduler, a, b = two_that_grow(swap_blocks)
    known, blocks, is_swapped = b.token_ids, list(b.blocks), swap_blocks == 2
    step = go(scheduler)
    assert step.preempted == [b] and step.num_scheduled_tokens == {a: 1} and b.blocks == []
    assert b.token_ids == known and list(scheduler.waiting) == [b]
    assert (scheduler.num_preempted, scheduler.num_swapped) == (1, is_swapped)
    assert (len(b.swapped), b.num_computed_tokens) == ((2, 8) if is_swapped else (0, 0))
    assert step.block_copies == [BlockCopy(SWAP_OUT, block, swap) for block, swap in zip(blocks, b.swapped)]
    swapped = list(b.swapped)
    again = next(step for step in run_out(scheduler) if b in step.admitted)
    assert again.num_scheduled_tokens[b] == (1 if is_swapped else len(known))
    assert [(move.kind, move.source) for move in again.block_copies] == [(SWAP_IN, block) for block in swapped]
    assert len(b.output_ids) == len(a.output_ids) == 9


def test_nobody_is_admitted_in_a_step_that_takes_blocks_back():
    scheduler, _, b = two_that_grow()
    scheduler.add(sequence("C", 1, 1, arrival=0.5, first=80))
    step = go(scheduler)
    assert step.preempted == [b] and step.admitted == []


# --- what is in the cache


def test_a_prompt_that_is_cached_is_admitted_with_a_copy_of_its_last_block():
    """The last token is computed again: its logits are what the first new token is chosen from."""
    scheduler = make(10)
    scheduler.add(sequence(prompt=8, max_tokens=1))
    run_out(scheduler)
    again = sequence("B", 8, 3)
    scheduler.add(again)
    step = go(scheduler)
    assert step.cached == {again: 7} and step.num_scheduled_tokens == {again: 1}
    (move,) = step.block_copies
    assert (
        move.kind == COPY
        and again.blocks[1] == move.target != move.source
        and move.source in scheduler.pool.block_to_hash
    )


def test_what_others_hold_counts_as_nothing_for_admission():
    scheduler = make(5)
    scheduler.add(sequence("A", 13, 3))
    go(scheduler)
    assert len(scheduler.pool.free_queue) == 1
    shares, own = Sequence("B", [*range(12), 70], 3), sequence("C", 13, 3, first=70)
    assert scheduler.missing_blocks(shares) == 1 and scheduler.missing_blocks(own) == 4
    # Its last token is computed, in a copy of the block.
    assert scheduler.missing_blocks(sequence("D", 12, 3)) == 1
    scheduler.add(shares)
    step = go(scheduler)
    assert step.admitted == [shares] and step.cached == {shares: 12} and not step.preempted


# --- copies and forks


def forked(num_blocks, children, **limits):
    scheduler = make(num_blocks, **limits)
    first = sequence("A", 6, 9)
    scheduler.add(first)
    go(scheduler)
    made = [fork(scheduler, first, f"A{n}") for n in range(children)]
    audit(scheduler)
    return scheduler, first, made


def test_a_fork_needs_a_batch_slot():
    scheduler, first, _ = forked(20, 1, max_num_seqs=2)
    before = dict(scheduler.pool.ref_count)
    with pytest.raises(RuntimeError, match="all 2 batch slots are taken, and fork 'C' needs one; raise `max_num_seqs`"):
        fork(scheduler, first, "C")
    assert scheduler.pool.ref_count == before and len(scheduler.running) == 2


def test_only_a_running_sequence_without_a_step_in_flight_is_forked():
    scheduler = make(20)
    first = sequence("A", 6, 9)
    scheduler.add(first)
    with pytest.raises(RuntimeError, match="'A' is not running"):
        fork(scheduler, first, "B")
    scheduler.update_after_launch(scheduler.schedule())
    with pytest.raises(RuntimeError, match="1 tokens in flight; .* after `update`"):
        fork(scheduler, first, "B")
    assert scheduler.running == [first] and set(scheduler.pool.ref_count.values()) == {1}


# --- moves


def numbered(num_blocks):
    """A cache in which every number of block n is n."""
    cache = PagedKVCache(tiny_model("llama").config, num_blocks, 2)
    for tensor in [*cache.keys, *cache.values]:
        tensor[:] = torch.arange(num_blocks).view(-1, 1, 1, 1)
    return cache


def contents(cache):
    (found,) = {tuple(tensor[:, 0, 0, 0].tolist()) for tensor in [*cache.keys, *cache.values]}
    assert all((tensor == tensor[:, :1, :1, :1]).all() for tensor in [*cache.keys, *cache.values])
    return list(map(int, found))


def test_long_random_runs_of_moves_are_done_one_after_the_other():
    rng = random.Random(0)
    for _ in range(60):
        pools = {"pool": list(range(6)), "swap": list(range(4))}
        block_copies = []
        for _ in range(12):
            kind = rng.choice([COPY, COPY, SWAP_OUT, SWAP_IN])
            source, target = ("swap" if kind == SWAP_IN else "pool"), ("swap" if kind == SWAP_OUT else "pool")
            block_copies.append(BlockCopy(kind, rng.randrange(len(pools[source])), rng.randrange(len(pools[target]))))
            pools[target][block_copies[-1].target] = pools[source][block_copies[-1].source]
        cache, swap = numbered(6), numbered(4)
        copy_blocks(block_copies, cache, swap)
        assert (contents(cache), contents(swap)) == (pools["pool"], pools["swap"])


# --- the books


def in_the_middle():
    """Two that run and share a block, one that is swapped out."""
    scheduler = make(8, swap_blocks=6, choose_victim=lambda candidates, policy: candidates[-1])
    for n, name in enumerate("ABC"):
        scheduler.add(Sequence(name, [*range(4), *range(10 * n, 10 * n + 3)], 20, arrival_time=n))
        go(scheduler)  # one after the other: then the first block of A is found
    while not any(s.swapped for s in scheduler.waiting):
        go(scheduler)
    assert len(scheduler.running) > 1 and max(scheduler.pool.ref_count.values()) > 1
    return scheduler


def lose_a_block(pool, first, swapped, space):
    pool.free(first.blocks[-1:])
    pool.free_queue.popitem()
    first.num_computed_tokens -= first.num_computed_tokens % 4 or 4
    first.blocks.pop()


def rename(pool, first, swapped, space):
    block = first.blocks[0]
    del pool.hash_to_block[pool.block_to_hash[block]]
    pool.block_to_hash[block] = b"other tokens"
    pool.hash_to_block[b"other tokens"] = block


def take_a_swap_block_twice(pool, first, swapped, space):
    space.free([swapped.swapped[-1]])
    swapped.swapped[-1] = swapped.swapped[0]


def compute_a_block_more(pool, first, swapped, space):
    first.num_computed_tokens += 4


# name -> function (the pool, the first that runs, one that is swapped out, the swap space)
WRONG = {
    "free and in use": lambda pool, first, *_: pool.free_queue.append(first.blocks[-1]),
    "lost": lose_a_block,
    "a user too many": lambda pool, first, *_: pool.ref_count.update({first.blocks[0]: 9}),
    "a user too few": lambda pool, *_: pool.ref_count.update({max(pool.ref_count, key=pool.ref_count.get): 1}),
    "a block of no pool": lambda pool, *_: pool.used.add(99),
    "a hash without a block": lambda pool, *_: pool.hash_to_block.update({b"unused": 0}),
    "a hash of two blocks": lambda pool, first, *_: pool.block_to_hash.update(
        {first.blocks[-1]: next(iter(pool.block_to_hash.values()))}
    ),
    "a hash of other tokens": rename,
    "a block too many": lambda pool, first, *_: first.blocks.append(first.blocks[-1]),
    "a block too few": lambda pool, first, *_: pool.free([first.blocks.pop()]),
    "tokens that aren't computed": compute_a_block_more,
    "a lost swap block": lambda pool, first, swapped, space: space.allocate(1),
    "a swap block of two": take_a_swap_block_twice,
    "a free swap block in use": lambda pool, first, swapped, space: space.free(swapped.swapped),
}


@pytest.mark.parametrize("what", WRONG)
def test_the_audit_finds(what):
    scheduler = in_the_middle()
    audit(scheduler)
    swapped = next(sequence for sequence in scheduler.waiting if sequence.swapped)
    WRONG[what](scheduler.pool, scheduler.running[0], swapped, scheduler.swap_space)
    with pytest.raises(LostBlocks):
        audit(scheduler)


# --- blocks that no admission rule counts


def test_a_preempted_sequence_keeps_its_place_among_equals():
    scheduler = make(8, 2, max_num_seqs=2, max_num_batched_tokens=16)
    sequences = [sequence(name, 4, 9) for name in "abcd"]  # all arrived at once
    for each in sequences:
        scheduler.add(each)
    scheduler.schedule()
    assert scheduler.running == sequences[:2]
    for victim in (1, 0):
        scheduler.preempt(SchedulerOutput(), sequences[victim])
        assert list(scheduler.waiting) == sequences[victim:]


@pytest.mark.parametrize("first, second", [("high", "low"), ("low", "high")])
def test_the_worst_tier_loses_its_blocks_whichever_needs_them(first, second):
    """The first is admitted a step earlier, and so the first that wants a third block."""
    scheduler = make(4, share_prefixes=False, policy=StrictPriority())
    for n, name in enumerate((first, second)):
        scheduler.add(a_sequence(name, 7, 9, tier={"high": 0, "low": 5}[name], arrival_time=float(n)))
        go(scheduler)
    while not scheduler.num_preempted:
        go(scheduler)
    assert names(scheduler.running) == ["high"] and names(scheduler.waiting) == ["low"]


def test_the_first_of_the_queue_is_never_preempted():
    scheduler = make(8, share_prefixes=False)
    for n in range(4):
        scheduler.add(a_sequence(str(n), 7, 14, arrival_time=float(n)))
    while scheduler.has_unfinished():
        oldest = min([*scheduler.running, *scheduler.waiting], key=lambda s: s.arrival_time)
        assert oldest not in go(scheduler).preempted
    assert scheduler.num_preempted
