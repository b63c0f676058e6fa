"""Traffic as it is asked for, a clock that can be followed by hand, and plans that are those of a real run."""

import math
from dataclasses import replace

import numpy as np
import pytest
from oracle import END, answered_requests
from scheduling_cases import POLICIES, a_scheduler, by_name

from lessons_lib.engine.model_runner import ModelRunner
from lessons_lib.kv_cache.block_pool import BlockPool
from lessons_lib.kv_cache.prefix_cache import PrefixCache
from lessons_lib.measuring.arrivals import Arrival, poisson_arrivals, reversed_estimates, traffic
from lessons_lib.measuring.simulator import SequenceTimes, SimulatedStep, Simulation, StepCost, simulate
from lessons_lib.models.tiny_models import tiny_model
from lessons_lib.scheduling.preemption import PreemptiveScheduler
from lessons_lib.scheduling.scheduler import conservative, optimistic
from lessons_lib.scheduling.sequence import Sequence
from lessons_lib.scheduling.stalling import Scheduler

COST = StepCost(8, 2, 1)  # whole numbers, so that sums are exact


def arrival(name, at, prompt, answer, max_tokens=20, **kwargs):
    return Arrival(name, at, prompt, answer, max_tokens, **kwargs)


# --- traffic


def test_gaps_of_a_poisson_stream_are_exponential():
    gaps = np.diff(poisson_arrivals(10, 40_000, seed=1))
    assert gaps.std() == pytest.approx(gaps.mean(), rel=0.03)
    assert np.mean(gaps > 0.1) == pytest.approx(math.exp(-1), abs=0.01)


def test_traffic_is_what_was_asked_for():
    requests = traffic(20_000, 50, prompt_median=20, answer_median=5, most=100, urgent_share=0.3, seed=4)
    assert [request.id for request in requests] == [str(n) for n in range(20_000)]
    times = [request.arrival_time for request in requests]
    prompts, answers, tiers = np.array([(r.prompt_tokens, r.answer_tokens, r.tier) for r in requests]).T
    assert times == sorted(times) and 20_000 / times[-1] == pytest.approx(50, rel=0.03)
    assert np.median(prompts) == pytest.approx(20, abs=1) and np.median(answers) == pytest.approx(5, abs=1)
    assert all(1 <= r.prompt_tokens <= 100 and 1 <= r.answer_tokens <= r.max_new_tokens == 100 for r in requests)
    assert set(tiers) == {0, 1} and np.mean(tiers == 0) == pytest.approx(0.3, abs=0.02)
    assert all(r.expected_tokens == r.answer_tokens for r in requests)


def test_the_same_seed_gives_the_same_traffic():
    assert traffic(50, 10, seed=5, estimate_error=0.5) == traffic(50, 10, seed=5, estimate_error=0.5)
    assert traffic(50, 10, seed=5) != traffic(50, 10, seed=6)
    assert traffic(50, 10, seed=5, estimate_error=0.5)[:30] == traffic(30, 10, seed=5, estimate_error=0.5)


def test_the_streams_of_a_seed_and_of_its_neighbors_have_nothing_in_common():
    columns = []
    for seed in range(4):
        requests = traffic(2_000, 10, seed=seed, prompt_median=20, answer_median=20, most=10**6, estimate_error=1.0)
        gaps = np.diff([0, *(r.arrival_time for r in requests)])
        sizes = [(r.prompt_tokens, r.answer_tokens, r.expected_tokens / r.answer_tokens) for r in requests]
        columns += [gaps, *np.log(sizes).T, [r.tier for r in requests]]
    assert np.abs(np.corrcoef(columns) - np.eye(len(columns))).max() < 0.12


def test_estimates_can_be_wrong_by_a_factor_and_as_wrong_as_can_be():
    requests = traffic(20_000, 10, estimate_error=0.7, seed=6)
    errors = np.log([r.expected_tokens / r.answer_tokens for r in requests])
    assert errors.std() == pytest.approx(0.7, rel=0.03) and abs(errors.mean()) < 0.02
    worst = reversed_estimates(requests[:500])
    assert [replace(r, expected_tokens=own.expected_tokens) for r, own in zip(worst, requests)] == requests[:500]
    by_length = sorted(worst, key=lambda r: r.answer_tokens)
    assert [r.expected_tokens for r in by_length] == [r.answer_tokens for r in by_length[::-1]]
    assert reversed_estimates([]) == []


# --- the clock


def test_a_small_run_can_be_followed_by_hand():
    """A comes at 0, B during A's prefill, C long after both have gone."""
    requests = [arrival("A", 0, 3, 2), arrival("B", 5, 2, 1), arrival("C", 100, 1, 1)]
    run = simulate(a_scheduler(max_num_seqs=2), requests, COST, keep_steps=True)
    assert run.steps == [
        SimulatedStep(0, 8 + 2 * 3 + 3, prefill={"A": 3}, decode={}, free_blocks=99),
        SimulatedStep(17, 8 + 2 * (1 + 2) + (4 + 2), prefill={"B": 2}, decode={"A": 1}, free_blocks=98),
        SimulatedStep(100, 8 + 2 + 1, prefill={"C": 1}, decode={}, free_blocks=99),
    ]
    assert run.times == {
        "A": SequenceTimes(0, 0, 17, 37, 2),
        "B": SequenceTimes(5, 17, 37, 37, 1),
        "C": SequenceTimes(100, 100, 111, 111, 1),
    }
    assert (run.seconds, run.num_steps, run.computed_tokens) == (111, 3, 7)
    assert replace(run, steps=[]) == simulate(a_scheduler(max_num_seqs=2), requests, COST)


