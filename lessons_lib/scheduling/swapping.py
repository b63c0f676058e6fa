"""Lesson 10: a scheduler that can copy a victim's cache to CPU memory, and back when the victim is admitted again."""

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass

from lessons_lib.kv_cache.block_copies import SWAP_IN, SWAP_OUT, BlockCopy
from lessons_lib.kv_cache.block_pool import BlockPool, blocks_for
from lessons_lib.scheduling.preemption import PreemptiveScheduler
from lessons_lib.scheduling.scheduler import SchedulerOutput
from lessons_lib.scheduling.sequence import Sequence


def never_swap(scheduler: "SwappingScheduler", victim: Sequence) -> bool:
    """Drop the victim's cache and recompute it later."""
    return False


def always_swap(scheduler: "SwappingScheduler", victim: Sequence) -> bool:
    """Copy the victim's cache to the swap space, if there is room."""
    return True


@dataclass(eq=False, repr=False)
class SwappingScheduler(PreemptiveScheduler):
    """A PreemptiveScheduler that can keep a victim's cache, in the swap space.

    Attributes:
        swap_space: blocks in CPU memory; by default, an empty pool.
        should_swap: function (scheduler, victim) -> True to swap its cache out, False to drop it.
    """

    _: KW_ONLY
    swap_space: BlockPool = None  # type: ignore[assignment]  # an empty pool after __post_init__
    should_swap: Callable[["SwappingScheduler", Sequence], bool] = always_swap

    def __post_init__(self) -> None:
        swap_space = self.swap_space
        super().__post_init__()
        self.swap_space = swap_space or self.swap_space

    def preempt(self, scheduler_output: SchedulerOutput, victim: Sequence) -> None:
        """Preempt a victim: swap its cache out or drop it; see `preempt_sequence`."""
        if self.should_swap(self, victim):
            self.swap_out(scheduler_output, victim)
        super().preempt(scheduler_output, victim)

    def swap_out(self, scheduler_output: SchedulerOutput, victim: Sequence) -> None:
        """Copy the filled blocks of a victim to the swap space, if it has room."""
        filled = victim.blocks[: blocks_for(victim.num_computed_tokens, self.pool.block_size)]
        if 0 < len(filled) <= len(self.swap_space.free_queue):
            victim.swapped = self.swap_space.allocate(len(filled))
            scheduler_output.block_copies += [BlockCopy(SWAP_OUT, *pair) for pair in zip(filled, victim.swapped)]
            self.num_swapped += 1

    def admit(self, scheduler_output: SchedulerOutput, sequence: Sequence) -> None:
        """Assign a batch slot to a waiting sequence. If it is swapped out, copy its blocks back."""
        if sequence.swapped:
            sequence.blocks = self.pool.allocate(len(sequence.swapped))  # if this raises, nothing has changed
            pairs = zip(sequence.swapped, sequence.blocks)
            scheduler_output.block_copies += [BlockCopy(SWAP_IN, *pair) for pair in pairs]
            self.swap_space.free(sequence.swapped)
            sequence.swapped = []
        super().admit(scheduler_output, sequence)

    def cached_blocks(self, sequence: Sequence) -> list[int]:
        """See PreemptiveScheduler. A swapped-out sequence gets its tokens from the swap space."""
        return [] if sequence.swapped else super().cached_blocks(sequence)

    def release(self, sequence: Sequence) -> None:
        """Free all blocks of a sequence, also in the swap space."""
        super().release(sequence)
        self.swap_space.free(sequence.swapped)
        sequence.swapped = []

    def reset(self) -> None:
        """Drop all sequences, and free all blocks of the pool and the swap space."""
        super().reset()
        self.swap_space.reset()
