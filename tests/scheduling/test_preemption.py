"""The scheduler of lessons 10 and 11: victims, swaps, cached blocks, forks, block copies, the books."""

import random

import pytest
import torch

from lessons_lib.kv_cache.block_copies import COPY, SWAP_IN, SWAP_OUT, BlockCopy, copy_blocks
from lessons_lib.kv_cache.block_hashes import hash_full_blocks
from lessons_lib.kv_cache.block_pool import BlockPool, blocks_for
from lessons_lib.kv_cache.invariants import LostBlocks, audit
from lessons_lib.kv_cache.paged_kv_cache import PagedKVCache
from lessons_lib.kv_cache.prefix_cache import PrefixCache
from lessons_lib.models.tiny_models import tiny_model
from lessons_lib.scheduling.scheduler import SchedulerOutput, conservative
from lessons_lib.scheduling.sequence import Sequence
from lessons_lib.scheduling.shared_blocks import CopyOnWriteScheduler, fork


def make(num_blocks, block_size=4, swap_blocks=0, **limits):
    limits = dict(max_num_seqs=4, max_num_batched_tokens=64) | limits
    return CopyOnWriteScheduler(
        PrefixCache(num_blocks, block_size), swap_space=BlockPool(swap_blocks, block_size), **limits
    )


def sequence(name="A", prompt=5, max_tokens=20, arrival=0.0, first=0, **more):
    """A sequence whose prompt is first, first + 1, ..."""
    return Sequence(name, list(range(first, first + prompt)), max_tokens, arrival_time=arrival, **more)


def go(scheduler, steps=1, token=90):
    """Steps without a model: all sequences get the same token. Returns the plans."""
    scheduler_outputs = []
    for _ in range(steps):
        scheduler_output = scheduler.schedule()
        scheduler.update(scheduler_output, [token] * len(scheduler_output.num_scheduled_tokens))
        audit(scheduler)
        scheduler_outputs.append(scheduler_output)
    return scheduler_outputs


def run_out(scheduler, most=500):
    scheduler_outputs = []
    while scheduler.has_unfinished():
        assert len(scheduler_outputs) < most, "it never ends"
        scheduler_outputs += go(scheduler)
    return scheduler_outputs


def nothing_is_lost(scheduler):
    audit(scheduler)
    assert (
        len(scheduler.pool.free_queue) == scheduler.pool.num_blocks
        and len(scheduler.swap_space.free_queue) == scheduler.swap_space.num_blocks
    )


# --- the victim


def two_that_grow(swap_blocks=0, **limits):
    """Two of 7 tokens in 4 blocks of 4: both want a third block with their ninth token, and none is free."""
    scheduler = make(4, swap_blocks=swap_blocks, share_prefixes=False, **limits)
    a, b = sequence("A", 7, 9), sequence("B", 7, 9, arrival=1.0, first=40)
    scheduler.add(a), scheduler.add(b)
    go(scheduler, 2)
    assert [s.num_computed_tokens for s in (a, b)] == [8, 8] and not scheduler.pool.free_queue
    return scheduler, a, b


def test_a_victim_whose_cache_is_dropped_knows_its_tokens_and_computes_them_again():
    scheduler, a, b = two_that_grow()
    known = b.token_ids
    (scheduler_output,) = go(scheduler)
    assert (
        scheduler_output.preempted == [b]
        and scheduler_output.num_scheduled_tokens == {a: 1}
        and scheduler_output.block_copies == []
    )
    assert b.token_ids == known and b.num_computed_tokens == 0 and b.blocks == [] and list(scheduler.waiting) == [b]
    scheduler_outputs = run_out(scheduler)
    again = next(scheduler_output for scheduler_output in scheduler_outputs if b in scheduler_output.admitted)
    assert again.num_scheduled_tokens[b] == len(known)
    assert len(b.output_ids) == len(a.output_ids) == 9
    nothing_is_lost(scheduler)


