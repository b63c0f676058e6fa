"""Judges 13.3, `overlapped_step`: the next step is launched before the tokens of the one in flight are read, and no
token is lost."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from lessons_lib.checks.exercise import Mistake, current_case, short
from lessons_lib.engine.core import overlapped_step
from lessons_lib.engine.greedy_loop import GreedyLoop
from lessons_lib.kv_cache.prefix_cache import PrefixCache
from lessons_lib.scheduling.preemption import PreemptiveScheduler
from lessons_lib.scheduling.scheduler import SchedulerOutput, optimistic
from lessons_lib.scheduling.sequence import Sequence

BLOCK_SIZE, MOST_STEPS = 4, 80
LACKS = (
    "A preempted sequence is computed again from its tokens, so all of them must be known. If a sequence in "
    "`scheduler_output.preempted` has `num_placeholders`, process all that is in flight before you launch."
)


@dataclass(frozen=True)
class Case:
    """Requests, and the pool that they share.

    Attributes:
        told: in words.
        sequences: (name, length of the prompt, max_new_tokens, stop token or -1) of each.
        num_blocks: of the pool.
        depth: of the loop.
    """

    told: str
    sequences: tuple[tuple[str, int, int, int], ...]
    num_blocks: int = 200
    depth: int = 1


CASES = (
    Case("A has a prompt of 2 tokens and gets 4 tokens", (("A", 2, 4, -1),)),
    Case("A has a prompt of 2 tokens and gets 1 token", (("A", 2, 1, -1),)),
    Case("A and B get 4 and 2 tokens", (("A", 2, 4, -1), ("B", 3, 2, -1))),
    Case("A's third token is its end token; `max_new_tokens` is 9", (("A", 2, 9, 4),)),
    Case("A ends with its end token while B goes on", (("A", 2, 9, 4), ("B", 3, 6, -1))),
    Case("A has a prompt of 20 tokens, and a step has room for 8", (("A", 20, 3, -1),)),
    Case("six requests, of which two run at a time", tuple((name, 3, 3, -1) for name in "ABCDEF")),
    Case("the depth is 0; A and B get 4 and 2 tokens", (("A", 2, 4, -1), ("B", 3, 2, -1)), depth=0),
    Case(
        "9 blocks of 4 for A, B and C: sequences are preempted",
        (("A", 5, 12, -1), ("B", 5, 12, -1), ("C", 5, 12, -1)),
        num_blocks=9,
    ),
    Case(
        "4 blocks of 4 for A and B; B is preempted while the end token of A is in flight",
        (("A", 4, 12, 8), ("B", 4, 12, -1)),
        num_blocks=4,
    ),
)


@dataclass
class Tokens:
    """The tokens of a launched step."""

    log: list[str]
    number: int
    tokens: list[int]

    def wait(self) -> list[int]:
        self.log.append(f"read {self.number}")
        return self.tokens


class WatchedLoop(GreedyLoop):
    """A loop without a model: the token after n tokens is n. It notes launches and reads, and stops an attempt whose
    mistake is known."""

    def __init__(self, case: Case, scheduler: PreemptiveScheduler):
        super().__init__(scheduler, None, case.depth)  # type: ignore[arg-type]
        self.case = case
        self.log: list[str] = []
        self.num_launched = 0
        self.scheduled: list[SchedulerOutput] = []  # in this call
        self.may_finish = False  # whether tokens were read since then

    def mistake(self, what: str, idea: str) -> Mistake:
        return Mistake(what, self.case.told + ".", idea)

    def schedule(self) -> Any:
        if self.scheduled:
            raise self.mistake("your turn scheduled twice.", "One call schedules and launches one step.")
        self.scheduled.append(super().schedule())
        return self.scheduled[0]

    def launch(self, scheduler_output: Any) -> Any:
        if not (self.scheduled and scheduler_output is self.scheduled[0]):
            raise self.mistake(
                f"`launch` got {short(scheduler_output, 60)}.", "It takes what `loop.schedule()` returned."
            )
        if any(victim.num_placeholders for victim in scheduler_output.preempted):
            raise self.mistake("a sequence was preempted while one of its tokens was in flight.", LACKS)
        if finished := [each.id for each in scheduler_output.num_scheduled_tokens if each.finish_reason]:
            raise self.mistake(
                f"{finished[0]} was launched although it has finished, and has no blocks any more.",
                "Processing after scheduling may have ended sequences: call `scheduler_output.drop_finished()`.",
            )
        if not scheduler_output.num_scheduled_tokens:
            return None
        self.num_launched += 1
        self.log.append(f"launch {self.num_launched}")
        parts = scheduler_output.num_scheduled_tokens.items()
        tokens = [sequence.num_computed_tokens + count for sequence, count in parts]
        self.scheduler.update_after_launch(scheduler_output)
        return scheduler_output, Tokens(self.log, self.num_launched, tokens)

    def process(self, depth: int) -> None:
        if not isinstance(depth, int):
            raise self.mistake(
                f"`process` got {short(depth, 60)}.", "It takes a number: how many steps may stay in flight."
            )
        if others := [each for each in self.in_flight if not (isinstance(each, tuple) and len(each) == 2)]:
            raise self.mistake(
                f"`loop.in_flight` contains {short(others[0], 60)}.",
                "It contains steps. `launch` returns None if there is nothing to compute.",
            )
        super().process(depth)


def check_overlapped_step(attempt: Callable[[Any], Any]) -> None:
    for case in CASES:
        current_case.text = case.told + "."
        want = serve(case, overlapped_step)[0]
        _, got, sequences = serve(case, attempt, want)
        for sequence, right in zip(sequences, got):
            if sequence.output_ids != right:
                raise Mistake(f"{sequence.id} should get {right}; yours gets {sequence.output_ids}.", case.told)


def serve(
    case: Case, attempt: Callable[[Any], Any], expected: list[list[str]] | None = None
) -> tuple[list[list[str]], list[list[int]], list[Sequence]]:
    """Serve the requests of a case to their end. What each call does is compared with what is expected of it.

    Returns:
        the launches and reads of each call, the right completions, and the sequences.
    """
    sequences = [
        Sequence(name, list(range(length)), most, frozenset({stop}) if stop >= 0 else frozenset())
        for name, length, most, stop in case.sequences
    ]
    scheduler = PreemptiveScheduler(
        PrefixCache(case.num_blocks, BLOCK_SIZE), max_num_seqs=3 if case.num_blocks < 200 else 2,
        max_num_batched_tokens=8, share_prefixes=False, admission=optimistic,
    )  # fmt: skip
    for sequence in sequences:
        scheduler.add(sequence)
    loop, calls = WatchedLoop(case, scheduler), []
    while (scheduler.has_unfinished() or loop.in_flight) and len(calls) < MOST_STEPS:
        before = len(loop.log)
        loop.scheduled = []
        attempt(loop)
        calls.append(loop.log[before:])
        if expected is not None:
            want = expected[len(calls) - 1] if len(calls) <= len(expected) else []
            if calls[-1] != want:
                told = f"call {len(calls)} should do: {_told(want)}; yours did: {_told(calls[-1])}."
                raise Mistake(told, case.told + ".", _why(calls[-1], want, loop))
    rights = []
    for name, length, most, stop in case.sequences:
        tokens = list(range(length, length + most))
        rights.append(tokens[: tokens.index(stop) + 1] if stop in tokens else tokens)
    return calls, rights, sequences


def _why(got: list[str], want: list[str], loop: WatchedLoop) -> str:
    """The idea behind what a call did otherwise."""
    launches, reads = ([event for event in got if event.startswith(what)] for what in ("launch", "read"))
    right_reads = [event for event in want if event.startswith("read")]
    if not got and not loop.scheduled:
        return "One call is one turn: schedule a step, launch it, and process those before it."
    if launches and not loop.in_flight and loop.case.depth and not reads:
        return "Its tokens would never be read. Append each step that you launch to `loop.in_flight`."
    if loop.case.depth == 0 and len(reads) < len(right_reads):
        return "`loop.depth` says how many steps may stay in flight. If it is 0, none may."
    if sorted(got) == sorted(want):
        return "While the CPU waits for these tokens, the device has nothing to do. Launch the next step first."
    if len(reads) > len(right_reads) and launches and reads[-1].split()[1] == launches[-1].split()[1]:
        return "That step has just been launched. Its tokens are read in the next call, after the next launch."
    if len(reads) < len(right_reads) and not launches:
        return "If nothing was launched, nothing is computed meanwhile: process all that is in flight."
    return "Each call launches one step, if there is something to compute, and processes all but the last `loop.depth`."


def _told(events: list[str]) -> str:
    return ", ".join(events) or "nothing"
