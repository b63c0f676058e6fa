"""The stretch task of lesson 12: which requests should be given up, so that as many as possible meet their deadlines?
Scored on requests that the learner hasn't seen.
"""

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache

from lessons_lib.checks.scoreboards import Scored, scoreboard
from lessons_lib.kv_cache.block_pool import BlockPool
from lessons_lib.scheduling.preemption import PreemptiveScheduler
from lessons_lib.scheduling.sequence import Sequence
from lessons_lib.viz.tables.table import Table

SEEDS = (31, 32, 33)
NUM_REQUESTS = 120
BUDGET = 64


@dataclass(frozen=True)
class Waiting:
    """A request to come: it arrives before the step `arrives`, and its last token must come in the step `deadline` at
    the latest."""

    arrives: int
    deadline: int
    prompt: int
    answer: int


@dataclass(frozen=True)
class UnfinishedRequest:
    """What a rule knows about a request; see lesson 12."""

    id: str
    steps_left: int
    prompt_left: int
    answer_left: int
    waited: int
    is_running: bool


Rule = Callable[[list[UnfinishedRequest]], Iterable[UnfinishedRequest]]


def nothing(requests: list[UnfinishedRequest]) -> list[UnfinishedRequest]:
    """Serve all requests to the end."""
    return []


def too_late(requests: list[UnfinishedRequest]) -> list[UnfinishedRequest]:
    """Those whose deadline has passed."""
    return [request for request in requests if request.steps_left <= 0]


@cache
def workload(seed: int) -> list[Waiting]:
    """More requests than can be served in time: chats, and now and then a burst of long ones."""
    draw, step, found = random.Random(seed), 0.0, []
    while len(found) < NUM_REQUESTS:
        step += draw.expovariate(0.42)
        is_long = draw.random() < 0.3
        prompt = draw.randint(60, 200) if is_long else draw.randint(4, 40)
        answer = draw.randint(30, 70) if is_long else draw.randint(4, 25)
        arrives = int(step)
        found.append(Waiting(arrives, arrives + -(-prompt // BUDGET) + answer + draw.randint(2, 45), prompt, answer))
    return found


def served_in_time(requests: list[Waiting], rule: Rule) -> tuple[int, int]:
    """Serve the requests with a rule, without a model. Returns (requests that met their deadline, tokens computed for
    the others)."""
    sizes = dict(max_num_seqs=8, max_num_batched_tokens=BUDGET)
    scheduler = PreemptiveScheduler(BlockPool(256, 16), **sizes, share_prefixes=False)
    coming = {str(index): request for index, request in enumerate(requests)}
    alive: dict[str, tuple[Sequence, Waiting]] = {}
    in_time = wasted = step = 0
    while coming or alive:
        for name in [name for name in coming if coming[name].arrives <= step]:
            request = coming.pop(name)
            alive[name] = Sequence(name, [3] * request.prompt, request.answer), request
            scheduler.add(alive[name][0])
        if alive:
            for given_up in list(rule([_seen(*each, step) for each in alive.values()])):
                if given_up.id in alive:
                    sequence, _ = alive.pop(given_up.id)
                    wasted += sequence.num_computed_tokens
                    scheduler.remove(sequence)
        output = scheduler.schedule()
        for sequence in scheduler.update(output, [1] * len(output.num_scheduled_tokens)):
            _, request = alive.pop(sequence.id)
            in_time += step <= request.deadline
            wasted += (step > request.deadline) * (request.prompt + request.answer - 1)
        step += 1
    return in_time, wasted


def _seen(sequence: Sequence, request: Waiting, step: int) -> UnfinishedRequest:
    return UnfinishedRequest(
        id=sequence.id, steps_left=request.deadline - step + 1,
        prompt_left=max(0, request.prompt - sequence.num_computed_tokens),
        answer_left=request.answer - len(sequence.output_ids), waited=step - request.arrives,
        is_running=bool(sequence.blocks),
    )  # fmt: skip


def deadline_scoreboard(rule: Rule) -> Table:
    """Score a function of a list of UnfinishedRequest, called before each step, that returns those to abort."""

    def score(rule: Rule) -> list[int]:
        return [sum(found) for found in zip(*(served_in_time(workload(seed), rule) for seed in SEEDS))]

    def yours() -> Scored:
        mine = score(rule)
        return mine, f"Yours: {mine[0] - late[0]:+} requests, compared with the second rule."

    late = score(too_late)
    return scoreboard(
        ["given up", "answered in time", "tokens computed for the others"],
        {"nothing": score(nothing), "those whose deadline has passed": late, "yours": yours},
        f"{len(SEEDS) * NUM_REQUESTS} requests in {len(SEEDS)} hidden workloads",
    )
