"""The stretch task of lesson 01: which requests should share a wave? Scored on hidden requests."""

import random
from collections.abc import Callable
from statistics import mean

from lessons_lib.batching.static_batching import waves
from lessons_lib.checks.exercise import call, short
from lessons_lib.checks.scoreboards import scoreboard
from lessons_lib.viz.tables.table import Table

SEEDS = (41, 42, 43)
NUM_REQUESTS, BATCH_SIZE = 300, 8

Request = tuple[int, int]  # prompt tokens, max_tokens
Rule = Callable[[list[Request], int], list[list[int]]]


def wave_workload(seed: int) -> tuple[list[Request], list[int]]:
    """(requests, lengths of their answers if some end before the limit).

    Most prompts are short and some are long; the limits don't depend on them. Half of the answers reach their limit.
    """
    draw = random.Random(seed)
    requests, lengths = [], []
    for _ in range(NUM_REQUESTS):
        prompt = draw.randint(200, 800) if draw.random() < 0.3 else draw.randint(10, 80)
        limit = draw.choice((32, 64, 128, 256, 512))
        requests.append((prompt, limit))
        lengths.append(limit if draw.random() < 0.5 else draw.randint(1, limit))
    return requests, lengths


def refuse_wrong_waves(groups: list[list[int]], num_requests: int, batch_size: int) -> None:
    """Raise ValueError unless every request is in one wave, and each wave has 1 to `batch_size` requests."""
    if not isinstance(groups, (list, tuple)) or not all(isinstance(wave, (list, tuple)) for wave in groups):
        raise ValueError(f"a list of waves is needed, each a list of indices; yours is {short(groups)}.")
    if wrong := [len(wave) for wave in groups if not 1 <= len(wave) <= batch_size]:
        raise ValueError(f"a wave has 1 to {batch_size} requests; one of yours has {wrong[0]}.")
    indices = [index for wave in groups for index in wave]
    if len(indices) != len(set(indices)):
        twice = next(index for index in indices if indices.count(index) > 1)
        raise ValueError(f"request {twice} is in your waves more than once.")
    if set(indices) != set(range(num_requests)):
        odd = sorted(set(range(num_requests)) ^ set(indices), key=str)[0]
        raise ValueError(f"the waves need the indices 0 to {num_requests - 1}, each once; look at {odd}.")


def score(groups: list[list[int]], requests: list[Request], lengths: list[int], batch_size: int) -> tuple[float, float]:
    """(share of the cells that is wasted, steps until an answer is returned, on average).

    A batch slot that no request uses is wasted, too.
    """
    computed, now, waits = 0, 0, 0
    for wave in groups:
        longest = max(lengths[index] for index in wave)
        computed += batch_size * (max(requests[index][0] for index in wave) + longest - 1)
        now += longest
        waits += now * len(wave)
    useful = sum(prompt + length - 1 for (prompt, _), length in zip(requests, lengths))
    return 1 - useful / computed, waits / len(requests)


def _scores_of(rule: Rule) -> list[str]:
    scores = []
    for seed in SEEDS:
        requests, lengths = wave_workload(seed)
        groups = call(rule, list(requests), BATCH_SIZE, case=f"{len(requests)} hidden requests")
        refuse_wrong_waves(groups, len(requests), BATCH_SIZE)
        at_limit, waits = score(groups, requests, [limit for _, limit in requests], BATCH_SIZE)
        scores.append((at_limit, score(groups, requests, lengths, BATCH_SIZE)[0], waits))
    at_limit, ending_early, waits = map(mean, zip(*scores))
    return [f"{at_limit:.1%}", f"{ending_early:.1%}", f"{waits:,.0f}"]


def waves_scoreboard(rule: Rule) -> Table:
    """Score (requests, batch_size) -> waves. A request is (prompt tokens, max_tokens), a wave is a list of indices."""

    def by_limit(requests: list[Request], batch_size: int) -> list[list[int]]:
        return waves(sorted(range(len(requests)), key=lambda index: requests[index][1]), batch_size)

    return scoreboard(
        ["waves", "wasted cells", "wasted, if half of the answers end early", "steps until an answer is returned"],
        {
            "in order of arrival": _scores_of(lambda requests, size: waves(range(len(requests)), size)),
            "sorted by max_tokens": _scores_of(by_limit),
            "yours": lambda: (_scores_of(rule), ""),
        },
        f"{len(SEEDS)} hidden workloads of {NUM_REQUESTS} requests, {BATCH_SIZE} batch slots",
    )
