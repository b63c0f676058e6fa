"""13.2, `next_tokens`: the ids of a step's tokens, with placeholders for those that the step in flight will produce."""

from collections.abc import Iterator
from random import Random
from typing import Any, NamedTuple

import torch

from lessons_lib.checks.diagnosis import Task, Watch, mistakes
from lessons_lib.checks.exercise import Exercise
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
    yield [Part("A", PROMPT, [], 2, 2)]
    yield [Part("A", PROMPT, [], 0)]
    yield [Part("A", PROMPT, [21], 4)]
    yield [Part("A", PROMPT, [21, 22, 23], 6)]
    yield [Part("A", PROMPT, [21], 5, 1, True, 0)]
    yield [Part("B", [31], [41], 1), Part("A", PROMPT, [21], 5, 1, True, 2)]
    yield [Part("A", PROMPT, [], 4, 1, True, 1)]
    yield [Part("A", PROMPT, [], 2, 2, False, 0)]
    yield [Part("A", PROMPT, [], 3, 1, False, 0)]
    yield [Part("A", PROMPT, [21], 4, 1, False, 0)]
    yield [Part("A", PROMPT, [], 0), Part("B", [31, 32], [41], 2)]
    yield [Part("A", PROMPT, [21], 5, 1, True, 1), Part("B", [31, 32], [41], 3, 1, True, 0)]
    yield [Part("A", PROMPT, [], 0, 4), Part("B", [31, 32], [41], 3, 1, True, 0), Part("C", [51], [61], 1)]
    yield [Part("A", PROMPT, [21, 22], 0, 6)]
    yield [Part("A", PROMPT, [21, 22], 1, 4)]
    yield [Part("A", PROMPT, [21, 22, 23], 4, 2)]
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


def smaller(case: Case) -> Iterator[Case]:
    if len(case) > 1:
        yield from (case[:index] + case[index + 1 :] for index in range(len(case)))


