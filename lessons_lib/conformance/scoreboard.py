"""Two engines on one seeded workload, in one run: rate, waiting time, memory, lines of code, and what each slot did."""

import inspect
import random
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lessons_lib.conformance.adapters.course import CourseEngine
from lessons_lib.conformance.adapters.course import make_engine as make_reference
from lessons_lib.conformance.contract import BLOCKS
from lessons_lib.conformance.driver import MAX_STEPS, MakeEngine, Run
from lessons_lib.conformance.oracle import a_prompt
from lessons_lib.measuring.code_lines import closure, code_lines, imported_modules
from lessons_lib.recording.trace import RowWork, Step, Trace
from lessons_lib.viz.tables.table import Table

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWX"
REFERENCE = "the course's engine"
EXAMPLES = "lessons_lib.conformance.examples"


@dataclass(frozen=True)
class Arrival:
    """A request of the workload: the step in which it arrives, its prompt's length, and how long its answer is."""

    name: str
    step: int
    num_prompt: int
    max_tokens: int


def workload(seed: int = 0, num_requests: int = 16) -> list[Arrival]:
    """Short and long answers, most of which arrive while others run."""
    rng = random.Random(seed)
    arrivals, step = [], 0
    for name in LETTERS[:num_requests]:
        arrivals.append(Arrival(name, step, rng.randrange(2, 30), rng.choice((2, 4, 6, 8, 24, 30))))
        step += rng.randrange(5)
    return arrivals


@dataclass
class Score:
    """What one engine did.

    Attributes:
        rates, waits: tokens per second and the 99th percentile of the seconds to the first token, of each round.
        num_steps, num_computed: steps, and tokens that went through the model.
        memory: what was in use at most: blocks, or batch slots of an engine without blocks.
        num_lines: see `own_lines`.
        trace: what each batch slot did, as far as it can be seen from outside.
    """

    num_tokens: int = 0
    rates: list[float] = field(default_factory=list)
    waits: list[float] = field(default_factory=list)
    num_steps: int = 0
    num_computed: int = 0
    memory: str = ""
    num_lines: int | None = None
    trace: Trace = field(default_factory=Trace)


# name -> its title in the table, and how it follows from a score
FIGURES: dict[str, tuple[str, Callable[[Score], Any]]] = {
    "tokens_per_second": ("tokens per second", lambda score: statistics.median(score.rates)),
    "p99_seconds_to_first_token": ("p99 time to first token, ms", lambda score: statistics.median(score.waits)),
    "steps": ("steps", lambda score: score.num_steps),
    "tokens_computed": ("tokens computed", lambda score: score.num_computed),
    "memory_at_peak": ("memory at peak", lambda score: score.memory),
    "lines_of_code": ("lines of code, with those imported", lambda score: score.num_lines),
}


@dataclass
class Race:
    """Both engines on the workload of this seed, the learner's first."""

    scores: dict[str, Score]
    seed: int

    def figures(self) -> dict[str, dict[str, Any]]:
        """Plain numbers, for a file."""
        return {name: {key: of(score) for key, (_, of) in FIGURES.items()} for name, score in self.scores.items()}

    def table(self) -> Table:
        """A column for each engine, and the learner's relative to the reference."""
        (mine, yours), (theirs, reference) = self.figures().items()
        rows = []
        for key, (title, _) in FIGURES.items():
            a, b = yours[key], reference[key]
            is_ratio = isinstance(a, int | float) and isinstance(b, int | float) and b
            shown = [1000 * each if title.endswith("ms") else each for each in (a, b)] if is_ratio else [a, b]
            rows.append([title, *shown, f"{a / b:.2f}" if is_ratio else None])
        return Table(
            ["", mine, theirs, "relative"],
            rows,
            caption=f"{self.scores[mine].num_tokens} tokens of {len(self.scores[mine].trace.requests)} requests, seed "
            f"{self.seed}; times are medians of {len(self.scores[mine].rates)} rounds, in turns",
        )

    def timelines(self) -> tuple[Trace, Trace]:
        mine, reference = self.scores.values()
        return mine.trace, reference.trace


def race(
    make_engine: MakeEngine, name: str = "your engine", *,
    against: tuple[str, MakeEngine] = (REFERENCE, make_reference), seed: int = 0, num_requests: int = 16,
    rounds: int = 3,
) -> Race:  # fmt: skip
    """Serve one workload with an engine and with the reference, in turns.

    Args:
        make_engine: function (model, limits, tokenizer) -> engine.
        against: name and `make_engine` of the reference.
        seed, num_requests: of the workload.
        rounds: how often each serves it; times are medians.

    Raises:
        Broken: an answer isn't that of `generate`, or a request was lost.
    """
    reference, make_other = against
    scores = {name: Score(), reference: Score()}
    for _ in range(rounds + 1):  # the first one warms up
        for score, make in zip(scores.values(), (make_engine, make_other)):
            serve(make, workload(seed, num_requests), score)
    for score in scores.values():
        del score.rates[0], score.waits[0]
    return Race(scores, seed)


