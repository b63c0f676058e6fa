"""09.2, `Scheduler`: what each step of some scenes schedules and admits."""

from collections.abc import Iterator
from itertools import zip_longest
from typing import Any

from lessons_lib.checks.diagnosis import Task, Watch, mistakes
from lessons_lib.checks.exercise import Mistake
from lessons_lib.checks.lesson_09.made_up import END, a_sequence, names_of
from lessons_lib.checks.lesson_09.scenes import Case, cases
from lessons_lib.kv_cache.block_pool import BlockPool, blocks_for
from lessons_lib.scheduling.scheduler import conservative

MOST_QUESTIONS = 200  # in one step; no correct scheduler asks that often


def run(attempt: Any, scene: Case, watch: Watch) -> None:
    settings, asked = dict(scene.settings), [0]
    rule = settings.pop("admission", conservative)

    def ask(*given: Any) -> bool:
        if len(given) != 2:
            raise TypeError(f"the rule takes 2 arguments, the scheduler and the sequence; it got {len(given)}")
        scheduler, sequence = given
        asked[0] += 1
        if asked[0] > MOST_QUESTIONS:
            what = f"the rule was asked {MOST_QUESTIONS} times in one step, the last time about {sequence.id}."
            idea = "Does the loop ever end? `admit` takes a sequence out of the queue. If the rule says no, `break`."
            raise Mistake(what, idea=idea)
        return bool(rule(scheduler, sequence))

    scheduler = attempt(BlockPool(settings.pop("num_blocks"), 4), admission=ask, **settings)
    number = 0
    for event in scene.events:
        if event[0] == "+":
            for name in event[1:]:
                arrival = float([*scene.requests].index(name))
                prompt, most, _ = scene.requests[name]
                scheduler.add(a_sequence(name, prompt, max_tokens=most, arrival=arrival))
        elif event[0] == "-":
            scheduler.pool.allocate(int(event[1:]))
        elif event[0] == "E":
            sequence = a_sequence("E", scene.requests["E"][0], answered=6, computed=int(event[1:]))
            sequence.blocks = scheduler.pool.allocate(blocks_for(int(event[1:]), 4))
            scheduler.add(sequence)
        else:
            for _ in range(int(event)):
                number, asked[0] = number + 1, 0
                one_step(scheduler, scene, f"step {number}", watch)


def one_step(scheduler: Any, scene: Case, name: str, watch: Watch) -> None:
    outputs: list[Any] = []
    held = {each.id: list(each.blocks) for each in scheduler.running}

    def schedule() -> None:
        outputs.append(scheduler.schedule())

    def look() -> dict[str, Any]:
        seen: dict[str, Any] = {}
        if outputs:
            output = outputs[0]
            seen["the admitted sequences"] = names_of(output.admitted)
            tokens = {getattr(each, "id", each): count for each, count in output.num_scheduled_tokens.items()}
            seen["the scheduled tokens"] = dict(sorted(tokens.items()))
            seen["the stalled sequences"] = sorted(names_of(output.stalled))
        everyone = [*scheduler.running, *scheduler.waiting]
        return seen | {
            "scheduler.running": names_of(scheduler.running),
            "scheduler.waiting": names_of(scheduler.waiting),
            "the number of blocks of each": {each.id: len(each.blocks) for each in everyone},
            "those that have lost blocks, or their order": [
                each.id for each in everyone if each.blocks[: len(held.get(each.id, ()))] != held.get(each.id, [])
            ],
            "the computed tokens": {each.id: each.num_computed_tokens for each in everyone},
            "the number of free blocks": len(scheduler.pool.free_queue),
        }

    watch(f"{name}", schedule, look=look)
    if outputs:
        scheduled = outputs[0].num_scheduled_tokens
        ends = [len(each.output_ids) + 1 == scene.requests[each.id][2] for each in scheduled]
        scheduler.update(outputs[0], [END if end else 7 for end in ends])


def tell(scene: Case) -> str:
    arrive = ", ".join(
        f"{event[1]} (prompt {scene.requests[event[1]][0]})" for event in scene.events if event[0] == "+"
    )
    return f"blocks of 4; {scene.words}{f'; {arrive} arrive, one a step' if scene.words.startswith('blocks') else ''}."


def smaller(scene: Case) -> Iterator[Case]:
    for event in scene.events if scene.words.startswith("blocks") else ():
        if event[0] == "+":
            yield scene._replace(events=[each for each in scene.events if each != event])


