"""Lesson 10: compare rules for choosing the victim on the same requests in the simulator."""

from collections.abc import Callable
from collections.abc import Sequence as ListOf
from typing import Any

from lessons_lib.kv_cache.prefix_cache import PrefixCache
from lessons_lib.measuring.arrivals import traffic
from lessons_lib.measuring.simulator import StepCost, simulate
from lessons_lib.scheduling.policies import StrictPriority
from lessons_lib.scheduling.sequence import Policy, Sequence
from lessons_lib.scheduling.swapping import SwappingScheduler, never_swap

Rule = Callable[[list[Sequence], Policy], Sequence]
A_STEP = StepCost(base=1, per_token=0, per_context_token=0)  # the clock counts steps


class _Watched(SwappingScheduler):
    """A scheduler that remembers the sequence in need of a block."""

    needs_block: Sequence

    def allocate_slots(self, scheduler_output: Any, sequence: Sequence, count: int) -> None:
        self.needs_block = sequence
        super().allocate_slots(scheduler_output, sequence, count)


def tried_rule(name: str, rule: Rule) -> ListOf[Any]:
    """Serve sixty requests under strict priority from 16 blocks of 16, with this rule.

    Returns:
        [name, preemptions, preemptions in favor of a sequence that the policy serves later, steps].
    """
    gave_way = 0

    def choose_victim(candidates: list[Sequence], policy: Policy) -> Sequence:
        nonlocal gave_way
        victim = rule(candidates, policy)
        gave_way += policy.rank(victim) < policy.rank(scheduler.needs_block)
        return victim

    scheduler = _Watched(
        PrefixCache(16, 16), choose_victim=choose_victim, should_swap=never_swap, share_prefixes=False,
        policy=StrictPriority(), max_num_seqs=6, max_num_batched_tokens=64,
    )  # fmt: skip
    sixty = traffic(60, rate=0.1, prompt_median=24, answer_median=60, spread=0.6, most=96, seed=10)
    steps = simulate(scheduler, sixty, A_STEP).num_steps
    return [name, scheduler.num_preempted, gave_way, steps]