def serve(make_engine: MakeEngine, arrivals: list[Arrival], score: Score) -> None:
    """Serve a workload once, and add what came out to a score; Broken if an answer isn't right."""
    run = Run(make_engine)
    limits = run.limits
    waiting, steps, slots, least_free = list(arrivals), [], _Slots(limits.max_num_seqs), limits.num_blocks
    added: dict[str, float] = {}
    waited: dict[str, float] = {}
    began = time.perf_counter()
    while waiting or (run.engine.has_unfinished() and run.steps < MAX_STEPS):
        while waiting and waiting[0].step <= run.steps:
            each = waiting.pop(0)
            added[each.name] = time.perf_counter()
            run.add(a_prompt(each.num_prompt, ord(each.name)), each.max_tokens, name=each.name, ignore_eos=True)
        num_passes = len(run.watch.passes)
        step_began = time.perf_counter()
        events = run.step()
        now = time.perf_counter()
        for event in events:
            waited.setdefault(event.request_id, now - added[event.request_id])
        if BLOCKS in run.features:
            least_free = min(least_free, run.free_blocks())
        passes = run.watch.passes[num_passes:]
        rows = slots.rows(run, [event.request_id for event in events], sum(passes))
        unserved = tuple(name for name in run.requests if name not in waited)
        steps.append(Step(rows, now - step_began, unserved, len(passes), 0, 0))
    seconds = time.perf_counter() - began
    run.run_out()
    run.check_answers()
    score.num_tokens = sum(len(each.tokens) for each in run.requests.values())
    score.rates.append(score.num_tokens / seconds)
    score.waits.append(sorted(waited.values())[round(0.99 * (len(waited) - 1))])
    score.num_steps, score.num_computed = run.steps, sum(run.watch.passes)
    used = limits.num_blocks - least_free
    score.memory = (
        f"{used} blocks of {limits.block_size}"
        if BLOCKS in run.features
        else f"{slots.most_used} {'slot' if slots.most_used == 1 else 'slots'} of {limits.max_model_len}"
    )
    if not score.rates[1:]:  # the same in each round
        score.num_lines = own_lines(run.engine)
    score.trace = Trace(steps)
    run.close()


def steps_of(make_engine: MakeEngine, answer_lengths: list[int], max_num_seqs: int) -> int:
    """How many steps an engine takes for short prompts that arrive at once."""
    run = Run(make_engine, max_num_seqs=max_num_seqs)
    for index, max_tokens in enumerate(answer_lengths):
        run.add(a_prompt(3, index), max_tokens, ignore_eos=True)
    run.run_out()
    run.close()
    return run.steps


class _Slots:
    """Which request is in which batch slot, as far as its tokens tell: a request takes the first free slot in the step
    of its first token, and is drawn there with its whole prompt.
    """

    def __init__(self, num_slots: int):
        self.owners: list[str | None] = [None] * num_slots
        self.most_used = 0

    def rows(self, run: Run, served: list[str], computed: int) -> tuple[RowWork, ...]:
        needed = dict.fromkeys(served, 1)
        for name in needed:
            if name not in self.owners:
                if None not in self.owners:  # more than `max_num_seqs` run
                    self.owners.append(None)
                self.owners[self.owners.index(None)] = name
                needed[name] = len(run.requests[name].prompt)
        self.most_used = max(self.most_used, sum(owner is not None for owner in self.owners))
        extra, left = divmod(max(0, computed - sum(needed.values())), max(1, len(needed)))
        rows = []
        for index, owner in enumerate(self.owners):
            if owner is None or owner not in needed:
                rows.append(RowWork(owner, "idle" if owner is None else "decode", 0, 0))
                continue
            more, left = extra + (left > 0), max(0, left - 1)
            phase = "prefill" if run.requests[owner].first_step == run.steps else "decode"
            rows.append(RowWork(owner, phase, needed[owner] + more, needed[owner]))
            if run.requests[owner].finish_reason:
                self.owners[index] = None
        return tuple(rows)


def own_lines(engine: Any) -> int | None:
    """Lines of code of an engine: those of its class's file, or package, and of what they import from `lessons_lib`.

    Of the suite, only the files of an example's classes are counted. None for a class without a file, such as one of a
    notebook.
    """
    kind = type(engine.engine if isinstance(engine, CourseEngine) else engine)
    try:
        file = Path(inspect.getfile(kind))
    except (TypeError, OSError):
        return None
    if not file.exists():
        return None
    is_own_package = (file.parent / "__init__.py").exists() and not kind.__module__.startswith("lessons_lib.")
    bases = {inspect.getfile(each) for each in kind.__mro__[1:] if each.__module__.startswith(f"{EXAMPLES}.")}
    files = file.parent.rglob("*.py") if is_own_package else [file, *map(Path, bases - {str(file)})]
    sources = [each.read_text(encoding="utf-8") for each in files]
    imported: dict[str, int] = {}
    for source in sources:
        for module in imported_modules(source):
            if not module.startswith("lessons_lib.conformance"):
                imported |= closure(module)
    return sum(map(code_lines, sources)) + sum(imported.values())
