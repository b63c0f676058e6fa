"""The prices of bringing a victim back."""

from types import SimpleNamespace

import pytest

from lessons_lib.kv_cache.block_pool import BlockPool
from lessons_lib.kv_cache.prefix_cache import PrefixCache
from lessons_lib.scheduling.arrivals import traffic
from lessons_lib.scheduling.preemption import PreemptiveScheduler, last_in_rank
from lessons_lib.scheduling.sequence import Sequence
from lessons_lib.scheduling.simulator import StepCost, simulate
from lessons_lib.scheduling.swap_cost import PreemptionCost

STEP = StepCost(base=5e-3, per_token=2e-5, per_context_token=2e-7)
MIB = 2**20


def priced(bandwidth=1e9, per_copy=0.0):
    return PreemptionCost(STEP, block_bytes=MIB, bandwidth=bandwidth, per_copy=per_copy)


def victim(tokens):
    return Sequence("A", range(tokens), 5, num_computed_tokens=tokens)


def test_swapping_moves_every_block_out_and_in():
    assert priced().swap_seconds(3) == pytest.approx(6 * MIB / 1e9)
    assert priced(per_copy=1e-3).swap_seconds(3) == pytest.approx(6 * (1e-3 + MIB / 1e9))
    assert priced().swap_seconds(0) == 0


def test_recomputing_adds_tokens_to_a_step_that_runs_anyway():
    assert priced().recompute_seconds(100) == pytest.approx(100 * (2e-5 + 2e-7))
    assert priced().recompute_seconds(0) == pytest.approx(0)


def test_a_fast_link_swaps_and_a_slow_one_recomputes():
    scheduler = SimpleNamespace(pool=BlockPool(8, 16))
    assert priced(bandwidth=1e12).cheaper(scheduler, victim(64))
    assert not priced(bandwidth=1e8).cheaper(scheduler, victim(64))


def test_a_block_is_moved_whole():
    """One token costs a whole block to move; 16 tokens cost the same to move, and 16 times as much to compute."""
    scheduler = SimpleNamespace(pool=BlockPool(8, 16))
    prices = priced(bandwidth=2 * MIB / (5 * STEP.per_token))  # a block takes as long as 5 tokens
    assert not prices.cheaper(scheduler, victim(1))
    assert prices.cheaper(scheduler, victim(16))


@pytest.mark.parametrize("bandwidth, swaps", [(1e12, True), (1e6, False)])
def test_it_decides_for_a_scheduler(bandwidth, swaps):
    prices = priced(bandwidth)
    scheduler = PreemptiveScheduler(
        PrefixCache(40, 16),
        swap_space=BlockPool(200, 16),
        choose_victim=last_in_rank,
        should_swap=prices.cheaper,
        share_prefixes=False,
        max_num_seqs=16,
    )
    simulate(scheduler, traffic(40, rate=1e6, answer_median=64, most=256), STEP)
    assert scheduler.num_preempted > 0
    assert (scheduler.num_swapped > 0) is swaps


@pytest.mark.parametrize("wrong", [dict(bandwidth=0), dict(bandwidth=-1.0), dict(per_copy=-1e-6)])
def test_impossible_prices_are_refused(wrong):
    with pytest.raises(ValueError, match="bandwidth is"):
        priced(**wrong)
