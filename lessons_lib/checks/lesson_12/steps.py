"""12.3, `run_step`: a scripted core, one of whose calls fails. What counts are its calls and the requests that end."""

from collections.abc import Iterator
from re import fullmatch
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch

from lessons_lib.checks.diagnosis import Shown, Task, Watch, mistakes
from lessons_lib.checks.exercise import short
from lessons_lib.checks.lesson_03.books import counted
from lessons_lib.engine.core import StepFailed, run_step
from lessons_lib.kv_cache.block_copies import COPY, SWAP_OUT, BlockCopy
from lessons_lib.scheduling.scheduler import SchedulerOutput
from lessons_lib.scheduling.sequence import Sequence
from lessons_lib.viz.failed_step import AGAIN, BUG, CALLS, ENDS, KINDS


class Broken(Exception):
    pass


CALLED = "the calls of `core`"
ERRORS = {each.__name__: each for each in (Broken, MemoryError, RuntimeError, KeyboardInterrupt)}


class Case(NamedTuple):
    """A step, and which call of it fails.

    Attributes:
        scheduled, swapped, preempted: letters of the requests; `preempted` are those that will be recomputed.
        copies: of blocks, besides those that swap out.
    """

    scheduled: str = ""
    copies: int = 0
    swapped: str = ""
    preempted: str = ""
    fails: str = ""
    error: str = "Broken"


def cases() -> Iterator[Case]:
    yield from (Case("A"), Case("AB", copies=2), Case("AB", swapped="C", copies=1))
    yield from (Case(), Case(copies=1), Case(swapped="C", copies=1))
    yield from (Case("A", fails="forward", error=error) for error in ("Broken", "MemoryError", "RuntimeError"))
    yield from (Case("AB", fails="forward"), Case("BA", preempted="D", swapped="C", fails="forward"))
    yield from (Case("AB", swapped="C", fails="sample"), Case("AB", preempted="D", fails="keep_tokens"))
    yield Case("AB", copies=1, fails="copy_blocks")
    yield Case("AB", swapped="C", preempted="D", fails="copy_blocks", error="RuntimeError")
    yield Case(swapped="C", fails="copy_blocks")
    yield Case(swapped="CE", preempted="D", copies=1, fails="copy_blocks")
    for call in ("copy_blocks", "forward", "sample"):
        yield Case("AB", swapped="C", fails=call, error="KeyboardInterrupt")
    yield from (Case("A", fails="count_launched"), Case("AB", copies=1, fails="count_launched", error="RuntimeError"))


class Core:
    """Records the calls, and fails in one of them."""

    def __init__(self, case: Case):
        requests = {name: Sequence(name, [1, 2, 3], 9) for name in case.scheduled + case.swapped + case.preempted + "F"}
        for name in case.swapped:
            requests[name].swapped = [ord(name)]
        copies = [BlockCopy(SWAP_OUT, ord(name), 0) for name in case.swapped]
        copies += [BlockCopy(COPY, block + 1, 0) for block in range(case.copies)]
        self.case, self.calls = case, []
        self.output = SchedulerOutput(
            {requests[name]: 1 for name in case.scheduled}, block_copies=copies,
            preempted=[requests[name] for name in case.preempted + case.swapped],
        )  # fmt: skip
        self.logits, self.tokens = torch.zeros(len(case.scheduled) + 1, 4), torch.ones(len(case.scheduled)).long()
        self.in_flight, self.step = object(), object()
        self.scheduler = SimpleNamespace(running=[requests[name] for name in case.scheduled + "F"], waiting=[])

    def word(self, got: Any) -> str:
        own = {"scheduler_output": "output", "logits": "logits", "tokens": "tokens", "in_flight": "in_flight"}
        return next((word for word, name in own.items() if getattr(self, name) is got), short(got, 40))

    def note(self, name: str, returned: Any, *given: Any) -> Any:
        self.calls.append(Shown(f"{name}({', '.join(map(self.word, given))})"))
        if self.case.fails == name:
            raise ERRORS[self.case.error](f"`{name}` failed")
        return returned

    def copy_blocks(self, block_copies: Any) -> None:
        if isinstance(block_copies, SchedulerOutput):
            return self.note("copy_blocks", None, block_copies)
        count = len(list(block_copies))
        if self.calls and self.calls[-1].startswith("copy "):
            count += int(self.calls.pop().split()[1])  # it's free how many are copied at once
        if count and self.case.fails == "copy_blocks":
            self.calls.append(Shown("copy, which fails"))
            raise ERRORS[self.case.error]("`copy_blocks` failed")
        self.calls += [Shown(f"copy {counted(count, 'block')}")] * bool(count)
        return None

    def forward(self, scheduler_output: Any) -> torch.Tensor:
        return self.note("forward", self.logits, scheduler_output)

    def sample(self, scheduler_output: Any, logits: Any) -> torch.Tensor:
        return self.note("sample", self.tokens, scheduler_output, logits)

    def keep_tokens(self, scheduler_output: Any, tokens: Any) -> object:
        return self.note("keep_tokens", self.in_flight, scheduler_output, tokens)

    def count_launched(self, scheduler_output: Any, in_flight: Any, logits: Any) -> object:
        return self.note("count_launched", self.step, scheduler_output, in_flight, logits)