def wrong_admissions(seen: dict[str, Any], want: dict[str, Any]) -> str:
    """Which rule the admissions break."""
    got, right, stalled = seen["the admitted sequences"], want["the admitted sequences"], want["the stalled sequences"]
    slots, budget = (want["case"].settings[name] for name in ("max_num_seqs", "max_num_batched_tokens"))
    mine = next((name for name, other in zip_longest(got, right) if name != other), None)
    if len(set(got)) < len(got) or (mine is None and right[len(got)] in seen["scheduler.running"]):
        return "`self.admit` does all three: out of the queue, into `self.running` and `scheduler_output.admitted`."
    if mine is None:
        left = budget - sum(seen["the scheduled tokens"].values())
        skips = " A `for` over the queue skips some, as `admit` takes them out." if got else ""
        return f"{right[len(got)]} can start: slots, memory and {left} of {budget} tokens are free.{skips}"
    if len(got) <= len(right):
        return "The policy says which is next, and may look at all that runs by now: `self.waiting.next(self.running)`."
    if len(want["scheduler.running"]) == slots:
        return f"`max_num_seqs` is {slots}. Before each admission, compare `len(self.running)` with it."
    if stalled:
        return (
            f"{stalled[0]} has stalled, and {mine} would take the block that it waits for. Before each admission, "
            "look whether `scheduler_output.stalled` is empty."
        )
    if sum(want["the scheduled tokens"].values()) == budget:
        return f"No budget is left for {mine}: stop. An admitted sequence gets at least one token."
    return "Before each admission, ask `self.admission(self, sequence)`. If it says no, stop: none behind it may pass."


def wrong_tokens(seen: dict[str, Any], want: dict[str, Any]) -> str:
    got, right = seen["the scheduled tokens"], want["the scheduled tokens"]
    total, budget = sum(got.values()), want["case"].settings["max_num_batched_tokens"]
    name = next((each for each in {**right, **got} if got.get(each) != right.get(each)), "")
    if total > budget:
        return (
            f"These are {total} tokens, and the limit is {budget}. `scheduler_output.num_tokens` grows with each "
            "`allocate_slots`: compute what is left before each one."
        )
    if name not in got or name not in right:
        return "Call `allocate_slots` once for each admitted sequence: it takes blocks and schedules, or lets it stall."
    return f"{name} gets all it wants (known − computed), or what `scheduler_output.num_tokens` leaves of {budget}."


MISTAKES = """
The rule takes the scheduler, and then the sequence: `self.admission(self, sequence)`.
~ self.admission(self, sequence) => self.admission(sequence)
`admit` takes the output of the step, and then the sequence: `self.admit(scheduler_output, sequence)`.
~ self.admit(scheduler_output, sequence) => self.admit(sequence, scheduler_output)
The waiting queue isn't a list. `self.waiting.next(self.running)` returns the next sequence, and `self.admit` takes it
out.
~ self.waiting.next(self.running) => self.waiting[0]
`waiting.next` needs a waiting sequence: make `self.waiting` part of the loop's condition.
~ while self.waiting and => while
Was it taken out before? `self.admit(scheduler_output, sequence)` takes it out of the queue.
< self.admit(scheduler_output, sequence) => self.waiting.remove(sequence)
A sequence that has run before wants known − computed: its answer so far is known, too, and some of its tokens may be
in the cache.
= wanted = len(sequence.prompt_ids)
or = wanted = len(sequence.prompt_ids) - sequence.num_computed_tokens
or = wanted = sequence.num_tokens
"""

TASK = Task(
    reference="lessons_lib.scheduling.stalling:Scheduler",
    cases=cases,
    run=run,
    tell=tell,
    smaller=smaller,
    refusals=("Deadlock",),
    known=mistakes(MISTAKES),
    about={
        "the admitted sequences": wrong_admissions,
        "the scheduled tokens": wrong_tokens,
        "the number of blocks of each": "Leave the blocks to `allocate_slots`.",
        "scheduler.running": "`admit` puts a sequence into `self.running`, and only `update` takes it out.",
        "the stalled sequences": "`allocate_slots` keeps this list: leave it alone.",
        "the computed tokens": "Nothing has been computed yet: `update` counts the tokens after the forward pass.",
        "raised Deadlock": "No sequence got a token. Admit one only if the rule says yes, and call `allocate_slots` "
        "with at least one token.",
        "should raise Deadlock": "If sequences run and none can get a token, the next step would be the same, forever.",
    },
)

EXERCISE = TASK.exercise(
    id="09.2",
    title="the scheduler",
    hints=(
        "`schedule_waiting` is a loop. Which conditions can you check before you know the next sequence, and which "
        "only afterwards?",
        "While a sequence waits, none has stalled in this step and a batch slot is free: compute the budget that is "
        "left, the limit minus the tokens scheduled so far. Get the next sequence; if no budget is left, or the "
        "admission rule says no, stop. Admit it, and schedule what it wants or what is left.",
        "`while self.waiting and not scheduler_output.stalled and len(self.running) < self.max_num_seqs:`, and in the "
        "loop `budget = self.max_num_batched_tokens - scheduler_output.num_tokens`; `sequence = "
        "self.waiting.next(self.running)`; `if not budget or not self.admission(self, sequence): break`; "
        "`self.admit(scheduler_output, sequence)`; `self.allocate_slots(scheduler_output, sequence, "
        "min(sequence.num_tokens - sequence.num_computed_tokens, budget))`.",
    ),
    points=3,
)
