"""Judges 13.3, `overlapped_step`: the next step is launched before the tokens of the one in flight are read, and no
token is lost."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from lessons_lib.checks.exercise import Mistake, current_case, short
from lessons_lib.checks.lesson_01.words import kind
from lessons_lib.engine.overlap import OverlappedSteps, overlapped_step
from lessons_lib.kv_cache.block_pool import BlockPool
from lessons_lib.kv_cache.prefix_cache import PrefixCache
from lessons_lib.scheduling.preemption import PreemptiveScheduler
from lessons_lib.scheduling.scheduler import Scheduler
from lessons_lib.scheduling.sequence import Sequence

BLOCK_SIZE, MOST_STEPS = 4, 80


@dataclass(frozen=True)
class Case:
    """Requests, and the pool that they share.

    Attributes:
        told: in words.
        sequences: (name, length of the prompt, max_new_tokens, stop token or -1) of each.
        num_blocks: of the pool.
    """

    told: str
    sequences: tuple[tuple[str, int, int, int], ...]
    num_blocks: int = 200


CASES = (
    Case("A has a prompt of 2 tokens and gets 4 tokens", (("A", 2, 4, -1),)),
    Case("A has a prompt of 2 tokens and gets 1 token", (("A", 2, 1, -1),)),
    Case("A and B get 4 and 2 tokens", (("A", 2, 4, -1), ("B", 3, 2, -1))),
    Case("A's third token is its end token; `max_new_tokens` is 9", (("A", 2, 9, 4),)),
    Case("A ends with its end token while B goes on", (("A", 2, 9, 4), ("B", 3, 6, -1))),
    Case("A has a prompt of 20 tokens, and a step has room for 8", (("A", 20, 3, -1),)),
    Case("six requests, of which two run at a time", tuple((name, 3, 3, -1) for name in "ABCDEF")),
    Case(
        "9 blocks of 4 for A, B and C: sequences are preempted",
        (("A", 5, 12, -1), ("B", 5, 12, -1), ("C", 5, 12, -1)),
        num_blocks=9,
    ),
)


@dataclass
class Device:
    """A runner without a model: the token after n tokens is n. It notes launches and reads."""

    log: list[str] = field(default_factory=list)
    launches: int = 0

    def launch(self, scheduler_output: Any) -> Any:
        self.launches += 1
        self.log.append(f"launch {self.launches}")
        parts = scheduler_output.num_scheduled_tokens.items()
        return Tokens(self.log, self.launches, [sequence.num_computed_tokens + count for sequence, count in parts])


@dataclass
class Tokens:
    """The tokens of a launched step."""

    log: list[str]
    number: int
    tokens: list[int]

    def wait(self) -> list[int]:
        self.log.append(f"read {self.number}")
        return self.tokens


class WatchedSteps(OverlappedSteps):
    """Notes placeholders, too, and stops an attempt that passes on a step that there isn't."""

    def append_placeholders(self, step: Any) -> None:
        self._must_be_a_step("append_placeholders", step, "`launch` returns None if there is nothing to compute.")
        self.runner.log.append(f"placeholders {step.tokens.number}")
        super().append_placeholders(step)

    def process_results(self, step: Any) -> list[Sequence]:
        self._must_be_a_step("process_results", step, "`loop.in_flight` is None before the first step.")
        return super().process_results(step)

    def _must_be_a_step(self, name: str, step: Any, idea: str) -> None:
        if step is None:
            raise Mistake(f"`{name}` got None instead of a step.", current_case.text, idea)


@dataclass
class Seen:
    """What a run did: the launches, reads and placeholders of each call, what each call returned, and the answers."""

    calls: list[list[str]]
    returned: list[list[str]]
    answers: dict[str, list[int]]


def check_overlapped_step(attempt: Callable[[Any], Any]) -> None:
    for case in CASES:
        current_case.text = case.told + "."
        want = serve(case, overlapped_step)
        try:
            got = serve(case, attempt, want.calls)
        except RuntimeError as error:
            if "preempted with tokens in flight" not in str(error):
                raise
            raise Mistake("a sequence was preempted while one of its tokens was in flight.", case.told, LACKS) from None
        for name, tokens in want.answers.items():
            if got.answers[name] != tokens:
                raise Mistake(f"{name} should get {tokens}; yours gets {got.answers[name]}.", case.told)
        if got.returned != want.returned:
            number = next(i for i, (a, b) in enumerate(zip(got.returned, want.returned), 1) if a != b)
            raise Mistake(
                f"call {number} should return {_names(want.returned[number - 1])}; yours returned "
                f"{_names(got.returned[number - 1])}.",
                case.told,
                "`process_results` returns those that have finished, and so does `finish_in_flight`.",
            )


LACKS = (
    "A preempted sequence is computed again from its tokens, so all of them must be known by then. If "
    "`loop.may_lack_blocks()`, finish the step in flight before you launch."
)