def test_a_victim_that_is_swapped_goes_on_where_it_was():
    scheduler, a, b = two_that_grow(swap_blocks=2)
    blocks = list(b.blocks)
    (scheduler_output,) = go(scheduler)
    assert scheduler_output.preempted == [b] and b.num_computed_tokens == 8 and b.blocks == []
    assert (
        scheduler_output.block_copies == [BlockCopy(SWAP_OUT, block, swap) for block, swap in zip(blocks, b.swapped)]
        and len(b.swapped) == 2
    )
    assert (scheduler.num_preempted, scheduler.num_swapped) == (1, 1)
    swapped = list(b.swapped)
    scheduler_outputs = run_out(scheduler)
    again = next(scheduler_output for scheduler_output in scheduler_outputs if b in scheduler_output.admitted)
    assert again.num_scheduled_tokens[b] == 1
    assert [(move.kind, move.source) for move in again.block_copies] == [(SWAP_IN, block) for block in swapped]
    nothing_is_lost(scheduler)


@pytest.mark.parametrize("swap_blocks", [0, 1])
def test_where_the_swap_space_is_full_the_cache_is_dropped(swap_blocks):
    scheduler, a, b = two_that_grow(swap_blocks=swap_blocks)
    (scheduler_output,) = go(scheduler)
    assert (
        scheduler_output.preempted == [b]
        and scheduler_output.block_copies == []
        and b.swapped == []
        and b.num_computed_tokens == 0
        and scheduler.num_swapped == 0
    )
    run_out(scheduler)
    nothing_is_lost(scheduler)


def test_the_one_that_needs_the_block_may_be_the_victim():
    scheduler, a, b = two_that_grow(choose_victim=lambda candidates, policy: candidates[0])
    (scheduler_output,) = go(scheduler)
    assert scheduler_output.preempted == [a] and list(scheduler_output.num_scheduled_tokens) == [b]
    run_out(scheduler)
    nothing_is_lost(scheduler)


def test_nobody_is_admitted_in_a_step_that_takes_blocks_back():
    scheduler, a, b = two_that_grow()
    scheduler.add(sequence("C", 1, 1, arrival=0.5, first=80))
    (scheduler_output,) = go(scheduler)
    assert scheduler_output.preempted == [b] and scheduler_output.admitted == []


def test_an_abort_gives_back_blocks_and_swap_blocks():
    scheduler, a, b = two_that_grow(swap_blocks=2)
    go(scheduler)
    assert b.swapped
    scheduler.remove(b), scheduler.remove(a)
    nothing_is_lost(scheduler)


def test_one_block_fewer_than_the_largest_needs_is_refused_and_as_many_suffice():
    largest = sequence("A", 9, 8)  # 16 tokens that are ever computed
    needed = blocks_for(largest.most_tokens, 4)
    with pytest.raises(Exception, match=f"may need {needed} blocks of 4 tokens; the pool has {needed - 1}"):
        make(needed - 1).add(largest)
    scheduler = make(needed)
    for name in "ABC":
        scheduler.add(sequence(name, 9, 8, arrival=ord(name)))
    run_out(scheduler)
    nothing_is_lost(scheduler)


def test_a_watermark_keeps_blocks_for_those_who_run():
    def preemptions(watermark):
        scheduler = make(12, watermark=watermark, share_prefixes=False, max_num_seqs=8)
        for n in range(8):
            scheduler.add(sequence(str(n), 4, 16, arrival=n, first=10 * n))
        run_out(scheduler)
        return scheduler.num_preempted

    assert preemptions(4) < preemptions(0)


# --- what is in the cache


def served(pool, prompt, max_tokens=1):
    """Let a scheduler serve a prompt in a pool, so that its blocks can be found. Returns the scheduler."""
    scheduler = CopyOnWriteScheduler(pool, max_num_seqs=4, max_num_batched_tokens=64)
    scheduler.add(Sequence("first", list(prompt), max_tokens))
    run_out(scheduler)
    return scheduler


