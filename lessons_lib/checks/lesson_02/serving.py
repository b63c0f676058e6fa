"""02.2, `serve`: only what can be seen of the loop counts, its passes and the answers."""

from collections.abc import Iterator
from random import Random

from lessons_lib.checks.diagnosis import Task, mistakes
from lessons_lib.checks.lesson_02.passes import Case, run, tell


def cases() -> Iterator[Case]:
    yield Case(2, 4, [("A", 3, 1)])
    yield Case(1, 4, [("A", 3, 3)])
    yield Case(1, 4, [("A", 6, 2)])
    yield Case(1, 4, [("A", 8, 2)])
    yield Case(1, 4, [("A", 3, 2), ("B", 2, 2)])
    yield Case(2, 8, [("A", 3, 2), ("B", 3, 5)])
    yield Case(2, 8, [("A", 3, 2), ("B", 3, 5), ("C", 3, 5)])
    yield Case(2, 4, [("A", 3, 9), ("B", 11, 3)])
    yield Case(2, 4, [("A", 11, 3), ("B", 3, 3), ("C", 5, 2), ("D", 2, 1)])
    yield Case(3, 4, [("A", 9, 2), ("B", 7, 6), ("C", 1, 4), ("D", 6, 3)])
    yield Case(4, 4, [("A", 3, 2)])
    yield Case(2, 16, [("A", 3, 9), ("B", 6, 9), ("C", 3, 9)], end=91)  # their tokens 8, 1 and 2
    yield Case(1, 4, [("A", 3, 4)], late=((2, ("B", 5, 2)),))
    yield Case(2, 4, [("A", 3, 8), ("B", 3, 2)], late=((4, ("C", 6, 3)), (4, ("D", 2, 2))))
    draw = Random(5)
    for _ in range(4):
        asked = [(name, draw.choice((1, 3, 8, 9)), draw.choice((1, 2, 5, 7))) for name in "ABCDEF"]
        yield Case(draw.choice((2, 3)), draw.choice((3, 4)), asked)


MISTAKES = """
Your code changes `batch.running` while a loop goes over it, and Python stops that. Collect the slots first.
- for slot in [slot for slot, request
- del batch.running[slot]
+ for slot, request in batch.running.items():
+     if request.is_done: del batch.running[slot]
"""

TASK = Task(
    reference="lessons_lib.batching.continuous_batching:serve",
    cases=cases,
    run=run,
    tell=tell,
    known=mistakes(MISTAKES),
    enough=6,
    about={
        "the passes": "Go on until both `batch.waiting` and `batch.running` are empty. Look at them in every step: "
        "requests may arrive at any time.",
        "batch.running": "At the end every request has left, and `batch.running` is an empty dict.",
        "raised IndexError": "What is empty? `output_ids` is until the chunk that ends the prompt, however long that "
        "chunk is, has given the first token, and the queue may be. `forward` returns a token for each slot.",
        "raised KeyError": "`batch.running` has only the slots that are taken.",
    },
)

EXERCISE = TASK.exercise(
    id="02.2",
    title="the loop",
    hints=(
        "Write the comments first: one for each thing that a step does, in the order of the printed batch. Which of "
        "the requests in `batch.running` decode, and which are still prefilling? Their `output_ids` tell.",
        "`while` anything waits or runs: (1) for each slot that isn't in `batch.running`, take the first of the "
        "queue. (2) If any request decodes, make a list of tokens and one of positions with an entry for *every* slot, "
        "call `forward` once, and append a token to each decoding request. (3) If any is prefilling, take the first, "
        "cut its next chunk, call `forward` for its slot alone, and append the token only if the prompt is done. (4) "
        "Delete those that are done.",
        "For (2): `tokens[slot] = request.output_ids[-1:] or [0]`, `positions[slot] = "
        "[request.num_computed_tokens]` for every running request, `[0]` for empty slots. For (3): `start = "
        "request.num_computed_tokens`, `chunk = request.prompt_ids[start : start + batch.prefill_step]`, `end = start "
        "+ len(chunk)`, and `batch.forward(range(slot, slot + 1), [chunk], [list(range(start, end))])`.",
    ),
    time_limit=10.0,
)
