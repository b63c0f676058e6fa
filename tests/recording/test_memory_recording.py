"""The recorder of lesson 10: each step is what the scheduler did, and the pool as it was after it."""

import pytest
from oracle import generate_alone

from lessons_lib.engine.model_runner import ModelRunner
from lessons_lib.kv_cache.block_copies import COPY, SWAP_IN, SWAP_OUT
from lessons_lib.kv_cache.block_pool import BlockPool
from lessons_lib.kv_cache.invariants import LostBlocks
from lessons_lib.kv_cache.paged_kv_cache import PagedKVCache
from lessons_lib.kv_cache.prefix_cache import PrefixCache
from lessons_lib.models.tiny_models import tiny_model
from lessons_lib.recording.memory_steps import recorded_step, serve_recorded
from lessons_lib.scheduling.sequence import Sequence
from lessons_lib.scheduling.shared_blocks import CopyOnWriteScheduler, fork
from lessons_lib.scheduling.swapping import never_swap

COMMON = list(range(20, 28))


def machine(num_blocks=14, num_swap_blocks=8, **limits):
    """A scheduler over blocks of 4, a runner, and the cache of the swap space."""
    model = tiny_model("qwen2", seed=3)
    limits = dict(max_num_seqs=4, max_num_batched_tokens=20) | limits
    scheduler = CopyOnWriteScheduler(PrefixCache(num_blocks, 4), swap_space=BlockPool(num_swap_blocks, 4), **limits)
    return ModelRunner(model, num_blocks, 4), scheduler, PagedKVCache(model.config, max(num_swap_blocks, 1), 4)


def six(max_tokens=14):
    return [
        Sequence(name, COMMON + [n] * (2 * n + 1), max_tokens, arrival_time=float(n)) for n, name in enumerate("ABCDEF")
    ]


def record(**limits):
    runner, scheduler, swap_cache = machine(**limits)
    sequences = six()
    return serve_recorded(runner, scheduler, sequences, swap_cache), sequences, scheduler


def test_the_answers_are_those_that_each_gets_alone():
    for sequence in record()[1]:
        assert sequence.output_ids == generate_alone(tiny_model("qwen2", seed=3), sequence.prompt_ids, 14, None)
        assert sequence.finish_reason == "length"


@pytest.mark.parametrize("limits", [{}, {"should_swap": never_swap}, {"num_swap_blocks": 0}, {"share_prefixes": False}])
def test_the_steps_add_up(limits):
    steps, sequences, scheduler = record(**limits)
    assert [step.index for step in steps] == list(range(len(steps)))
    assert sum(len(step.preempted) for step in steps) == scheduler.num_preempted > 1
    out, back = (sum(len(getattr(step, name)) for step in steps) for name in ("swapped_out", "swapped_in"))
    assert out == scheduler.num_swapped == back
    assert sorted(name for step in steps for name in step.finished) == list("ABCDEF")
    computed, tokens = dict.fromkeys("ABCDEF", 0), {sequence.id: sequence.num_tokens - 1 for sequence in sequences}
    for step in steps:
        for name in set(step.preempted) - set(step.swapped_out):
            computed[name] = 0
        for name, found in step.hits.items():
            assert name in step.admitted and computed[name] == 0
            computed[name] = found
        for name, count in step.counts.items():
            computed[name] += count
        for name in step.finished:
            assert computed[name] == tokens[name]
    assert any(step.hits for step in steps) == (limits.get("share_prefixes", True))
    assert steps[-1].evicted == scheduler.pool.evicted


def test_every_step_shows_the_pool_after_it():
    steps, _, scheduler = record()
    assert any(len(owners) > 1 for step in steps for owners in step.owners.values())
    kinds = {move.kind for step in steps for move in step.block_copies}
    assert {SWAP_OUT, SWAP_IN} <= kinds
    for step in steps:
        assert (step.num_blocks, step.block_size, step.num_swap_blocks) == (14, 4, 8)
        assert step.owners.keys() == step.filled.keys() and not step.cached & step.owners.keys()
        assert all(1 <= tokens <= 4 for tokens in step.filled.values())
        gone = {*step.finished, *step.waiting}
        assert not gone & {name for owners in step.owners.values() for name in owners}
        assert set(step.swapped) <= set(step.waiting)
        assert sum(move.kind == SWAP_OUT for move in step.block_copies) == sum(
            len(step.swapped[name]) for name in step.swapped_out
        )
    assert steps[-1].owners == {} and steps[-1].cached == frozenset(scheduler.pool.block_to_hash) and steps[-1].cached


def test_a_run_is_recorded_through_a_fork():
    runner, scheduler, swap_cache = machine(num_blocks=20)
    (first,) = six()[:1]  # 9 tokens: the third block has one
    scheduler.add(first)
    steps = [recorded_step(runner, scheduler, swap_cache)]
    children = [fork(scheduler, first, f"A{n}") for n in range(2)]
    steps += serve_recorded(runner, scheduler, [], swap_cache, first_index=1)
    assert [step.index for step in steps] == list(range(len(steps)))
    assert list(steps[1].counts) == ["A", "A0", "A1"] and sum(move.kind == COPY for move in steps[1].block_copies) == 2
    assert sorted(map(len, steps[1].owners.values())) == [1, 1, 1, 3, 3]
    assert children[0].output_ids == children[1].output_ids == first.output_ids


def test_books_that_do_not_agree_are_told_in_the_step_in_which_it_happened():
    runner, scheduler, swap_cache = machine()
    scheduler.add(six()[0])
    recorded_step(runner, scheduler, swap_cache)
    scheduler.pool.allocate(1)
    with pytest.raises(LostBlocks):
        recorded_step(runner, scheduler, swap_cache)
