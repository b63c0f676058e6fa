"""The scoreboard of exercise 09.3: a policy between shortest job first and first come, first served."""

from collections.abc import Callable, Mapping
from typing import Any

from lessons_lib.checks.sandbox import run_guarded
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
    """The latencies under a policy, next to those of other policies.

    Args:
        policy: has `rank(sequence)`.
        serve: function of a policy; returns its run.
        runs: name -> the run of another policy; FIRST and SHORTEST are among them.
    """
    runs = {**runs, LeastCostFirst.name: serve(LeastCostFirst())}
    found = {name: spread(times_of(run, "latency")) for name, run in runs.items()}
    served: list[Any] = []
    outcome = run_guarded(lambda: served.append(serve(policy)), TIME_LIMIT)
    rows: list[list[Any]] = [_row(name, latency, found) for name, latency in found.items()]
    if served:
        yours = spread(times_of(served[0], "latency"))
        rows.append(_row("yours", yours, found))
        verdict = _verdict(yours, found)
    else:
        rows.append(["yours", None, None, None, None])
        error = outcome.error
        verdict = (
            f"Your policy took more than {TIME_LIMIT:g} seconds; `rank` is called once for each request."
            if outcome.timed_out
            else f"Your policy raised {type(error).__name__}: {error}"
        )
    return Table(["policy", "mean latency, s", "p99 latency, s", "longest latency, s", "score"], rows, verdict=verdict)


def _row(name: str, latency: Spread, found: Mapping[str, Spread]) -> list[str]:
    values = (f"{value:.3f}" for value in (latency.mean, latency.p99, latency.worst))
    return [name, *values, f"{_share(latency, found):.0%}"]


def _share(latency: Spread, found: Mapping[str, Spread]) -> float:
    """The share of what SHORTEST gains in the mean over FIRST."""
    return (found[FIRST].mean - latency.mean) / (found[FIRST].mean - found[SHORTEST].mean)


def _verdict(yours: Spread, found: Mapping[str, Spread]) -> str:
    """The share of the mean that the policy gains, if it has a better tail than SHORTEST."""
    if yours.p99 >= found[SHORTEST].p99:
        return f"Yours doesn't count yet: its p99 isn't below that of {SHORTEST}."
    share = _share(yours, found)
    if share <= 0:
        return f"Yours doesn't count yet: its mean isn't below that of {FIRST}."
    return f"Yours has {share:.0%} of what {SHORTEST} gains in the mean, with a better p99 than {SHORTEST}."
