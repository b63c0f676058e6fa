"""What the schedulers of other engines are tested for, asked of this one. No model: every sequence gets the same token."""

from itertools import pairwise
from types import SimpleNamespace

import pytest
import torch
from overlap_cases import BLOCK
from scheduling_cases import a_sequence, by_name, names

from lessons_lib.engine.core import overlapped_step
from lessons_lib.engine.greedy_loop import GreedyLoop
from lessons_lib.kv_cache.block_pool import BlockPool
from lessons_lib.kv_cache.invariants import audit
from lessons_lib.kv_cache.prefix_cache import PrefixCache
from lessons_lib.scheduling.policies import StrictPriority
from lessons_lib.scheduling.scheduler import SchedulerOutput
from lessons_lib.scheduling.sequence import Sequence
from lessons_lib.scheduling.swapping import SwappingScheduler

TOKEN = 90


def preemptive(num_blocks=100, *, block_size=4, swap_blocks=0, **limits):
    limits = dict(max_num_seqs=8, max_num_batched_tokens=64, share_prefixes=False) | limits
    pool, swap_space = PrefixCache(num_blocks, block_size), BlockPool(swap_blocks, block_size)
    return SwappingScheduler(pool, swap_space=swap_space, **limits)


def step(scheduler):
    scheduler_output = scheduler.schedule()
    finished = scheduler.update(scheduler_output, [TOKEN] * len(scheduler_output.num_scheduled_tokens))
    audit(scheduler)
    return scheduler_output, finished


def run_out(scheduler, most=300):
    """Ids in the order in which sequences were admitted and in which they finished."""
    admitted, finished = [], []
    for _ in range(most):
        if not scheduler.has_unfinished():
            return admitted, finished
        scheduler_output, ended = step(scheduler)
        admitted += names(scheduler_output.admitted)
        finished += names(ended)
    raise AssertionError(f"not done after {most} steps")


# Requests come and go


def test_prompts_beyond_the_budget_are_computed_in_chunks_side_by_side():
    """The last prompt of a step gets what is left, and goes on before a new one is admitted."""
    scheduler = preemptive(max_num_batched_tokens=10, max_num_seqs=3)
    for n, length in enumerate((8, 8, 8)):
        scheduler.add(Sequence(str(n), range(length), 3, arrival_time=float(n)))
    counts = [by_name(step(scheduler)[0].num_scheduled_tokens) for _ in range(4)]
    assert counts == [
        {"0": 8, "1": 2},
        {"0": 1, "1": 6, "2": 3},
        {"0": 1, "1": 1, "2": 5},
        {"1": 1, "2": 1},
    ]


def test_a_sequence_that_left_in_the_middle_of_its_prompt_frees_all_of_its_blocks():
    scheduler = preemptive(max_num_batched_tokens=8)
    long = Sequence("long", range(40), 3)
    scheduler.add(long)
    step(scheduler), step(scheduler)
    assert long.num_computed_tokens == 16 and len(scheduler.pool.used) == 4
    scheduler.remove(long)
    assert not scheduler.pool.used and not scheduler.has_unfinished() and not scheduler.schedule().num_scheduled_tokens


# Priorities


@pytest.mark.parametrize(
    "tiers, arrivals, order",
    [
        ([2, 0, 1], [1, 2, 3], "120"),
        ([1, 1, 1], [3, 1, 2], "120"),
        ([2, 1, 1, 0], [1, 3, 2, 4], "3210"),
        ([5, 1, 8, 3, 2, 7, 0, 6, 4], [9, 8, 7, 6, 5, 4, 3, 2, 1], "614380752"),
    ],
    ids=["tiers", "arrivals", "both", "many"],
)
@pytest.mark.parametrize("max_num_seqs", [1, 2, 9])
def test_priorities_and_arrivals_give_the_order(tiers, arrivals, order, max_num_seqs):
    scheduler = preemptive(policy=StrictPriority(), max_num_seqs=max_num_seqs)
    for n, (tier, arrival) in enumerate(zip(tiers, arrivals)):
        scheduler.add(a_sequence(str(n), tier=tier, arrival_time=float(arrival)))
    assert names(scheduler.waiting) == list(order)
    assert names(scheduler.schedule().admitted) == list(order[:max_num_seqs])
    assert names(scheduler.waiting) == list(order[max_num_seqs:])


def test_a_better_tier_comes_in_without_preemption_while_there_is_room():
    scheduler = preemptive(policy=StrictPriority(), max_num_seqs=3)
    for n in range(2):
        scheduler.add(a_sequence(f"low {n}", 10, 5, tier=5, arrival_time=float(n)))
    step(scheduler)
    scheduler.add(a_sequence("high", 10, 5, tier=0, arrival_time=9.0))
    scheduler_output, _ = step(scheduler)
    assert names(scheduler_output.admitted) == ["high"] and not scheduler_output.preempted
    assert len(scheduler.running) == 3 and not scheduler.waiting


@pytest.mark.parametrize("first, second", [("high", "low"), ("low", "high")])
def test_the_worst_tier_loses_its_blocks_whoever_needs_them(first, second):
    """The first is admitted a step earlier, and so the first that wants a third block."""
    scheduler = preemptive(4, policy=StrictPriority())
    for n, name in enumerate((first, second)):
        scheduler.add(a_sequence(name, 7, 9, tier={"high": 0, "low": 5}[name], arrival_time=float(n)))
        step(scheduler)
    preempted = []
    while not preempted:
        preempted = step(scheduler)[0].preempted
    assert names(preempted) == ["low"] and names(scheduler.running) == ["high"] and names(scheduler.waiting) == ["low"]
    assert run_out(scheduler) == (["low"], ["high", "low"])


