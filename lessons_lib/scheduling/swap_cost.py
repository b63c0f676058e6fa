"""Lesson 10: what it costs to bring a victim back, by swapping its cache out and in, or by recomputing it."""

from dataclasses import dataclass
from typing import Any

from lessons_lib.kv_cache.block_pool import blocks_for
from lessons_lib.scheduling.scheduler import Scheduler
from lessons_lib.scheduling.sequence import Sequence
from lessons_lib.scheduling.simulator import StepCost


@dataclass(frozen=True)
class PreemptionCost:
    """What swapping and recomputing cost on one machine.

    Attributes:
        step: how long a step takes.
        block_bytes: bytes of one block, keys and values of all layers.
        bandwidth: bytes per second between the two memories.
        per_copy: seconds that each block copy takes on top of its bytes.

    Raises:
        ValueError: the bandwidth is not above 0, or another value is negative.
    """

    step: StepCost
    block_bytes: int
    bandwidth: float
    per_copy: float = 0.0

    def __post_init__(self) -> None:
        if self.bandwidth <= 0 or self.block_bytes < 0 or self.per_copy < 0:
            raise ValueError(
                f"bandwidth is {self.bandwidth}, block_bytes {self.block_bytes} and per_copy {self.per_copy}; the "
                "bandwidth must be above 0, "
                "the others 0 or more."
            )

    def copy_seconds(self, num_block_copies: int) -> float:
        """Seconds for this many block copies, in either direction."""
        return num_block_copies * (self.per_copy + self.block_bytes / self.bandwidth)

    def swap_seconds(self, num_blocks: int) -> float:
        """Seconds to copy this many blocks out and back in."""
        return self.copy_seconds(2 * num_blocks)

    def recompute_seconds(self, num_tokens: int) -> float:
        """Seconds that this many tokens add to a step. The step runs anyway, so its fixed part isn't counted."""
        return self.step.seconds(num_tokens, num_tokens) - self.step.base

    def cheaper(self, scheduler: Scheduler[Any], victim: Sequence) -> bool:
        """Whether swapping is cheaper than recomputing. Can be passed to a PreemptiveScheduler as `should_swap`."""
        tokens = victim.num_computed_tokens
        return self.swap_seconds(blocks_for(tokens, scheduler.pool.block_size)) < self.recompute_seconds(tokens)
