"""The scoreboard of exercise 03.4, on requests that the learner hasn't seen: when is a waiting one admitted?"""

import math
import random
from collections import deque
from collections.abc import Callable, Iterator
from itertools import islice

from lessons_lib.checks.scoreboards import Scored, scoreboard
from lessons_lib.kv_cache.block_pool import blocks_for
from lessons_lib.kv_cache.block_serving import AdmissionView
from lessons_lib.kv_cache.block_serving import may_admit as reference
from lessons_lib.viz.charts import line_chart
from lessons_lib.viz.drawing.picture import Picture
from lessons_lib.viz.tables.table import Table

SEEDS = (31, 32, 33)
NUM_REQUESTS, NUM_BLOCKS, BLOCK_SIZE = 100, 32, 16
PRICE = 10  # a restart costs as much as so many steps
GOAL = 4500  # a good rule costs less, on all workloads together


Rule = Callable[[AdmissionView, list[AdmissionView], int, int], bool]


def prompt_fits(request: AdmissionView, running: list[AdmissionView], num_free: int, block_size: int) -> bool:
    """As in exercise 03.3."""
    return blocks_for(request.prompt_tokens, block_size) <= num_free


def limits_fit(request: AdmissionView, running: list[AdmissionView], num_free: int, block_size: int) -> bool:
    """Even if every answer reaches its limit, there are enough blocks."""
    most = [blocks_for(each.prompt_tokens + each.max_new_tokens - 1, block_size) for each in [*running, request]]
    return sum(most) <= num_free + sum(each.num_blocks for each in running)


def admission_workload(seed: int) -> list[tuple[int, int, int]]:
    """(prompt tokens, limit, answer tokens) of one request after another. Most answers end before their limit."""
    draw = random.Random(seed)
    requests = []
    for _ in range(NUM_REQUESTS):
        limit = draw.choice((40, 80, 160))
        answer = limit if draw.random() < 0.2 else draw.randint(5, limit)
        requests.append((draw.randint(2, 60), limit, answer))
    return requests


def free_and_restarts(requests: list[tuple[int, int, int]], rule: Rule) -> Iterator[tuple[int, int]]:
    """Serve the requests as `step_in_blocks` does, but admit the first one of the queue when the rule says so.

    Yields:
        after each step, the free blocks, and the restarts in this step.

    Raises:
        RuntimeError: the rule admits nothing although nothing is running, or a request whose prompt doesn't fit.
    """
    waiting, running, num_tokens = deque(range(len(requests))), list[int](), [0] * len(requests)

    def view(number: int) -> AdmissionView:
        prompt, limit, _ = requests[number]
        return AdmissionView(prompt, limit, num_tokens[number], blocks_for(num_tokens[number], BLOCK_SIZE))

    def is_unfinished(number: int) -> bool:
        prompt, _, answer = requests[number]
        return num_tokens[number] < prompt + answer - 1

    def num_free() -> int:
        return NUM_BLOCKS - sum(blocks_for(num_tokens[number], BLOCK_SIZE) for number in running)

    while waiting or any(map(is_unfinished, running)):
        running = list(filter(is_unfinished, running))
        grown = restarts = 0
        while grown < len(running):
            if num_tokens[running[grown]] % BLOCK_SIZE or num_free():
                num_tokens[running[grown]] += 1
                grown += 1
            else:
                num_tokens[running[-1]] = 0
                waiting.appendleft(running.pop())
                restarts += 1
        while waiting and rule(view(waiting[0]), list(map(view, running)), num_free(), BLOCK_SIZE):
            running.append(waiting.popleft())
            num_tokens[running[-1]] = requests[running[-1]][0]
            if num_free() < 0:
                raise RuntimeError("it admitted a request whose prompt doesn't fit in the free blocks.")
        if not running:
            raise RuntimeError("it admitted nothing although all blocks were free.")
        yield num_free(), restarts


def count_steps(requests: list[tuple[int, int, int]], rule: Rule) -> tuple[int, int]:
    """Steps and restarts. Raises what `free_and_restarts` raises."""
    restarts = [each for _, each in free_and_restarts(requests, rule)]
    return len(restarts), sum(restarts)


def steps_and_restarts(rule: Rule) -> tuple[int, int]:
    """Of all workloads together. Raises what `count_steps` raises."""
    steps, restarts = zip(*(count_steps(admission_workload(seed), rule) for seed in SEEDS))
    return sum(steps), sum(restarts)


def admission_scoreboard(may_admit: Rule) -> Table:
    """Score a rule (request, running, num_free, block_size) -> whether the first waiting request is admitted."""

    def scored(rule: Rule) -> Scored:
        steps, restarts = steps_and_restarts(rule)
        return [steps, restarts, steps + PRICE * restarts], f"The goal: cost less than {GOAL:,}."

    rows = {
        "its limit fits, like the limits of all that run (safe)": scored(limits_fit)[0],
        "the reference says so" if may_admit is reference else "yours says so": lambda: scored(may_admit),
        "its prompt fits (bold)": scored(prompt_fits)[0],
    }
    caption = f"{len(SEEDS)} hidden workloads of {NUM_REQUESTS} requests, {NUM_BLOCKS} blocks of {BLOCK_SIZE}"
    columns = ["a request is admitted when", "steps", "restarts", f"cost: steps + {PRICE} × restarts"]
    return scoreboard(columns, rows, caption)


def draw_free_blocks(may_admit: Rule, num_steps: int = 200) -> Picture:
    """The free blocks under the rule and the two given ones, step by step, in the first of the hidden workloads."""
    name = "the reference" if may_admit is reference else "yours"
    rules, curves, told = {name: may_admit, "safe": limits_fit, "bold": prompt_fits}, {}, []
    for name, rule in rules.items():
        served = list(islice(free_and_restarts(admission_workload(SEEDS[0]), rule), num_steps))
        free = [each for each, _ in served]
        curves[name] = free + [math.nan] * (num_steps - len(free))
        told.append(f"{name}: {sum(free) / len(free):.0f} on average, {sum(each for _, each in served)} restarts")
    return line_chart(
        range(1, num_steps + 1), curves, xlabel="step", ylabel="free blocks",
        title=f"Free blocks, of {NUM_BLOCKS}", alt=f"Free blocks in the first {num_steps} steps. {'; '.join(told)}.",
    )  # fmt: skip
