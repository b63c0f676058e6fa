"""Overload: the goodput that admission rules save at three times a server's capacity."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache

from lessons_lib.measuring.load.goodput import Target, goodput
from lessons_lib.measuring.load.knee import find_knee
from lessons_lib.measuring.load.records import LoadLog, LoadRecord
from lessons_lib.measuring.simulated_server import SimulatedServer, simulate
from lessons_lib.viz.tables.table import Table

TARGET = Target(ttft=0.5)
LOAD = 3  # times the knee
SEEDS = range(4100, 4105)
NUM_REQUESTS = 400


@dataclass(frozen=True)
class ServerState:
    """Server state visible to an admission rule.

    Attributes:
        now: seconds since the start.
        waiting, running: prompt lengths of the requests in the server, oldest first.
        prompt_tokens: prompt tokens of all of them.
        first_tokens: (time, TTFT in seconds) of the last few first tokens, oldest first.
    """

    now: float
    waiting: tuple[int, ...]
    running: tuple[int, ...]
    prompt_tokens: int
    first_tokens: tuple[tuple[float, float], ...]


Rule = Callable[[int, ServerState], bool]


class RuledServer(SimulatedServer):
    """A simulated server with an admission rule: (prompt length, ServerState) -> True to admit the request."""

    def __init__(self, rule: Rule):
        super().__init__()
        self.rule = rule
        self.first_tokens: list[tuple[float, float]] = []

    def add(self, record: LoadRecord) -> None:
        waiting, running = (tuple(each.prompt_tokens for each in queue) for queue in (self.waiting, self.running))
        state = ServerState(
            record.send_time, waiting, running, sum(waiting) + sum(running), tuple(self.first_tokens[-32:])
        )
        if self.rule(record.prompt_tokens, state):
            super().add(record)
        else:
            record.status, record.error, record.end_time = 429, "Overloaded", record.send_time

    def finish(self, clock: float) -> None:
        first = [record for record in self.new_tokens if not record.token_times]
        super().finish(clock)
        self.first_tokens += [(clock, record.ttft) for record in first]


def take_all(prompt_tokens: int, state: ServerState) -> bool:
    """No admission control."""
    return True


def bounded(max_requests: int | None = None, max_prompt_tokens: int | None = None) -> Rule:
    """The reference rule: limit the requests in the server, their prompt tokens, or both."""

    def rule(prompt_tokens: int, state: ServerState) -> bool:
        if max_requests is not None and len(state.waiting) + len(state.running) >= max_requests:
            return False
        return max_prompt_tokens is None or state.prompt_tokens + prompt_tokens <= max_prompt_tokens

    return rule


@lru_cache
def knee_of(seed: int) -> tuple[float, float]:
    """(rate, goodput) at the knee: the highest rate at which 90 % of requests meet the target."""
    knee = find_knee(lambda rate: _run(take_all, rate, seed), TARGET, 20.0)
    return knee.rate, goodput(knee.log, TARGET)


def overload_run(rule: Rule, seed: int) -> LoadLog:
    """One run at three times the knee."""
    return _run(rule, LOAD * knee_of(seed)[0], seed)


def overload_scores(rules: Mapping[str, Rule]) -> Table:
    """Compare rules on the same seeds. 100 % is the goodput at the knee, where no rule is needed."""
    rows = []
    for name, rule in rules.items():
        logs = [overload_run(rule, seed) for seed in SEEDS]
        scores = [goodput(log, TARGET) / knee_of(seed)[1] for log, seed in zip(logs, SEEDS)]
        rows.append(
            [
                name,
                f"{sum(scores) / len(scores):.0%}",
                f"{min(scores):.0%}",
                _taken(logs, 0, 0.25),
                _taken(logs, 0.75, 1),
            ]
        )
    return Table(
        columns=["rule", "goodput", "worst seed", "taken: shortest quarter of the prompts", "longest quarter"],
        rows=rows,
        caption=f"{LOAD} times the knee's rate; goodput relative to the knee's, mean of {len(SEEDS)} seeds",
    )


def _run(rule: Rule, rate: float, seed: int) -> LoadLog:
    return simulate(rate, num_requests=NUM_REQUESTS, seed=seed, server=RuledServer(rule))


def _taken(logs: list[LoadLog], low: float, high: float) -> str:
    """Share of requests admitted, among those in this quantile range of prompt lengths."""
    taken, offered = 0, 0
    for log in logs:
        records = sorted(log.records, key=lambda record: record.prompt_tokens)
        part = records[int(low * len(records)) : int(high * len(records))]
        taken, offered = taken + sum(record.status == 200 for record in part), offered + len(part)
    return f"{taken / offered:.0%}"
