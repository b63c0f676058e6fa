"""Lesson 09: a scheduler in which a sequence that needs a block waits for a free one and keeps its other blocks."""

from lessons_lib.kv_cache.block_pool import blocks_for
from lessons_lib.scheduling.scheduler import SchedulerBase, SchedulerOutput
from lessons_lib.scheduling.sequence import Sequence


class Deadlock(RuntimeError):
    """Every running sequence needs a block, no block is free, and none will ever be."""


class Scheduler(SchedulerBase):
    """Schedules each step within a budget of tokens, sequences and blocks."""

    def schedule(self) -> SchedulerOutput:
        """Schedule the next step: first the running sequences, then, with the rest of the budget, the waiting ones. The
        scheduled sequences have blocks for their new tokens.

        A sequence that can't be admitted keeps all behind it waiting, or small ones would overtake a large one forever.
        While a sequence stalls, none is admitted.

        Raises:
            Deadlock: no running sequence can get a block.
        """
        scheduler_output = SchedulerOutput()
        self.schedule_running(scheduler_output)
        self.schedule_waiting(scheduler_output)
        if self.running and not scheduler_output.num_scheduled_tokens:
            raise Deadlock(
                f"all {len(self.running)} running sequences need a block, and none of {self.pool.num_blocks} is free. "
                "Admit more carefully, or preempt one of them (lesson 10)."
            )
        return scheduler_output

    def schedule_running(self, scheduler_output: SchedulerOutput) -> None:
        for sequence, count in self.share_budget(self.running, self.max_num_batched_tokens).items():
            self.allocate_slots(scheduler_output, sequence, count)

    def schedule_waiting(self, scheduler_output: SchedulerOutput) -> None:
        # Admitting new requests now would take the blocks that stalled sequences are waiting for.
        while self.waiting and not scheduler_output.stalled and len(self.running) < self.max_num_seqs:
            budget = self.max_num_batched_tokens - scheduler_output.num_tokens
            sequence = self.waiting.next(self.running)
            if not budget or not self.admission(self, sequence):
                break
            self.admit(scheduler_output, sequence)
            wanted = sequence.num_tokens - sequence.num_computed_tokens
            self.allocate_slots(scheduler_output, sequence, min(wanted, budget))

    def allocate_slots(self, scheduler_output: SchedulerOutput, sequence: Sequence, count: int) -> None:
        """Schedule `count` tokens of a sequence if there are blocks for their cache slots; otherwise it stalls."""
        missing = blocks_for(sequence.num_computed_tokens + count, self.pool.block_size) - len(sequence.blocks)
        if missing > len(self.pool.free_queue):
            scheduler_output.stalled.append(sequence)
            return
        if missing > 0:
            sequence.blocks += self.pool.allocate(missing)
        scheduler_output.num_scheduled_tokens[sequence] = count
