"""The stretch task of lesson 01: which requests should share a wave? Scored by counting, on requests that the
learner hasn't seen.
"""

import random
from collections.abc import Callable
from functools import cache

from lessons_lib.batching.static_batching import waves
from lessons_lib.checks.exercise import call, short
from lessons_lib.viz.tables.table import Table

SEEDS = (41, 42, 43)
NUM_REQUESTS, BATCH_SIZE = 300, 8

Request = tuple[int, int]  # prompt tokens, max_tokens
Rule = Callable[[list[Request], int], list[list[int]]]


@cache
def wave_workload(seed: int) -> tuple[tuple[Request, ...], tuple[int, ...]]:
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
    return tuple(requests), tuple(lengths)


def arrival_order(requests: list[Request], batch_size: int) -> list[list[int]]:
    return waves(range(len(requests)), batch_size)


def sorted_by_limit(requests: list[Request], batch_size: int) -> list[list[int]]:
    return waves(sorted(range(len(requests)), key=lambda index: requests[index][1]), batch_size)


def refuse_wrong_waves(groups: list[list[int]], num_requests: int, batch_size: int) -> None:
    """Check that every request is in one wave.

    Raises:
        ValueError: a request is missing or in two waves, or a wave is empty or has more requests than batch slots.
    """
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
    at_limit, ending_early, waits = 0.0, 0.0, 0.0
    for seed in SEEDS:
        requests, lengths = wave_workload(seed)
        groups = call(rule, list(requests), BATCH_SIZE, case=f"{len(requests)} hidden requests")
        refuse_wrong_waves(groups, len(requests), BATCH_SIZE)
        wasted, steps = score(groups, list(requests), [limit for _, limit in requests], BATCH_SIZE)
        at_limit, waits = at_limit + wasted / len(SEEDS), waits + steps / len(SEEDS)
        ending_early += score(groups, list(requests), list(lengths), BATCH_SIZE)[0] / len(SEEDS)
    return [f"{at_limit:.1%}", f"{ending_early:.1%}", f"{waits:,.0f}"]


def waves_scoreboard(rule: Rule) -> Table:
    """The rule next to the order of arrival, and next to the order of the limits.

    Args:
        rule: (requests, batch_size) -> waves; a request is (prompt tokens, max_tokens), a wave is a list of indices.
    """
    arrival, by_limit = _scores_of(arrival_order), _scores_of(sorted_by_limit)
    try:
        yours, verdict = _scores_of(rule), ""
    except Exception as error:
        yours, verdict = ["–"] * 3, f"Yours raised {type(error).__name__}: {error}"
    return Table(
        ["waves", "wasted cells", "wasted, if half of the answers end early", "steps until an answer is returned"],
        [["in order of arrival", *arrival], ["sorted by max_tokens", *by_limit], ["yours", *yours]],
        caption=f"{len(SEEDS)} hidden workloads of {NUM_REQUESTS} requests, {BATCH_SIZE} batch slots",
        verdict=verdict,
    )
