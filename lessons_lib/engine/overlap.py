"""Lesson 13: the next step is planned and started while this one runs, so that the GPU never waits for the scheduler.

Which token a sequence gets is not needed to plan its next step; that it gets one is enough. So a place is kept for the token, the next step
is started, and the token is written down when it arrives. Only then can anybody see that it was a stop token. Such a sequence has computed
one token too many by then, which is thrown away.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from lessons_lib.scheduling.scheduler import Scheduler, SchedulerOutput
from lessons_lib.scheduling.sequence import Sequence


@dataclass
class StartedStep:
    """A step whose tokens have not arrived.

    Attributes:
        plan: what it computes.
        pending: has `tokens()`, which waits for them.
        gets_token: for each sequence of the plan, whether a token is under way to it; filled in when it is counted ahead.
    """

    scheduler_output: SchedulerOutput
    pending: object
    gets_token: list[bool] = field(default_factory=list, init=False)


class CountedAhead:
    """Lets the sequences of a scheduler look as they will after a step whose tokens have not arrived.

    Attributes:
        scheduler: Scheduler or PreemptiveScheduler. Between two steps, an answer may end in a token that nobody knows yet: -1 - i, where i is
            the place of its sequence in the step that is under way. It goes into the next row as it is; see RowInputs.
        leaving: sequences whose last token is under way. They hold their blocks until it arrives.
    """

    def __init__(self, scheduler: Scheduler):
        self.scheduler = scheduler
        self.leaving: list[Sequence] = []

    def may_lack_blocks(self) -> bool:
        """Whether the next step may have to preempt somebody: who is preempted must have all tokens known, for they are computed again."""
        scheduler = self.scheduler
        size, running = scheduler.pool.block_size, len(scheduler.running)
        # A block begun for each sequence, one copied for each before it is written, and those that the tokens of the step fill.
        return 2 * running + scheduler.max_num_batched_tokens // size > len(scheduler.pool.free_queue)

    def count_ahead(self, step: StartedStep) -> None:
        """Let the sequences look as they will after the step: its tokens computed, and one more there, though nobody knows which."""
        for place, (sequence, count) in enumerate(step.scheduler_output.num_scheduled_tokens.items()):
            output, computed = sequence.output_ids, sequence.num_computed_tokens + count
            gets_token = computed == len(sequence.prompt_ids) + len(output)
            step.gets_token.append(gets_token)
            if sequence.finish_reason:
                continue
            sequence.num_computed_tokens = computed
            if gets_token:
                if len(output) + 1 < sequence.max_new_tokens:
                    output.append(-1 - place)
                else:
                    self.scheduler.running.remove(sequence)
                    self.leaving.append(sequence)

    def put_in_place(self, step: StartedStep, tokens: list[int]) -> list[Sequence]:
        """What `Scheduler.update` does, for a step that was counted ahead.

        Returns:
            the sequences that have finished. Their blocks are free again.
        """
        finished, block_size = [], self.scheduler.pool.block_size
        for (sequence, count), token, gets_token in zip(
            step.scheduler_output.num_scheduled_tokens.items(), tokens, step.gets_token
        ):
            if sequence.finish_reason:  # it had ended by the step before, or was aborted
                continue
            if gets_token:
                output = sequence.output_ids
                if token not in sequence.stop_token_ids and output and output[-1] < 0:
                    output[-1] = token  # a place was kept for it, so it goes on
                else:
                    forget_unknown(sequence)
                    sequence.append_token(token)
                    finished.append(sequence)
            if sequence.num_computed_tokens % block_size < count:
                # A block is full. It is named after its tokens, and so the scheduler could not count them before they were known.
                sequence.num_computed_tokens -= count
                self.scheduler.computed(sequence, count)
        for sequence in finished:
            self.remove(sequence)
        return finished

    def remove(self, sequence: Sequence) -> None:
        """Take a sequence out, wherever it is, and free its blocks. To abort it, also give it a `finish_reason`."""
        self.forget(sequence)
        self.scheduler.remove(sequence)

    def forget(self, sequence: Sequence) -> None:
        """Nobody waits any more for what is under way to a sequence: the scheduler may take it out."""
        forget_unknown(sequence)
        if sequence in self.leaving:
            self.leaving.remove(sequence)
            self.scheduler.running.append(sequence)


def forget_unknown(sequence: Sequence) -> None:
    """Take away what stands for a token that has not arrived, if there is one."""
    output = sequence.output_ids
    if output and output[-1] < 0:
        output.pop()


class OverlappedSteps(CountedAhead):
    """Drives a scheduler and a runner, with at most one step under way while another is planned.

    Attributes:
        runner: has `start(scheduler_output) -> pending`, which returns at once.
        move: function (plan), called before a step is started: see `block_moves.copy_blocks`.
        started: the StartedStep whose tokens have not been written down, or None.
    """

    def __init__(
        self, scheduler: Scheduler, runner, move: Callable[[SchedulerOutput], None] = lambda scheduler_output: None
    ):
        super().__init__(scheduler)
        self.runner, self.move = runner, move
        self.started: StartedStep | None = None

    def has_unfinished(self) -> bool:
        return self.started is not None or self.scheduler.has_unfinished()

    def step(self) -> list[Sequence]:
        """Start the next step, then write down the tokens of the one before.

        Returns:
            the sequences that have finished. Their blocks are free again; what is still under way to them is overtaken by whoever writes there
            next, since the GPU does everything in the order in which it was started.
        """
        finished = self.finish_started() if self.may_lack_blocks() else []
        before, self.started = self.started, self.start_next()
        if before:
            finished += self.write_down(before)
        if self.started:
            self.count_ahead(self.started)
        return finished

    def finish_started(self) -> list[Sequence]:
        """Wait for the step that is under way, if there is one. Afterwards all tokens are known: this comes before a fork, for example."""
        before, self.started = self.started, None
        return self.write_down(before) if before else []

    def start_next(self) -> StartedStep | None:
        scheduler_output = self.scheduler.schedule()
        if self.started and getattr(scheduler_output, "preempted", None):
            names = [sequence.id for sequence in scheduler_output.preempted]
            raise RuntimeError(
                f"{names} were preempted while tokens were under way to them; admission must not take blocks from those who run."
            )
        self.move(scheduler_output)
        return (
            StartedStep(scheduler_output, self.runner.start(scheduler_output))
            if scheduler_output.num_scheduled_tokens
            else None
        )

    def write_down(self, step: StartedStep) -> list[Sequence]:
        """Wait for the tokens of a step, and put them in their places. Returns the sequences that have finished."""
        return self.put_in_place(step, step.pending.tokens())


def serve_overlapped(
    runner, scheduler: Scheduler, sequences: list[Sequence], move=lambda scheduler_output: None
) -> list[list[int]]:
    """Answer all sequences; see `model_runner.serve_greedily`."""
    for sequence in sequences:
        scheduler.add(sequence)
    steps = OverlappedSteps(scheduler, runner, move)
    while steps.has_unfinished():
        steps.step()
    return [sequence.output_ids for sequence in sequences]