def run(attempt: Any, case: Case, watch: Watch) -> None:
    core = Core(case)

    def step() -> Any:
        try:
            got = attempt(core, core.output)
        except StepFailed as failed:
            cause = failed.__cause__
            if cause and cause.__traceback__ and type(cause) not in ERRORS.values():
                raise cause from None  # an accident of the answer's own, which it caught
            ended = sorted({getattr(each, "id", short(each, 40)) for each in failed.requests})
            return Shown(f"StepFailed({', '.join(ended)}) from {type(cause).__name__ if cause else 'no error'}")
        except tuple(ERRORS.values()) as error:
            if "failed" not in str(error):
                raise
            return Shown(f"an error of the type {type(error).__name__}")
        if got is core.step:
            return Shown("the step that `count_launched` returned")
        return None if got is None else Shown(core.word(got))

    def look() -> dict[str, Any]:
        return {CALLED: core.calls, "scheduler_output.preempted": [each.id for each in core.output.preempted]}

    watch("`run_step`", step, look=look, subject="what comes of the step")


def fates(attempt: Any) -> dict[str, dict[str, str]]:
    """What becomes of requests of each kind if a call fails, for `draw_failed_step`."""
    found = {}
    for call in CALLS:
        scheduled = "" if "none" in call else "A"
        core = Core(Case(scheduled, swapped="C", preempted="D", fails=call.split(",")[0]))
        kinds = dict(zip(KINDS, (scheduled, "C", "D", "F")))
        try:
            attempt(core, core.output)
        except StepFailed as failed:
            ended = {each.id for each in failed.requests}
            found[call] = {kind: ENDS if name in ended else AGAIN if name else "–" for kind, name in kinds.items()}
        except Broken:
            found[call] = dict.fromkeys(KINDS, BUG)
    return found


def tell(case: Case) -> str:
    count = case.copies + len(case.swapped)
    told = [f"scheduled: {' and '.join(case.scheduled) or 'nothing'}"]
    told += [f"swapped out: {' and '.join(case.swapped)}"] * bool(case.swapped)
    told += [f"preempted, to be recomputed: {case.preempted}"] * bool(case.preempted)
    told += [f"{counted(count, 'block')} to copy"] * bool(count)
    return "; ".join(told + [f"`{case.fails}` raises {case.error}"] * bool(case.fails)) + "."


