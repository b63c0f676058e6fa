"""19.1, `gated_delta`: one head of a layer with a state, over packed rows with chunks and decodes."""

from collections.abc import Iterator
from random import Random
from typing import Any

import torch

from lessons_lib.checks.diagnosis import Task, Watch, mistakes

K, V, SLOTS = 2, 3, 6
Case = list[list[tuple[int, int, bool]]]  # the segments of each row

# Rows after one another, with the same states: length @ slot, "new" for a fresh sequence
CASES = """
1@1 new
2@1 new
3@2 new
1@1
3@1
1@1 new, 1@2 new
2@3 new, 3@1 new
1@2, 2@1 new
2@1, 1@4
2@5 new | 1@5
3@2 new | 1@2 | 1@2
2@4 new, 1@2 new | 1@2, 3@4
1@3 new, 2@1 | 2@2 new, 1@3
4@3 new, 2@2 new, 1@1 | 1@3, 1@2, 1@1 | 2@3 new, 2@2
"""


def cases() -> Iterator[Case]:
    for line in CASES.strip().split("\n"):
        yield [[segment_of(part) for part in row.split(",")] for row in line.split("|")]
    draw = Random(19)
    for _ in range(6):
        slots = [draw.sample(range(1, 5), draw.randint(1, 3)) for _ in range(draw.randint(1, 3))]
        yield [[(draw.randint(1, 4), slot, draw.random() < 0.4) for slot in row] for row in slots]


def segment_of(text: str) -> tuple[int, int, bool]:
    length, slot, *fresh = text.replace("@", " ").split()
    return int(length), int(slot), bool(fresh)


def run(attempt: Any, case: Case, watch: Watch) -> None:
    generator = torch.Generator().manual_seed(19)

    def some(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator)

    states = some(SLOTS, K, V)  # what ended sequences have left
    states[5] = torch.nan  # of one whose state overflowed
    for number, row in enumerate(case, start=1):
        length = sum(each[0] for each in row)
        given = {"queries": some(length, K), "keys": some(length, K), "values": some(length, V)}
        given |= zip(("decays", "betas"), torch.rand(2, length, generator=generator) * 0.8 + 0.1)
        before = {name: each.clone() for name, each in given.items()}

        def look(given: dict = given, before: dict = before, row: list = row) -> dict[str, Any]:
            changed = [name for name in given if not torch.equal(given[name], before[name])]
            seen = {f"the state in slot {slot}": states[slot] for _, slot, _ in row}
            others = [slot for slot in range(SLOTS) if slot not in {each[1] for each in row}]
            return seen | {"the states of the other slots": states[others], "inputs that were changed": changed}

        # A lambda, so that a change of `states` isn't taken for a mistake.
        watch(f"row {number}", lambda given=given, row=row: attempt(*given.values(), states, list(row)), look=look,
              subject="the outputs")  # fmt: skip


def tell(case: Case) -> str:
    return "; ".join(f"row {number}: segments {row}" for number, row in enumerate(case, start=1)) + "."


def smaller(case: Case) -> Iterator[Case]:
    yield from (case[:end] for end in range(1, len(case)))
    for index in range(len(case[0])) if len(case) == 1 < len(case[0]) else ():
        yield [case[0][:index] + case[0][index + 1 :]]


