"""The scheduler: the one rule, the limits, admission, stalls; and greedy answers that no schedule changes."""

import copy
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle import END, answered_requests
from scheduling_cases import POLICIES, a_scheduler, a_sequence, by_name, check_books, checked_schedule, names

from lessons_lib.engine.greedy_loop import serve_greedily
from lessons_lib.engine.model_runner import ModelRunner
from lessons_lib.kv_cache.block_pool import BlockPool, OutOfBlocks, blocks_for
from lessons_lib.models.tiny_models import tiny_model
from lessons_lib.models.validate import BadRequest
from lessons_lib.scheduling.scheduler import SchedulerOutput, conservative, optimistic
from lessons_lib.scheduling.sequence import Sequence
from lessons_lib.scheduling.stalling import Deadlock, Scheduler

FAMILIES = ["gpt2", "llama", "qwen2"]


# --- a sequence


def test_a_sequence_knows_its_tokens_and_the_most_that_it_may_have_cached():
    sequence = Sequence("A", range(3), 4, output_ids=[8, 9])
    assert sequence.token_ids == [0, 1, 2, 8, 9] and sequence.num_tokens == 5
    assert sequence.most_tokens == 6  # 3 of the prompt and 4 of the answer; the last one is never computed


# --- the rule


# --- limits


# --- admission


@pytest.mark.parametrize("prompt, max_tokens, blocks", [(4, 1, 1), (3, 2, 1), (4, 2, 2), (4, 6, 3)])
def test_a_promise_covers_all_tokens_but_the_last(prompt, max_tokens, blocks):
    scheduler, most = a_scheduler(a_sequence("A", prompt, max_tokens), blocks=blocks), 0
    while scheduler.has_unfinished():
        step = checked_schedule(scheduler)
        most = max(most, len(scheduler.pool.used))
        scheduler.update(step, [7])
    assert most == blocks
    with pytest.raises(OutOfBlocks):
        a_scheduler(a_sequence("A", prompt, max_tokens), blocks=blocks - 1)
    assert scheduler.schedule() == SchedulerOutput(), "nothing to do is an empty plan"


@pytest.mark.parametrize("watermark, admitted", [(0, True), (1, True), (2, False)])
def test_the_reserve_is_for_those_who_run(watermark, admitted):
    scheduler = a_scheduler(a_sequence("A", 4, 9), blocks=4, admission=optimistic, watermark=watermark)
    assert names(checked_schedule(scheduler).admitted) == ["A"]
    assert optimistic(scheduler, a_sequence("B", 8, 2)) is admitted
    empty = a_scheduler(blocks=4, admission=optimistic, watermark=4)
    assert optimistic(empty, a_sequence("B", 16, 1))


# --- stalls


def stalling(blocks=5):
    """Two sequences that fill the pool, and soon need a block each."""
    scheduler = a_scheduler(a_sequence("A", 8, 9), a_sequence("B", 8, 9), blocks=blocks, admission=optimistic)
    scheduler.update(scheduler.schedule(), [7, 7])
    return scheduler


def test_one_goes_on_while_the_other_stalls():
    scheduler = stalling()
    first, second = scheduler.running
    for _ in range(4):
        step = checked_schedule(scheduler)
        assert by_name(step.num_scheduled_tokens) == {"A": 1} and step.stalled == [second]
        scheduler.update(step, [7])
    assert second.num_computed_tokens == 8 and second.output_ids == [7]
    with pytest.raises(Deadlock):  # now A needs a block as well
        scheduler.schedule()
    scheduler.remove(first)
    assert by_name(checked_schedule(scheduler).num_scheduled_tokens) == {"B": 1}


