"""The scoreboard of exercise 09.3: a policy between shortest job first and first come, first served."""

from collections.abc import Callable, Mapping
from typing import Any

from lessons_lib.checks.sandbox import run_guarded
from lessons_lib.checks.scoreboards import Scored, scoreboard
from lessons_lib.measuring.simulator import Spread, spread, times_of
from lessons_lib.scheduling.sequence import Sequence
from lessons_lib.viz.tables.table import Table

FIRST, SHORTEST = "first come, first served", "shortest job first"
TIME_LIMIT = 60.0


class LeastCostFirst:
    """Orders by cost alone, without aging: as far as the mean goes, a better yardstick than the shortest answer."""

    name = "least cost first (prompt + 8 × answer)"

    def rank(self, sequence: Sequence) -> float:
        return len(sequence.prompt_ids) + 8 * (sequence.expected_tokens or 0)


def policy_scoreboard(policy: Any, serve: Callable[[Any], Any], runs: Mapping[str, Any]) -> Table:
    """Score a policy, which has `rank(sequence)`, by its latencies.

    Args:
        serve: function of a policy; returns its run.
        runs: name -> the run of another policy; FIRST and SHORTEST are among them.
    """
    runs = {**runs, LeastCostFirst.name: serve(LeastCostFirst())}
    found = {name: spread(times_of(run, "latency")) for name, run in runs.items()}
    first, shortest = found[FIRST], found[SHORTEST]

    def share(latency: Spread) -> float:
        """The share of what SHORTEST gains in the mean over FIRST."""
        return (first.mean - latency.mean) / (first.mean - shortest.mean)

    def cells(latency: Spread) -> list[str]:
        return [*(f"{value:.3f}" for value in (latency.mean, latency.p99, latency.worst)), f"{share(latency):.0%}"]

    def yours() -> Scored:
        """The share counts if the policy has a better tail than SHORTEST."""
        served: list[Any] = []
        outcome = run_guarded(lambda: served.append(serve(policy)), TIME_LIMIT)
        if outcome.timed_out:
            late = f"Your policy took more than {TIME_LIMIT:g} seconds; `rank` is called once for each request."
            return [None] * 4, late
        if outcome.error is not None:
            raise outcome.error
        latency = spread(times_of(served[0], "latency"))
        gain = f"{share(latency):.0%} of what {SHORTEST} gains in the mean"
        verdict = f"Yours has {gain}, with a better p99 than {SHORTEST}."
        if latency.p99 >= shortest.p99:
            verdict = f"Yours doesn't count yet: its p99 isn't below that of {SHORTEST}."
        elif share(latency) <= 0:
            verdict = f"Yours doesn't count yet: its mean isn't below that of {FIRST}."
        return cells(latency), verdict

    columns = ["policy", "mean latency, s", "p99 latency, s", "longest latency, s", "score"]
    return scoreboard(columns, {**{name: cells(latency) for name, latency in found.items()}, "yours": yours})