MISTAKES = """
The caller of one request must not get the error of another, and the engine must go on: catch every `Exception` of these
four calls, and `raise StepFailed(requests) from error`.
~ except Exception as error: => except MemoryError as error:
`except Exception` lets interrupts through; `except BaseException` and a bare `except` don't. The engine recovers from
an interrupt at its next call.
~ except Exception as error: => except BaseException as error:
Copying blocks may fail, too: it belongs into the `try`.
- try: ... core.copy_blocks
+ core.copy_blocks(scheduler_output.block_copies)
+ try:
`sample` and `keep_tokens` may fail, too: all four calls belong into the `try`.
- in_flight = => pass
< return core.count_launched => in_flight = core.keep_tokens(scheduler_output, core.sample(scheduler_output, logits))
An error of `count_launched` is a bug of the engine, and no request is to blame. Call it below the `try`.
> in_flight = => return core.count_launched(scheduler_output, in_flight, logits)
or - return core.count_launched => try: return core.count_launched(scheduler_output, in_flight, logits)
> try: return => except Exception: return None
A failed step has no tokens. Raise: what comes after the `except` must not run.
- raise StepFailed => return None
or - raise StepFailed => return StepFailed(requests or scheduler_output.swapped_out)
or - raise StepFailed => pass
Don't try again: what was allocated for this step isn't in order any more. The core begins again from the tokens.
- raise StepFailed => return once_more(core, scheduler_output)
The callers of these requests get the cause. Raise `StepFailed(requests) from error`, with the error itself.
~ from error => from None
or ~ from error => from RuntimeError("a step failed")
Nothing is scheduled, so the copies have failed. If no request ends, nothing guarantees that the engine ever gets on.
End those that are swapped out: in `preempted`, with a `swapped` that isn't empty.
~ requests or scheduler_output.swapped_out => requests
Of those preempted, only the ones that are swapped out have blocks to copy: `swapped` isn't empty. The others are
recomputed.
~ requests or scheduler_output.swapped_out => requests or scheduler_output.preempted
or ~ scheduler_output.swapped_out => [each for each in scheduler_output.preempted if not each.swapped]
`StepFailed` takes a list of the requests themselves.
~ requests or scheduler_output.swapped_out => *(requests or scheduler_output.swapped_out)
or ~ requests or scheduler_output.swapped_out => error
Requests are scheduled, so these end, and what is swapped out is recomputed. It ends only if nothing is scheduled.
~ requests or scheduler_output.swapped_out => requests + scheduler_output.swapped_out
or ~ requests or scheduler_output.swapped_out => scheduler_output.swapped_out or requests
or ~ requests or scheduler_output.swapped_out => requests + scheduler_output.preempted
No call says which request is to blame, so all that are scheduled end. One that stays could fail each step after it.
~ requests or scheduler_output.swapped_out => requests[:1] or scheduler_output.swapped_out
or ~ requests or scheduler_output.swapped_out => []
Only scheduled requests were in this step. Others that run begin again from their tokens.
~ requests or scheduler_output.swapped_out => core.scheduler.running or scheduler_output.swapped_out
Copy blocks before the pass: it writes into blocks whose old contents must be saved by then.
- core.copy_blocks => if not requests: core.copy_blocks(scheduler_output.block_copies)
< in_flight = => core.copy_blocks(scheduler_output.block_copies)
Copy the blocks even if nothing is scheduled: the next step may overwrite what they save.
- core.copy_blocks => if requests: core.copy_blocks(scheduler_output.block_copies)
`core.copy_blocks` takes all block copies, a list: `scheduler_output.block_copies` as it is.
~ core.copy_blocks(scheduler_output.block_copies) => core.copy_blocks(scheduler_output)
If nothing is scheduled, return None before the model is called.
- if not requests: ... return None
`core.sample` chooses the tokens, by the settings of each request. The likeliest token isn't always asked for.
~ core.sample(scheduler_output, logits) => logits.argmax(dim=-1)
Return what `count_launched` returns: without that call, the next step computes the same tokens again.
- return core.count_launched
"""


def about_end(mine: dict[str, Any], want: dict[str, Any]) -> str:
    got = str(mine["returned"])
    if got.startswith("StepFailed") and not fullmatch(r"StepFailed\((\w(, \w)*)?\) .*", got):
        return "`StepFailed` takes a list of the requests themselves: the keys of `num_scheduled_tokens`."
    if got.startswith("an error of the type"):
        return "An error of the first four calls becomes a `StepFailed`. Anything else goes through as it is."
    if str(want["returned"]).startswith("the step"):
        return "Return what `count_launched` returns."
    return (
        "The scheduled requests end if copying, the pass, sampling or `keep_tokens` fails; if nothing is scheduled, "
        "those that are swapped out."
    )


def about_calls(mine: dict[str, Any], want: dict[str, Any]) -> str:
    pairs = zip(mine[CALLED], want[CALLED])
    got, wanted = next((pair for pair in pairs if pair[0] != pair[1]), ("", ""))
    name = wanted.split("(")[0]
    if name and got.startswith(f"{name}("):
        return f"`{name}` takes these arguments, in this order: `{wanted}`."
    if got and got in mine[CALLED][: mine[CALLED].index(got)]:
        return f"Call `{got.split('(')[0]}` once, and keep what it returns."
    return (
        "Copy blocks, and return None if nothing is scheduled. Else `forward`, `sample`, `keep_tokens` and "
        "`count_launched`, once each."
    )


TASK = Task(
    reference="lessons_lib.engine.core:run_step",
    cases=cases,
    run=run,
    tell=tell,
    known=mistakes(MISTAKES, once_more=run_step),
    about={"returned": about_end, CALLED: about_calls},
)

EXERCISE = TASK.exercise(
    id="12.3",
    title="a step, whole or failed",
    hints=(
        "Which of the calls can fail because of the model or the memory, so that they belong in the `try`? And if "
        "nothing is scheduled and copying fails: which requests were the copies for?",
        "Make a list of the scheduled requests. In a `try`: the block copies, a return if nothing is scheduled, "
        "`forward`, `sample` and `keep_tokens`. In `except Exception as error`: `raise StepFailed(…) from error`. "
        "After it, return what `count_launched` returns.",
        "`requests = list(scheduler_output.num_scheduled_tokens)`; `tokens = core.sample(scheduler_output, logits)`; "
        "`in_flight = core.keep_tokens(scheduler_output, tokens)`; `raise StepFailed(requests or [each for each in "
        "scheduler_output.preempted if each.swapped]) from error`; `return core.count_launched(scheduler_output, "
        "in_flight, logits)`.",
    ),
    points=3,
)
