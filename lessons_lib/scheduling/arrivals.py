"""Lesson 09: requests as they come to a server: when they arrive, and how long they are. Random, and the same for the same seed."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from lessons_lib.scheduling.sequence import Sequence


@dataclass(frozen=True)
class Arrival:
    """A request before it is served, and what only a simulation can know of it: how long its answer will be.

    Attributes:
        arrival_time: seconds from the start.
        prompt_tokens, answer_tokens: its lengths, 1 or more each.
        max_new_tokens: its cap, at least `answer_tokens`; that is all that a server knows.
        tier: rank of its customer, 0 is the best.
        expected_tokens: a guess of `answer_tokens`.
        is_interactive: whether somebody reads the answer as it grows.
    """

    id: str
    arrival_time: float
    prompt_tokens: int
    answer_tokens: int
    max_new_tokens: int
    tier: int = 0
    expected_tokens: float | None = None
    is_interactive: bool = False

    def sequence(self) -> Sequence:
        """What the scheduler is given. Its tokens are only counted, so a range stands for them."""
        return Sequence(
            self.id,
            range(self.prompt_tokens),
            self.max_new_tokens,
            stop_token_ids=END_TOKEN,
            arrival_time=self.arrival_time,
            tier=self.tier,
            expected_tokens=self.expected_tokens,
            is_interactive=self.is_interactive,
        )


END_TOKEN = frozenset({-1})  # no model has it


def poisson_arrivals(rate, count, seed=0):
    """Times of `count` independent arrivals, `rate` a second on average: the gaps are exponentially distributed.

    Returns:
        float array [count], rising.
    """
    return np.random.default_rng(seed).exponential(1 / rate, count).cumsum()


def bursty_arrivals(rate, count, seed=0, burst=20, speedup=10):
    """Arrivals in bursts: on average `rate` a second, but `burst` at a time come `speedup` times as fast, and then there is a pause.

    Returns:
        float array [count], rising.
    """
    rng = np.random.default_rng(seed)
    gaps = rng.exponential(1 / (rate * speedup), count)
    begins = np.arange(count) % burst == 0
    gaps[begins] += rng.exponential(burst / rate * (1 - 1 / speedup), begins.sum())
    return gaps.cumsum()


def heavy_tailed(median, spread, count, most, seed=0):
    """Lengths of which most are short and a few very long: log-normally distributed, as those of real prompts and answers are.

    Args:
        median: half of them are shorter.
        spread: standard deviation of the logarithm; 0 makes all alike, 1 gives a mean of 1.6 medians.
        most: longer ones are cut here.

    Returns:
        int array [count], 1 to `most`.
    """
    lengths = np.random.default_rng(seed).lognormal(np.log(median), spread, count)
    return np.clip(lengths.round(), 1, most).astype(int)


def traffic(
    count: int,
    rate: float,
    *,
    arrivals: Callable = poisson_arrivals,
    prompt_median: float = 32,
    answer_median: float = 16,
    spread: float = 1.0,
    most: int = 512,
    urgent_share: float = 0.2,
    estimate_error: float = 0.0,
    seed: int = 0,
) -> list[Arrival]:
    """`count` requests in the order of arrival.

    Args:
        rate: arrivals a second.
        arrivals: `poisson_arrivals` or `bursty_arrivals`.
        prompt_median, answer_median, spread, most: of the lengths, see `heavy_tailed`; every max_tokens is `most`.
        urgent_share: share of requests of tier 0; the others are of tier 1.
        estimate_error: by what factor the expected lengths are wrong: standard deviation of its logarithm; 0 if they are right.
        seed: another one gives other requests in every respect.
    """
    # A stream for each property: were they seed, seed + 1, ..., the answers of one seed would be the prompts of the next.
    times = arrivals(rate, count, [seed, 0])
    prompts = heavy_tailed(prompt_median, spread, count, most, [seed, 1])
    answers = heavy_tailed(answer_median, spread, count, most, [seed, 2])
    tiers = (np.random.default_rng([seed, 3]).random(count) >= urgent_share).astype(int)
    guesses = answers * np.random.default_rng([seed, 4]).lognormal(0, estimate_error, count)
    columns = (column.tolist() for column in (times, prompts, answers, tiers, guesses))
    return [
        Arrival(str(index), time, prompt, answer, most, tier, guess)
        for index, (time, prompt, answer, tier, guess) in enumerate(zip(*columns))
    ]


def reversed_estimates(requests: list[Arrival]) -> list[Arrival]:
    """The same requests with estimates as wrong as can be: the longest answer is expected to be the shortest."""
    guesses = iter(sorted((request.answer_tokens for request in requests), reverse=True))
    guess_of = {request.id: next(guesses) for request in sorted(requests, key=lambda request: request.answer_tokens)}
    return [replace(request, expected_tokens=guess_of[request.id]) for request in requests]
