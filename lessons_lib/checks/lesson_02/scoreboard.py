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


@dataclass(eq=False)
class _Request:
    arrives: int
    prompt_tokens: int
    max_new_tokens: int
    answer_tokens: int
    computed: int = 0
    answered: int = 0
    admitted: int = -1


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
    served = [_Request(*lengths) for lengths in requests]
    unseen = list(served)
    waiting: list[_Request] = []
    running: list[_Request] = []
    now = 0
    while unseen or waiting or running:
        while unseen and unseen[0].arrives <= now:
            waiting.append(unseen.pop(0))
        running = [request for request in running if request.answered < request.answer_tokens]
        while waiting and len(running) < NUM_SLOTS:
            views = [WaitingRequest(each.prompt_tokens, each.max_new_tokens, now - each.arrives) for each in waiting]
            index = rule(views)
            if index not in range(len(waiting)):
                raise IndexError(f"it returned {index!r}, with {len(waiting)} requests waiting.")
            request = waiting.pop(index)
            request.admitted = now
            running.append(request)
        for request in running:
            request.answered += bool(request.answered)
        prefilling = next((request for request in running if not request.answered), None)
        if prefilling is not None:
            prefilling.computed += PREFILL_STEP
            prefilling.answered = int(prefilling.computed >= prefilling.prompt_tokens)
        now += 1
    return [request.admitted - request.arrives for request in served]


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
