"""Lesson 09: the scheduler without a model: the duration of a step is computed, and the clock advances by it."""

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from lessons_lib.scheduling.arrivals import END_TOKEN, Arrival
from lessons_lib.scheduling.scheduler import SchedulerBase, SchedulerOutput
from lessons_lib.scheduling.sequence import Sequence


@dataclass(frozen=True)
class StepCost:
    """Seconds of a step, as a linear function: a fixed part, a part per computed token, and a part per token attended
    to."""

    base: float
    per_token: float
    per_context_token: float

    def seconds(self, tokens: int, context_tokens: int) -> float:
        """Of a step that computes `tokens` and attends to `context_tokens`."""
        return self.base + self.per_token * tokens + self.per_context_token * context_tokens


def fit_cost(tokens: list[int], context_tokens: list[int], seconds: list[float]) -> StepCost:
    """The linear function that fits measured steps best, by least squares.

    Args:
        tokens, context_tokens, seconds: of each measured step, lists of the same length, 3 or more.

    """
    columns = np.stack([np.ones(len(tokens)), tokens, context_tokens], axis=1)
    base, per_token, per_context_token = np.linalg.lstsq(columns, np.asarray(seconds), rcond=None)[0]
    return StepCost(float(base), float(per_token), float(per_context_token))


@dataclass
class SequenceTimes:
    """When things happened to one sequence, in seconds from the start of the run.

    Attributes:
        arrival, admitted, first_token, finished: it arrived; its first step began; its first and its last token were
            generated.
        answer_tokens: tokens of its completion.
    """

    arrival: float
    admitted: float = 0.0
    first_token: float = 0.0
    finished: float = 0.0
    answer_tokens: int = 0

    @property
    def queue_time(self) -> float:
        """From arrival to its first step."""
        return self.admitted - self.arrival

    @property
    def ttft(self) -> float:
        """Time to first token."""
        return self.first_token - self.arrival

    @property
    def tpot(self) -> float:
        """Time per output token, after the first; 0 if there is only one."""
        return (self.finished - self.first_token) / (self.answer_tokens - 1) if self.answer_tokens > 1 else 0.0

    @property
    def latency(self) -> float:
        """From arrival to the last token."""
        return self.finished - self.arrival


