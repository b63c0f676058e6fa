"""09.1, `share_budget`: decodes first, then prompts with what is left, never more than the budget."""

from collections.abc import Iterator
from random import Random
from typing import Any

from lessons_lib.checks.diagnosis import Task, Watch, mistakes
from lessons_lib.checks.exercise import Exercise
from lessons_lib.checks.lesson_09.made_up import a_sequence
from lessons_lib.scheduling.sequence import Sequence

Case = tuple[list[tuple[str, int, int, int]], int]  # (name, tokens of the prompt, of the answer, computed), budget


def run(share: Any, case: Case, watch: Watch) -> None:
    running = made(case)

    def look() -> dict[str, Any]:
        return {f"{each.id}.num_computed_tokens": each.num_computed_tokens for each in running} | {
            f"{each.id}.num_tokens": each.num_tokens for each in running
        }

    watch("`share_budget`", share, running, case[1], look=look, subject="the scheduled tokens")


def made(case: Case) -> list[Sequence]:
    """The sequences have arrived in another order than they were admitted in, and than the reverse."""
    running = [
        a_sequence(name, prompt, answered=answer, computed=computed) for name, prompt, answer, computed in case[0]
    ]
    for place, sequence in enumerate(running):
        sequence.arrival_time = (5.0 * place + 3) % 7
    return running


def tell(case: Case) -> str:
    specs, budget = case
    running = ", ".join(
        f"{name} (known {prompt + done}, computed {computed})" for name, prompt, done, computed in specs
    )
    return f"running: {running or 'none'}; budget {budget}."


def facts(case: Case) -> dict[str, Any]:
    """Of the first sequence that wants more than one token, or else of the first."""
    wants = [(name, prompt + done, computed) for name, prompt, done, computed in case[0]] or [("A", 0, 0)]
    name, known, computed = max(wants, key=lambda each: each[1] - each[2] > 1)
    return {"name": name, "wants": f"known − computed = {known} − {computed} = {known - computed}", "budget": case[1]}


