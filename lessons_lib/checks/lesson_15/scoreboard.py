"""The stretch task of lesson 15: a routing rule, scored on conversations that the learner hasn't seen."""

from collections.abc import Callable
from functools import cache
from typing import Any

from lessons_lib.measuring.routing_simulation import RoutingResult, chat_prompts, simulate_routing
from lessons_lib.serving.router import PrefixAffinity
from lessons_lib.viz.tables.table import Table

SEEDS = (101, 102, 103, 104)
NUM_REPLICAS, HIGHEST_LOAD = 4, 6
REFERENCE = PrefixAffinity(imbalance_limit=2)


class _Rule:
    """A learner's function as a RoutingPolicy."""

    name = "yours"

    def __init__(self, rule: Callable[..., Any]):
        self.rule = rule

    def choose(self, block_hashes: Any, replicas: Any) -> int:
        chosen = self.rule(block_hashes, replicas)
        if isinstance(chosen, bool) or not hasattr(chosen, "__index__") or not 0 <= chosen < len(replicas):
            raise ValueError(f"the rule returned {chosen!r}; it must be an index from 0 to {len(replicas) - 1}.")
        return int(chosen)


@cache
def _prompts(seed: int) -> list[list[int]]:
    return chat_prompts(seed=seed)


def routing_scores(policy: Any) -> list[RoutingResult]:
    """What a policy achieves on the hidden conversations."""
    return [simulate_routing(_prompts(seed), policy, NUM_REPLICAS) for seed in SEEDS]


def routing_scoreboard(rule: Callable[..., Any]) -> Table:
    """The rule next to the reference.

    Args:
        rule: function (block_hashes, replicas) -> index.
    """
    rows, verdict = [], ""
    reference = None
    for name, policy in ((f"{REFERENCE.name}, limit {REFERENCE.imbalance_limit}", REFERENCE), ("yours", _Rule(rule))):
        try:
            results = routing_scores(policy)
        except Exception as error:
            rows.append([name, "–", "–"])
            verdict = f"Your rule raised {type(error).__name__}: {error}"
            break
        share = sum(result.cached_tokens for result in results) / sum(result.prompt_tokens for result in results)
        highest = max(result.highest_load for result in results)
        rows.append([name, f"{share:.1%}", highest])
        if reference is None:
            reference = share
        elif highest > HIGHEST_LOAD:
            verdict = f"One replica served {highest} requests at a time. {HIGHEST_LOAD} are allowed."
        else:
            verdict = f"{100 * (share - reference):+.1f} percentage points."
    return Table(
        columns=["rule", "prompt tokens found", "highest load"],
        rows=rows,
        caption=f"{NUM_REPLICAS} replicas, {len(SEEDS)} hidden workloads",
        verdict=verdict,
    )
