"""Grades a design by its goodput on hidden seeds, next to that of three others."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

from lessons_lib.checks.exercise import Mistake, current_case
from lessons_lib.conformance.design.cluster import serve
from lessons_lib.conformance.design.examples import design as good_design
from lessons_lib.conformance.design.machine import Design, DoesNotFit, Machine
from lessons_lib.conformance.design.workload import SECONDS_PER_TOKEN, SECONDS_TO_FIRST, workload
from lessons_lib.kv_cache.block_pool import OutOfBlocks
from lessons_lib.scheduling.policies import PriorityWithAgeing
from lessons_lib.scheduling.scheduler import Deadlock
from lessons_lib.serving.router import PrefixAffinity
from lessons_lib.viz.tables.table import Table

SEEDS = (11, 12, 13, 14)
OPEN_SEED = 1
WITHIN = 0.95  # of the good design's goodput
FIRST, AGING, GOOD = "first come, first served", "priority with aging, prefix affinity", "a good design"


def rival(name: str) -> Design:
    """A design to compare with: the defaults, or four replicas with aging whose other choices are a first guess."""
    if name == GOOD:
        return good_design(Machine())
    if name == FIRST:
        return Design()
    policy = PriorityWithAgeing(patience=2.0, head_start=1.0)
    return Design(4, 16, 256, 128, policy, routing=PrefixAffinity(imbalance_limit=4))


@dataclass(frozen=True)
class Goodput:
    """Of one design over some seeds: the mean of the goodputs, and how many requests got which verdict."""

    mean: float
    counts: Counter[tuple[str, str]]

    def told(self) -> str:
        """What happened to the requests that weren't good."""
        reasons = {
            "late": "got their first token too late",
            "slow": f"got a token every {SECONDS_PER_TOKEN * 1000:g} ms or more",
            "refused": "were refused",
        }
        lost = [
            f"{self.counts[kind, verdict]} {kind}s {reasons[verdict]}"
            for kind in SECONDS_TO_FIRST
            for verdict in reasons
            if self.counts[kind, verdict]
        ]
        return f"Of {sum(self.counts.values())} requests, {', '.join(lost)}." if lost else "All requests were good."


def goodput_of(design: Design, seeds: tuple[int, ...] = SEEDS) -> Goodput:
    loads = [serve(design, workload(seed)) for seed in seeds]
    counts = sum((load.counts for load in loads), Counter[tuple[str, str]]())
    return Goodput(sum(load.goodput for load in loads) / len(loads), counts)


@cache
def rival_goodput(name: str, seeds: tuple[int, ...] = SEEDS) -> Goodput:
    return goodput_of(rival(name), seeds)


def try_design(design: Design) -> Table:
    """A design and its rivals on one open seed: for a learner, before the check."""
    rows: list[list[Any]] = []
    for name in (FIRST, AGING, GOOD, "yours"):
        run = goodput_of(design, (OPEN_SEED,)) if name == "yours" else rival_goodput(name, (OPEN_SEED,))
        good = [run.counts[kind, "good"] for kind in SECONDS_TO_FIRST]
        lost = [sum(run.counts[kind, each] for kind in SECONDS_TO_FIRST) for each in ("late", "slow", "refused")]
        rows.append([name, f"{run.mean:.1f}", *good, *lost])
    columns = ["design", "goodput, requests/s", "good chats", "good documents", "late", "slow", "refused"]
    return Table(columns, rows, caption="Seed 1; the check uses others")


def check_design(design: Callable[[Machine], Any]) -> None:
    """The check of the exercise.

    Raises:
        Mistake: it doesn't fit, can't serve, or is not good enough. It has earned a third of the points for each rival
            that it beats.
    """
    machine = Machine()
    current_case.text = "design(Machine())"
    made = design(machine)
    if not isinstance(made, Design):
        raise Mistake(f"`design` returned {type(made).__name__}; it must return a Design.", case=current_case.text)
    try:
        made.devices_per_replica(machine)
    except DoesNotFit as error:
        raise Mistake(f"the machine can't hold your design: {error}", case=current_case.text) from None
    current_case.text = f"the workloads of {len(SEEDS)} hidden seeds"
    try:
        yours = goodput_of(made)
    except Deadlock as error:
        raise Mistake(
            f"your design deadlocks: {error}",
            case=current_case.text,
            idea="The admission lets in more than fits when the answers grow. There is no preemption in this machine.",
        ) from None
    except OutOfBlocks as error:
        raise Mistake(
            f"your design can't serve a request: {error}",
            case=current_case.text,
            idea="The largest document has 1,024 tokens and max_tokens 256: 80 blocks. If nothing is running, the "
            "admission must let it in.",
        ) from None
    except ValueError as error:
        raise Mistake(f"your design can't serve: {error}", case=current_case.text) from None
    _compare(yours)


def _compare(yours: Goodput) -> None:
    good = rival_goodput(GOOD).mean
    rungs = [(FIRST, rival_goodput(FIRST).mean), (AGING, rival_goodput(AGING).mean), (GOOD, WITHIN * good)]
    beaten = sum(yours.mean > least for _, least in rungs)
    if beaten == len(rungs):
        return
    name, least = rungs[beaten]
    what = f"within {1 - WITHIN:.0%} of a good design's" if name == GOOD else f"above that of `{name}`"
    raise Mistake(
        f"the goodput is {yours.mean:.1f} requests/s. The next part of the points needs {least:.1f}: {what}.",
        case=current_case.text,
        idea=yours.told(),
        earned=beaten / len(rungs),
    )