def test_chunks_and_a_queue_can_be_followed_by_hand():
    requests = [arrival("A", 0, 5, 2), arrival("B", 1, 1, 1)]
    run = simulate(a_scheduler(max_num_seqs=1, max_num_batched_tokens=2), requests, COST, keep_steps=True)
    assert [(step.start, step.prefill, step.decode, step.waiting) for step in run.steps] == [
        (0, {"A": 2}, {}, ()),
        (8 + 4 + 2, {"A": 2}, {}, ("B",)),
        (14 + 8 + 4 + 4, {"A": 1}, {}, ("B",)),
        (30 + 8 + 2 + 5, {}, {"A": 1}, ("B",)),
        (45 + 8 + 2 + 6, {"B": 1}, {}, ()),
    ]
    assert run.times == {"A": SequenceTimes(0, 0, 45, 61, 2), "B": SequenceTimes(1, 61, 72, 72, 1)}


def test_a_stall_is_recorded():
    # Of 5 blocks of 4, A and B take two each; then each needs a third, and one is free.
    requests = [arrival(name, 0, 8, 3, 9) for name in "AB"]
    run = simulate(a_scheduler(blocks=5, admission=optimistic), requests, COST, keep_steps=True)
    assert [(step.prefill | step.decode, step.stalled, step.free_blocks) for step in run.steps] == [
        ({"A": 8, "B": 8}, (), 1), ({"A": 1}, ("B",), 0), ({"A": 1}, ("B",), 0), ({"B": 1}, (), 2), ({"B": 1}, (), 2),
    ]  # fmt: skip


def test_nobody_comes():
    assert simulate(a_scheduler(), [], COST) == Simulation()


def test_who_is_preempted_waited_only_until_the_first_admission():
    scheduler = PreemptiveScheduler(PrefixCache(5, 4), max_num_seqs=2, share_prefixes=False)
    run = simulate(scheduler, [arrival("A", 1, 8, 6, 9), arrival("B", 1, 8, 6, 9)], COST)
    assert scheduler.num_preempted > 0
    assert run.times["A"].admitted == run.times["B"].admitted == 1


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: policy.name)
def test_everybody_is_served_in_full(policy):
    requests = traffic(1500, 60, seed=2, most=100)
    scheduler = a_scheduler(blocks=200, block_size=16, max_num_seqs=16, policy=policy)
    run = simulate(scheduler, requests, StepCost(5e-3, 2e-5, 2e-7), keep_steps=True)
    assert list(run.times) == [request.id for request in requests]
    for request, times in zip(requests, run.times.values()):
        moments = [times.arrival, times.admitted, times.first_token, times.finished, run.seconds]
        assert moments == sorted(moments) and request.arrival_time == times.arrival and moments[1] < moments[2]
        assert times.answer_tokens == request.answer_tokens
    assert run.computed_tokens == sum(r.prompt_tokens + r.answer_tokens - 1 for r in requests)
    assert run.num_steps == len(run.steps)
    assert all(step.start + step.seconds <= after.start for step, after in zip(run.steps, run.steps[1:]))
    assert not scheduler.pool.used and not scheduler.has_unfinished()


# --- the same plans as with a model


@pytest.mark.parametrize("admission", [conservative, optimistic])
@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: policy.name)
def test_without_a_model_the_plans_are_those_of_a_real_run(policy, admission):
    limits = dict(max_num_seqs=3, max_num_batched_tokens=12, policy=policy, admission=admission, watermark=3)
    scheduler, runner = Scheduler(BlockPool(36, 4), **limits), ModelRunner(tiny_model("qwen2", seed=3), 36, 4)
    counts, arrivals = [], []
    for number, (ids, max_tokens, answer) in enumerate(list(zip(*answered_requests("qwen2")))[:10]):
        rank = dict(tier=number % 2, expected_tokens=len(answer))
        scheduler.add(Sequence(str(number), ids, max_tokens, frozenset({END}), **rank))
        arrivals.append(Arrival(str(number), 0.0, len(ids), len(answer), max_tokens, **rank))
    while scheduler.has_unfinished():
        step = scheduler.schedule()
        counts.append(by_name(step.num_scheduled_tokens))
        scheduler.update(step, runner.forward(step).argmax(dim=-1).tolist())
    run = simulate(Scheduler(BlockPool(36, 4), **limits), arrivals, COST, keep_steps=True)
    assert [step.prefill | step.decode for step in run.steps] == counts
