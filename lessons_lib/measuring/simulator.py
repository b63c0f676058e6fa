"""Lesson 09: run a scheduler without a model: a step's duration is computed, and a simulated clock advances by it."""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from lessons_lib.measuring.arrivals import END_TOKEN, Arrival
from lessons_lib.scheduling.scheduler import SchedulerBase, SchedulerOutput


@dataclass(frozen=True)
class StepCost:
    """Duration of a step in seconds: a fixed part, a part per computed token, and a part per token attended to."""

    base: float
    per_token: float
    per_context_token: float

    def seconds(self, tokens: int, context_tokens: int) -> float:
        """Duration of a step that computes `tokens` and attends to `context_tokens`."""
        return self.base + self.per_token * tokens + self.per_context_token * context_tokens


@dataclass
class SequenceTimes:
    """Times of one sequence, in seconds from the start of the run, and the tokens of its completion.

    Attributes:
        admitted: start of its first step.
        first_token, finished: end of the steps that generated its first and last token.
    """

    arrival: float
    admitted: float = 0.0
    first_token: float = 0.0
    finished: float = 0.0
    answer_tokens: int = 0

    @property
    def queue_time(self) -> float:
        """Time from arrival to the first step."""
        return self.admitted - self.arrival

    @property
    def ttft(self) -> float:
        """Time to first token."""
        return self.first_token - self.arrival

    @property
    def tpot(self) -> float:
        """Time per output token after the first; 0 if there is only one."""
        return (self.finished - self.first_token) / (self.answer_tokens - 1) if self.answer_tokens > 1 else 0.0

    @property
    def latency(self) -> float:
        """Time from arrival to the last token."""
        return self.finished - self.arrival


@dataclass(frozen=True)
class SimulatedStep:
    """One recorded step.

    Attributes:
        start, seconds: start and duration on the simulated clock.
        prefill, decode: sequence id -> tokens computed in this step.
        waiting: ids of the sequences in the queue, the next one first.
        stalled: ids of the running sequences that got no block.
        free_blocks: free blocks once the step is scheduled.
    """

    start: float
    seconds: float
    prefill: dict[str, int]
    decode: dict[str, int]
    waiting: tuple[str, ...] = ()
    stalled: tuple[str, ...] = ()
    free_blocks: int = 0


@dataclass
class Simulation:
    """Result of a simulated run.

    Attributes:
        times: id -> times of each finished sequence.
        seconds: end of the last step.
        steps: the SimulatedSteps, if recorded.
    """

    times: dict[str, SequenceTimes] = field(default_factory=dict)
    seconds: float = 0.0
    num_steps: int = 0
    computed_tokens: int = 0
    steps: list[SimulatedStep] = field(default_factory=list)


def simulate(
    scheduler: SchedulerBase, requests: Iterable[Arrival], cost: StepCost, *, keep_steps: bool = False
) -> Simulation:
    """Serve requests on a simulated clock.

    Args:
        scheduler: the scheduler to run, without sequences.
        requests: in order of arrival.
        keep_steps: record each step.
    """
    run, coming = Simulation(), deque(requests)
    lengths: dict[str, int] = {}  # of the unfinished completions
    first_admissions: set[str] = set()
    times: dict[str, SequenceTimes] = {}
    (end_token,) = END_TOKEN
    while coming or scheduler.has_unfinished():
        if not scheduler.has_unfinished():  # idle: the clock advances to the next arrival
            run.seconds = max(run.seconds, coming[0].arrival_time)
        while coming and coming[0].arrival_time <= run.seconds:
            arrival = coming.popleft()
            lengths[arrival.id] = arrival.answer_tokens
            times[arrival.id] = SequenceTimes(arrival.arrival_time)
            scheduler.add(arrival.sequence())
        scheduler_output: SchedulerOutput = scheduler.schedule()
        for sequence in scheduler_output.admitted:
            if sequence.id not in first_admissions:  # a preempted sequence is admitted again
                first_admissions.add(sequence.id)
                times[sequence.id].admitted = run.seconds
        counts = scheduler_output.num_scheduled_tokens
        context = sum(sequence.num_computed_tokens for sequence in counts) + scheduler_output.num_tokens
        step_seconds = cost.seconds(scheduler_output.num_tokens, context)
        if keep_steps:
            run.steps.append(_step_of(scheduler_output, scheduler, run.seconds, step_seconds))
        run.seconds += step_seconds
        run.num_steps += 1
        run.computed_tokens += scheduler_output.num_tokens
        for sequence in counts:
            if not sequence.output_ids:  # in the middle of a prompt, a later step sets it again
                times[sequence.id].first_token = run.seconds
        tokens = [end_token if len(each.output_ids) + 1 == lengths[each.id] else 0 for each in counts]
        for sequence in scheduler.update(scheduler_output, tokens):
            times[sequence.id].finished = run.seconds
            times[sequence.id].answer_tokens = len(sequence.output_ids)
            del lengths[sequence.id]
    run.times = {id: own for id, own in times.items() if own.answer_tokens}
    return run


def _step_of(
    scheduler_output: SchedulerOutput, scheduler: SchedulerBase, clock: float, seconds: float
) -> SimulatedStep:
    prefill: dict[str, int] = {}
    decode: dict[str, int] = {}
    for sequence, count in scheduler_output.num_scheduled_tokens.items():
        is_decode = sequence.num_computed_tokens >= len(sequence.prompt_ids)
        (decode if is_decode else prefill)[sequence.id] = count
    waiting = tuple(sequence.id for sequence in scheduler.waiting)
    stalled = tuple(sequence.id for sequence in scheduler_output.stalled)
    return SimulatedStep(clock, seconds, prefill, decode, waiting, stalled, len(scheduler.pool.free_queue))


@dataclass(frozen=True)
class Spread:
    """Mean, 99th percentile and maximum of many values."""

    mean: float
    p99: float
    worst: float


def times_of(run: Simulation, what: str) -> list[float]:
    """A property of SequenceTimes, of each finished request, in seconds, in order of arrival."""
    return [getattr(times, what) for times in run.times.values()]


def spread(values: Iterable[float]) -> Spread:
    """Compute the Spread of one or more values."""
    array = np.asarray(list(values), dtype=float)
    return Spread(float(array.mean()), float(np.percentile(array, 99)), float(array.max()))
