"""Lesson 09: random requests with their arrival times and lengths, reproducible by a seed."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from lessons_lib.scheduling.sequence import Sequence


@dataclass(frozen=True)
class Arrival:
    """A request before it is served, with the length of its completion, which only a simulation knows in advance.

    Attributes:
        arrival_time: seconds from the start.
        prompt_tokens, answer_tokens: lengths, at least 1.
        max_new_tokens: token limit, at least `answer_tokens`; a server knows only this.
        tier: priority class of the user; 0 is the best.
        expected_tokens: an estimate of `answer_tokens`.
        is_interactive: True if a user reads the completion as it is generated.
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
        """Make the scheduler's sequence. Tokens are only counted, so the prompt is a range."""
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
Seed = int | list[int]


def poisson_arrivals(rate: float, count: int, seed: Seed = 0) -> "np.ndarray[Any, Any]":
    """Times of `count` independent arrivals, `rate` per second on average, with exponentially distributed gaps."""
    return np.random.default_rng(seed).exponential(1 / rate, count).cumsum()


def heavy_tailed(median: float, spread: float, count: int, most: int, seed: Seed = 0) -> "np.ndarray[Any, Any]":
    """Log-normally distributed lengths, 1 to `most`, like those of real prompts and completions: mostly short, a few
    very long.

    Args:
        spread: standard deviation of the logarithm; with 0, all are equal; with 1, the mean is 1.6 medians.
    """
    lengths = np.random.default_rng(seed).lognormal(np.log(median), spread, count)
    clipped: np.ndarray[Any, Any] = np.clip(lengths.round(), 1, most).astype(int)
    return clipped


def traffic(
    count: int,
    rate: float,
    *,
    prompt_median: float = 32,
    answer_median: float = 16,
    spread: float = 1.0,
    most: int = 512,
    urgent_share: float = 0.2,
    estimate_error: float = 0.0,
    seed: int = 0,
) -> list[Arrival]:
    """Generate `count` requests in order of arrival.

    Args:
        rate: arrivals per second, independent of each other.
        prompt_median, answer_median, spread, most: of the lengths, see `heavy_tailed`; every max_tokens is `most`.
        urgent_share: share of requests of tier 0; the others are of tier 1.
        estimate_error: standard deviation of the logarithm of estimate / length; 0 for exact estimates.
        seed: requests of two seeds have nothing in common.
    """
    # One random stream per property. With the seeds seed, seed + 1, ..., the completions of one seed would be the
    # prompts of the next.
    times = poisson_arrivals(rate, count, [seed, 0])
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
    """Copy requests with reversed estimates: the longest completion is expected to be the shortest, and so on."""
    guesses = iter(sorted((request.answer_tokens for request in requests), reverse=True))
    guess_of = {request.id: next(guesses) for request in sorted(requests, key=lambda request: request.answer_tokens)}
    return [replace(request, expected_tokens=guess_of[request.id]) for request in requests]
