"""What the schedulers and prefix caches of other engines are tested for, asked of this one. No model: every sequence gets
the same token.
"""

import pytest
import torch
from scheduling_cases import a_sequence, names

from lessons_lib.kv_cache.block_hashes import hash_full_blocks
from lessons_lib.kv_cache.invariants import audit
from lessons_lib.kv_cache.paged_kv_cache import PagedKVCache
from lessons_lib.kv_cache.prefix_cache import PrefixCache
from lessons_lib.models.tiny_models import tiny_model
from lessons_lib.scheduling.policies import StrictPriority
from lessons_lib.scheduling.preemption import PreemptiveScheduler
from lessons_lib.scheduling.sequence import Sequence

SIZE = 4
TOKEN = 90


def a_scheduler(num_blocks, **limits):
    limits = dict(max_num_seqs=4, max_num_batched_tokens=64) | limits
    return PreemptiveScheduler(PrefixCache(num_blocks, SIZE), **limits)


def step(scheduler, token=TOKEN):
    scheduler_output = scheduler.schedule()
    scheduler.update(scheduler_output, [token] * len(scheduler_output.num_scheduled_tokens))
    audit(scheduler)
    return scheduler_output


def run_out(scheduler):
    """Sequence id -> how many of its tokens were found in the cache, for all that were admitted."""
    cached = {}
    while scheduler.has_unfinished():
        scheduler_output = step(scheduler)
        cached |= {each.id: scheduler_output.cached.get(each, 0) for each in scheduler_output.admitted}
    return cached


def begun(scheduler, name, prompt, max_tokens=9):
    """A sequence whose prompt is computed, and which is still running."""
    sequence = Sequence(name, list(prompt), max_tokens)
    scheduler.add(sequence)
    step(scheduler)
    return sequence


def prompt_of(blocks, rest=0, first=0):
    return list(range(first, first + blocks * SIZE + rest))


def test_what_is_found_is_not_evicted_for_the_rest_of_the_same_sequence():
    """Two blocks in all, both cached and free. The first is a hit: the second must be the one that is overwritten."""
    scheduler = a_scheduler(2)
    for name, first in (("A", 0), ("B", SIZE)):
        scheduler.add(Sequence(name, prompt_of(1, first=first), 1))
        run_out(scheduler)
    assert len(scheduler.pool.hash_to_block) == 2
    both = Sequence("C", prompt_of(2), 1)
    scheduler.add(both)
    scheduler_output = scheduler.schedule()
    assert scheduler_output.cached == {both: SIZE} and both.blocks == [0, 1]


@pytest.mark.parametrize("chunk", [1, 3, 4, 5, 64])
def test_the_chunks_of_a_prompt_hash_the_blocks_that_they_fill(chunk):
    scheduler = a_scheduler(10, max_num_batched_tokens=chunk, max_num_seqs=1)
    sequence = Sequence("A", prompt_of(3, rest=2), 1)
    scheduler.add(sequence)
    while scheduler.has_unfinished():
        step(scheduler)
        assert len(scheduler.pool.block_to_hash) == sequence.num_computed_tokens // SIZE
    assert set(scheduler.pool.hash_to_block) == set(hash_full_blocks(Sequence("B", prompt_of(3), 1), SIZE))


def test_a_sequence_that_can_t_be_admitted_touches_no_cached_block():
    """Its first six blocks are cached, three of them free; the other three that it needs are not there."""
    scheduler = a_scheduler(10)
    first = begun(scheduler, "A", prompt_of(3), 4)
    second = begun(scheduler, "B", prompt_of(6), 4)
    tail = second.blocks[3:6]
    scheduler.remove(second)
    begun(scheduler, "C", prompt_of(2, first=60), 4)
    large = Sequence("D", prompt_of(9), 1)
    before = dict(scheduler.pool.ref_count), list(scheduler.pool.free_queue)
    assert scheduler.cached_blocks(large) == [*first.blocks[:3], *tail]
    assert scheduler.missing_blocks(large) > len(scheduler.pool.free_queue)
    assert not scheduler.admission(scheduler, large)
    assert (scheduler.pool.ref_count, list(scheduler.pool.free_queue)) == before
    scheduler.add(large)
    assert large not in scheduler.schedule().admitted and large.blocks == []


def test_the_next_turn_of_a_conversation_finds_all_full_blocks_of_the_last_one():
    scheduler = a_scheduler(100)
    conversations = [Sequence(str(n), prompt_of(2, rest=3, first=20 * n), 14) for n in range(4)]
    for sequence in conversations:
        scheduler.add(sequence)
    assert set(run_out(scheduler).values()) == {0}
    for sequence in conversations:
        scheduler.add(Sequence(sequence.id, [*sequence.token_ids, 7, 8], 3))
    # The last token of an answer is never computed.
    computed = 2 * SIZE + 3 + 14 - 1
    assert run_out(scheduler) == dict.fromkeys("0123", computed // SIZE * SIZE)


def test_a_miss_in_the_middle_ends_the_prefix():
    scheduler = a_scheduler(20)
    scheduler.add(Sequence("A", prompt_of(4), 1))
    run_out(scheduler)
    changed = prompt_of(4)
    changed[SIZE] += 1
    for name, prompt, cached in (("B", changed, SIZE), ("C", [99, *prompt_of(4)[1:]], 0), ("D", prompt_of(4), 12)):
        scheduler.add(Sequence(name, prompt, 1))
        assert run_out(scheduler) == {name: cached}


@pytest.mark.parametrize("tokens, heads, channels", [(2, 1, 8), (2, 2, 1), (1, 2, 8)])
def test_keys_of_another_shape_are_refused(tokens, heads, channels):
    """A cache of 2 heads of size 8, and 2 slots to write to."""
    cache = PagedKVCache(tiny_model("llama").config, 4, SIZE)
    assert cache.keys[0].shape == (4, SIZE, 2, 8)
    keys = torch.ones(tokens, heads, channels)
    with pytest.raises((ValueError, RuntimeError)):
        cache.write(0, keys, keys, torch.tensor([1, 2]))


@pytest.mark.parametrize("first, second", [("high", "low"), ("low", "high")])
def test_the_worst_tier_loses_its_blocks_whoever_needs_them(first, second):
    """The first is admitted a step earlier, and so the first that wants a third block."""
    scheduler = a_scheduler(4, share_prefixes=False, policy=StrictPriority())
    for n, name in enumerate((first, second)):
        scheduler.add(a_sequence(name, 7, 9, tier={"high": 0, "low": 5}[name], arrival_time=float(n)))
        step(scheduler)
    while not scheduler.num_preempted:
        step(scheduler)
    assert names(scheduler.running) == ["high"] and names(scheduler.waiting) == ["low"]


def test_the_first_of_the_queue_is_never_preempted():
    scheduler = a_scheduler(8, share_prefixes=False)
    for n in range(4):
        scheduler.add(a_sequence(str(n), 7, 14, arrival_time=float(n)))
    while scheduler.has_unfinished():
        oldest = min([*scheduler.running, *scheduler.waiting], key=lambda s: s.arrival_time)
        assert oldest not in step(scheduler).preempted
    assert scheduler.num_preempted
