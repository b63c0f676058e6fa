"""09.3, `ShortestWithAging`: its three promises, each on pairs of sequences."""

from collections.abc import Iterator
from random import Random
from typing import Any, NamedTuple

from lessons_lib.checks.diagnosis import Shown, Task, Watch, mistakes
from lessons_lib.checks.exercise import Mistake, short
from lessons_lib.checks.lesson_09.made_up import a_sequence

MOST = 512  # tokens of the longest prompt, and of the longest answer expected
TOGETHER = "they arrive at the same time, and A has the shorter prompt and the shorter answer."
BOUND = "B arrived more than `patience` later."
OVERTAKES = "B is long, and A is short and arrived less than half of `patience` later."
LONGEST_FIRST = "The smallest rank goes first, so a token more must make the rank larger, never smaller."
IDEAS = {
    TOGETHER: "Different lengths have the same rank here. Does a limit such as `min`, or rounding, make them equal? Or "
    "doesn't length count at all?",
    BOUND: "Length may move a sequence back by `self.patience` at most: start from `arrival_time`, in seconds, and add "
    "a part of the patience, 1 at most for prompt and answer together.",
    OVERTAKES: "From prompt and answer 1 to 500, the rank, in seconds, must grow by half of `self.patience` or more.",
    "max_tokens": "Your rank depends on `max_new_tokens`. The promises hold whatever that is.",
    "tier": "Your rank depends on the tier. The promises hold whatever that is.",
    "interactive": "Your rank depends on `is_interactive`. The promises hold whatever that is.",
    "answered": "Your rank depends on the answer so far, which `num_tokens` counts, too. The promises hold anyway.",
}


class Case(NamedTuple):
    """Two sequences, each as arrival, prompt and expected answer. The first one goes first.

    Attributes:
        more: of both, what else differs.
    """

    patience: float
    first: tuple[float, int, int]
    other: tuple[float, int, int]
    promise: str
    more: tuple[dict[str, Any], dict[str, Any]] = ({}, {})


def cases() -> Iterator[Case]:
    yield Case(2, (10, 20, 20), (10, 500, 500), TOGETHER)
    yield Case(2, (10, 39, 59), (10, 40, 60), TOGETHER)
    differs = {"max_tokens": (64, MOST), "tier": (0, 1), "interactive": (False, True), "answered": (0, 50)}
    for name, (low, high) in differs.items():
        for more in (({name: low}, {name: high}), ({name: high}, {name: low})):
            yield Case(2, (10, 39, 59), (10, 40, 60), TOGETHER, more)
    yield Case(2, (10, 500, 500), (12.1, 1, 1), BOUND)
    yield Case(2, (10.9, 1, 1), (10, 500, 500), OVERTAKES)
    for first, other in (((10, 1, 1), (10, 2, 2)), ((10, 300, 300), (10, 400, 400)), ((10, 511, 511), (10, 512, 512))):
        yield Case(2, first, other, TOGETHER)
    yield Case(2, (10, 20, 20), (14, 1, 1), BOUND)
    yield Case(2, (10, 512, 512), (12.0002, 1, 1), BOUND)
    yield Case(2, (11.5, 1, 1), (10.6, 500, 500), OVERTAKES)
    yield Case(2, (10.998, 1, 1), (10, 500, 500), OVERTAKES)
    for answers in ((200, 201), (3, 300)):
        for prompts in ((3, 300), (200, 201)):
            yield Case(2, (10, prompts[0], answers[0]), (10, prompts[1], answers[1]), TOGETHER)
    for patience in (0.25, 0.05, 60):
        yield Case(patience, (100, 512, 512), (100 + patience * 1.02, 1, 1), BOUND)
        yield Case(patience, (100, 512, 1), (100 + patience * 1.02, 1, 1), BOUND)
        yield Case(patience, (100, 1, 512), (100 + patience * 1.02, 1, 1), BOUND)
        yield Case(patience, (100 + patience * 0.48, 1, 1), (100, 500, 500), OVERTAKES)
        yield Case(patience, (100, 400, 400), (100, 401, 401), TOGETHER)
    draw = Random(9)
    for _ in range(60):
        patience, arrival = draw.choice((0.1, 0.5, 3, 40)), draw.random() * 100
        prompts, answers = (sorted(draw.sample(range(1, MOST + 1), 2)) for _ in range(2))
        low, high = (arrival, prompts[0], answers[0]), (arrival, prompts[1], answers[1])
        yield Case(patience, low, high, TOGETHER)
        later = (arrival + patience * 1.001, prompts[1], answers[0])
        yield Case(patience, (arrival, prompts[0], answers[1]), later, BOUND)
        yield Case(patience, (arrival + patience * 0.499, 1, 1), (arrival, 500, 500), OVERTAKES)


