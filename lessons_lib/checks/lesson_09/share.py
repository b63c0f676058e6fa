"""09.1, `share_budget`: decodes first, then prompts with what is left, never more than the budget."""

from collections.abc import Iterator
from random import Random
from typing import Any

from lessons_lib.checks.diagnosis import Task, Watch, mistakes
from lessons_lib.checks.lesson_09.made_up import a_sequence
from lessons_lib.scheduling.sequence import Sequence

Case = tuple[list[tuple[str, int, int, int]], int]  # (name, tokens of the prompt, of the answer, computed), budget


def run(share: Any, case: Case, watch: Watch) -> None:
    running = made(case)

    def look() -> dict[str, Any]:
        return {"the computed tokens": [each.num_computed_tokens for each in running]}

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
    wants = wants_of(case) or {"A": 0}
    name = max(wants, key=lambda each: wants[each] > 1)
    return {"name": name, "wants": formula(case, name)}


def wants_of(case: Case) -> dict[str, int]:
    return {name: prompt + done - computed for name, prompt, done, computed in case[0]}


def formula(case: Case, name: str) -> str:
    known, computed = next(((spec[1] + spec[2], spec[3]) for spec in case[0] if spec[0] == name), (0, 0))
    return f"known − computed = {known} − {computed} = {known - computed}"


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


def first_broken(seen: dict[str, Any], want: dict[str, Any]) -> str:
    """The first rule that the shares break."""
    case, counts = want["case"], seen.get("returned")
    wants, budget = wants_of(case), case[1]
    if not isinstance(counts, dict):
        return "" if counts is None else "A dict is expected, of sequence → tokens."
    if any(type(count) is not int for count in counts.values()):
        return "Each value is a number of tokens, an int."
    if any(not hasattr(each, "id") for each in counts):
        return "The keys are the sequences themselves, not their ids."
    shares = {each.id: count for each, count in counts.items()}
    total, order = sum(shares.values()), sorted(wants, key=lambda each: wants[each] > 1)
    for name, count in shares.items():
        if count == 0:
            return f"{name} gets no token: leave it out. An entry of 0 would be an empty segment."
        if count < 0:
            return f"{name} can't get {count}. Subtract from the budget what each gets, and stop when none is left."
        if count > wants[name]:
            return f"{name} wants fewer: {formula(case, name)}."
    if total > budget:
        return f"Together they get {total}, more than the budget. Each token lowers what is left."
    name = next((each for each in order if shares.get(each, 0) < wants[each]), "")
    if not name:
        return ""
    later = next((each for each in order[order.index(name) + 1 :] if each in shares), None)
    if later and wants[name] == 1 < wants[later]:
        return f"{name} wants one token, so it comes before {later}, wherever it is in `running`. Make two passes."
    if later:
        return f"{name} comes before {later} in `running`, so {later} gets something only if {name} gets all it wants."
    unused = f"{budget - total} of the budget's {budget} tokens stay unused"
    return f"{unused}, and {name}, which wants {formula(case, name)}, gets {shares.get(name, 0)}."


MISTAKES = """
More sequences want one token than the budget allows. The last of them get none.
~ elif wanted and budget => elif wanted
~ if budget: => if budget > 0:
What counts is known − computed, not whether there is an answer: you seem to check that.
~ if wanted > 1 => if not sequence.output_ids
~ counts[sequence] = 1 => counts[sequence] = min(wanted, budget)
- budget -= 1 => budget -= counts[sequence]
An answer has begun, but its cache was lost: {name} wants {wants} tokens, and gets as many as are left.
< if wanted > 1 => wanted = 1 if sequence.output_ids and wanted else wanted
A sequence that wants one token comes first even if that is the last token of its prompt: known − computed = 1 counts.
~ if wanted > 1 => if wanted > 1 or not sequence.output_ids
You count only the prompt. An answer whose cache was lost is computed again as well: {name} wants {wants}.
= wanted = max(1, len(sequence.prompt_ids) - sequence.num_computed_tokens)
"""

TASK = Task(
    reference="lessons_lib.scheduling.scheduler:share_budget",
    cases=cases,
    run=run,
    tell=tell,
    smaller=smaller,
    facts=facts,
    known=mistakes(MISTAKES),
    about={
        "returned": first_broken,
        "the computed tokens": "Nothing has been computed yet: the scheduler counts computed tokens after the pass.",
    },
    clear=0.75,
)

EXERCISE = TASK.exercise(
    id="09.1",
    title="share the budget",
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
