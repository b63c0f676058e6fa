"""The stretch task of lesson 15: a routing rule, scored on conversations that the learner hasn't seen."""

from collections.abc import Callable
from typing import Any

from lessons_lib.checks.scoreboards import Scored, scoreboard
from lessons_lib.measuring.routing_simulation import chat_prompts, simulate_routing
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


def _scores(policy: Any) -> tuple[float, int]:
    """(the share of prompt tokens found in a cache, the highest load), on the hidden conversations."""
    results = [simulate_routing(chat_prompts(seed=seed), policy, NUM_REPLICAS) for seed in SEEDS]
    share = sum(result.cached_tokens for result in results) / sum(result.prompt_tokens for result in results)
    return share, max(result.highest_load for result in results)


def routing_scoreboard(rule: Callable[..., Any]) -> Table:
    """Score a rule (block_hashes, replicas) -> index."""
    reference, highest = _scores(REFERENCE)

    def yours() -> Scored:
        share, load = _scores(_Rule(rule))
        verdict = f"{100 * (share - reference):+.1f} percentage points."
        if load > HIGHEST_LOAD:
            verdict = f"One replica served {load} requests at a time. {HIGHEST_LOAD} are allowed."
        return [f"{share:.1%}", load], verdict

    rows = {f"{REFERENCE.name}, limit {REFERENCE.imbalance_limit}": [f"{reference:.1%}", highest], "yours": yours}
    caption = f"{NUM_REPLICAS} replicas, {len(SEEDS)} hidden workloads"
    return scoreboard(["rule", "prompt tokens found", "highest load"], rows, caption)
