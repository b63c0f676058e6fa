"""The requests of the design task, and what each was promised."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from lessons_lib.scheduling.arrivals import Arrival, bursty_arrivals, heavy_tailed, poisson_arrivals
from lessons_lib.scheduling.simulator import SequenceTimes

NUM_TENANTS = 8
SYSTEM_TOKENS = 128  # of each tenant's system prompt, which begins each of its chats
MOST_CHAT, MOST_DOCUMENT = 384, 1024  # tokens of a chat's own prompt, of a document
MAX_TOKENS = 256
SECONDS_TO_FIRST = {"chat": 0.5, "document": 4.0}
SECONDS_PER_TOKEN = 0.025


@dataclass(frozen=True)
class Ask:
    """One request.

    Attributes:
        arrival: what a scheduler gets of it. Its prompt has the system prompt, if it is a chat. `is_interactive` and
            tier 0 mean a chat; `expected_tokens` is an estimate.
        tenant: whose system prompt a chat has; None for a document.
    """

    arrival: Arrival
    tenant: int | None

    @property
    def kind(self) -> str:
        return "document" if self.tenant is None else "chat"

    def verdict(self, times: SequenceTimes) -> str:
        """ "good" if the promise was kept; "late" if the first token came too late, "slow" if the others did."""
        if times.ttft > SECONDS_TO_FIRST[self.kind]:
            return "late"
        return "slow" if times.tpot > SECONDS_PER_TOKEN else "good"


def workload(seed: int, chats: int = 480, documents: int = 80, rate: float = 140.0) -> list[Ask]:
    """Chats in bursts and documents now and then, in order of arrival.

    Args:
        rate: chats per second; the documents are spread over the same time.
    """
    rng = np.random.default_rng([seed, 17])
    times = {
        "chat": bursty_arrivals(rate, chats, [seed, 0]),
        "document": poisson_arrivals(rate * documents / chats, documents, [seed, 1]),
    }
    prompts = {
        "chat": SYSTEM_TOKENS + heavy_tailed(24, 0.8, chats, MOST_CHAT, [seed, 2]),
        "document": heavy_tailed(360, 0.6, documents, MOST_DOCUMENT, [seed, 3]),
    }
    answers = {
        "chat": heavy_tailed(28, 0.8, chats, MAX_TOKENS, [seed, 4]),
        "document": heavy_tailed(12, 0.6, documents, MAX_TOKENS, [seed, 5]),
    }
    asks = [
        Ask(_arrival(kind, index, rng, times, prompts, answers), int(tenant) if kind == "chat" else None)
        for kind in times
        for index, tenant in enumerate(rng.integers(NUM_TENANTS, size=len(times[kind])))
    ]
    return sorted(asks, key=lambda ask: ask.arrival.arrival_time)


def _arrival(kind: str, index: int, rng: np.random.Generator, *columns: dict[str, "np.ndarray[Any, Any]"]) -> Arrival:
    time, prompt, answer = (column[kind][index] for column in columns)
    is_chat = kind == "chat"
    return Arrival(
        f"{kind} {index}", float(time), int(prompt), int(answer), MAX_TOKENS, tier=int(not is_chat),
        expected_tokens=float(answer * rng.lognormal(0, 0.3)), is_interactive=is_chat,
    )  # fmt: skip