def serve(case: Case, attempt: Callable[[Any], Any], expected: list[list[str]] | None = None) -> Seen:
    """Serve the requests of a case to their end. What each call does is compared with what is expected of it."""
    sequences = [
        Sequence(name, list(range(length)), most, frozenset({stop}) if stop >= 0 else frozenset())
        for name, length, most, stop in case.sequences
    ]
    limits = dict(max_num_seqs=3 if case.num_blocks < 200 else 2, max_num_batched_tokens=8)
    if case.num_blocks < 200:
        scheduler: Any = PreemptiveScheduler(PrefixCache(case.num_blocks, BLOCK_SIZE), **limits, share_prefixes=False)
    else:
        scheduler = Scheduler(BlockPool(case.num_blocks, BLOCK_SIZE), **limits)
    for sequence in sequences:
        scheduler.add(sequence)
    device = Device()
    loop, seen = WatchedSteps(scheduler, device), Seen([], [], {})  # type: ignore[arg-type]
    while loop.has_unfinished() and len(seen.calls) < MOST_STEPS:
        before, lacks = len(device.log), loop.may_lack_blocks() and loop.in_flight is not None
        returned = attempt(loop)
        seen.calls.append(device.log[before:])
        if expected:
            want = expected[len(seen.calls) - 1] if len(seen.calls) <= len(expected) else []
            if seen.calls[-1] != want:
                told = f"call {len(seen.calls)} should do: {_told(want)}; yours did: {_told(seen.calls[-1])}."
                raise Mistake(told, case.told, _why(seen.calls[-1], want, device.log[:before], lacks))
        if not isinstance(returned, (list, tuple)):
            raise Mistake(
                f"it should return a list of sequences; yours returned {kind(returned)}.",
                case.told,
                "Also if none has finished: then the list is empty.",
            )
        _refuse_others(returned, f"call {len(seen.calls)}", case)
        seen.returned.append([each.id for each in returned])
        flies = loop.in_flight.tokens.number if loop.in_flight else None
        launched = [event for event in device.log if event.startswith("launch")]
        if launched and flies != device.launches and f"read {device.launches}" not in device.log:
            raise Mistake(
                f"after call {len(seen.calls)}, `loop.in_flight` isn't step {device.launches}, which was launched.",
                case.told,
                "Its tokens would never be read. Keep the step that you launch in `loop.in_flight`.",
            )
    seen.answers = {sequence.id: sequence.output_ids for sequence in sequences}
    return seen


def _refuse_others(returned: list | tuple, which: str, case: Case) -> None:
    """Refuse a list that contains anything but sequences."""
    others = [each for each in returned if not isinstance(each, Sequence)]
    if others:
        idea = (
            "`process_results` and `finish_in_flight` return lists. To join lists, use `+` or `extend`, not `append`."
        )
        raise Mistake(
            f"{which} should return a list of sequences; yours returned {short(returned, 60)}.",
            case.told,
            idea if isinstance(others[0], (list, tuple)) else "Return the sequences themselves.",
        )


def _why(got: list[str], want: list[str], earlier: list[str], lacks: bool) -> str:
    """The idea behind what a call did otherwise."""
    launches, reads, placeholders = (
        [event.split()[1] for event in got if event.startswith(what)] for what in ("launch", "read", "placeholders")
    )
    if len(launches) > 1:
        return "One call launches one step."
    if lacks and len(set(reads)) < len(reads):
        return (
            "Each step's tokens are read once. `finish_in_flight` reads those of the step in flight, and after it "
            "`loop.in_flight` is None. Was the step saved before that call, and processed again?"
        )
    if any(f"read {number}" in earlier for number in reads) or len(set(reads)) < len(reads):
        return "Each step's tokens are read once. `loop.in_flight` must be the newest step, or None."
    if set(reads) & set(launches):
        return "That step has just been launched. Its tokens are read in the next call, after the next launch."
    order, right = ([each for each in events if not each.startswith("placeholders")] for events in (got, want))
    if lacks and order != right and order == right[::-1]:
        return "Blocks may run out in this step. " + LACKS
    if order != right and order == right[::-1]:
        return "While the CPU waits for these tokens, the device has nothing to do. Launch the next step first."
    if launches and not placeholders:
        return (
            "A sequence whose token is in flight needs a placeholder, and its tokens must count as computed. Otherwise "
            "the next step computes the same again. `loop.append_placeholders(step)` does both. Is it called for the "
            "step that has just been launched?"
        )
    if sorted(got) == sorted(want):
        return (
            "A sequence has one placeholder at a time, and reading takes it away. The new step's placeholder comes "
            "after that. Otherwise it would be taken away."
        )
    return (
        "Each call launches one step, if there is something to compute, and reads the tokens of the step that was in "
        "flight, if there was one."
    )


def _told(events: list[str]) -> str:
    return ", ".join(events) or "nothing"


def _names(names: list[str]) -> str:
    return ", ".join(names) or "no sequence"
