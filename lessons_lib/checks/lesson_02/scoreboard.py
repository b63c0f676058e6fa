"""The stretch task of lesson 02: which waiting request gets the free slot? Scored on hidden requests."""

import random
from collections.abc import Callable
from dataclasses import dataclass
from statistics import mean

from lessons_lib.checks.scoreboards import Scored, scoreboard
from lessons_lib.viz.tables.table import Table

SEEDS = (41, 42, 43)
NUM_REQUESTS, NUM_SLOTS, PREFILL_STEP = 200, 8, 64


@dataclass(frozen=True)
class WaitingRequest:
    """What a rule knows about a request in the queue.

    Attributes:
        prompt_tokens: length of the prompt.
        max_new_tokens: the most tokens that its answer may have. Most answers are shorter.
        waited: for how many steps it has been waiting.
    """

    prompt_tokens: int
    max_new_tokens: int
    waited: int


Rule = Callable[[list[WaitingRequest]], int]


def first_come(waiting: list[WaitingRequest]) -> int:
    """As in exercise 02.2."""
    return 0


def queue_workload(seed: int) -> list[tuple[int, int, int, int]]:
    """(step of arrival, prompt tokens, limit, answer tokens) of each request, in order of arrival.

    Most have short limits, some long ones, and the slots are nearly always busy.
    """
    draw = random.Random(seed)
    now, requests = 0.0, []
    for _ in range(NUM_REQUESTS):
        now += draw.expovariate(1 / 4.2)
        limit = draw.choice((10, 20, 20, 40, 40, 80, 160))
        answer = limit if draw.random() < 0.3 else draw.randint(limit // 4, limit)
        prompt = draw.randint(100, 240) if draw.random() < 0.2 else draw.randint(2, 60)
        requests.append((int(now), prompt, limit, answer))
    return requests


def queue_times(requests: list[tuple[int, int, int, int]], rule: Rule) -> list[int]:
    """How many steps each request waited for a slot, if served as `step` does, without a model.

    Args:
        rule: the waiting requests in order of arrival -> the index of the one that gets the free slot.

    Raises:
        IndexError: the rule returned no index of the list.
    """
    waits, coming, now = [0] * len(requests), list(range(len(requests))), 0
    waiting: list[int] = []
    running: list[list[int]] = []  # [chunks of the prompt, tokens of the answer] that are left
    while coming or waiting or running:
        while coming and requests[coming[0]][0] <= now:
            waiting.append(coming.pop(0))
        running = [each for each in running if each[1]]
        while waiting and len(running) < NUM_SLOTS:
            seen = (requests[number] for number in waiting)
            index = rule([WaitingRequest(prompt, limit, now - arrives) for arrives, prompt, limit, _ in seen])
            if index not in range(len(waiting)):
                raise IndexError(f"it returned {index!r}, with {len(waiting)} requests waiting.")
            number = waiting.pop(index)
            arrives, prompt, _, answer = requests[number]
            waits[number] = now - arrives
            running.append([-(-prompt // PREFILL_STEP), answer])
        prefilling = next((each for each in running if each[0]), None)
        for each in running:
            each[0] -= each is prefilling
            each[1] -= not each[0]
        now += 1
    return waits


def queue_scoreboard(next_request: Rule) -> Table:
    """Score a rule: the waiting requests in order of arrival -> the index of the one that gets the free slot."""
    workloads = [queue_workload(seed) for seed in SEEDS]

    def times_of(rule: Rule) -> list[int]:
        return [time for requests in workloads for time in queue_times(requests, rule)]

    def cells(times: list[int]) -> list[str]:
        return [f"{mean(times):.1f}", str(max(times))]

    def yours() -> Scored:
        times, allowed = times_of(next_request), max(base) * 3 // 2
        late = f", but a request waits longer than {allowed} steps" if max(times) > allowed else ""
        return cells(times), f"Yours changes the mean by {mean(times) / mean(base) - 1:+.0%}{late}."

    base = times_of(first_come)
    return scoreboard(
        ["rule", "mean queue time, steps", "longest queue time, steps"],
        {"first come, first served": cells(base), "yours": yours},
        f"{len(SEEDS)} hidden workloads of {NUM_REQUESTS} requests, {NUM_SLOTS} slots",
    )
