"""12.1, `engine_loop`: a real scheduler, a scripted model, and a script of who asks and who leaves, token by token."""

from collections import deque
from collections.abc import Iterator
from itertools import count
from typing import Any, NamedTuple

from lessons_lib.checks.diagnosis import Shown, Task, Watch, mistakes
from lessons_lib.checks.exercise import Mistake, short
from lessons_lib.checks.lesson_03.books import counted
from lessons_lib.checks.lesson_09.made_up import END, names_of
from lessons_lib.kv_cache.prefix_cache import PrefixCache
from lessons_lib.scheduling.preemption import PreemptiveScheduler
from lessons_lib.scheduling.scheduler import SchedulerOutput
from lessons_lib.scheduling.sequence import Sequence

MOST_STEPS = 60


class Asked(NamedTuple):
    name: str
    prompt: int  # its length
    wanted: int  # new tokens
    after: int = 0  # it comes after so many streamed tokens
    ends: int = 0  # its token of this number is the end token


class Case(NamedTuple):
    requests: tuple[Asked, ...]
    slots: int = 4
    budget: int = 32
    blocks: int = 32
    leaves: int = 0  # the reader leaves after so many tokens
    fails: int = 0  # the step whose pass raises an error
    ctrl_c: bool = False  # that error is Ctrl-C
    nothing: int = 0  # the step in which nothing is scheduled
    backward: bool = False  # the scheduler lists the sequences in the reverse order


def cases() -> Iterator[Case]:
    one, a, b, c = Asked("A", 3, 1), Asked("A", 3, 3), Asked("B", 5, 4), Asked("C", 2, 2)
    yield from (Case((one,)), Case((a,)), Case((a, b)), Case((a, b, c), slots=2))
    yield Case((Asked("A", 9, 2),), slots=1, budget=4)
    yield Case((a, Asked("B", 9, 2)), slots=2, budget=4)
    yield from (Case((a, b), backward=True), Case((a, Asked("B", 9, 2)), slots=2, budget=4, backward=True))
    yield from (Case((a, Asked("B", 5, 4, after=1))), Case((a, Asked("B", 5, 2, after=3))))  # after A's last token
    yield Case((Asked("A", 3, 6), b, Asked("C", 2, 2, after=3), Asked("D", 4, 1, after=3)))
    yield Case((Asked("A", 3, 2), Asked("B", 3, 6), Asked("C", 3, 3, after=2), Asked("D", 3, 3, after=5)), slots=2)
    yield Case((Asked("A", 3, 6, ends=2), b))
    yield Case((Asked("A", 8, 12), Asked("B", 8, 12), Asked("C", 5, 12)), blocks=8)
    yield Case(())
    yield Case((Asked("A", 4, 14), Asked("B", 4, 14)), budget=4, blocks=6)
    yield Case((Asked("A", 3, 4), Asked("B", 3, 3)), nothing=2)
    yield Case((a,), leaves=1)
    yield Case((Asked("A", 3, 6), Asked("B", 3, 6), Asked("C", 3, 6), Asked("D", 3, 6)), leaves=5)
    yield Case((a, b, c), slots=1, leaves=2)
    yield Case((a, b, Asked("C", 2, 2, after=1)), leaves=2)  # C is still in the inbox
    yield from (Case((a,), fails=1), Case((a, b), fails=2), Case((a, b), fails=2, ctrl_c=True))
    yield Case((a, b, c, Asked("D", 3, 3)), slots=2, fails=3)
    yield Case((Asked("A", 7, 9), Asked("B", 9, 3), Asked("C", 1, 5, after=2)), slots=2, budget=5, blocks=6)


class Broken(Exception):
    pass


class TooManySteps(Exception):
    pass


class Scheduler(PreemptiveScheduler):
    """Schedules nothing in one step, as if all that runs had to wait for blocks."""

    case: Case
    step = 0

    def schedule(self) -> SchedulerOutput:
        self.step += 1
        output = SchedulerOutput() if self.step == self.case.nothing else super().schedule()
        if self.case.backward:
            output.num_scheduled_tokens = dict(reversed(output.num_scheduled_tokens.items()))
        return output