def test_none_is_admitted_while_one_stalls():
    """A chunk of B lacks two blocks and one is free: it takes none, nor may C, which needs one, take it."""
    limits = dict(blocks=6, admission=optimistic, max_num_batched_tokens=10, max_num_seqs=3)
    scheduler = a_scheduler(a_sequence("A", 3, 9), a_sequence("B", 20, 2), **limits)
    scheduler.update(scheduler.schedule(), [7, 7])
    others = scheduler.pool.allocate(2)
    scheduler.add(a_sequence("C", 1, 1))
    step = scheduler.schedule()
    assert by_name(step.num_scheduled_tokens) == {"A": 1} and step.admitted == []
    assert names(step.stalled) == ["B"] and names(scheduler.waiting) == ["C"]
    assert len(step.stalled[0].blocks) == 2 and len(scheduler.pool.free_queue) == 1
    scheduler.update(step, [7])
    scheduler.pool.free(others)
    step = scheduler.schedule()  # no budget is left for C
    assert by_name(step.num_scheduled_tokens) == {"A": 1, "B": 9} and step.admitted == step.stalled == []


def test_a_deadlock_is_named_and_changes_nothing():
    scheduler = stalling(blocks=4)
    state = lambda: copy.deepcopy((list(map(vars, scheduler.running)), vars(scheduler.pool)))
    says = "all 2 running sequences need a block, and none of 4 is free.*preempt one of them"
    before = state()
    for _ in range(2):
        with pytest.raises(Deadlock, match=says):
            scheduler.schedule()
        assert before == state()


# --- refusals


@pytest.mark.parametrize(
    "prompt, max_tokens, error, words",
    [
        (0, 2, BadRequest, "prompt of sequence 'A' is 0; it must be at least 1 token"),
        (3, 0, BadRequest, "max_new_tokens of sequence 'A' is 0; it must be at least 1"),
        (3, -2, BadRequest, "max_new_tokens of sequence 'A' is -2"),
        (13, 5, OutOfBlocks, "'A' may need 5 blocks of 4 tokens; the pool has 4. Ask for fewer new tokens"),
    ],
)
def test_what_cannot_be_served_is_refused_and_nothing_changes(prompt, max_tokens, error, words):
    scheduler, sequence = a_scheduler(a_sequence("B"), blocks=4), a_sequence("A", prompt, max_tokens)
    scheduler.schedule()
    scheduler.add(a_sequence("C"))
    before = copy.deepcopy(vars(sequence))
    with pytest.raises(error, match=words):
        scheduler.add(sequence)
    assert names(scheduler.running) == ["B"] and names(scheduler.waiting) == ["C"] and vars(sequence) == before
    assert len(scheduler.pool.used) == 1


@pytest.mark.parametrize(
    "limits, words",
    [
        (dict(max_num_seqs=0), "max_num_seqs is 0; it must be at least 1"),
        (dict(max_num_seqs=8, max_num_batched_tokens=7), "_tokens is 7; it must be at least max_num_seqs"),
        (dict(watermark=-1), "watermark is -1; it must be 0 blocks or more"),
    ],
)
def test_limits_that_make_no_sense_are_refused(limits, words):
    with pytest.raises(ValueError, match=words):
        a_scheduler(**limits)
    a_scheduler(max_num_seqs=8, max_num_batched_tokens=8)


# --- taking a sequence out


def test_who_is_not_there_cannot_be_taken_out():
    scheduler = a_scheduler(a_sequence("A"), a_sequence("B", max_tokens=1), a_sequence("W"), max_num_seqs=2)
    (finished,) = scheduler.update(scheduler.schedule(), [7, 7])
    for unknown in (a_sequence("A"), finished):
        with pytest.raises(ValueError, match=f"sequence {unknown.id!r} does not wait"):
            scheduler.remove(unknown)
        assert names(scheduler.running) == ["A"] and names(scheduler.waiting) == ["W"]
        check_books(scheduler)


# --- whatever happens


limits = st.fixed_dictionaries(
    dict(
        max_num_seqs=st.integers(1, 5),
        spare_budget=st.integers(0, 20),
        policy=st.sampled_from(POLICIES),
        admission=st.sampled_from([conservative, optimistic]),
        watermark=st.integers(0, 2),
        block_size=st.sampled_from([1, 3, 4, 16]),
        spare_blocks=st.integers(0, 12),
    )
)