MISTAKES = """
A fresh sequence begins with zeros. Its slot still has the state of a sequence that has ended.
= state = states[slot]
A sequence that isn't fresh goes on from the state in its slot: the tokens before this row are in it.
= state = torch.zeros_like(states[slot])
The old state may have a NaN, and 0 times NaN is NaN: begin with new zeros, or `zero_()`.
~ torch.zeros_like(states[slot]) => 0 * states[slot]
Only `is_fresh` tells a fresh sequence. A segment of one token may be the first, and a longer one a later chunk.
~ if is_fresh => if length > 1
or ~ if is_fresh => if is_fresh and length > 1
Take queries and keys as they come: the layer has normalized and scaled them.
- start = 0 => start, keys = 0, torch.nn.functional.normalize(keys, dim=-1)
or ~ queries[token] @ => len(queries[token]) ** -0.5 * queries[token] @
`is_fresh` is True if *no* token was computed before. You take it the other way round.
~ if is_fresh => if not is_fresh
Sequences don't mix: each begins with its own state, not with that of the segment before it.
- start = 0 => start, state = 0, None
= state = states[slot] if state is None and not is_fresh else torch.zeros_like(states[slot]) if state is None else state
The next step goes on from the state that this one leaves: write it to `states[slot]`, in the tensor that was passed in.
- states[slot] = state
or < start = 0 => states = states.clone()
The state after the *last* token of the segment belongs in the slot. You keep one from before.
- states[slot] = state
~ state = decays[token] => states[slot] = state; state = decays[token]
A state belongs to a slot, which needn't be the segment's place in the row: write it to `states[slot]`.
- for length, slot, is_fresh => for place, (length, slot, is_fresh) in enumerate(segments):
= states[slot] = state
~ states[slot] = state => states[place] = state
Each segment's tokens come behind those of the segment before it: its rows begin where that one's end.
- start += length
~ torch.empty_like => torch.zeros_like
The error is the value minus what the state returns for the *key*. The query only reads, at the end.
~ keys[token] @ state => queries[token] @ state
What is read for a key is read from the decayed state: decay first, then compute the error.
- state = decays[token] * state
- error =
+ error = values[token] - keys[token] @ state
+ state = decays[token] * state
The token's own value is in what it reads: write first, then compute the output.
- state = state + betas
- outputs[token] =
+ outputs[token] = queries[token] @ state
+ state = state + betas[token] * torch.outer(keys[token], error)
Without the error, old and new values of a key add up. Write only the value minus what the state returns.
~ values[token] - keys[token] @ state => values[token]
A share `betas[token]` of the error is corrected. You correct all of it.
~ betas[token] * torch.outer => torch.outer
`betas[token]` multiplies the whole error, the part that the state returns, too.
~ values[token] - keys[token] @ state => betas[token] * values[token] - keys[token] @ state
~ state + betas[token] * torch.outer => state + torch.outer
The state decays at each token: multiply it by `decays[token]`.
- state = decays[token] * state
The state decays before a token writes. You let what the token has just written decay, too.
- state = decays[token] * state ... state = state + betas
+ error = values[token] - keys[token] @ state
+ state = decays[token] * (state + betas[token] * torch.outer(keys[token], error))
Each token has a decay of its own. You take one for the whole segment.
~ decays[token] => decays[start]
`decays` are shares already, from 0 to 1: multiply by them. The exponential is behind you.
~ decays[token] * state => decays[token].exp() * state
Each token reads the state after its own write. You read for all of them from the last one.
~ outputs[token] = queries[token] @ state => outputs[start : start + length] = queries[start : start + length] @ state
The error has the sign of value minus what is returned. Yours moves the state away from the value.
~ error = values[token] - keys[token] @ state => error = keys[token] @ state - values[token]
"""

TASK = Task(
    reference="lessons_lib.hybrid.gated_delta:gated_delta",
    cases=cases,
    run=run,
    tell=tell,
    smaller=smaller,
    known=mistakes(MISTAKES),
    about={
        "returned": "For each token, in this order: the state decays, the share beta of the error is written, and the "
        "query reads.",
        **{f"the state in slot {n}": "A segment's slot gets the state after its last token." for n in range(SLOTS)},
        "the states of the other slots": "Slots that no segment has belong to other sequences, or to padding.",
        "inputs that were changed": "The caller still uses its inputs. Only `states` is changed in place.",
    },
)  # fmt: skip

EXERCISE = TASK.exercise(
    id="19.1",
    title="the step of a state",
    hints=(
        "Write it for one sequence first: a loop over its tokens, with the four lines of the text. Then ask what a "
        "segment begins with, and where its last state goes.",
        "Loop over the segments and count where each begins in the row. Begin with zeros or with `states[slot]`. For "
        "each token: decay, error, write, read. Then put the state back, and go to the next segment.",
        "`state = torch.zeros_like(states[slot]) if is_fresh else states[slot]`; `state = decays[t] * state`; `error = "
        "values[t] - keys[t] @ state`; `state = state + betas[t] * torch.outer(keys[t], error)`; `outputs[t] = "
        "queries[t] @ state`; after the loop `states[slot] = state` and `start += length`.",
    ),
)