# `* x` stands for a body that adds x to the list, with `start` and `known` as in the outline of the second hint.
PLAIN = """
- start, output_ids ... tokens += output_ids
+ start = sequence.num_computed_tokens
+ known = sequence.token_ids[start : start + count]
+ tokens += """
MISTAKES = """
A token that the step in flight will produce has no id yet. It needs its placeholder, −1 − i.
* known
All known tokens of it are computed already. The next one is the token in flight: −1 − i, where i is the index of the
sequence in that step.
* known or [sequence.token_ids[-1]]
−1 − i, not −i: −0 would be token 0.
* known or [-previous_rows[sequence]]
The index starts at 0, and so −1 stands for index 0: −1 − i.
* known or [-2 - previous_rows[sequence]]
or
* known or [1 - previous_rows[sequence]]
A placeholder is negative: −1 − i. A number of 0 or more is the id of a token.
* known or [previous_rows[sequence]]
or
* known or [1 + previous_rows[sequence]]
Each placeholder says whose token it is: −1 − i, where i is the index of *this* sequence in the step in flight.
* known or [-1]
−1 − i says whose token it is: i is the index of the sequence, not its number of tokens.
* known or [-1 - start]
or
* known or [-1 - sequence.num_placeholders]
`previous_rows[sequence]` is the index. The order of a dict says nothing about it.
* known or [-1 - list(previous_rows).index(sequence)]
i is the index in the step in flight, which `previous_rows` has. In this step the sequence has another.
* known or [-1 - list(scheduler_output.num_scheduled_tokens).index(sequence)]
or
* known or [-1 - sum(token < 0 for token in tokens)]
or
* known or [-1 - len(tokens)]
A sequence of the step in flight doesn't always wait for a token: its next ones may be known, as those of a prompt are.
* [-1 - previous_rows[sequence]] if sequence in previous_rows else known
or
* [-1 - previous_rows[sequence]] * count if sequence in previous_rows else known
Of a sequence in the step in flight, the next token may be known, even if only one is scheduled: the last of a prompt.
* [-1 - previous_rows[sequence]] if sequence in previous_rows and count == 1 else known
The token that follows the prompt may have arrived already. Is it among `output_ids`?
* [-1 - previous_rows[sequence]] if sequence in previous_rows and start >= len(sequence.prompt_ids) else known
`previous_rows` has only the sequences of the step in flight. Look up those that wait for a token, and no others.
* known or [-1 - previous_rows[sequence]] if previous_rows[sequence] > -1 else []
A sequence that waits for a token is always in `previous_rows`. The index 0 counts as False in an `if` or an `or`.
* known or [-1 - (previous_rows[sequence] or 1)]
or
* known or ([-1 - previous_rows[sequence]] if previous_rows[sequence] else [])
The next tokens begin at `num_computed_tokens`, counted from the beginning of the prompt.
* sequence.token_ids[:count] or [-1 - previous_rows[sequence]]
or
* sequence.token_ids[:count] if not sequence.num_placeholders else [-1 - previous_rows[sequence]]
`num_computed_tokens` is the index of the next token: the first one that isn't computed.
* sequence.token_ids[start + 1 : start + 1 + count] or [-1 - previous_rows[sequence]]
or
* sequence.token_ids[max(0, start - 1) : max(0, start - 1) + count] or [-1 - previous_rows[sequence]]
Only as many tokens as are scheduled: `count`, from `num_computed_tokens` on.
* sequence.token_ids[start:] or [-1 - previous_rows[sequence]]
A slice or a range ends at an index: `start + count`.
* sequence.token_ids[start:count] or [-1 - previous_rows[sequence]]
or
* [(sequence.token_ids + [-1 - previous_rows.get(sequence, 0)])[index] for index in range(start, count)]
The next token needn't be the last one. `num_computed_tokens` says which one it is.
* [sequence.token_ids[-1]] if count == 1 and known else known or [-1 - previous_rows[sequence]]
or
* sequence.token_ids[-count:] if known else [-1 - previous_rows[sequence]]
A preempted sequence computes its prompt and output again, so one with an output may begin anywhere in its tokens.
* sequence.output_ids[-1:] if sequence.output_ids and known else known or [-1 - previous_rows[sequence]]
The output follows the prompt: token 4 of a sequence with 4 prompt tokens is `output_ids[0]`.
~ index = start - len(sequence.prompt_ids) => index = start
or
* sequence.prompt_ids[start : start + count] or sequence.output_ids[start : start + count]
or
* sequence.prompt_ids[start : start + count] or sequence.output_ids[start : start + count] or [-1 - previous_rows.get(sequence, 0)]
A sequence that was preempted, or goes on after its prompt, may need tokens of both, prompt and output.
* sequence.prompt_ids[start : start + count]
+ tokens += [] if start < len(sequence.prompt_ids) else known[:] or [-1 - previous_rows[sequence]]
or
- tokens += output_ids[max(0, index)
Only `prompt_ids` and `output_ids` together are all tokens of a sequence.
* sequence.prompt_ids[start : start + count] or [-1 - previous_rows[sequence]]
If a slice may begin in front of the output, its start must not be negative: −1 is the last element.
~ max(0, index) => index
Only read the sequence: `output_ids` gets the token when it arrives.
- start, output_ids
+ if sequence.num_placeholders: sequence.output_ids.append(-1 - previous_rows[sequence])
+ ...
Join prompt and output in a new list. `+=`, `append` and `extend` change the list of the sequence itself.
- return tokens
+ for sequence in scheduler_output.num_scheduled_tokens: sequence.prompt_ids += sequence.output_ids
+ return tokens
Only read the sequence: the engine counts its tokens and placeholders.
- return tokens
+ for sequence, count in scheduler_output.num_scheduled_tokens.items(): sequence.num_computed_tokens += count
+ return tokens
or
- return tokens
+ for sequence, count in scheduler_output.num_scheduled_tokens.items(): sequence.num_placeholders = 0
+ return tokens
One flat list is asked for: the tokens of the first sequence, then those of the second. `append` adds one element,
`+=` or `extend` all elements of a list.
* [known or [-1 - previous_rows[sequence]]]
A list is asked for, not a tensor: the batch is still being built.
~ return tokens => return torch.tensor(tokens)
A list of ids is asked for, not a dict of them.
~ return tokens => return dict(zip(scheduler_output.num_scheduled_tokens, [tokens]))
The order is that of `num_scheduled_tokens`: sequence after sequence.
~ return tokens => return sorted(tokens)
or
~ return tokens => return tokens[::-1]
or
~ in scheduler_output.num_scheduled_tokens.items() => in sorted(scheduler_output.num_scheduled_tokens.items(), key=order)
The order is that of `num_scheduled_tokens`, and all of its sequences belong to the step, whether or not they were in
the one before.
~ in scheduler_output.num_scheduled_tokens.items() => in [(one, scheduler_output.num_scheduled_tokens[one]) for one in previous_rows if one in scheduler_output.num_scheduled_tokens]
or
~ in scheduler_output.num_scheduled_tokens.items() => in sorted(scheduler_output.num_scheduled_tokens.items(), key=lambda pair: list(previous_rows).index(pair[0]) if pair[0] in previous_rows else 99)
The `return` stands inside the loop: the function returns after the first sequence.
- tokens += output_ids
+ ...
+ return tokens
- return tokens
+ return []
"""  # noqa: E501

TASK = Task(
    reference="lessons_lib.engine.input_batch:next_tokens",
    cases=cases,
    run=run,
    tell=tell,
    smaller=smaller,
    known=mistakes(
        MISTAKES.replace("\n* ", PLAIN), torch=torch, order=lambda pair: (bool(pair[0].num_placeholders), pair[0].id)
    ),
    about={
        "returned": "Of each sequence, in the order of `num_scheduled_tokens`: its next `count` tokens, from "
        "`num_computed_tokens` on. The one that is in flight, if it is among them, is −1 − its index there.",
        "scheduler_output.num_scheduled_tokens": "Only read it: the step is still to be launched.",
        "raised KeyError": "`previous_rows` has only the sequences of the step in flight. This one isn't in it, so its "
        "next tokens are known: they are in its prompt or its output.",
    },
)

EXERCISE = Exercise(
    id="13.2",
    title="tokens that aren't known yet",
    reference=TASK.reference,
    test=TASK,
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