def test_a_prompt_that_is_cached_is_admitted_with_a_copy_of_its_last_block():
    pool = PrefixCache(10, 4)
    scheduler = served(pool, range(8))
    again = Sequence("B", list(range(8)), 3)
    scheduler.add(again)
    (scheduler_output,) = go(scheduler)
    assert scheduler_output.cached == {again: 7} and scheduler_output.num_scheduled_tokens == {again: 1}
    (move,) = scheduler_output.block_copies
    assert move.kind == COPY and again.blocks[1] == move.target != move.source and move.source in pool.block_to_hash


def test_what_others_hold_counts_as_nothing_for_admission():
    pool = PrefixCache(5, 4)
    scheduler = CopyOnWriteScheduler(pool, max_num_seqs=4, max_num_batched_tokens=64)
    scheduler.add(Sequence("A", list(range(13)), 3))
    go(scheduler)
    assert len(pool.free_queue) == 1
    shares, own = Sequence("B", [*range(12), 70], 3), Sequence("C", list(range(70, 83)), 3)
    assert scheduler.missing_blocks(shares) == 1 and scheduler.missing_blocks(own) == 4
    the_same = Sequence("D", list(range(12)), 3)
    assert scheduler.missing_blocks(the_same) == 1  # its last token is computed, in a copy of the block
    scheduler.add(shares)
    (scheduler_output,) = go(scheduler)
    assert (
        scheduler_output.admitted == [shares]
        and scheduler_output.cached == {shares: 12}
        and not scheduler_output.preempted
    )


def test_nothing_is_found_where_nothing_is_shared():
    scheduler = make(10, share_prefixes=False)
    for name in "AB":
        scheduler.add(sequence(name, 8, 3))
        go(scheduler)
    assert scheduler.pool.block_to_hash == {} and all(count == 1 for count in scheduler.pool.ref_count.values())


# --- copies and forks


def test_a_fork_has_everything_of_its_own_but_the_blocks():
    scheduler = make(4, block_size=2)
    first = Sequence("A", [1, 2, 3], 5)
    scheduler.add(first)
    go(scheduler, token=4)
    hash_full_blocks(first, 2)
    second = fork(scheduler, first, "B")
    second.append_token(5), second.blocks.append(9), second.block_hashes.append(b"")
    assert first.output_ids == [4] and first.blocks == [0, 1] and len(first.block_hashes) == 2
    assert (second.id, second.num_computed_tokens, second.prompt_ids) == ("B", 3, [1, 2, 3])


def forked(num_blocks, children, **limits):
    scheduler = make(num_blocks, **limits)
    first = sequence("A", 6, 9)
    scheduler.add(first)
    go(scheduler)
    made = [fork(scheduler, first, f"A{n}") for n in range(children)]
    audit(scheduler)
    return scheduler, first, made


def test_children_share_all_blocks_until_they_write():
    scheduler, first, children = forked(20, 3)
    assert scheduler.pool.ref_count == {0: 4, 1: 4}
    (scheduler_output,) = go(scheduler)
    assert (
        set(scheduler_output.num_scheduled_tokens.values()) == {1} and len(scheduler_output.num_scheduled_tokens) == 4
    )
    assert (
        sum(move.kind == COPY for move in scheduler_output.block_copies) == 3
    )  # the last one left writes to the block that they had
    assert scheduler.pool.ref_count[first.blocks[0]] == 4
    run_out(scheduler)
    assert all(child.output_ids == first.output_ids for child in children)
    nothing_is_lost(scheduler)


@pytest.mark.parametrize("num_blocks", [4, 5, 6, 20])
def test_forks_that_grow_out_of_the_pool_preempt_each_other(num_blocks):
    scheduler, first, children = forked(num_blocks, 5, max_num_seqs=6)
    run_out(scheduler)
    assert all(child.output_ids == first.output_ids and len(child.output_ids) == 9 for child in children)
    assert bool(scheduler.num_preempted) == (num_blocks < 20)
    nothing_is_lost(scheduler)


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
    per_tensor = {tuple(tensor[:, 0, 0, 0].tolist()) for tensor in [*cache.keys, *cache.values]}
    assert len(per_tensor) == 1 and all(
        (tensor == tensor[:, :1, :1, :1]).all() for tensor in [*cache.keys, *cache.values]
    )
    return [int(n) for n in per_tensor.pop()]


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


