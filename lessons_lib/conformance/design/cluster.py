"""Serves a workload by a design, on a simulated clock: the scheduler of lesson 09 on each replica, a router before."""

import copy
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Any

from lessons_lib.conformance.design.machine import BLOCK_SIZE, Design, Machine
from lessons_lib.conformance.design.workload import SYSTEM_TOKENS, Ask
from lessons_lib.kv_cache.block_pool import BlockPool, OutOfBlocks
from lessons_lib.scheduling.scheduler import Scheduler
from lessons_lib.scheduling.simulator import SimulatedEngine, StepCost
from lessons_lib.serving.router import Replica


@dataclass
class ServedLoad:
    """What became of a workload.

    Attributes:
        counts: (kind, verdict) -> requests. The verdicts are "good", "late", "slow", and "refused" at once.
        seconds: in which requests arrived.
    """

    counts: Counter[tuple[str, str]] = field(default_factory=Counter)
    seconds: float = 0.0

    @property
    def goodput(self) -> float:
        """Requests per second whose promise was kept."""
        return (self.counts["chat", "good"] + self.counts["document", "good"]) / self.seconds


class SimulatedReplica(SimulatedEngine):
    """One replica, which goes on step by step until it is asked to stop.

    Attributes:
        known: what the router knows of it.
        asks: sequence -> its request, for all that were sent here.
    """

    def __init__(self, scheduler: Scheduler[Any], cost: StepCost):
        super().__init__(scheduler, cost)
        self.known = Replica()
        self.asks: dict[str, Ask] = {}

    def send(self, ask: Ask, prompt_tokens: int) -> None:
        """A request arrives, `prompt_tokens` of whose prompt aren't cached."""
        self.asks[ask.arrival.id] = ask
        self.add(replace(ask.arrival, prompt_tokens=prompt_tokens))

    def advance(self, until: float) -> None:
        """Take the steps that begin before a time.

        Raises:
            Deadlock: see `Scheduler.schedule`.
            OutOfBlocks: the admission lets none of the waiting requests in, although nothing runs.
        """
        while self.scheduler.has_unfinished() and self.clock < until:
            output = self.schedule()
            if not output.num_scheduled_tokens:
                raise OutOfBlocks(f"the admission admits none of {len(self.scheduler.waiting)} waiting requests.")
            for _ in self.update(output):
                self.known.end()


def serve(design: Design, asks: list[Ask], machine: Machine | None = None) -> ServedLoad:
    """Serve a workload.

    Raises:
        DoesNotFit: the machine can't hold the design.
        Deadlock, OutOfBlocks: the admission was too generous, or admits nothing.
        ValueError: the routing chose a replica that there isn't.
    """
    machine = machine or Machine()
    devices = design.devices_per_replica(machine)
    routing = copy.deepcopy(design.routing)  # it may count; each workload begins anew
    replicas = [
        SimulatedReplica(
            Scheduler(
                BlockPool(design.num_blocks, BLOCK_SIZE), max_num_seqs=design.max_num_seqs,
                max_num_batched_tokens=design.max_num_batched_tokens, policy=copy.deepcopy(design.policy),
                admission=design.admission,
            ),
            machine.step_cost(devices),
        )
        for _ in range(design.num_replicas)
    ]  # fmt: skip
    known = [replica.known for replica in replicas]
    for each in known:
        each.sent_blocks.max_blocks = machine.prefixes_per_device * devices
    load = ServedLoad(seconds=asks[-1].arrival.arrival_time)
    for ask in asks:
        for replica in replicas:
            replica.advance(ask.arrival.arrival_time)
        # A system prompt is kept as a whole, so one hash stands for all its blocks.
        prefix = [] if ask.tenant is None else [f"tenant {ask.tenant}".encode()]
        chosen = routing.choose(prefix, known)
        if chosen not in range(len(replicas)):
            raise ValueError(f"the routing chose replica {chosen!r}; there are 0 to {len(replicas) - 1}.")
        replica = replicas[chosen]
        if design.max_waiting is not None and len(replica.scheduler.waiting) >= design.max_waiting:
            load.counts[ask.kind, "refused"] += 1
            continue
        cached = SYSTEM_TOKENS if prefix and prefix[0] in replica.known.sent_blocks else 0
        replica.known.begin(prefix)
        replica.send(ask, ask.arrival.prompt_tokens - cached)
    for replica in replicas:
        replica.advance(float("inf"))
        for name, ask in replica.asks.items():
            load.counts[ask.kind, ask.verdict(replica.times[name])] += 1
    return load
