"""13.3, `overlapped_step`: the next step is launched before the tokens of the one in flight are read, and none is lost.

What each call launches and reads is a script: there is no model, no thread and no clock.
"""

from collections.abc import Iterator
from random import Random
from types import SimpleNamespace
from typing import Any, NamedTuple

from lessons_lib.checks.diagnosis import Shown, Task, Watch, without_one
from lessons_lib.checks.exercise import Mistake, short
from lessons_lib.engine.greedy_loop import GreedyLoop
from lessons_lib.kv_cache.prefix_cache import PrefixCache
from lessons_lib.scheduling.preemption import PreemptiveScheduler
from lessons_lib.scheduling.scheduler import SchedulerOutput, optimistic
from lessons_lib.scheduling.sequence import Sequence

BLOCK_SIZE, BUDGET, MOST_CALLS = 4, 8, 80
DOES = "what it does"
LACKS = (
    "A preempted sequence is computed again from its tokens, so all of them must be known. If a sequence in "
    "`scheduler_output.preempted` has `num_placeholders`, process all that is in flight before you launch."
)
FINISHED = "The tokens that you processed may have ended sequences of this step: `scheduler_output.drop_finished()`."


class Case(NamedTuple):
    """Requests (name, length of the prompt, max_new_tokens, end token or -1), the pool that they share, and the depth
    of the loop."""

    requests: list[tuple[str, int, int, int]]
    num_blocks: int = 200
    max_num_seqs: int = 2
    depth: int = 1


def cases() -> Iterator[Case]:
    yield Case([("A", 2, 1, -1)])
    yield Case([("A", 2, 4, -1)])
    yield Case([("A", 2, 4, -1), ("B", 3, 2, -1)])
    yield Case([("A", 2, 9, 4), ("B", 3, 6, -1)])
    yield Case([("A", 2, 4, -1)], depth=0)
    yield Case([("A", 5, 12, -1), ("B", 5, 12, -1), ("C", 5, 12, -1)], 9, 3)
    yield Case([("A", 3, 3, -1), ("B", 14, 1, -1)], 5, 3)  # B loses its blocks before its prompt is computed
    # C and D lose their blocks in one step, and only C waits for a token.
    yield Case([("A", 3, 3, -1), ("B", 4, 3, -1), ("C", 4, 4, -1), ("D", 4, 1, -1)], 5, 4)
    yield Case([("A", 20, 3, -1)])
    draw = Random(3)
    for _ in range(8):
        names = "ABCD"[: draw.randint(2, 4)]
        requests = [(name, draw.randint(3, 6), draw.randint(6, 12), draw.choice((-1, 9))) for name in names]
        yield Case(requests, draw.randint(5, 9), 3, draw.choice((1, 1, 0)))


class ScriptedLoop(GreedyLoop):
    """A loop without a model: the token after n tokens is n. It notes launches and reads, and refuses what no device
    could do."""

    def __init__(self, scheduler: PreemptiveScheduler, depth: int):
        super().__init__(scheduler, None, depth)  # type: ignore[arg-type]
        self.log: list[str] = []
        self.num_launched = 0
        self.scheduled: list[SchedulerOutput] = []

    def schedule(self) -> Any:
        if self.scheduled:
            raise Mistake("your turn scheduled twice.", idea="One call schedules and launches one step.")
        self.scheduled.append(super().schedule())
        return self.scheduled[0]

    def launch(self, scheduler_output: Any) -> Any:
        if not (self.scheduled and scheduler_output is self.scheduled[0]):
            what = f"`launch` got {short(scheduler_output, 60)}."
            idea = "It takes what `loop.schedule()` returned in this call. `drop_finished()` returns nothing."
            raise Mistake(what, idea=idea)
        if any(victim.num_placeholders for victim in scheduler_output.preempted):
            raise Mistake("a sequence was preempted while one of its tokens was in flight.", idea=LACKS)
        if finished := [each.id for each in scheduler_output.num_scheduled_tokens if each.finish_reason]:
            what = f"{finished[0]} was launched although it has finished, and has no blocks any more."
            raise Mistake(what, idea=FINISHED)
        if not scheduler_output.num_scheduled_tokens:
            return None
        self.num_launched += 1
        self.log.append(f"launch {self.num_launched}")
        parts, number = scheduler_output.num_scheduled_tokens.items(), self.num_launched
        tokens = [sequence.num_computed_tokens + count for sequence, count in parts]
        self.scheduler.update_after_launch(scheduler_output)
        wait = lambda: self.log.append(f"read {number}") or tokens  # noqa: E731
        return scheduler_output, SimpleNamespace(number=number, wait=wait)

    def process(self, depth: int) -> None:
        if not isinstance(depth, int) or depth < 0:
            what = f"`process` got {short(depth, 60)}."
            raise Mistake(what, idea="It takes a number: how many steps may stay in flight.")
        for each in self.in_flight:
            if not (isinstance(each, tuple) and isinstance(each[-1], SimpleNamespace)):
                what = f"`loop.in_flight` contains {short(each, 60)}."
                raise Mistake(what, idea="Append what `launch` returned, unless it is None.")
        super().process(depth)