def test_a_preempted_sequence_waits_behind_a_better_tier():
    scheduler = preemptive(4, policy=StrictPriority())
    for n, name in enumerate(("first", "victim")):
        scheduler.add(a_sequence(name, 7, 9, tier=5, arrival_time=float(n)))
    while not scheduler.num_preempted:
        step(scheduler)
    scheduler.add(a_sequence("high", 7, 9, tier=0, arrival_time=9.0))
    assert names(scheduler.waiting) == ["high", "victim"]
    assert run_out(scheduler)[1] == ["first", "high", "victim"]


# Blocks run out


@pytest.mark.parametrize("swap_blocks", [0, 8])
def test_a_preempted_sequence_gets_as_many_tokens_as_it_asked_for(swap_blocks):
    """It keeps its tokens, goes on behind them, and its limit counts all of them."""
    scheduler = preemptive(4, swap_blocks=swap_blocks)
    sequences = [a_sequence(name, 7, 9, arrival_time=float(n)) for n, name in enumerate("AB")]
    for sequence in sequences:
        scheduler.add(sequence)
    known = []
    while scheduler.has_unfinished():
        known.append(list(sequences[1].output_ids))
        step(scheduler)
    assert scheduler.num_preempted and bool(scheduler.num_swapped) == bool(swap_blocks)
    assert all(later[: len(before)] == before for before, later in pairwise(known)), "tokens were lost"
    assert [(len(s.output_ids), s.finish_reason) for s in sequences] == [(9, "length")] * 2


def test_the_first_of_the_queue_is_never_preempted():
    scheduler = preemptive(8, max_num_seqs=4)
    for n in range(4):
        scheduler.add(a_sequence(str(n), 7, 14, arrival_time=float(n)))
    preempted = []
    while scheduler.has_unfinished():
        oldest = min([*scheduler.running, *scheduler.waiting], key=lambda s: s.arrival_time)
        scheduler_output, _ = step(scheduler)
        preempted += names(scheduler_output.preempted)
        assert oldest not in scheduler_output.preempted
    assert preempted


def test_asking_whether_blocks_suffice_takes_none():
    scheduler = preemptive(3)
    scheduler.add(a_sequence("A", 8, 5))
    step(scheduler)
    (running,) = scheduler.running
    before = list(scheduler.pool.free_queue), list(running.blocks)
    scheduler_output = SchedulerOutput()
    waiting = a_sequence("B", 9, 2)
    assert scheduler.missing_blocks(waiting) == 3 and not scheduler.admission(scheduler, waiting)
    assert scheduler.missing_blocks(a_sequence("C", 4, 2)) == 1
    assert not scheduler.make_room(scheduler_output, running, 9)
    assert scheduler.make_room(scheduler_output, running, 0), "no token needs no block"
    assert (list(scheduler.pool.free_queue), running.blocks) == before and not scheduler_output.block_copies


# A step is launched before the last one's tokens are known


class Later:
    """A runner without a model, whose tokens arrive when they are waited for."""

    def forward(self, scheduler_output):
        tokens = torch.tensor([TOKEN] * len(scheduler_output.num_scheduled_tokens))
        return torch.nn.functional.one_hot(tokens)

    def keep_tokens(self, scheduler_output, tokens):
        return SimpleNamespace(wait=tokens.tolist)


@pytest.mark.parametrize("max_tokens", [1, 2, 3, 5])
def test_with_a_step_in_flight_nothing_gets_a_token_too_many(max_tokens):
    """The second request comes while a step is in flight, and joins the next one."""
    scheduler = preemptive(block_size=BLOCK)
    first, second = Sequence("first", range(6), max_tokens), Sequence("second", range(50, 56), max_tokens)
    loop = GreedyLoop(scheduler, Later(), depth=1)
    scheduler.add(first)
    overlapped_step(loop)
    scheduler.add(second)
    overlapped_step(loop)
    assert first.output_ids == [TOKEN] and second.output_ids == [] and second.blocks, "the second is in flight"
    while scheduler.has_unfinished():
        overlapped_step(loop)
    assert [first.output_ids, second.output_ids] == [[TOKEN] * max_tokens] * 2
    assert not scheduler.pool.used


@pytest.mark.parametrize("order", [[0, 3, 1, 4, 2], [4, 3, 2, 1, 0]])
def test_aborts_while_steps_are_in_flight_leave_the_tokens_known_by_then(order):
    scheduler = preemptive(block_size=BLOCK)
    sequences = [Sequence(str(n), range(10 * n, 10 * n + 6), 20, arrival_time=float(n)) for n in range(5)]
    for sequence in sequences:
        scheduler.add(sequence)
    loop = GreedyLoop(scheduler, Later(), depth=1)
    overlapped_step(loop)
    for index in order:
        scheduler.remove(sequences[index])
        sequences[index].finish_reason = "abort"
        overlapped_step(loop)
    while scheduler.has_unfinished():
        overlapped_step(loop)
    assert [len(sequences[index].output_ids) for index in order] == [0, 1, 2, 3, 4]
    assert not scheduler.pool.used