def run(attempt: Any, case: Case, watch: Watch) -> None:
    pool = PrefixCache(case.blocks, 4)
    scheduler = Scheduler(pool, max_num_seqs=case.slots, max_num_batched_tokens=case.budget)
    scheduler.case = case
    inbox: deque[Sequence] = deque()
    steps: list[str] = []
    sequences: dict[str, Sequence] = {}
    coming = list(case.requests)

    def compute(output: SchedulerOutput) -> list[int]:
        steps.append(", ".join(f"{each.id}: {n}" for each, n in output.num_scheduled_tokens.items()) or "nothing")
        if len(steps) == case.fails:
            raise KeyboardInterrupt("of the check") if case.ctrl_c else Broken("out of memory")
        if len(steps) > MOST_STEPS:
            raise TooManySteps(f"stopped after {MOST_STEPS} steps, which is more than these requests need.")
        return [token_of(sequence, n) for sequence, n in output.num_scheduled_tokens.items()]

    def token_of(sequence: Sequence, n: int) -> int:
        position = sequence.num_computed_tokens + n
        if position < sequence.num_tokens:
            return 95  # in the middle of a prompt
        ends = next(each.ends for each in case.requests if each.name == sequence.id)
        return END if len(sequence.output_ids) + 1 == ends else (11 * position + ord(sequence.id)) % 90

    def arrive(streamed: int) -> None:
        while coming and coming[0].after <= streamed:
            asked = coming.pop(0)
            made = Sequence(asked.name, list(range(asked.prompt)), asked.wanted, frozenset({END}))
            sequences[asked.name] = made
            inbox.append(made)

    def look() -> dict[str, Any]:
        seen: dict[str, Any] = {
            "the steps so far": [Shown(f"({step})") for step in steps],
            "the answers so far": {name: each.output_ids for name, each in sequences.items()},
        }
        if getattr(loop, "gi_frame", None) is None:  # it has ended
            left = {"running": names_of(scheduler.running), "waiting": names_of(scheduler.waiting)}
            seen |= {"the scheduler's sequences": left, "the number of blocks in use": len(pool.used)}
            if case.leaves:
                seen["the inbox"] = names_of([each for each in inbox if not each.output_ids])
        return seen

    def call(function: Any, *given: Any) -> Any:
        try:
            return function(*given)
        except KeyboardInterrupt as error:
            if not error.args:
                raise  # the learner's own
            raise Broken("Ctrl-C").with_traceback(error.__traceback__) from None

    arrive(0)
    called = "`engine_loop(scheduler, compute, inbox)`"
    loop = watch(called, lambda: call(attempt, scheduler, compute, inbox), returns=what)
    for streamed in count():
        if case.leaves and streamed == case.leaves:
            watch("the reader left (`close()`)", lambda: call(loop.close), look=look)
            return
        done = f"`next` number {streamed + 1}"
        if watch(done, lambda: call(next, loop, None), returns=pair, look=look, subject="what it yields") is None:
            return
        arrive(streamed + 1)


def what(got: Any) -> Shown:
    if hasattr(got, "close") and hasattr(got, "__next__"):
        return Shown("a generator")
    idea = "`yield` each pair, which makes your function a generator. A list is only there once everything is served."
    raise Mistake(f"the result should be a generator; yours is {short(got)}.", idea=idea)


def pair(got: Any) -> Any:
    """What was yielded, whatever kind of pair and of ints it is; "the end" if the loop has ended."""
    if got is None:
        return Shown("the end")
    if isinstance(got, tuple | list) and len(got) == 2 and hasattr(got[1], "__index__"):
        return got[0], int(got[1])
    return got


def tell(case: Case) -> str:
    told = []
    for asked in case.requests:
        ending = f" (its token number {asked.ends} is the end token)" * bool(asked.ends)
        coming = f", added to the inbox after {asked.after} streamed tokens" * bool(asked.after)
        told.append(f"{asked.name}: prompt of {asked.prompt}, {counted(asked.wanted, 'new token')}{ending}{coming}")
    told += [f"{counted(case.slots, 'batch slot')}, a budget of {case.budget} tokens"]
    told += [f"{case.blocks} blocks of 4"] * (case.blocks < 32)
    told += [f"the reader leaves after {counted(case.leaves, 'token')}"] * bool(case.leaves)
    error = "KeyboardInterrupt" if case.ctrl_c else "an error"
    told += [f"`compute` raises {error} in step {case.fails}"] * bool(case.fails)
    told += ["the scheduler lists its sequences in the reverse order"] * case.backward
    return "; ".join(told + [f"nothing is scheduled in step {case.nothing}"] * bool(case.nothing)) + "."