def lose_a_block(s):
    s.pool.free(s.running[0].blocks[-1:])
    s.pool.free_queue.popitem()
    s.running[0].num_computed_tokens -= s.running[0].num_computed_tokens % 4 or 4
    s.running[0].blocks.pop()


def count(s, block, change):
    s.pool.ref_count[block] += change


def rename(s, block):
    del s.pool.hash_to_block[s.pool.block_to_hash[block]]
    s.pool.block_to_hash[block] = b"other tokens"
    s.pool.hash_to_block[b"other tokens"] = block


def swapped_out(s):
    return next(sequence for sequence in s.waiting if sequence.swapped)


def take_a_swap_block_twice(s):
    s.swap_space.free([swapped_out(s).swapped[-1]])
    swapped_out(s).swapped[-1] = swapped_out(s).swapped[0]


def compute_a_block_more(s):
    s.running[0].num_computed_tokens += 4


def spare_block(s):
    return s.pool.allocate(1) if s.pool.free_queue else [s.running[1].blocks[-1]]


WRONG = {
    "free and in use": lambda s: s.pool.free_queue.append(s.running[0].blocks[-1]),
    "lost": lose_a_block,
    "a user too many": lambda s: count(s, s.running[0].blocks[0], 1),
    "a user too few": lambda s: count(s, next(block for block, users in s.pool.ref_count.items() if users > 1), -1),
    "a block of no pool": lambda s: s.pool.used.add(99),
    "a hash without a block": lambda s: s.pool.hash_to_block.update({b"unused": 0}),
    "a hash of two blocks": lambda s: s.pool.block_to_hash.update(
        {s.running[0].blocks[-1]: next(iter(s.pool.block_to_hash.values()))}
    ),
    "a hash of other tokens": lambda s: rename(s, s.running[0].blocks[0]),
    "a block too many": lambda s: s.running[0].blocks.extend(spare_block(s)),
    "a block too few": lambda s: s.pool.free([s.running[0].blocks.pop()]),
    "tokens that aren't computed": compute_a_block_more,
    "a lost swap block": lambda s: s.swap_space.allocate(1),
    "a swap block of two": take_a_swap_block_twice,
    "a free swap block in use": lambda s: s.swap_space.free(swapped_out(s).swapped),
}


@pytest.mark.parametrize("what", WRONG)
def test_the_audit_finds(what):
    scheduler = in_the_middle()
    audit(scheduler)
    WRONG[what](scheduler)
    with pytest.raises(LostBlocks):
        audit(scheduler)


# --- with a model


# --- blocks that no admission rule counts


def test_nothing_is_admitted_while_a_sequence_that_leaves_has_the_blocks():
    """Its last token was in flight: it no longer ran, but had the only block. The next sequence was admitted and
    preempted itself: Deadlock."""
    scheduler = make(1, admission=conservative, share_prefixes=False)
    of_the_leaving = scheduler.pool.allocate(1)
    waiting = sequence("B", prompt=2, max_tokens=2)
    scheduler.add(waiting)
    scheduler_output = scheduler.schedule()
    assert not scheduler_output.num_scheduled_tokens and not scheduler.running and not scheduler_output.preempted
    scheduler.pool.free(of_the_leaving)
    assert scheduler.schedule().admitted == [waiting]


def test_a_preempted_sequence_keeps_its_place_among_equals():
    scheduler = CopyOnWriteScheduler(PrefixCache(8, 2), max_num_seqs=2, max_num_batched_tokens=16)
    sequences = [Sequence(name, range(4), 9) for name in "abcd"]  # all arrived at once
    for sequence in sequences:
        scheduler.add(sequence)
    scheduler.schedule()
    assert scheduler.running == sequences[:2]
    scheduler.preempt(SchedulerOutput(), sequences[1])
    assert [sequence.id for sequence in scheduler.waiting] == ["b", "c", "d"]
    scheduler.preempt(SchedulerOutput(), sequences[0])
    assert [sequence.id for sequence in scheduler.waiting] == ["a", "b", "c", "d"]
