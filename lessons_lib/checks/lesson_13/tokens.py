"""13.2, `next_tokens`: the ids of a step's tokens, with placeholders for those that the step in flight will produce."""

from collections.abc import Iterator
from random import Random
from typing import Any, NamedTuple

from lessons_lib.checks.diagnosis import Task, Watch, mistakes, without_one
from lessons_lib.scheduling.scheduler import SchedulerOutput
from lessons_lib.scheduling.sequence import Sequence

KEPT = ("prompt_ids", "output_ids", "num_computed_tokens", "num_placeholders", "finish_reason")


class Part(NamedTuple):
    """A sequence in a step: its tokens, how many are computed and how many are scheduled, whether a token of it is in
    flight, and its index in the step in flight."""

    name: str
    prompt: list[int]
    output: list[int]
    computed: int
    count: int = 1
    waits: bool = False
    row: int | None = None

    def __str__(self) -> str:
        text = f"{self.name}: prompt {self.prompt}"
        text += f", output {self.output}" if self.output else ""
        text += ", and a placeholder" if self.waits else ""
        text += f"; {self.computed} computed, {self.count} scheduled"
        return text + (f"; index {self.row} in the step in flight" if self.row is not None else "")


Case = list[Part]
PROMPT = [11, 12, 13, 14]


def cases() -> Iterator[Case]:
    yield [Part("A", PROMPT, [], 0, 4)]
    yield [Part("A", PROMPT, [], 0, 2)]
    yield [Part("A", PROMPT, [], 0), Part("B", [31, 32], [41], 2)]
    yield [Part("A", PROMPT, [21], 5, 1, True, 0)]
    yield [Part("B", [31], [41], 1), Part("A", PROMPT, [21], 5, 1, True, 2)]
    yield [Part("A", PROMPT, [], 2, 2, False, 0)]
    yield [Part("A", PROMPT, [], 3, 1, False, 0)]
    yield [Part("A", PROMPT, [21, 22], 0, 6)]
    yield [Part("A", [0, 7], [0, 9], 0, 3), Part("B", [0], [0], 2, 1, True, 3)]
    draw = Random(13)
    for _ in range(60):
        parts, rows = [], draw.sample(range(8), 8)
        for name in "ABCDE"[: draw.randint(1, 5)]:
            prompt = draw.sample(range(1, 90), draw.randint(1, 5))
            output = draw.sample(range(1, 90), draw.randint(0, 4))
            total = len(prompt) + len(output)
            computed = total if draw.random() < 0.4 else draw.randrange(total)
            row = rows.pop() if computed and (computed == total or draw.random() < 0.5) else None
            count = 1 if computed == total else draw.randint(1, total - computed)
            parts.append(Part(name, prompt, output, computed, count, computed == total, row))
        yield parts


def run(attempt: Any, case: Case, watch: Watch) -> None:
    sequences = [
        Sequence(
            part.name, part.prompt, 20, output_ids=part.output, num_computed_tokens=part.computed,
            num_placeholders=int(part.waits), blocks=[number],
        )
        for number, part in enumerate(case)
    ]  # fmt: skip
    of_row = {part.row: sequence for sequence, part in zip(sequences, case) if part.row is not None}
    # The other sequences of the step in flight aren't scheduled again.
    rows = {of_row.get(row) or Sequence("gone", [1], 20): row for row in reversed(range(max(of_row, default=-1) + 1))}
    output = SchedulerOutput({each: part.count for each, part in zip(sequences, case)})

    def look() -> dict[str, Any]:
        seen = {f"{each.id}.{name}": getattr(each, name) for each in sequences for name in KEPT}
        return seen | {"scheduler_output.num_scheduled_tokens": list(output.num_scheduled_tokens.items())}

    watch("`next_tokens`", attempt, output, rows, look=look)


def tell(case: Case) -> str:
    return ". ".join(map(str, case)) + "."


def first_wrong(mine: dict[str, Any], want: dict[str, Any]) -> str:
    """What the first wrong token means."""
    got, wanted = mine["returned"], want["returned"]
    if any(isinstance(each, list | tuple) for each in got):
        return "One flat list is asked for: `append` adds one element, `+=` or `extend` all elements of a list."
    if len(got) == len(wanted) and set(got) == set(wanted):
        return (
            "The order is that of `num_scheduled_tokens`: all tokens of its first sequence, then those of the second."
        )
    index = next(
        (index for index, pair in enumerate(zip(got, wanted)) if pair[0] != pair[1]), min(len(got), len(wanted))
    )
    token = got[index] if index < len(got) and isinstance(got[index], int) else None
    if index == len(wanted) or wanted[index] >= 0:
        if token is not None and token < 0:
            return (
                "This token is known: it's in the prompt or in the output. Only a sequence with `num_placeholders` "
                "waits for a token."
            )
        return (
            "The tokens of each scheduled sequence are `prompt_ids`, then `output_ids`. Its next `count` are those "
            "from index `num_computed_tokens` up to, not including, `num_computed_tokens + count`."
        )
    if token is None or any(token in part.prompt + part.output for part in want["case"]):
        return (
            "All known tokens of this sequence are computed. Its next one is the token in flight, and its placeholder "
            "is −1 − i, where i is the index of the sequence in that step."
        )
    return (
        "The placeholder is −1 − i, with i counted from 0: the index of *this* sequence in the step in flight, "
        "`previous_rows[sequence]`. In the next step it has another."
    )


MISTAKES = """
If a slice may begin in front of the output, its start must not be negative: −1 is the last element.
~ max(0, index) => index
"""
READ_ONLY = (
    "Only read the sequence: the engine counts its tokens, and `output_ids` gets a token when it arrives. `+=`, "
    "`append` and `extend` change the list itself, so make a new one."
)

TASK = Task(
    reference="lessons_lib.engine.input_batch:next_tokens",
    cases=cases,
    run=run,
    tell=tell,
    smaller=without_one,
    known=mistakes(MISTAKES),
    about={
        "returned": first_wrong,
        "scheduler_output.num_scheduled_tokens": "Only read it: the step is still to be launched.",
        "raised KeyError": "`previous_rows` has only the sequences of the step in flight. This one isn't in it, so its "
        "next tokens are known: they are in its prompt or its output.",
    }
    | {f"{name}.{each}": READ_ONLY for name in "ABCDE" for each in KEPT},
)

EXERCISE = TASK.exercise(
    id="13.2",
    title="tokens that aren't known yet",
    hints=(
        "For each sequence, which of its tokens are scheduled: from which index to which? And how many of them have an "
        "id already?",
        "Join the prompt and the output, and take `count` of them from `num_computed_tokens` on. If that gives fewer "
        "tokens than are scheduled, the missing one is in flight, and gets a placeholder.",
        "For each `sequence, count` of `scheduler_output.num_scheduled_tokens.items()`: `start = "
        "sequence.num_computed_tokens`; `known = sequence.token_ids[start : start + count]`; add `known` to the list, "
        "and if `len(known) < count`, add `-1 - previous_rows[sequence]`.",
    ),
)
