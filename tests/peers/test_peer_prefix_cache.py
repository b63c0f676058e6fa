"""What the block pools and prefix caches of other engines are tested for, asked of this one."""

import pytest
import torch

from lessons_lib.kv_cache.block_hashes import block_hash, hash_full_blocks
from lessons_lib.kv_cache.invariants import audit
from lessons_lib.kv_cache.paged_kv_cache import PagedKVCache
from lessons_lib.kv_cache.prefix_cache import PrefixCache
from lessons_lib.models.tiny_models import tiny_model
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


def test_full_blocks_have_the_chain_of_their_hashes_and_the_last_one_none():
    scheduler = a_scheduler(10)
    sequence, pool = begun(scheduler, "A", prompt_of(3, rest=2)), scheduler.pool
    parent = b""
    for index, block in enumerate(sequence.blocks[:3]):
        parent = block_hash(parent, sequence.prompt_ids[index * SIZE : (index + 1) * SIZE])
        assert pool.block_to_hash[block] == parent and pool.hash_to_block[parent] == block
    assert sequence.blocks[3] not in pool.block_to_hash and pool.ref_count == dict.fromkeys(sequence.blocks, 1)


def test_a_prefix_is_found_while_its_first_owner_runs_and_after_it_has_left():
    scheduler = a_scheduler(12)
    first = begun(scheduler, "A", prompt_of(3, rest=3))
    second = Sequence("B", [*prompt_of(3), 70], 9)
    scheduler.add(second)
    scheduler_output = step(scheduler)
    assert scheduler_output.cached == {second: 12} and scheduler_output.num_scheduled_tokens[second] == 1
    assert second.blocks[:3] == first.blocks[:3] and second.blocks[3] != first.blocks[3]
    assert [scheduler.pool.ref_count[block] for block in second.blocks] == [2, 2, 2, 1]
    shared = first.blocks[:3]
    scheduler.remove(first), scheduler.remove(second)
    assert not scheduler.pool.ref_count and len(scheduler.pool.free_queue) == 12
    third = Sequence("C", [*prompt_of(3), 80, 81], 9)
    scheduler.add(third)
    assert step(scheduler).cached == {third: 12} and third.blocks[:3] == shared


def test_a_hit_takes_its_blocks_out_of_the_middle_of_the_free_queue():
    scheduler = a_scheduler(10)
    first, second = begun(scheduler, "A", prompt_of(5, 3)), begun(scheduler, "B", prompt_of(3, first=40))
    blocks = list(first.blocks)
    scheduler.remove(first), scheduler.remove(second)
    before = list(scheduler.pool.free_queue)
    again = begun(scheduler, "C", [*prompt_of(2), 80, 81, 82])
    assert again.blocks == [*blocks[:2], before[0]]
    assert list(scheduler.pool.free_queue) == [block for block in before if block not in again.blocks]


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


def test_a_block_used_again_forgets_its_hash():
    scheduler = a_scheduler(1)
    scheduler.add(Sequence("A", prompt_of(1), 1))
    run_out(scheduler)
    assert scheduler.pool.block_to_hash
    begun(scheduler, "B", prompt_of(1)[:-1], 2)
    assert not scheduler.pool.block_to_hash and not scheduler.pool.hash_to_block and scheduler.pool.evicted == 1


def test_a_block_that_decoding_fills_can_be_found_once_it_is_full():
    scheduler = a_scheduler(10)
    sequence = begun(scheduler, "A", prompt_of(1, rest=2))
    hashed = []
    while not sequence.finish_reason:
        hashed.append((sequence.num_computed_tokens, len(scheduler.pool.block_to_hash)))
        step(scheduler)
    assert all(count == computed // SIZE for computed, count in hashed) and len({count for _, count in hashed}) > 2


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


def test_of_two_blocks_with_the_same_tokens_one_is_found_and_each_is_freed_once():
    """Both prompts are computed in one step, so neither can find the other's blocks."""
    scheduler = a_scheduler(8)
    for name in "AB":
        scheduler.add(Sequence(name, prompt_of(2, rest=1), 9))
    step(scheduler)
    one, other = scheduler.running
    assert not set(one.blocks) & set(other.blocks) and set(scheduler.pool.block_to_hash) == set(one.blocks[:2])
    third = Sequence("C", prompt_of(2, rest=1), 9)
    assert scheduler.cached_blocks(third) == one.blocks[:2]
    scheduler.remove(one), scheduler.remove(other)
    assert len(scheduler.pool.free_queue) == 8
    scheduler.pool.allocate(8)
    assert not scheduler.pool.hash_to_block and not scheduler.pool.block_to_hash


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
