"""The choice between the two ways to bring a victim back."""

from types import SimpleNamespace

import pytest

from lessons_lib.kv_cache.block_pool import BlockPool
from lessons_lib.kv_cache.prefix_cache import PrefixCache
from lessons_lib.measuring import recorded_swaps, recorded_victims
from lessons_lib.measuring.arrivals import traffic
from lessons_lib.measuring.simulator import StepCost, simulate
from lessons_lib.scheduling.preemption import last_in_rank
from lessons_lib.scheduling.sequence import Sequence
from lessons_lib.scheduling.swap_cost import swap_if_cheaper
from lessons_lib.scheduling.swapping import SwappingScheduler

STEP = StepCost(base=5e-3, per_token=2e-5, per_context_token=2e-7)


def victim(tokens):
    return Sequence("A", range(tokens), 5, num_computed_tokens=tokens)


def recorded(swap=0.0, swap_base=0.0, recompute=20e-6, recompute_base=5e-3):
    """Two measurements, of a swap that takes `swap` seconds per token in all, and of a step."""
    return [
        {
            "tokens": tokens,
            "bytes": tokens,
            "swap_out_s": (swap_base + swap * tokens) / 2,
            "swap_in_s": (swap_base + swap * tokens) / 2,
            "recompute_s": recompute_base + recompute * tokens,
        }
        for tokens in (100, 1000)
    ]


def test_the_recorded_gpu_recomputes_short_victims_and_swaps_long_ones():
    should_swap = swap_if_cheaper(list(recorded_swaps().rows))
    scheduler = SimpleNamespace(pool=BlockPool(8, 16))
    assert not should_swap(scheduler, victim(64))
    assert should_swap(scheduler, victim(8192))


@pytest.mark.parametrize("run", recorded_victims())
def test_what_lesson_10_says_about_the_second_recording(run):
    scheduler = SimpleNamespace(pool=BlockPool(8, 16))
    rows = {int(row["tokens"]): row for row in run.rows}
    fitted = swap_if_cheaper([rows[64], rows[2048]])
    for tokens, row in rows.items():
        swap_s, added_s = row["swap_out_s"] + row["swap_in_s"], row["beside_s"] - run.step_s
        if tokens not in (128, 160, 192):  # where the runs overlap
            assert (swap_s < added_s) is (tokens >= 256)
            assert fitted(scheduler, victim(tokens)) is (tokens >= 256)


@pytest.mark.parametrize("swap, swaps", [(1e-7, True), (1e-2, False)])
def test_it_decides_for_a_scheduler(swap, swaps):
    scheduler = SwappingScheduler(
        PrefixCache(40, 16),
        swap_space=BlockPool(200, 16),
        choose_victim=last_in_rank,
        should_swap=swap_if_cheaper(recorded(swap=swap)),
        share_prefixes=False,
        max_num_seqs=16,
    )
    simulate(scheduler, traffic(40, rate=1e6, answer_median=64, most=256), STEP)
    assert scheduler.num_preempted > 0
    assert (scheduler.num_swapped > 0) is swaps
