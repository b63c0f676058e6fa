"""Deterministic workloads for measurements, made from the six stories, with skewed lengths."""

import random
from dataclasses import dataclass

from lessons_lib.measuring.stories import PROMPTS


@dataclass(frozen=True)
class Workload:
    """Prompts and token limits of several requests."""

    prompts: tuple[str, ...]
    max_new_tokens: tuple[int, ...]


def skewed_workload(count: int, seed: int = 0) -> Workload:
    """`count` requests, most with a short answer and a few with a long one, as in real traffic.

    Three in four have a limit of 8 to 40 tokens, the others of 100 to 150. Prompts are the stories, cut after a random
    word.
    """
    rng = random.Random(seed)
    prompts, max_tokens_each = [], []
    for index in range(count):
        words = PROMPTS[index % len(PROMPTS)].split()
        prompts.append(" ".join(words[: rng.randint(2, len(words))]))
        max_tokens_each.append(rng.randint(100, 150) if rng.random() < 0.25 else rng.randint(8, 40))
    return Workload(tuple(prompts), tuple(max_tokens_each))
