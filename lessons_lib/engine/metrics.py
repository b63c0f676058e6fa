"""Lesson 12: measurements of an engine while it serves, as plain data. The engine itself doesn't know about them."""

from bisect import bisect_left
from collections import Counter, deque
from copy import copy
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from math import isfinite
from typing import Any

from lessons_lib.engine.core import EngineCore, InFlightStep
from lessons_lib.engine.llm_engine import LLMEngine
from lessons_lib.engine.request import Request

# Upper bounds in seconds, each about twice the previous one.
BOUNDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0)


@dataclass
class Histogram:
    """Number of values between each two bounds: a distribution in constant memory.

    Attributes:
        counts: values up to each of BOUNDS, and one more count for those above all.
        total: sum of the values.
    """

    counts: list[int] = field(default_factory=lambda: [0] * (len(BOUNDS) + 1))
    total: float = 0.0

    def add(self, value: float, times: int = 1) -> None:
        value = max(0.0, value)  # the clock may have been set back
        self.counts[bisect_left(BOUNDS, value)] += times
        self.total += value * times

    def add_all(self, values: list[float]) -> None:
        """Add many values, most of which are equal."""
        for value, times in Counter(values).items():
            self.add(value, times)

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
        start: when it was scheduled, in seconds on the engine's clock.
        seconds: part -> how long it took: "schedule", "move", "forward", "sample", "update". With a step in flight, the
            first four are of the next step, which is launched before this one is processed.
        tokens, prefill_tokens: computed in all, and of those, tokens before the last one of their sequence. Guesses
            count among the first only.
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
        """The time of all parts."""
        return sum(self.seconds.values())