def run(attempt: Any, case: Case, watch: Watch) -> None:
    policy = watch(f"`ShortestWithAging({case.patience})`", attempt, case.patience, returns=type)
    ranks = []
    for name, (arrival, prompt, expected), more in zip("AB", (case.first, case.other), case.more):
        sequence = a_sequence(name, prompt, arrival=arrival, expected=expected, **{"max_tokens": MOST} | more)
        before, patience = dict(vars(sequence)), policy.patience

        def look() -> dict[str, Any]:
            changed = [name for name, value in vars(sequence).items() if value != before.get(name)]
            changed += ["the patience"] * (policy.patience != patience)
            return {"what `rank` changes": Shown(", ".join(changed) or "nothing")}

        call = f"`rank` of {name}"
        ranks.append(watch(call, policy.rank, sequence, returns=a_number, look=look, subject="the rank"))
        again = policy.rank(sequence)
        watch(f"{call}, twice", int, look=lambda: {"the second rank": Shown(told(ranks[-1], again))})
    watch("comparing the ranks", refuse_other_order, *ranks, case)


def told(rank: Any, again: Any) -> str:
    return "the same" if rank == again else f"{short(again)}, after {short(rank)}"


def a_number(rank: Any) -> Any:
    """What is compared with others: a number, or a tuple of numbers."""
    parts = rank if isinstance(rank, tuple | list) else (rank,)
    is_fine = rank is not None and not isinstance(rank, str) and not any(part != part for part in parts)
    return Shown("a number") if is_fine else rank


def refuse_other_order(one: Any, other: Any, case: Case) -> None:
    if not one < other:
        what = f"A should go first: {case.promise} Your ranks are {short(one)} for A and {short(other)} for B."
        reason = next(iter(case.more[0]), case.promise)
        refused = Mistake(what, idea=LONGEST_FIRST if reason == TOGETHER and one != other else IDEAS[reason])
        order = "a tie" if one == other else "B first"
        refused.args = (f"{order}, {isinstance(one, tuple)}",)  # the ranks themselves don't matter
        raise refused


def tell(case: Case) -> str:
    words = {
        "max_tokens": "`max_new_tokens` {}", "tier": "tier {}", "interactive": "`is_interactive` {}",
        "answered": "{} tokens of its answer in `output_ids`",
    }  # fmt: skip
    sides = []
    for name, (arrival, prompt, expected), more in zip("AB", (case.first, case.other), case.more):
        parts = [f"arrived at {arrival:.6g} s", f"prompt {prompt}", f"expected answer {expected}"]
        sides.append(f"{name}: {', '.join([*parts, *(words[key].format(value) for key, value in more.items())])}.")
    return f"patience {case.patience} s. {' '.join(sides)}"


MISTAKES = """
A tuple (arrival, length) looks at the length only if two arrive at the same moment. Turn the length into seconds, and
add them to the arrival time.
= return sequence.arrival_time, answer
A tuple (length, arrival) looks at the arrival only if two are equally long, so a long request can be overtaken forever.
= return answer, sequence.arrival_time
Do you divide time into windows? Two that arrive shortly after each other may be in different ones. Add seconds to the
arrival time instead: few for a short request, up to `patience` for a long one.
= return sequence.arrival_time // self.patience, answer
or = return int(sequence.arrival_time) + self.patience * answer / 512
or = return sequence.arrival_time // self.patience + (len(sequence.prompt_ids) + answer) / 1025
"""

TASK = Task(
    reference="lessons_lib.scheduling.policies:ShortestWithAging",
    cases=cases,
    run=run,
    tell=tell,
    known=mistakes(MISTAKES),
    about={
        "returned": "The queue sorts by what `rank` returns: a number for each sequence. Text is sorted letter by "
        "letter, and NaN is neither smaller nor larger than any number.",
        "what `rank` changes": "`rank` only reads: compute the rank from arrival time and lengths, and return it.",
        "the second rank": "A sequence's rank never changes: the queue asks once, when it arrives. All age at the same "
        "rate, so leave the clock out.",
    },
    clear=0.75,
)

EXERCISE = TASK.exercise(
    id="09.3",
    title="a policy of your own",
    hints=(
        "Let each sequence rank as if it had arrived later than it did. How much later may the longest one be, so "
        "that none overtakes it that arrived more than `patience` after it? And the shortest?",
        "The rank is the arrival time plus a part of `self.patience`. The part depends on the lengths only: near 0 "
        "for the shortest request, at most 1 for the longest, and larger with every token. What does a request "
        "cost the machine?",
        "`cost = len(sequence.prompt_ids) + 8 * sequence.expected_tokens`; `return sequence.arrival_time + "
        "self.patience * part`, with `part = cost / 4608`. That keeps all three promises, but short requests "
        "hardly differ. A part that grows fast at first and slowly later can keep them too, and scores far better.",
    ),
)
