"""Lesson 14: a server without a server: continuous batching on a simulated clock, with the log that a client would
have."""

from collections import deque

import numpy as np

from lessons_lib.measuring.arrivals import heavy_tailed
from lessons_lib.measuring.load.records import LoadLog, LoadRecord
from lessons_lib.measuring.simulator import StepCost
from lessons_lib.models.validate import BadRequest
from lessons_lib.serving.admission import AdmissionControl, Overloaded

# A step of 4 ms that grows to 8 ms with 16 sequences; a prompt of 64 tokens adds 3 ms to its step.
COST = StepCost(base=4e-3, per_token=50e-6, per_context_token=2e-6)


class SimulatedServer:
    """Continuous batching, in steps whose duration is computed: decodes first; the rest of the token budget goes to the
    prompts in the order of arrival.

    Attributes:
        waiting, running: records of requests. Running ones are in the order of their start.
        admitted: request id -> its share of the admission, until it has finished.
        prefilled: request id -> tokens of its prompt that are computed.
        new_tokens: records that get a token from the step that runs now.
    """

    def __init__(
        self,
        cost: StepCost = COST,
        *,
        max_num_seqs: int = 16,
        max_num_batched_tokens: int = 256,
        admission: AdmissionControl | None = None,
    ):
        self.cost = cost
        self.max_num_seqs, self.max_num_batched_tokens = max_num_seqs, max_num_batched_tokens
        self.admission = admission or AdmissionControl(None, None)
        self.waiting: deque[LoadRecord] = deque()
        self.running: list[LoadRecord] = []
        self.prefilled: dict[str, int] = {}
        self.new_tokens: list[LoadRecord] = []

    def add(self, record: LoadRecord) -> None:
        """Let a request wait, or refuse it."""
        try:
            self.admission.admit(record.prompt_tokens)
        except (Overloaded, BadRequest) as error:
            record.status = 429 if isinstance(error, Overloaded) else 400
            record.error, record.end_time = str(error), record.send_time
            return
        record.status = 200
        self.waiting.append(record)

    def launch(self, clock: float) -> float:
        """Begin a step at `clock`; returns its end. Until then, requests arrive at a server that is as full as
        before."""
        while self.waiting and len(self.running) < self.max_num_seqs:
            self.running.append(self.waiting.popleft())
            self.prefilled[self.running[-1].request_id] = 0
        decodes = [record for record in self.running if record.token_times]
        budget = self.max_num_batched_tokens - len(decodes)
        self.new_tokens, computed, context = list(decodes), len(decodes), 0
        for record in self.running:
            done = self.prefilled[record.request_id]
            if not record.token_times and budget:
                chunk = min(record.prompt_tokens - done, budget)
                budget, computed, done = budget - chunk, computed + chunk, done + chunk
                self.prefilled[record.request_id] = done
                if done == record.prompt_tokens:
                    self.new_tokens.append(record)
            context += done + record.output_tokens
        return clock + self.cost.seconds(computed, context)

    def finish(self, clock: float) -> None:
        """End the step at `clock`."""
        for record in self.new_tokens:
            record.token_times.append(clock)
            record.output_tokens += 1
            if record.output_tokens == record.max_tokens:
                record.end_time, record.finish_reason = clock, "length"
                self.admission.release(record.prompt_tokens)
        self.running = [record for record in self.running if record.finish_reason is None]
        self.new_tokens = []


def poisson_arrivals(rate: float, count: int, seed: int = 0) -> list[float]:
    """Times of `count` requests that come independently of each other.

    Their gaps are scaled so that the last one comes at `count / rate`: the offered rate is exact in a short run too.
    """
    times = np.random.default_rng(seed).gamma(1.0, 1.0, count).cumsum()
    return [float(time) for time in times * (count / rate / times[-1])]


def simulate(rate: float, *, num_requests: int = 300, seed: int = 0, server: SimulatedServer | None = None) -> LoadLog:
    """An open loop against a SimulatedServer. Nothing waits, and the same arguments give the same log.

    Args:
        rate: requests per second. Prompts have about 64 tokens and completions about 32; see `heavy_tailed`.
        server: an empty one; by default one that takes all requests.
    """
    times = poisson_arrivals(rate, num_requests, seed)
    seeds = np.random.default_rng(seed).integers(2**31, size=2).tolist()
    prompts, outputs = (
        heavy_tailed(median, 0.5, num_requests, 8 * median, own).tolist() for median, own in zip((64, 32), seeds)
    )
    records = [
        LoadRecord(str(index), time, time, prompt, output)
        for index, (time, prompt, output) in enumerate(zip(times, prompts, outputs))
    ]
    clock, coming, server = 0.0, deque(records), server or SimulatedServer()
    while coming or server.waiting or server.running:
        clock = server.launch(clock) if server.waiting or server.running else coming[0].arrival_time
        while coming and coming[0].arrival_time <= clock:
            server.add(coming.popleft())
        server.finish(clock)
    return LoadLog(records, window=num_requests / rate, duration=clock)