@dataclass(frozen=True)
class EngineGauges:
    """The state of an engine at one moment.

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

    @classmethod
    def of(cls, engine: LLMEngine) -> "EngineGauges":
        """Look at an engine. If another thread is calling it, wait until that call has returned."""
        with engine.core.lock:
            scheduler, pool, waiting = engine.scheduler, engine.scheduler.pool, engine.scheduler.waiting
            return cls(
                running=len(scheduler.running) + len(scheduler.leaving), waiting=len(waiting),
                # Most of the time none is, and looking at all that wait would take time.
                swapped=sum(bool(each.swapped) for each in waiting) if scheduler.swap_space.used else 0,
                used_blocks=len(pool.used), named_blocks=len(pool.block_to_hash), num_blocks=pool.num_blocks,
            )  # fmt: skip

    @property
    def kv_cache_usage_perc(self) -> float:
        """Share of the blocks in use, 0 to 1."""
        return self.used_blocks / self.num_blocks if self.num_blocks else 0.0


class EngineMetrics:
    """Sums over the steps of an engine from now on, and its last steps.

    Attributes:
        max_num_seqs, max_num_batched_tokens, num_blocks: the engine's limits, which utilization is relative to.
        requests: finish reason -> how many requests ended with it: "stop", "length", "abort", "error".
        steps, busy_seconds: number of steps, and the time that they took together.
        tokens, prefill_tokens, new_tokens, cached_tokens, preemptions: sums of what EngineStep has.
        prompt_tokens: of the prompts that are computed, each counted once, with what was in the cache.
        num_drafts, num_draft_tokens, num_accepted_tokens: how often guesses were computed for a sequence (lesson 18),
            how many, and how many of them are in its completion.
        part_seconds: part of a step -> its sum.
        queue_time, ttft, tpot, itl, latency: histograms in seconds: from arrival to the first step; to the first token;
            between two tokens, averaged over a completion, and each gap on its own; from arrival to the end.
        recent: the last steps.
    """

    def __init__(self, engine: LLMEngine):
        self.max_num_seqs = engine.config.max_num_seqs
        self.max_num_batched_tokens = engine.config.max_num_batched_tokens
        self.num_blocks = engine.scheduler.pool.num_blocks
        self.requests = engine.core.num_ended
        self.steps = self.tokens = self.prefill_tokens = self.new_tokens = self.cached_tokens = self.preemptions = 0
        self.prompt_tokens = self.num_drafts = self.num_draft_tokens = self.num_accepted_tokens = 0
        self.busy_seconds = 0.0
        self.part_seconds: dict[str, float] = {}
        self.queue_time, self.ttft, self.tpot, self.itl, self.latency = (Histogram() for _ in range(5))
        self.recent: deque[EngineStep] = deque(maxlen=1000)
        self._batch_slots_used = self._blocks_used = 0
        self._core: EngineCore = engine.core
        self._laps: dict[str, float] = {}
        self._last_lap = 0.0
        engine.core.observers.append(self.observe)
        engine.core.watches.append(self.lap)

    def lap(self, part: str) -> None:
        """Note how long a part of a step took; see `EngineCore.watches`."""
        now = self._core.clock()
        if part == "begin":
            self._laps = {}
        else:
            self._laps[part] = self._laps.get(part, 0.0) + max(0.0, now - self._last_lap)  # some clocks are set back
        self._last_lap = now

    def observe(self, step: InFlightStep, requests: list[Request]) -> None:
        """Count a step whose tokens are processed."""
        output, scheduler = step.output, self._core.scheduler
        for group in {sequence.group for sequence in output.admitted}:  # type: ignore[attr-defined]
            if group.admitted_at == step.start:  # otherwise it was preempted, and is back
                self.queue_time.add(step.start - group.arrival)
        self.add_tokens(requests)
        num_drafted = sum(map(len, output.drafts.values()))
        self.num_drafts += len(output.drafts)
        self.num_draft_tokens += num_drafted
        self.num_accepted_tokens += len(requests) - len(set(requests)) if num_drafted else 0
        record = EngineStep(
            start=step.start, seconds=self._laps, new_tokens=len(requests),
            tokens=output.num_tokens, prefill_tokens=output.num_tokens - sum(output.gets_token) - num_drafted,
            running=len(output.num_scheduled_tokens), waiting=len(scheduler.waiting),
            used_blocks=len(scheduler.pool.used), named_blocks=len(scheduler.pool.block_to_hash),
            preempted=len(output.preempted), cached_tokens=sum(output.cached.values()),
        )  # fmt: skip
        self._laps = {}
        self.add_step(record)

    def add_tokens(self, requests: list[Request]) -> None:
        """Add the times of requests that have a new token."""
        gaps = []
        for request, num_new in Counter(requests).items():
            times, arrival = request.token_times, request.group.arrival
            gaps += [later - earlier for earlier, later in pairwise(times[-num_new - 1 :])]
            if num_new == len(times):
                self.ttft.add(times[0] - arrival)
                if request.index == 0:
                    self.prompt_tokens += len(request.prompt_ids)
            if request.finish_reason in ("stop", "length") and len(times) > 1:
                self.tpot.add((times[-1] - times[0]) / (len(times) - 1))
        self.itl.add_all(gaps)
        ended = {request.group: request.token_times[-1] for request in requests if request.group.output}
        for group, last in ended.items():
            if group.output and not group.output.error:
                self.latency.add(last - group.arrival)

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

    @property
    def throughput(self) -> float:
        """New tokens per second of the time in which there was work."""
        return self.new_tokens / self.busy_seconds if self.busy_seconds else 0.0

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
        names += ["throughput", "slot_utilization", "token_utilization", "block_utilization", "prefix_hit_rate"]
        plain: dict[str, Any] = {name: copy(getattr(self, name)) for name in names}  # copies: the engine goes on
        for name in ("queue_time", "ttft", "tpot", "itl", "latency"):
            histogram = getattr(self, name)
            plain[name] = asdict(histogram) | {"count": histogram.count, "mean": histogram.mean}
            for key, share in (("p50", 0.5), ("p99", 0.99)):
                quantile = histogram.quantile(share)
                plain[name][key] = quantile if isfinite(quantile) else None
        return plain
