"""The scheduler: before each step, it chooses which tokens of which sequences to compute.

Read in this order: sequence, policies, scheduler, stalling (lesson 09), preemption, swapping (10), shared_blocks (11).
The engine uses sequence, scheduler and preemption, and swapping if it has a swap space; swap_cost chooses between
swapping and recomputing (10). `measuring.simulator` runs a scheduler without a model.
"""

from lessons_lib.scheduling.policies import ShortestJobFirst, StrictPriority
from lessons_lib.scheduling.preemption import PreemptiveScheduler
from lessons_lib.scheduling.scheduler import SchedulerOutput, conservative, optimistic, share_budget
from lessons_lib.scheduling.sequence import FirstComeFirstServed, Sequence
from lessons_lib.scheduling.shared_blocks import CopyOnWriteScheduler, fork, take_cached
from lessons_lib.scheduling.stalling import Deadlock, Scheduler
from lessons_lib.scheduling.swapping import SwappingScheduler, always_swap, never_swap
