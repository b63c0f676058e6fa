"""Lesson 10: the cost of restoring a victim's cache, by swapping it out and in or by recomputing it."""

from collections.abc import Callable

from lessons_lib.kv_cache.block_pool import blocks_for
from lessons_lib.scheduling.sequence import Sequence
from lessons_lib.scheduling.swapping import SwappingScheduler


def swap_if_cheaper(recorded: list[dict[str, float]]) -> Callable[[SwappingScheduler, Sequence], bool]:
    """Choose between swapping and recomputing by measurements of both.

    Args:
        recorded: 2 or more measurements, the shortest first, of restoring a victim of `tokens` tokens, which have
            `bytes` bytes of keys and values: `swap_out_s` and `swap_in_s` are the seconds of the copies, `recompute_s`
            those of a step that computes only these tokens.

    Returns:
        function (scheduler, victim) -> True if swapping adds less time than recomputing.
    """
    first, last = recorded[0], recorded[-1]
    tokens = last["tokens"] - first["tokens"]
    swap_first, swap_last = (row["swap_out_s"] + row["swap_in_s"] for row in (first, last))
    swap_per_token = (swap_last - swap_first) / tokens
    swap_base = swap_first - swap_per_token * first["tokens"]
    # The step runs anyway, so its base isn't counted, only the time that each token adds.
    recompute_per_token = (last["recompute_s"] - first["recompute_s"]) / tokens

    def should_swap(scheduler: SwappingScheduler, victim: Sequence) -> bool:
        size, computed = scheduler.pool.block_size, victim.num_computed_tokens
        copied = size * blocks_for(computed, size)  # a block is copied whole
        return swap_base + swap_per_token * copied < recompute_per_token * computed

    return should_swap