def run(attempt: Any, case: Case, watch: Watch) -> None:
    sequences = [
        Sequence(name, list(range(length)), most, frozenset({stop} - {-1}))
        for name, length, most, stop in case.requests
    ]
    scheduler = PreemptiveScheduler(
        PrefixCache(case.num_blocks, BLOCK_SIZE), max_num_seqs=case.max_num_seqs, max_num_batched_tokens=BUDGET,
        share_prefixes=False, admission=optimistic,
    )  # fmt: skip
    loop = ScriptedLoop(scheduler, case.depth)
    for sequence in sequences:
        scheduler.add(sequence)

    def look() -> dict[str, Any]:
        return {
            DOES: Shown(", ".join(loop.log) or "nothing"),
            "the steps left in `loop.in_flight`": [step[-1].number for step in loop.in_flight],
        }

    for number in range(1, MOST_CALLS):
        if not (scheduler.has_unfinished() or loop.in_flight):
            break
        loop.log.clear()
        loop.scheduled.clear()
        watch(f"call {number}", attempt, loop, look=look, returns=lambda got: None)
    watch("the last call", lambda: [each.output_ids for each in sequences], subject="what the requests have got")


def tell(case: Case) -> str:
    told = []
    for name, length, most, stop in case.requests:
        is_stopped = length <= stop < length + most
        ends = f" (the last is its end token; `max_new_tokens` is {most})" if is_stopped else ""
        count = stop - length + 1 if is_stopped else most
        told.append(f"{name} gets {count} token{'s' * (count > 1)}{ends} after a prompt of {length}")
    pool = f"; {case.num_blocks} blocks of {BLOCK_SIZE}" if case.num_blocks < 200 else ""
    return f"depth {case.depth}; {'; '.join(told)}{pool}; a step has room for {BUDGET} tokens."


def of_launches(mine: dict[str, Any], want: dict[str, Any]) -> str:
    """What it means that a call launches or reads something else."""
    got, wanted = ([] if seen[DOES] == "nothing" else seen[DOES].split(", ") for seen in (mine, want))
    launches, wanted_launches = (sum(each.startswith("launch") for each in done) for done in (got, wanted))
    if launches != wanted_launches:
        return "One call is one turn: it launches one step, if there is something to compute."
    if sorted(got) == sorted(wanted):
        return (
            "While the CPU waits for tokens, the device has nothing to do. Launch first; only a preempted sequence "
            "with a placeholder has to wait."
        )
    if len(got) > len(wanted):
        return "The step just launched is still being computed. Its tokens are read after the next launch."
    if not launches:
        return "If nothing was launched, nothing is computed meanwhile: process all that is in flight."
    if len(got) == len(wanted):
        return "The oldest step comes first in `loop.in_flight`: `append` the new one behind it."
    return "`loop.depth` says how many steps may stay in flight, the one just launched included: process the others."


TASK = Task(
    reference="lessons_lib.engine.core:overlapped_step",
    cases=cases,
    run=run,
    tell=tell,
    smaller=lambda case: (case._replace(requests=each) for each in without_one(case.requests)),
    about={
        DOES: of_launches,
        "the steps left in `loop.in_flight`": "Append what `loop.launch` returned, unless it is None. `loop.process` "
        "removes the steps that it reads.",
    },
)

EXERCISE = TASK.exercise(
    id="13.3",
    title="steps that overlap",
    hints=(
        "Draw two lines, the CPU's and the device's. At which moments does the device have nothing to do, and which of "
        "your calls make it wait? And when must it wait?",
        "Schedule. If a preempted sequence has a placeholder, process all, and drop what has finished by that. Launch, "
        "and append the step to `in_flight` if there is one. Then process all but the last `loop.depth`, or all if "
        "nothing was launched.",
        "`scheduler_output = loop.schedule()`; `if any(victim.num_placeholders for victim in "
        "scheduler_output.preempted):` then `loop.process(0)` and `scheduler_output.drop_finished()`; `launched = "
        "loop.launch(scheduler_output)`; `if launched: loop.in_flight.append(launched)`; `loop.process(loop.depth if "
        "launched else 0)`.",
    ),
    points=3,
)