def limited_scheduler(sequences, max_num_seqs, spare_budget, block_size, spare_blocks, **kwargs):
    """A scheduler whose pool has room for the largest, and a little more."""
    blocks = max((blocks_for(sequence.most_tokens, block_size) for sequence in sequences), default=0) + spare_blocks
    limits = dict(max_num_seqs=max_num_seqs, max_num_batched_tokens=max_num_seqs + spare_budget, **kwargs)
    return Scheduler(BlockPool(blocks, block_size), **limits)


@settings(max_examples=100, deadline=None)
@given(
    limits,
    st.lists(st.tuples(st.integers(1, 20), st.integers(1, 12), st.integers(0, 2)), min_size=1, max_size=8),
    st.integers(0, 999),
)
def test_no_block_is_lost_whoever_comes_and_goes(limits, sizes, seed):
    rng, finished = random.Random(seed), []
    sequences = [
        a_sequence(str(n), prompt, max_tokens, arrival_time=n, tier=tier)
        for n, (prompt, max_tokens, tier) in enumerate(sizes)
    ]
    scheduler, to_come = limited_scheduler(sequences, **limits), list(sequences)

    def leave(sequence):
        scheduler.remove(sequence)
        finished.append(sequence)

    while to_come or scheduler.has_unfinished():
        for _ in range(min(rng.randrange(4), len(to_come))):
            scheduler.add(to_come.pop(0))
        here = [*scheduler.running, *scheduler.waiting]
        if here and rng.random() < 0.1:
            leave(rng.choice(here))
        try:
            step = checked_schedule(scheduler)
        except Deadlock:
            assert limits["admission"] is optimistic
            check_books(scheduler)
            leave(scheduler.running[-1])
            continue
        assert not step.stalled or limits["admission"] is optimistic
        finished += scheduler.update(step, [7] * len(step.num_scheduled_tokens))
    check_books(scheduler)
    assert not scheduler.pool.used and sorted(names(finished)) == sorted(names(sequences))


def sequences_of(family, chosen):
    prompts, max_tokens_each, answers = answered_requests(family)
    sequences = []
    for at, n in enumerate(chosen):
        rank = dict(arrival_time=at, tier=n % 3, expected_tokens=n % 4)
        sequences.append(Sequence(str(n), prompts[n], max_tokens_each[n], frozenset({END}), **rank))
    return sequences, [answers[n] for n in chosen]


def serve_with_deadlocks(runner, scheduler, sequences):
    """Serve all; out of a deadlock by taking the last one out, to begin again from its first token."""
    to_come = list(sequences)
    while to_come or scheduler.has_unfinished():
        if to_come:
            scheduler.add(to_come.pop(0))
        try:
            step = checked_schedule(scheduler)
        except Deadlock:
            last = scheduler.running[-1]
            scheduler.remove(last)
            last.num_computed_tokens = 0
            scheduler.add(last)
            continue
        scheduler.update(step, runner.forward(step).argmax(dim=-1).tolist())


@settings(max_examples=45, deadline=None, derandomize=True)
@given(
    st.sampled_from(FAMILIES), st.lists(st.integers(0, 17), min_size=1, max_size=8, unique=True), limits, st.booleans()
)
def test_no_schedule_changes_a_token(family, chosen, limits, deadlocks):
    """In a cache full of NaN: reading a slot that was not written spoils the answer."""
    sequences, expected = sequences_of(family, chosen)
    if not deadlocks:
        limits = limits | dict(admission=conservative)
    scheduler = limited_scheduler(sequences, **limits)
    pool = scheduler.pool
    runner = ModelRunner(tiny_model(family, seed=3), pool.num_blocks, pool.block_size)
    for tensor in [*runner.cache.keys, *runner.cache.values]:
        tensor.fill_(float("nan"))
    serve = serve_with_deadlocks if deadlocks else serve_greedily
    serve(runner, scheduler, sequences)
    assert [sequence.output_ids for sequence in sequences] == expected
    assert not pool.used and sorted(pool.free_queue) == list(range(pool.num_blocks))