MISTAKES = """
Requests may come at any time: look into the inbox before each step, not only before the first one.
- while inbox: ... scheduler.add(
< try: => while inbox: scheduler.add(inbox.popleft())
~ while inbox or scheduler.has_unfinished(): => while scheduler.has_unfinished():
The scheduler may have nothing left while the inbox has: the loop ends only when both are empty.
~ while inbox or scheduler.has_unfinished(): => while scheduler.has_unfinished():
Sequences that wait count, too, and `scheduler.running` hasn't got them: `scheduler.has_unfinished()`.
~ inbox or scheduler.has_unfinished(): => inbox or scheduler.running:
An empty inbox isn't the end: the scheduler's sequences want their tokens.
~ while inbox or scheduler.has_unfinished(): => while inbox:
Add everything that is in the inbox before each step: it may join the running requests, which needn't finish first.
- while inbox: => while inbox and not scheduler.has_unfinished():
The oldest request is at the left of the inbox: `popleft`.
~ inbox.popleft() => inbox.pop()
Take what you add out of the inbox. You add the same request again before each step.
- while inbox: ... scheduler.add( => for sequence in inbox: scheduler.add(sequence)
In the middle of a prompt there is no new token: the row predicts one that is already there. `gets_token` says which
sequences get one.
~ if gets_token: => if True:
~ sequence.output_ids[-1] => sequence.output_ids[-1] if sequence.output_ids else None
or - scheduler.update( ... yield
+ tokens = compute(output)
+ scheduler.update(output, tokens)
+ for sequence, token in zip(output.num_scheduled_tokens, tokens): yield sequence.id, token
`gets_token` is filled by `scheduler.update`. Before it, the list is empty.
- scheduler.update(
+ tokens = compute(output)
+ pairs = list(zip(output.num_scheduled_tokens, output.gets_token))
+ scheduler.update(output, tokens)
~ in zip(output.num_scheduled_tokens, output.gets_token): => in pairs:
`compute` returns a token for *every* scheduled sequence, also in the middle of a prompt: zip with all of them.
- scheduler.update(
+ tokens = compute(output)
+ scheduler.update(output, tokens)
+ getters = [each for each, gets in zip(output.num_scheduled_tokens, output.gets_token) if gets]
- for sequence, gets_token ... yield => for sequence, token in zip(getters, tokens): yield sequence.id, token
The last chunk of a prompt gives a token, too, however long it is: `gets_token` says so.
~ if gets_token: => if gets_token and output.num_scheduled_tokens[sequence] == 1:
The last token of an answer is streamed as well.
~ if gets_token: => if gets_token and not sequence.finish_reason:
Stream each token as soon as its step is counted, not when the answer is complete or the loop ends.
- if gets_token ... yield
+ if sequence.finish_reason:
+     for token in sequence.output_ids: yield sequence.id, token
Count the step (`scheduler.update`) before you stream its tokens. A reader may leave at any `yield`.
- scheduler.update( ... yield
+ tokens = compute(output)
+ for (sequence, count), token in zip(output.num_scheduled_tokens.items(), tokens):
+     if sequence.num_computed_tokens + count == sequence.num_tokens: yield sequence.id, token
+ scheduler.update(output, tokens)
A step without tokens isn't the end. Sequences may have to wait for blocks.
< scheduler.update( => if not output.num_scheduled_tokens: break
or > scheduler.update( => if not output.num_scheduled_tokens: break
Call `compute` even if nothing is scheduled: it carries out the block copies of the step.
< scheduler.update( => if not output.num_scheduled_tokens: continue
Without `scheduler.update`, nothing is counted, and the next step computes the same tokens again.
- scheduler.update( => compute(output)
or - scheduler.update( ... yield
+ for sequence, token in zip(output.num_scheduled_tokens, compute(output)): yield sequence.id, token
One step is one pass for *all* scheduled sequences: call `compute` once.
< scheduler.update( => compute(output)
Schedule once in each step, and use that output. Each call of `schedule` allocates blocks for a step of its own.
~ compute(output) => compute(scheduler.schedule())
or < output = => scheduler.schedule()
When the reader leaves, Python raises `GeneratorExit` at your `yield`. Remove the scheduler's sequences then, too: their
blocks are still in use. A `finally` runs in every case.
- for sequence in [*scheduler.running ... scheduler.remove
If `compute` raises an error, remove the scheduler's sequences, too. A `finally` runs in every case.
- finally: => except GeneratorExit:
Ctrl-C is a `KeyboardInterrupt`, which isn't an `Exception`. Clean up then, too: a `finally` runs in every case.
- finally:
+ except (GeneratorExit, Exception):
+     for sequence in [*scheduler.running, *scheduler.waiting]: scheduler.remove(sequence)
+     raise
+ else:
Your clean-up runs after each step; put the `try` around the loop.
> for sequence, gets_token ... yield => for each in [*scheduler.running, *scheduler.waiting]: scheduler.remove(each)
Running sequences have the blocks. Remove them as well.
~ [*scheduler.running, *scheduler.waiting] => list(scheduler.waiting)
`remove` takes sequences out of the list that you loop over, so the loop skips every second one. Loop over a copy.
- for sequence in [*scheduler.running
+ for sequence in scheduler.running: scheduler.remove(sequence)
+ for sequence in list(scheduler.waiting):
Clearing the lists isn't enough: no sequence would ever free these blocks. `scheduler.remove` does both.
~ scheduler.remove(sequence) => scheduler.running.clear() or scheduler.waiting.clear()
Clean up, and let the error go on: the caller must learn of it.
< finally: => except Exception: pass
Let `GeneratorExit` go on: after it, a generator may not yield again.
- yield => try: yield sequence.id, sequence.output_ids[-1]
> try: yield => except GeneratorExit: pass
"""

