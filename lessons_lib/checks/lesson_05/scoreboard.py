"""The scoreboard of 05.3: what a way to share the row costs, and how long its users wait."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from random import Random
from statistics import mean

from lessons_lib.batching.ragged_batching import chunked_step, ragged_step
from lessons_lib.batching.request import Request
from lessons_lib.checks.lesson_05.serving import VOCABULARY, Serving
from lessons_lib.viz.tables.table import Table

Step = Callable[..., None]  # (batch, max_num_batched_tokens, forward=forward)

NUM_REQUESTS, MAX_TOKENS, MAX_SEQS = 30, 32, 8
SEEDS = (51, 52, 53)


@dataclass
class Log:
    """What one run counts, in tokens computed.

    Attributes:
        rows: of each step.
        waits: for each request, from its submission to its first token.
        gaps: between two tokens of a request, over all requests.
    """

    rows: list[int]
    waits: list[int]
    gaps: list[int]


def chunk_workload(seed: int) -> list[tuple[int, Request]]:
    """(clock, request): requests with short prompts, every fifth with a long one."""
    rng, clock, arrivals = Random(seed), 0, []
    for number in range(NUM_REQUESTS):
        length = rng.randint(100, 300) if number % 5 == 2 else rng.randint(3, 40)
        prompt = [rng.randrange(VOCABULARY) for _ in range(length)]
        arrivals.append((clock, Request(f"request {number}", prompt, rng.randint(5, 40))))
        clock += rng.randint(0, 120)
    return arrivals


def count_run(step: Step, arrivals: list[tuple[int, Request]], limit: int | None, max_num_seqs: int = MAX_SEQS) -> Log:
    """Serve the requests without a model.

    Raises:
        Mistake: a row is too long, or a request gets a wrong token.
    """
    rows, serving, waiting = list[int](), Serving(max_num_seqs, limit), list(arrivals)
    times: dict[str, list[int]] = {}  # request id -> the tokens computed by its submission, and by each of its tokens
    while waiting or serving.batch.running:
        while waiting and (not serving.batch.running or waiting[0][0] <= sum(rows)):
            _, request = waiting.pop(0)
            times[request.id] = [sum(rows)]
            serving.submit(request)
        running = list(serving.batch.running)
        rows.append(serving.step(step))
        for request in running:
            times[request.id] += [sum(rows)] * (1 + len(request.output_ids) - len(times[request.id]))
    waits = [first - submitted for submitted, first, *_ in times.values()]
    return Log(rows, waits, [after - before for _, *each in times.values() for before, after in pairwise(each)])


def chunk_scoreboard(step: Step) -> Table:
    """Score a step of (batch, max_num_batched_tokens, forward=forward)."""
    columns = ["way", "steps", "largest row", "longest gap", "wait for the first token, mean"]
    rows = [
        ["whole prompts (05.2)", *_counts(ragged_step, None)],
        ["chunks, in order of admission", *_counts(chunked_step, MAX_TOKENS)],
        ["yours", *_counts(step, MAX_TOKENS)],
    ]
    caption = f"{len(SEEDS)} hidden workloads of {NUM_REQUESTS} requests, at most {MAX_SEQS} at a time."
    return Table(columns, rows, f"{caption} Gaps and waits in computed tokens.")


def _counts(step: Step, limit: int | None) -> list[int | str]:
    logs = [count_run(step, chunk_workload(seed), limit) for seed in SEEDS]
    return [
        sum(len(log.rows) for log in logs),
        max(max(log.rows) for log in logs),
        max(max(log.gaps) for log in logs),
        f"{mean(wait for log in logs for wait in log.waits):.0f}",
    ]