def smaller(case: Case) -> Iterator[Case]:
    specs, budget = case
    for index in range(len(specs)):
        yield specs[:index] + specs[index + 1 :], budget
    for less in (1, budget // 2, budget - 1):
        if 0 < less < budget:
            yield specs, less


def cases() -> Iterator[Case]:
    yield [("A", 13, 5, 17)], 32
    yield [("A", 13, 0, 0)], 32
    yield [("A", 13, 0, 8)], 32
    yield [("A", 13, 0, 0)], 8
    yield [("A", 13, 5, 17)], 0
    yield [], 32
    yield [("A", 13, 0, 0)], 1
    yield [("E", 5, 20, 0)], 64
    yield [("E", 5, 20, 0), ("A", 13, 5, 17)], 10
    yield [("D", 21, 0, 0), ("F", 40, 0, 0)], 32
    yield [("F", 40, 0, 0), ("D", 21, 0, 0)], 48
    yield [("A", 13, 5, 17), ("B", 62, 0, 32), ("C", 3, 2, 4), ("D", 21, 0, 0), ("F", 40, 0, 0)], 64
    yield [("A", 13, 5, 17), ("C", 3, 2, 4), ("F", 40, 0, 0)], 1
    yield [("B", 62, 0, 0), ("A", 13, 5, 17)], 32
    yield [("F", 40, 0, 0), ("D", 21, 0, 20)], 16
    draw = Random(9)
    for _ in range(60):
        specs = []
        for name in "ABCDEF"[: draw.randint(1, 6)]:
            prompt, answer = draw.choice((1, 2, 13, 40)), draw.choice((0, 1, 7))
            decodes = prompt + answer - 1
            specs.append((name, prompt, answer, draw.choice((0, decodes, decodes, draw.randrange(prompt + answer)))))
        yield specs, draw.choice((0, 1, 2, 3, 5, 16, 64))


MISTAKES = """
Each sequence gets all it wants. Never schedule more than is left of the budget, here {budget}.
~ min(wanted, budget) => wanted
~ if budget: => if True:
~ elif wanted and budget => elif wanted
or
~ min(wanted, budget) => wanted
A sequence that wants one token uses up budget, too: subtract its token.
- counts[sequence] = 1
- budget -= 1
+ counts[sequence] = 1
or
~ elif wanted and budget => elif wanted
- counts[sequence] = 1
- budget -= 1
+ counts[sequence] = 1
More sequences want one token than the budget allows. The last of them get none, and what is left never falls below 0.
~ elif wanted and budget => elif wanted
or
~ elif wanted and budget => elif wanted
- for sequence, wanted in
+ budget = max(budget, 0)
+ ...
or
~ elif wanted and budget => elif wanted
~ if budget: => if budget > 0:
or
- elif wanted and budget ... budget -= 1
+ elif wanted:
+     if budget > 0: counts[sequence] = 1
+     budget -= 1
Sequences that want one token come first, wherever they are in `running`: you make one pass over it.
- if wanted > 1 ... prefills.append
+ if wanted > 1 and budget:
+     counts[sequence] = min(wanted, budget)
+     budget -= counts[sequence]
You go through all sequences by the length of their prompts. First come those that want one token, wherever they are.
- for sequence in running ... counts[sequence] = 1
+ for sequence in sorted(running, key=lambda each: len(each.prompt_ids)):
+     wanted = sequence.num_tokens - sequence.num_computed_tokens
+     if wanted and budget: counts[sequence] = min(wanted, budget)
+     budget -= counts.get(sequence, 0)
+ for sequence in ():
You serve the prompts first. Sequences that want one token come first: skipping one would delay it by a step.
~ if wanted > 1 => if wanted
~ in prefills => in sorted(prefills, key=lambda each: each[1] == 1)
Sequences that want more than one token got nothing: what is left is for prompts.
- prefills.append
As soon as a sequence wants one token, the prompts get nothing. What is left of the budget is for them.
~ in prefills => in ([] if counts else prefills)
Sequences that want one token got nothing: wanting 1 counts, too.
~ elif wanted and budget => elif False
A prompt that doesn't fit as a whole still gets a chunk: what is left of the budget.
~ if budget: => if wanted <= budget:
or
- if budget: ... budget -= counts
+ if budget < wanted: break
+ counts[sequence] = wanted
+ budget -= wanted
You serve the prompts in the wrong order: keep that of `running`.
~ in prefills => in reversed(prefills)
or
~ in prefills => in sorted(prefills, key=lambda each: -each[1])
You serve everything in the reverse order: keep that of `running`.
~ for sequence in running => for sequence in reversed(running)
You serve short prompts before long ones: keep the order of `running`.
~ in prefills => in sorted(prefills, key=lambda each: each[1])
or
~ for sequence in running => for sequence in sorted(running, key=lambda each: len(each.prompt_ids))
or
~ for sequence in running => for sequence in sorted(running, key=lambda s: s.num_tokens - s.num_computed_tokens)
The order is that of admission, `running`: not of arrival, nor of names.
~ in prefills => in sorted(prefills, key=lambda each: each[0].id)
or
~ for sequence in running => for sequence in sorted(running, key=lambda each: each.arrival_time)
Only one of the prompts got tokens: continue while budget is left.
~ in prefills => in prefills[:1]
What counts is known − computed, not whether there is an answer: you seem to check that.
~ if wanted > 1 => if not sequence.output_ids
~ counts[sequence] = 1 => counts[sequence] = min(wanted, budget)
- budget -= 1
+ budget -= counts[sequence]
An answer has begun, but its cache was lost: {name} wants {wants} tokens, and gets as many as are left.
- if wanted > 1
+ wanted = 1 if sequence.output_ids and wanted else wanted
+ ...
or
- if wanted > 1
+ if wanted > 1 and sequence.output_ids: continue
+ ...
A sequence that wants one token comes first even if that is the last token of its prompt: known − computed = 1 counts.
~ if wanted > 1 => if wanted > 1 or not sequence.output_ids
You count only the prompt. An answer whose cache was lost is computed again as well: {name} wants {wants}.
= wanted = len(sequence.prompt_ids) - sequence.num_computed_tokens
or
= wanted = max(0, len(sequence.prompt_ids) - sequence.num_computed_tokens)
or
- if wanted > 1
+ wanted = 1 if wanted == 1 else len(sequence.prompt_ids) - sequence.num_computed_tokens
+ ...
or
- if wanted > 1
+ wanted = max(len(sequence.prompt_ids) - sequence.num_computed_tokens, sequence.num_computed_tokens > 0)
+ ...
or
= wanted = len(sequence.prompt_ids) - sequence.num_computed_tokens or 1
or
= wanted = max(1, len(sequence.prompt_ids) - sequence.num_computed_tokens)
You schedule all known tokens. Those already computed are in the cache: {name} wants {wants}.
= wanted = sequence.num_tokens
or
~ prefills.append((sequence, wanted)) => prefills.append((sequence, sequence.num_tokens))
You schedule whole prompts. {name} wants the tokens that are known and not computed yet: {wants}.
= wanted = len(sequence.prompt_ids)
or
~ prefills.append((sequence, wanted)) => prefills.append((sequence, len(sequence.prompt_ids)))
You schedule what is computed already. {name} wants {wants}.
= wanted = sequence.num_computed_tokens
Each sequence got one token. One with a prompt wants more, known − computed in this order: {name} wants {wants}.
~ min(wanted, budget) => 1
or
= wanted = 1
or
= wanted = sequence.num_computed_tokens - sequence.num_tokens
You stop at the first sequence that wants one token, or start after it: `continue`, not `break`.
- for sequence, wanted in
+ ones = [i for i, each in enumerate(running) if each.num_tokens - each.num_computed_tokens == 1]
+ prefills = [each for each in prefills if not ones or running.index(each[0]) < ones[0]]
+ ...
You divide what is left among the prompts. The first gets as much as it wants, and the next what is left then.
- for sequence, wanted in
+ part = budget // max(1, len(prefills))
+ for sequence, wanted in [(each, min(wants, part)) for each, wants in prefills if part]:
or
- for sequence, wanted in
+ parts = [(each, wants, len(prefills) - place) for place, (each, wants) in enumerate(prefills)]
+ for sequence, wanted, left in parts:
+     wanted = min(wanted, budget // left)
+     if not wanted: continue
- if budget:
+     if budget:
- counts[sequence] = min ... budget -=
+         counts[sequence] = min(wanted, budget)
+         budget -= counts[sequence]
A sequence that wants one token pays for it twice: leave it out in the second pass.
- for sequence, wanted in
+ budget = max(0, budget - len(counts))
+ ...
or
~ elif wanted and budget => elif wanted and len(counts) < budget
A sequence gets all it wants, or what is left of the budget. It has no other limit.
~ min(wanted, budget) => min(wanted, 16, budget)
Subtract what a prompt gets, not what it wants: what is left never falls below 0.
~ budget -= counts[sequence] => budget -= wanted
Look at all of `running`: one that wants a token may stand behind more sequences than the budget has tokens.
~ for sequence in running => for sequence in running[:budget]
The budget is used up by the prompts, too: subtract what each gets.
- budget -= counts
One token of the budget stays unused.
~ counts = {} => counts, budget = {}, max(budget - 1, 0)
Leave out sequences that get no tokens: an entry of 0 would be an empty segment.
~ if budget: => if True:
or
~ counts = {} => counts = dict.fromkeys(running, 0)
The keys are the sequences themselves, not their ids.
~ counts[sequence] => counts[sequence.id]
A dict is expected, of sequence -> tokens.
~ return counts => return list(counts.items())
or
~ return counts => return counts, budget
or
~ return counts => return list(counts.values())
Return the dict: a `return` is missing.
- return counts
Nothing has been computed yet: the scheduler counts computed tokens after the pass.
- return counts
+ for sequence, count in counts.items(): sequence.num_computed_tokens += count
+ ...
`running` is the scheduler's own list, in the order of admission: make a new one.
- return counts
+ running.sort(key=lambda each: each.num_tokens - each.num_computed_tokens > 1)
+ ...
"""

TASK = Task(
    reference="lessons_lib.scheduling.scheduler:share_budget",
    cases=cases,
    run=run,
    tell=tell,
    smaller=smaller,
    facts=facts,
    known=mistakes(MISTAKES),
    about={"returned": "Decodes first, one token each; then the others in order, with what is left of the budget."},
)

EXERCISE = Exercise(
    id="09.1",
    title="share the budget",
    reference=TASK.reference,
    test=TASK,
    hints=(
        "Which sequences are served first depends on one number, not on their place in the list. Which?",
        "Make two passes over `running`. In the first, each sequence that wants exactly one token gets it while "
        "there is budget. In the second, each of the others, in order, gets what it wants or what is left, "
        "whichever is smaller. Leave out sequences that would get 0.",
        "`wanted = sequence.num_tokens - sequence.num_computed_tokens`. First pass: `if wanted == 1 and budget: "
        "num_scheduled_tokens[sequence] = 1; budget -= 1`. Second pass: `if wanted > 1 and budget: "
        "num_scheduled_tokens[sequence] = min(wanted, budget); budget -= num_scheduled_tokens[sequence]`.",
    ),
)
