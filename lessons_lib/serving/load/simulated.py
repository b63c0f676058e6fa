"""Lesson 14: a server without a server: continuous batching on a simulated clock, with the log that a client would
have."""

from collections import deque

import numpy as np

from lessons_lib.scheduling.arrivals import heavy_tailed
from lessons_lib.scheduling.simulator import StepCost
from lessons_lib.serving.load.arrivals import gamma_arrivals
from lessons_lib.serving.load.records import LoadLog, LoadRecord

# A step of 4 ms that grows to 8 ms with 16 sequences; a prompt of 64 tokens adds 3 ms to its step.
COST = StepCost(base=4e-3, per_token=50e-6, per_context_token=2e-6)


class SimulatedServer:
    """Continuous batching, in steps whose duration is computed: decodes first, what is left of the token budget goes to
    the prompts in the order of arrival.

    Attributes:
        max_num_seqs, max_num_batched_tokens: the most sequences and tokens of a step.
        max_requests, max_prompt_tokens: admission: the most requests in the server, running and waiting, and the most
            tokens of their prompts; None for no limit. A request beyond is refused at once.
        waiting, running: records of requests. Running ones are in the order of their start.
        prefilled: record id -> tokens of its prompt that are computed.
    """

    def __init__(
        self,
        cost: StepCost = COST,
        *,
        max_num_seqs: int = 16,
        max_num_batched_tokens: int = 256,
        max_requests: int | None = None,
        max_prompt_tokens: int | None = None,
    ):
        self.cost = cost
        self.max_num_seqs, self.max_num_batched_tokens = max_num_seqs, max_num_batched_tokens
        self.max_requests, self.max_prompt_tokens = max_requests, max_prompt_tokens
        self.waiting: deque[LoadRecord] = deque()
        self.running: list[LoadRecord] = []
        self.prefilled: dict[str, int] = {}
        self.prompt_tokens = 0

    def add(self, record: LoadRecord) -> None:
        """A request arrives: it waits, or is refused."""
        num_requests = len(self.waiting) + len(self.running)
        prompt_tokens = self.prompt_tokens + record.prompt_tokens
        if (self.max_requests is not None and num_requests >= self.max_requests) or (
            self.max_prompt_tokens is not None and num_requests and prompt_tokens > self.max_prompt_tokens
        ):
            record.status, record.error, record.end_time = 429, "Overloaded", record.send_time
            return
        record.status = 200
        self.prompt_tokens = prompt_tokens
        self.waiting.append(record)

    def step(self, clock: float) -> float:
        """One step that begins at `clock`; returns when it ends."""
        while self.waiting and len(self.running) < self.max_num_seqs:
            self.running.append(self.waiting.popleft())
            self.prefilled[self.running[-1].request_id] = 0
        decodes = [record for record in self.running if record.token_times]
        budget = self.max_num_batched_tokens - len(decodes)
        computed, context, new_tokens = len(decodes), 0, decodes
        for record in self.running:
            done = self.prefilled[record.request_id]
            if not record.token_times and budget:
                chunk = min(record.prompt_tokens - done, budget)
                budget, computed, done = budget - chunk, computed + chunk, done + chunk
                self.prefilled[record.request_id] = done
                if done == record.prompt_tokens:
                    new_tokens.append(record)
            context += done + record.output_tokens
        clock += self.cost.seconds(computed, context)
        for record in new_tokens:
            record.token_times.append(clock)
            record.output_tokens += 1
            if record.output_tokens == record.max_tokens:
                record.end_time, record.finish_reason = clock, "length"
                self.prompt_tokens -= record.prompt_tokens
        self.running = [record for record in self.running if record.finish_reason is None]
        return clock


def simulate(
    rate: float,
    *,
    num_requests: int = 300,
    prompt_tokens: float = 64,
    output_tokens: float = 32,
    spread: float = 0.5,
    burstiness: float = 1.0,
    max_num_seqs: int = 16,
    max_num_batched_tokens: int = 256,
    max_requests: int | None = None,
    max_prompt_tokens: int | None = None,
    cost: StepCost = COST,
    seed: int = 0,
) -> LoadLog:
    """An open loop against a SimulatedServer. Nothing waits, and the same arguments give the same log.

    Args:
        rate: requests per second.
        prompt_tokens, output_tokens: medians of the lengths.
        spread: of both lengths, see `heavy_tailed`; 0 makes all equal.
        burstiness: of the arrivals, see `gamma_arrivals`.
        max_requests, max_prompt_tokens: admission, see SimulatedServer.

    Returns:
        LoadLog, as of `open_loop`.
    """
    times = gamma_arrivals(rate, num_requests, burstiness, seed)
    seeds = np.random.default_rng(seed).integers(2**31, size=2).tolist()
    prompts = heavy_tailed(prompt_tokens, spread, num_requests, int(8 * prompt_tokens), seeds[0]).tolist()
    outputs = heavy_tailed(output_tokens, spread, num_requests, int(8 * output_tokens), seeds[1]).tolist()
    records = [
        LoadRecord(str(index), time, time, prompt, output)
        for index, (time, prompt, output) in enumerate(zip(times, prompts, outputs))
    ]
    server = SimulatedServer(
        cost,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        max_requests=max_requests,
        max_prompt_tokens=max_prompt_tokens,
    )
    clock, coming = 0.0, deque(records)
    while coming or server.waiting or server.running:
        if not server.waiting and not server.running:
            clock = max(clock, coming[0].arrival_time)
        while coming and coming[0].arrival_time <= clock:
            server.add(coming.popleft())
        if server.waiting or server.running:
            clock = server.step(clock)
    return LoadLog(records, window=num_requests / rate, duration=clock, rate=rate)
