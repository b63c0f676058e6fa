"""09.2, `Scheduler`: what each step of some scenes schedules and admits."""

from collections.abc import Iterator
from typing import Any

from lessons_lib.checks.diagnosis import Task, Watch, mistakes
from lessons_lib.checks.exercise import Exercise, Mistake
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
            idea = "Does the loop ever end? If the next sequence can't be admitted, stop: `break`, not `continue`."
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


MISTAKES = """
`max_num_seqs` limits how many run at the same time: compare it with `len(self.running)` before each admission.
~ and len(self.running) < self.max_num_seqs => and True
or
~ len(self.running) < self.max_num_seqs => len(self.running) <= self.max_num_seqs
`self.running` contains the admitted sequences already.
~ and len(self.running) < => and len(self.running) + len(scheduler_output.admitted) <
No budget is left: stop. An admitted sequence gets at least one token.
~ not budget or not self.admission => not self.admission
The running sequences have used some of the budget: start with what is left, `max_num_batched_tokens` minus
`scheduler_output.num_tokens`.
= budget = self.max_num_batched_tokens
or
= budget = self.max_num_batched_tokens - scheduler_output.num_tokens - len(self.running)
or
= budget = self.max_num_batched_tokens // self.max_num_seqs
or
= budget = min(self.max_num_batched_tokens - scheduler_output.num_tokens, self.max_num_seqs)
Each admitted sequence uses up budget: subtract what it gets.
~ budget = self.max_num_batched_tokens - scheduler_output.num_tokens => pass
- while self.waiting
+ budget = self.max_num_batched_tokens - scheduler_output.num_tokens
+ ...
A running sequence may take more than one token of the budget: `scheduler_output.num_tokens` counts them all.
= budget = self.max_num_batched_tokens - len(self.running)
A new sequence gets at most what is left of the budget: a chunk of its prompt.
~ min(wanted, budget) => wanted
That is too little: a new sequence gets all it wants, or what is left of the budget.
~ min(wanted, budget) => min(wanted, budget, self.pool.block_size)
or
~ min(wanted, budget) => 1
An admitted sequence gets its first tokens in the same step: `self.allocate_slots(scheduler_output, sequence, count)`.
- self.allocate_slots(scheduler_output, sequence, min
`allocate_slots` does both: it takes the blocks that the tokens need, and schedules them.
= scheduler_output.num_scheduled_tokens[sequence] = min(wanted, budget)
or
- self.allocate_slots(scheduler_output, sequence, min
+ scheduler_output.num_scheduled_tokens[sequence] = min(wanted, budget)
+ ...
The policy says which is next, and it isn't always the first in the queue, or the first to arrive:
`self.waiting.next(self.running)`.
= sequence = next(iter(self.waiting))
or
= sequence = min(self.waiting, key=lambda each: each.arrival_time)
The policy may look at what runs, also at what this step has just admitted: `self.waiting.next(self.running)`.
= sequence = self.waiting.next([])
or
= sequence = self.waiting.next(self.waiting)
or
- while self.waiting
+ running = list(self.running)
+ ...
~ self.waiting.next(self.running) => self.waiting.next(running)
The waiting queue isn't a list. `self.waiting.next(self.running)` returns the next sequence, and `self.admit` takes it
out.
~ self.waiting.next(self.running) => self.waiting[0]
A prompt that doesn't fit as a whole still gets a chunk: what is left of the budget.
~ if not budget or => if sequence.num_tokens - sequence.num_computed_tokens > budget or
or
- self.allocate_slots(scheduler_output, sequence, min
+ if wanted > budget: break
+ ...
The last token of the budget can be used, too.
~ if not budget or => if budget <= 1 or
Whether memory has room is for the admission rule to say. A step needs blocks for its own tokens only.
- if not budget or
+ if self.missing_blocks(sequence) > len(self.pool.free_queue): break
+ ...
The admission rule says no: ask `self.admission(self, sequence)` before you admit.
~ not budget or not self.admission(self, sequence) => not budget
Ask the admission rule for each sequence before you admit it, not only for the first of a step.
- while self.waiting
+ asked = self.waiting and self.waiting.next(self.running)
+ if asked and not self.admission(self, asked): return
+ ...
~ not self.admission(self, sequence) => False
The rule takes the scheduler, and then the sequence: `self.admission(self, sequence)`.
~ self.admission(self, sequence) => self.admission(sequence)
`admit` takes the output of the step, and then the sequence: `self.admit(scheduler_output, sequence)`.
~ self.admit(scheduler_output, sequence) => self.admit(sequence, scheduler_output)
No sequence is overtaken: if there is no memory for the next one, stop. Don't look for a smaller one behind it.
- while self.waiting ... self.allocate_slots(scheduler_output, sequence, min
+ for sequence in list(self.waiting):
+     budget = self.max_num_batched_tokens - scheduler_output.num_tokens
+     if scheduler_output.stalled or not budget or len(self.running) >= self.max_num_seqs: break
+     if not self.admission(self, sequence): continue
+     self.admit(scheduler_output, sequence)
+     self.allocate_slots(scheduler_output, sequence, min(sequence.num_tokens - sequence.num_computed_tokens, budget))
A loop over the queue skips sequences while it takes them out. Ask for the next one again and again: `while`, and
`self.waiting.next(self.running)`.
- while self.waiting
+ for sequence in self.waiting:
+     if scheduler_output.stalled or len(self.running) >= self.max_num_seqs: break
~ sequence = self.waiting.next(self.running) => pass
`waiting.next` needs a waiting sequence: make `self.waiting` part of the loop's condition.
~ while self.waiting and => while
One admission per step is too slow: go on while there is a batch slot, budget and memory.
- self.allocate_slots(scheduler_output, sequence, min
+ ...
+ break
If nothing runs, there is all the more room: admit.
- while self.waiting
+ if not self.running: return
+ ...
Compare `max_num_seqs` with what runs. What waits takes no batch slot.
~ len(self.running) < self.max_num_seqs => len(self.running) + len(self.waiting) <= self.max_num_seqs
Admit it first, then allocate: one that stalls has a batch slot, too.
- self.admit(scheduler_output
- wanted =
- self.allocate_slots(scheduler_output, sequence, min
+ wanted = sequence.num_tokens - sequence.num_computed_tokens
+ self.allocate_slots(scheduler_output, sequence, min(wanted, budget))
+ if sequence not in scheduler_output.stalled: self.admit(scheduler_output, sequence)
Other sequences run, but that doesn't prevent admission, as long as there is a batch slot.
- while self.waiting
+ if self.running: return
+ ...
`self.admit(scheduler_output, sequence)` does all three: it takes the sequence out of the queue, and appends it to
`self.running` and to `scheduler_output.admitted`.
~ self.admit(scheduler_output, sequence) => self.running.append(sequence); scheduler_output.admitted.append(sequence)
or
~ self.admit(scheduler_output, sequence) => self.running.append(sequence)
or
~ self.admit(scheduler_output, sequence) => self.waiting.remove(sequence); self.running.append(sequence)
Was it taken out before? `self.admit(scheduler_output, sequence)` takes it out of the queue.
- self.admit(scheduler_output, sequence)
+ self.waiting.remove(sequence)
+ ...
A new sequence would take the block that a stalled one waits for: if `scheduler_output.stalled` isn't empty, admit none.
~ not scheduler_output.stalled and => True and
A sequence may stall as you admit it. So look at `scheduler_output.stalled` before each admission, not only once.
- while self.waiting
+ if scheduler_output.stalled: return
+ ...
~ not scheduler_output.stalled and => True and
A sequence stalled in an earlier step. Only those of this step count: `scheduler_output.stalled`.
- while self.waiting
+ self.has_stalled = getattr(self, "has_stalled", False) or bool(scheduler_output.stalled)
+ if self.has_stalled: return
+ ...
A sequence that has run before wants known − computed: its answer so far is known, too, and some of its tokens may be
in the cache.
= wanted = len(sequence.prompt_ids)
or
= wanted = len(sequence.prompt_ids) - sequence.num_computed_tokens
or
= wanted = sequence.num_tokens
Nothing has been computed yet. `update` counts the computed tokens after the forward pass.
- self.allocate_slots(scheduler_output, sequence, min
+ ...
+ sequence.num_computed_tokens += min(wanted, budget)
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
        "the admitted sequences": "Admit the next one while there is a batch slot, budget and memory, unless one has "
        "stalled in this step.",
        "the scheduled tokens": "First the running sequences; then each admitted one gets what it wants, or the rest.",
        "the number of blocks of each": "Leave the blocks to `allocate_slots`.",
        "scheduler.running": "`admit` puts a sequence into `self.running`, and only `update` takes it out.",
        "the stalled sequences": "`allocate_slots` keeps this list: leave it alone.",
        "raised Deadlock": "No sequence got a token. An admitted one gets its first tokens in the same step.",
        "should raise Deadlock": "If sequences run and none can get a token, the next step would be the same, forever.",
    },
)

EXERCISE = Exercise(
    id="09.2",
    title="the scheduler",
    reference=TASK.reference,
    test=TASK,
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