TASK = Task(
    reference="lessons_lib.conformance.examples.engine_loop:engine_loop",
    cases=cases,
    run=run,
    tell=tell,
    known=mistakes(MISTAKES),
    refusals=("Broken",),
    about={
        "raised TooManySteps": "The loop ends when the inbox is empty and the scheduler has nothing left.",
        "returned": "A step yields `sequence.id, token` for each sequence that gets a token, in the order of "
        "`num_scheduled_tokens`, not of the ids.",
        "the steps so far": "Before each step, add what is in the inbox. Then schedule, compute and update, once each. "
        "Don't begin a step before the tokens of the last one are streamed.",
        "the answers so far": "`scheduler.update` appends each token, before you stream it.",
        "the scheduler's sequences": "However the loop ends, `scheduler.remove` every sequence that runs or waits.",
        "the inbox": "Take requests from the inbox only before a step. If the loop ends early, the rest stays there.",
        "raised ValueError": "`scheduler.remove` takes a sequence that is in `running` or `waiting`: none that has "
        "finished, and none that you have taken out yourself.",
        "should raise Broken": "The caller must get the error of `compute` itself: clean up, and don't wrap it.",
    },
)

EXERCISE = TASK.exercise(
    id="12.1",
    title="the loop that batches",
    hints=(
        "Write the loop for requests that are all there at the start, and print instead of `yield`. Then ask: where "
        "can a new request come in? And what must still run if the reader leaves at your `yield`?",
        "While the inbox or the scheduler has anything: add everything from the inbox, schedule, compute, update. Then "
        "go through the scheduled sequences and `gets_token` together, and yield the newest token of those that got "
        "one. Put all of it into a `try`, and in its `finally` remove what the scheduler still has, running and "
        "waiting.",
        "`while inbox or scheduler.has_unfinished():` … `scheduler.add(inbox.popleft())` … `scheduler.update(output, "
        "compute(output))`; `for sequence, gets in zip(output.num_scheduled_tokens, output.gets_token): if gets: yield "
        "sequence.id, sequence.output_ids[-1]`; `finally: for sequence in [*scheduler.running, *scheduler.waiting]: "
        "scheduler.remove(sequence)`.",
    ),
    points=3,
)