@dataclass(frozen=True)
class SimulatedStep:
    """One step, to be drawn.

    Attributes:
        start, seconds: on the clock of the simulation.
        prefill, decode: sequence -> tokens computed in this step.
        waiting: sequences in the queue, the next one first.
        stalled: running sequences that got no block.
        free_blocks: after the step was scheduled.
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
    """The result of a simulated run.

    Attributes:
        times: sequence -> its times, for all that have finished.
        seconds: end of the last step.
        num_steps, computed_tokens: of the whole run.
        steps: one SimulatedStep each, if they are kept.
    """

    times: dict[str, SequenceTimes] = field(default_factory=dict)
    seconds: float = 0.0
    num_steps: int = 0
    computed_tokens: int = 0
    steps: list[SimulatedStep] = field(default_factory=list)


@dataclass
class SimulatedEngine:
    """A scheduler whose steps take simulated time.

    Attributes:
        scheduler: the one that would serve a real model; empty.
        clock: in seconds; the end of the last step.
        times: sequence -> its times, for all that have arrived.
        answer_lengths: sequence -> tokens of its completion, for those that have not finished.
    """

    scheduler: SchedulerBase
    cost: StepCost
    clock: float = 0.0
    times: dict[str, SequenceTimes] = field(default_factory=dict)
    answer_lengths: dict[str, int] = field(default_factory=dict)
    never_ran: set[str] = field(default_factory=set)

    def add(self, arrival: Arrival) -> None:
        """A request arrives. Without any other, nothing happened until then: the clock advances to it."""
        if not self.scheduler.has_unfinished():
            self.clock = max(self.clock, arrival.arrival_time)
        self.answer_lengths[arrival.id] = arrival.answer_tokens
        self.times[arrival.id] = SequenceTimes(arrival.arrival_time)
        self.never_ran.add(arrival.id)
        self.scheduler.add(arrival.sequence())

    def schedule(self) -> SchedulerOutput:
        """The first half of a step; raises as `Scheduler.schedule`."""
        scheduler_output: SchedulerOutput = self.scheduler.schedule()
        for sequence in scheduler_output.admitted:
            if sequence.id in self.never_ran:  # a preempted sequence is admitted again
                self.never_ran.remove(sequence.id)
                self.times[sequence.id].admitted = self.clock
        return scheduler_output

    def seconds(self, scheduler_output: SchedulerOutput) -> float:
        """Cost of a scheduled step."""
        context = sum([sequence.num_computed_tokens for sequence in scheduler_output.num_scheduled_tokens])
        return self.cost.seconds(scheduler_output.num_tokens, context + scheduler_output.num_tokens)

    def update(self, scheduler_output: SchedulerOutput) -> list[Sequence]:
        """The second half of a step: the clock advances, and each sequence gets its token. Returns the finished."""
        self.clock += self.seconds(scheduler_output)
        (end_token,) = END_TOKEN
        counts = scheduler_output.num_scheduled_tokens
        lengths = [len(sequence.output_ids) + 1 for sequence in counts]
        tokens = [
            end_token if length == self.answer_lengths[sequence.id] else 0 for sequence, length in zip(counts, lengths)
        ]
        finished = self.scheduler.update(scheduler_output, tokens)
        for sequence, length in zip(counts, lengths):
            if length == 1:  # in the middle of a prompt, a later step sets it again
                self.times[sequence.id].first_token = self.clock
        for sequence in finished:
            self.times[sequence.id].finished = self.clock
            self.times[sequence.id].answer_tokens = len(sequence.output_ids)
            del self.answer_lengths[sequence.id]
        return finished


def simulate(
    scheduler: SchedulerBase,
    requests: Iterable[Arrival],
    cost: StepCost,
    *,
    keep_steps: bool = False,
    until: float = float("inf"),
) -> Simulation:
    """Serve requests on a simulated clock.

    Args:
        scheduler: the one that would serve a real model; empty.
        requests: in the order of arrival.
        keep_steps: record what every step did.
        until: no step begins at this time or later, in seconds.
    """
    run, engine = Simulation(), SimulatedEngine(scheduler, cost)
    arrivals = iter(requests)
    coming = next(arrivals, None)
    while (coming or scheduler.has_unfinished()) and engine.clock < until:
        if coming and not scheduler.has_unfinished() and coming.arrival_time >= until:
            break
        while coming and (coming.arrival_time <= engine.clock or not scheduler.has_unfinished()):
            engine.add(coming)
            coming = next(arrivals, None)
        scheduler_output = engine.schedule()
        if keep_steps:
            run.steps.append(_step_of(scheduler_output, scheduler, engine.clock, engine.seconds(scheduler_output)))
        run.num_steps += 1
        run.computed_tokens += scheduler_output.num_tokens
        engine.update(scheduler_output)
    run.seconds = engine.clock
    run.times = {name: times for name, times in engine.times.items() if times.answer_tokens}
    return run


def _step_of(
    scheduler_output: SchedulerOutput, scheduler: SchedulerBase, clock: float, seconds: float
) -> SimulatedStep:
    is_decode = {
        sequence: sequence.num_computed_tokens >= len(sequence.prompt_ids)
        for sequence in scheduler_output.num_scheduled_tokens
    }
    return SimulatedStep(
        start=clock,
        seconds=seconds,
        prefill={
            sequence.id: count
            for sequence, count in scheduler_output.num_scheduled_tokens.items()
            if not is_decode[sequence]
        },
        decode={
            sequence.id: count
            for sequence, count in scheduler_output.num_scheduled_tokens.items()
            if is_decode[sequence]
        },
        waiting=tuple(sequence.id for sequence in scheduler.waiting),
        stalled=tuple(sequence.id for sequence in scheduler_output.stalled),
        free_blocks=len(scheduler.pool.free_queue),
    )


def simulate_static(requests: Iterable[Arrival], cost: StepCost, batch_size: int) -> Simulation:
    """The static batching of lesson 01 on the same clock: the requests that have arrived form a wave, which ends
    together.

    Raises:
        ValueError: `batch_size` is below 1.
    """
    if batch_size < 1:
        raise ValueError(f"batch_size is {batch_size}; a wave needs room for 1 request or more.")
    run = Simulation()
    clock, requests, served = 0.0, list(requests), 0
    while served < len(requests):
        clock = max(clock, requests[served].arrival_time)
        wave = [request for request in requests[served : served + batch_size] if request.arrival_time <= clock]
        served += len(wave)
        start, width = clock, max(request.prompt_tokens for request in wave)
        clock += cost.seconds(len(wave) * width, len(wave) * width)
        times = {
            request.id: SequenceTimes(request.arrival_time, start, clock, answer_tokens=request.answer_tokens)
            for request in wave
        }
        longest = max(request.answer_tokens for request in wave)
        for _ in range(longest - 1):
            width += 1
            clock += cost.seconds(len(wave), len(wave) * width)
        for own in times.values():
            own.finished = clock  # completions are returned, and batch slots freed, when the wave has finished
        run.times |= times
        run.num_steps += longest
        run.computed_tokens += len(wave) * width
    run.seconds = clock
    return run
