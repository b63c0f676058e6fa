"""A scheduler that finds the first blocks of a prompt on all floors."""

from dataclasses import dataclass

from lessons_lib.floors.floored_pool import FlooredPrefixCache
from lessons_lib.kv_cache.prefix_cache import PrefixCache
from lessons_lib.scheduling.preemption import PreemptiveScheduler
from lessons_lib.scheduling.scheduler import SchedulerOutput
from lessons_lib.scheduling.sequence import Sequence


@dataclass(eq=False, repr=False)
class FlooredScheduler(PreemptiveScheduler):
    """A PreemptiveScheduler over a pool with floors.

    It needs no swap space: a victim's full blocks stay cached, move down when they are overwritten, and are loaded when
    the victim is admitted again.
    """

    pool: FlooredPrefixCache

    def admit(self, scheduler_output: SchedulerOutput, sequence: Sequence) -> None:
        """See PreemptiveScheduler. Blocks that follow those in the pool are loaded from the floors below."""
        super().admit(scheduler_output, sequence)
        size, depth = self.pool.block_size, len(sequence.blocks)
        most = 0 if sequence.prompt_logits else (sequence.num_tokens - 1) // size
        if loaded := self.pool.load(self.hashes_of(sequence)[depth:most], depth):
            sequence.blocks = [*sequence.blocks, *loaded]
            sequence.num_computed_tokens = scheduler_output.cached[sequence] = len(sequence.blocks) * size
            self.cache_full_blocks(sequence, depth * size, sequence.num_computed_tokens)

    def is_loading(self, sequence: Sequence) -> bool:
        """True if blocks of a sequence are still being copied."""
        return self.pool.below.mover.is_loading(sequence.blocks)

    def schedule_running(self, scheduler_output: SchedulerOutput) -> None:
        """See PreemptiveScheduler. Sequences whose blocks are still being copied sit out while others compute."""
        loading = [sequence for sequence in self.running if self.is_loading(sequence)]
        if loading and len(loading) == len(self.running):
            self.pool.below.mover.wait()
            loading = []
        self.running = [sequence for sequence in self.running if sequence not in loading]
        super().schedule_running(scheduler_output)
        self.running += loading

    def allocate_slots(self, scheduler_output: SchedulerOutput, sequence: Sequence, count: int) -> None:
        """See PreemptiveScheduler. A sequence whose blocks are still being copied gets no token if others do."""
        if self.is_loading(sequence):
            if scheduler_output.num_scheduled_tokens:
                return
            self.pool.below.mover.wait()
        super().allocate_slots(scheduler_output, sequence, count)

    def release(self, sequence: Sequence) -> None:
        """See SchedulerBase. Blocks that are freed must not be written to by a copy any more."""
        if self.is_loading(sequence):
            self.pool.below.mover.wait()
        super().release(sequence)

    def cache_full_blocks(self, sequence: Sequence, start: int, end: int) -> None:
        """See PreemptiveScheduler."""
        first, last = start // self.pool.block_size, end // self.pool.block_size
        for depth, block in enumerate(sequence.blocks[first:last], first):
            self.pool.depths[block] = depth
        super().cache_full_blocks(sequence, start, end)

    def discard(self, sequence: Sequence) -> None:
        """See PreemptiveScheduler. The blocks are removed from all floors."""
        self.pool.below.forget(sequence.block_hashes)
        super().discard(sequence)

    def reset(self) -> None:
        """Drop all sequences, and forget the contents of the pool. Blocks on the floors are complete, so they stay."""
        self.running, self.leaving = [], []
        self.waiting.clear()
        PrefixCache.reset(self.pool)
        self.pool.below.mover.wait()
        self.pool.below.recover()
