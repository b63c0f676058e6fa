"""The scheduler: it decides before each step which tokens of which sequences to compute.

Read in this order: sequence, policies, scheduler, stalling (lesson 09), preemption, swapping (10), shared_blocks and
forks (11). The engine uses sequence, scheduler and preemption, and swapping if it has a swap space. simulator runs a
scheduler without a model on the requests of arrivals; statistics says how the run went, and swap_cost what preemption
costs (10).
"""

from lessons_lib.kv_cache.block_copies import SWAP_IN, SWAP_OUT, BlockCopy
from lessons_lib.scheduling.arrivals import Arrival, bursty_arrivals, reversed_estimates, traffic
from lessons_lib.scheduling.forks import fork
from lessons_lib.scheduling.policies import (
    BalancedLengths,
    PriorityWithAgeing,
    ShortestJobFirst,
    ShortestWithAgeing,
    StrictPriority,
)
from lessons_lib.scheduling.preemption import PreemptiveScheduler, last_in_rank, preempt_sequence
from lessons_lib.scheduling.scheduler import SchedulerOutput, conservative, optimistic, share_budget
from lessons_lib.scheduling.sequence import FirstComeFirstServed, Sequence, WaitingQueue
from lessons_lib.scheduling.shared_blocks import CopyOnWriteScheduler, copy_before_write, take_cached
from lessons_lib.scheduling.simulator import StepCost, fit_cost, simulate, simulate_static
from lessons_lib.scheduling.stalling import Deadlock, Scheduler
from lessons_lib.scheduling.statistics import jain_index, slowdowns, spread, summary, times_of
from lessons_lib.scheduling.swap_cost import PreemptionCost, swap_if_cheaper
from lessons_lib.scheduling.swapping import SwappingScheduler, always_swap, never_swap

__all__ = [
    "SWAP_IN",
    "SWAP_OUT",
    "Arrival",
    "BalancedLengths",
    "BlockCopy",
    "CopyOnWriteScheduler",
    "Deadlock",
    "FirstComeFirstServed",
    "PreemptionCost",
    "PreemptiveScheduler",
    "PriorityWithAgeing",
    "Scheduler",
    "SchedulerOutput",
    "Sequence",
    "ShortestJobFirst",
    "ShortestWithAgeing",
    "StepCost",
    "StrictPriority",
    "SwappingScheduler",
    "WaitingQueue",
    "always_swap",
    "bursty_arrivals",
    "conservative",
    "copy_before_write",
    "fit_cost",
    "fork",
    "jain_index",
    "last_in_rank",
    "never_swap",
    "optimistic",
    "preempt_sequence",
    "reversed_estimates",
    "share_budget",
    "simulate",
    "simulate_static",
    "slowdowns",
    "spread",
    "summary",
    "swap_if_cheaper",
    "take_cached",
    "times_of",
    "traffic",
]
