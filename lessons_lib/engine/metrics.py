"""Lesson 12: what an engine records about itself while it serves, as plain data."""

import time
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Callable
from copy import copy
from dataclasses import asdict, dataclass, field
from math import isfinite
from typing import Any

from lessons_lib.engine.request import Request
from lessons_lib.scheduling.preemption import PreemptiveScheduler
from lessons_lib.scheduling.scheduler import SchedulerOutput

# Upper bounds in seconds, each about twice the previous one.
BOUNDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0)


class StopWatch:
    """How long each part of a step takes.

    Attributes:
        start: when it began, on the given clock.
        laps: part -> seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter):
        self._clock = clock
        self.start = self._last = clock()
        self.laps: dict[str, float] = {}

    def go_on(self) -> None:
        """Restart the lap timer: the time since the last lap belongs to something else."""
        self._last = self._clock()

    def lap(self, part: str) -> None:
        """Count the time since the last lap as this part."""
        now = self._clock()
        self.laps[part] = self.laps.get(part, 0.0) + max(0.0, now - self._last)  # some clocks are set back
        self._last = now


@dataclass
class Histogram:
    """How many values fell between each two bounds: a distribution in constant memory.

    Attributes:
        counts: values up to each of BOUNDS, and one more count for those above all.
        total: sum of the values.
    """

    counts: list[int] = field(default_factory=lambda: [0] * (len(BOUNDS) + 1))
    total: float = 0.0

    def add(self, value: float) -> None:
        value = max(0.0, value)  # the clock may have been set back
        self.counts[bisect_left(BOUNDS, value)] += 1
        self.total += value

    def add_all(self, values: list[float]) -> None:
        """Add many values, most of which are equal."""
        for value, times in Counter(values).items():
            value = max(0.0, value)
            self.counts[bisect_left(BOUNDS, value)] += times
            self.total += value * times

    @property
    def count(self) -> int:
        return sum(self.counts)

    @property
    def mean(self) -> float:
        return self.total / self.count if self.count else 0.0

    def quantile(self, share: float) -> float:
        """The bound that at least `share` (0 to 1) of the values do not exceed; infinity if they are above all
        bounds."""
        seen = 0
        for bound, count in zip((*BOUNDS, float("inf")), self.counts):
            seen += count
            if seen and seen >= share * self.count:
                return bound
        return 0.0


@dataclass(frozen=True)
class EngineStep:
    """One step.

    Attributes:
        start: seconds on the engine's clock.
        seconds: part of the step -> how long it took: "schedule", "move", "forward", "sample", "update".
        tokens, prefill_tokens: computed in all, and of those, tokens before the last one of their sequence.
        new_tokens: generated.
        running, waiting: sequences after the step was scheduled.
        used_blocks, named_blocks: blocks in use, and blocks that can be found by their hash.
        preempted: sequences that were preempted.
        cached_tokens: tokens of admitted sequences that were in the cache already.
    """

    start: float
    seconds: dict[str, float]
    tokens: int
    prefill_tokens: int
    new_tokens: int
    running: int
    waiting: int
    used_blocks: int
    named_blocks: int
    preempted: int
    cached_tokens: int

    @property
    def total_seconds(self) -> float:
        """Of all parts."""
        return sum(self.seconds.values())


@dataclass(frozen=True)
class EngineGauges:
    """What an engine is doing at one moment.

    Attributes:
        running, waiting, swapped: sequences in a batch slot, sequences without one, and how many of those are in the
            swap space.
        used_blocks, named_blocks, num_blocks: blocks in use, blocks that can be found by their hash, and all blocks.
    """

    running: int
    waiting: int
    swapped: int
    used_blocks: int
    named_blocks: int
    num_blocks: int

    @property
    def free_blocks(self) -> int:
        """Blocks that can be allocated."""
        return self.num_blocks - self.used_blocks

    @property
    def kv_cache_usage_perc(self) -> float:
        """Share of the blocks in use, 0 to 1."""
        return self.used_blocks / self.num_blocks if self.num_blocks else 0.0


@dataclass
class EngineMetrics:
    """Sums over the lifetime of an engine, and its last steps.

    Attributes:
        max_num_seqs, max_num_batched_tokens, num_blocks: the engine's limits, which utilization is relative to.
        requests: finish reason -> how many requests ended with it: "stop", "length", "abort", "error".
        steps, busy_seconds: how many steps, and how long they took together.
        tokens, prefill_tokens, new_tokens, cached_tokens, preemptions: sums of what EngineStep has.
        prompt_tokens: of the prompts that are computed, each counted once, with what was in the cache.
        part_seconds: part of a step -> its sum.
        queue_time, ttft, tpot, itl, latency: histograms in seconds: from arrival to the first step; to the first token;
            between two tokens, averaged over a completion, and each gap on its own; from arrival to the end.
        recent: the last steps.
    """

    max_num_seqs: int
    max_num_batched_tokens: int
    num_blocks: int
    requests: dict[str, int] = field(default_factory=dict)
    steps: int = 0
    busy_seconds: float = 0.0
    tokens: int = 0
    prefill_tokens: int = 0
    new_tokens: int = 0
    cached_tokens: int = 0
    preemptions: int = 0
    prompt_tokens: int = 0
    part_seconds: dict[str, float] = field(default_factory=dict)
    queue_time: Histogram = field(default_factory=Histogram)
    ttft: Histogram = field(default_factory=Histogram)
    tpot: Histogram = field(default_factory=Histogram)
    itl: Histogram = field(default_factory=Histogram)
    latency: Histogram = field(default_factory=Histogram)
    recent: deque[EngineStep] = field(default_factory=lambda: deque(maxlen=1000))
    _batch_slots_used: int = 0
    _blocks_used: int = 0

    def add_step(self, step: EngineStep) -> None:
        """Add a step to the sums."""
        self.recent.append(step)
        self.steps += 1
        self.busy_seconds += step.total_seconds
        self.tokens += step.tokens
        self.prefill_tokens += step.prefill_tokens
        self.new_tokens += step.new_tokens
        self.cached_tokens += step.cached_tokens
        self.preemptions += step.preempted
        self._batch_slots_used += step.running
        self._blocks_used += step.used_blocks
        for part, seconds in step.seconds.items():
            self.part_seconds[part] = self.part_seconds.get(part, 0.0) + seconds

    def add_output(
        self, output: SchedulerOutput, watch: StopWatch, new_tokens: int, scheduler: PreemptiveScheduler
    ) -> None:
        """Add a step whose tokens have been processed.

        Args:
            new_tokens: generated by it.
        """
        pool = scheduler.pool
        step = EngineStep(
            start=watch.start, seconds=watch.laps, new_tokens=new_tokens,
            tokens=output.num_tokens, prefill_tokens=output.num_tokens - sum(output.gets_token),
            running=len(output.num_scheduled_tokens), waiting=len(scheduler.waiting),
            used_blocks=len(pool.used), named_blocks=len(pool.block_to_hash),
            preempted=len(output.preempted), cached_tokens=sum(output.cached.values()),
        )  # fmt: skip
        self.add_step(step)

    def add_admitted(self, admitted: list[Any], cached: dict[Any, int], now: float) -> None:
        """Count the time that requests have waited, and the tokens that each has found in the cache.

        Args:
            admitted: a Request each.
            cached: see SchedulerOutput.
        """
        for request in admitted:
            if request.group.num_cached_tokens is None:  # a preempted sequence is admitted once more
                request.group.num_cached_tokens = cached.get(request, 0)
                self.queue_time.add(now - request.group.arrival)

    def add_new_tokens(self, requests: list[Request], now: float) -> None:
        """Each of these requests has a new token."""
        gaps = []
        for request in requests:
            if request.last_token_time is None:
                request.first_token_time = now
                self.ttft.add(now - request.group.arrival)
                if request.index == 0:
                    self.prompt_tokens += len(request.prompt_ids)
            else:
                gaps.append(now - request.last_token_time)
            request.last_token_time = now
        self.itl.add_all(gaps)

    def add_completion(self, request: Request) -> None:
        """A completion has its last token."""
        first, last, count = request.first_token_time, request.last_token_time, len(request.output_ids)
        if first is not None and last is not None and count > 1:
            self.tpot.add((last - first) / (count - 1))

    def add_request(self, reason: str, latency: float) -> None:
        """A request has ended. Its latency in seconds counts only if it was completed."""
        self.requests[reason] = self.requests.get(reason, 0) + 1
        if reason in ("stop", "length"):
            self.latency.add(latency)

    @property
    def throughput(self) -> float:
        """New tokens per second of the time in which there was work."""
        return self.new_tokens / self.busy_seconds if self.busy_seconds else 0.0

    @property
    def own_share(self) -> float:
        """Share of the time outside the model: scheduling, sampling, bookkeeping; 0 to 1."""
        return 1 - self.part_seconds.get("forward", 0.0) / self.busy_seconds if self.busy_seconds else 0.0

    @property
    def slot_utilization(self) -> float:
        """Share of the batch slots in use, averaged over the steps."""
        return self._batch_slots_used / (self.steps * self.max_num_seqs) if self.steps else 0.0

    @property
    def token_utilization(self) -> float:
        """Share of the token budget in use, averaged over the steps."""
        return self.tokens / (self.steps * self.max_num_batched_tokens) if self.steps else 0.0

    @property
    def block_utilization(self) -> float:
        """Share of the blocks in use, averaged over the steps."""
        return self._blocks_used / (self.steps * self.num_blocks) if self.steps else 0.0

    @property
    def prefix_hit_rate(self) -> float:
        """Share of the prefill tokens that were found in the cache; 0 to 1."""
        asked = self.cached_tokens + self.prefill_tokens
        return self.cached_tokens / asked if asked else 0.0

    def snapshot(self) -> dict[str, Any]:
        """Everything as plain values, lists and dicts, ready for JSON. A quantile above all bounds is None: JSON has no
        infinity."""
        plain_types = (int, float, dict)
        names = [name for name, value in vars(self).items() if isinstance(value, plain_types) and name[0] != "_"]
        names += ["throughput", "own_share", "slot_utilization", "token_utilization", "block_utilization"]
        names += ["prefix_hit_rate"]
        plain: dict[str, Any] = {name: copy(getattr(self, name)) for name in names}  # copies: the engine goes on
        for name in ("queue_time", "ttft", "tpot", "itl", "latency"):
            histogram = getattr(self, name)
            plain[name] = asdict(histogram) | {"count": histogram.count, "mean": histogram.mean}
            for key, share in (("p50", 0.5), ("p99", 0.99)):
                quantile = histogram.quantile(share)
                plain[name][key] = quantile if isfinite(quantile) else None
        return plain
