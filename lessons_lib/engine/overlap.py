"""Lesson 13: the next step is scheduled and launched while this one runs, so that the GPU never waits for the
scheduler.

Scheduling a sequence's next step doesn't take its new token, only the fact that there will be one. So the sequence gets
a placeholder, the next step is launched, and then the token arrives and replaces the placeholder. Only now can the host
see that it was a stop token. By then the sequence has computed one token too many, which is thrown away.
"""

from collections.abc import Callable
from typing import Any

from lessons_lib.engine.in_flight import InFlightStep
from lessons_lib.engine.model_runner import ModelRunner
from lessons_lib.scheduling.scheduler import Scheduler, SchedulerOutput
from lessons_lib.scheduling.sequence import Sequence

CopyBlocks = Callable[[Any], None]


def overlapped_step(loop: "OverlappedSteps") -> "list[Sequence]":
    """One turn of a loop whose device never waits for the CPU, unless blocks may run out.

    Returns:
        the sequences that have finished.
    """
    # A preempted sequence is computed again from its tokens, so all of them must be known.
    finished = loop.finish_in_flight() if loop.may_lack_blocks() else []
    # The device gets its next step before the CPU turns to the results of the last one.
    launched = loop.launch()
    previous, loop.in_flight = loop.in_flight, launched
    if previous:
        finished += loop.process_results(previous)
    if launched:
        loop.append_placeholders(launched)
    return finished


class OverlappedSteps:
    """Drives a scheduler and a runner with at most one step in flight while the next one is scheduled.

    Attributes:
        scheduler: a Scheduler or PreemptiveScheduler.
        runner: has `launch(scheduler_output)`, which returns at once.
        copy_blocks: function (scheduler_output): carries out its block copies before the step is launched; None if
            there are none.
        in_flight: the InFlightStep whose results haven't been processed, or None.
        leaving: sequences whose last token is in flight. They don't run any more, and keep their blocks until it
            arrives.
    """

    def __init__(self, scheduler: Scheduler[Any], runner: ModelRunner, copy_blocks: CopyBlocks | None = None):
        self.scheduler, self.runner, self.copy_blocks = scheduler, runner, copy_blocks
        self.in_flight: InFlightStep | None = None
        self.leaving: list[Sequence] = []

    def has_unfinished(self) -> bool:
        """Whether a step would do anything."""
        return self.in_flight is not None or self.scheduler.has_unfinished()

    def step(self) -> list[Sequence]:
        """See `overlapped_step`.

        Returns:
            the sequences that have finished. Their blocks are free again. A step in flight may still write to them, but
            the GPU executes launches in order, so anything that the next owner writes comes later.
        """
        return overlapped_step(self)

    def reset(self) -> None:
        """Forget the step in flight."""
        self.in_flight = None
        self.leaving = []

    def launch(self) -> InFlightStep | None:
        """Schedule a step and start it. None if there is nothing to compute.

        Raises:
            RuntimeError: a sequence with a token in flight was preempted. It can't be recomputed without that token.
        """
        scheduler_output = self.scheduler.schedule()
        if preempted := self.preempted_in_flight(scheduler_output):
            raise RuntimeError(
                f"{[sequence.id for sequence in preempted]} were preempted with tokens in flight; "
                "admission must not take blocks from running sequences."
            )
        if self.copy_blocks:
            self.copy_blocks(scheduler_output)
        if not scheduler_output.num_scheduled_tokens:
            return None
        return InFlightStep(scheduler_output, self.runner.launch(scheduler_output))

    def process_results(self, step: InFlightStep) -> list[Sequence]:
        """Wait for the tokens of a step. Returns the sequences that have finished."""
        return self.fill_placeholders(step, step.tokens.wait())

    def finish_in_flight(self) -> list[Sequence]:
        """Process the results of the step in flight, if there is one. Afterwards all tokens are known."""
        previous, self.in_flight = self.in_flight, None
        return self.process_results(previous) if previous else []

    def may_lack_blocks(self) -> bool:
        """Whether the next step may have to preempt a sequence: all its tokens must be known then, since they are
        computed again."""
        scheduler = self.scheduler
        size, running = scheduler.pool.block_size, len(scheduler.running)
        # For each sequence a new block and a copy of one, and the blocks that the tokens of the step fill.
        return 2 * running + scheduler.max_num_batched_tokens // size > len(scheduler.pool.free_queue)

    def preempted_in_flight(self, scheduler_output: SchedulerOutput) -> list[Sequence]:
        """Sequences of the step in flight that were preempted."""
        preempted: list[Sequence] = getattr(scheduler_output, "preempted", [])
        if not preempted or not self.in_flight:
            return []
        in_flight = self.in_flight.scheduler_output.num_scheduled_tokens
        return [sequence for sequence in preempted if sequence in in_flight]

    def append_placeholders(self, step: InFlightStep) -> None:
        """Let the sequences look as they will after the step: its tokens computed, and a placeholder for each new
        token."""
        for (sequence, count), gets_token in zip(step.scheduler_output.num_scheduled_tokens.items(), step.gets_token):
            if sequence.finish_reason:
                continue
            sequence.num_computed_tokens += count
            if gets_token:
                if len(sequence.output_ids) + 1 < sequence.max_new_tokens:
                    sequence.num_placeholders = 1
                else:
                    self.scheduler.running.remove(sequence)
                    self.leaving.append(sequence)

    def fill_placeholders(self, step: InFlightStep, tokens: list[int]) -> list[Sequence]:
        """What `Scheduler.update` does, for a step whose sequences have placeholders.

        Returns:
            the sequences that have finished. Their blocks are free again.
        """
        finished, block_size = [], self.scheduler.pool.block_size
        scheduled = step.scheduler_output.num_scheduled_tokens.items()
        for (sequence, count), token, gets_token in zip(scheduled, tokens, step.gets_token):
            if sequence.finish_reason:  # it had finished by the step before, or was aborted
                continue
            if gets_token:
                goes_on = sequence.num_placeholders and token not in sequence.stop_token_ids
                sequence.num_placeholders = 0
                if goes_on:
                    sequence.output_ids.append(token)
                else:  # a stop token, or the last one that `max_new_tokens` allows
                    sequence.append_token(token)
                    finished.append(sequence)
            if sequence.num_computed_tokens % block_size < count:
                # A block is full. Its hash needs its tokens, so the scheduler could not count them before they were
                # known.
                sequence.num_computed_tokens -= count
                self.scheduler.computed(sequence, count)
        for sequence in finished:
            self.remove(sequence)
        return finished

    def remove(self, sequence: Sequence) -> None:
        """Take a sequence out, wherever it is, and free its blocks. To abort it, also set its `finish_reason`."""
        self.forget(sequence)
        self.scheduler.remove(sequence)

    def forget(self, sequence: Sequence) -> None:
        """Drop the token that is in flight for a sequence, so that the scheduler can take the sequence out."""
        sequence.num_placeholders = 0
        if sequence in self.leaving:
            self.leaving.remove(sequence)
            self.scheduler.running.append(sequence)


def serve_overlapped(
    runner: ModelRunner, scheduler: Scheduler[Any], sequences: list[Sequence], copy_blocks: CopyBlocks | None = None
) -> list[list[int]]:
    """Generate the completions of all sequences; see `model_runner.serve_greedily`.

    Args:
        runner: a GPUModelRunner.
        copy_blocks: see OverlappedSteps.
    """
    for sequence in sequences:
        scheduler.add(sequence)
    steps = OverlappedSteps(scheduler, runner, copy_blocks)
    while steps.has_unfinished():
        steps.step()
    return [sequence.output_ids for sequence in sequences]
