"""05.3, `chunked_step`: a row with a limit, and prompts in chunks. Which prompt gets how much is up to the learner."""

from collections.abc import Iterator

from lessons_lib.checks.diagnosis import Task, mistakes
from lessons_lib.checks.lesson_05.serving import Case, random_case, run, smaller, tell


def cases() -> Iterator[Case]:
    yield from (
        (1, 4, "A 3+3", 3), (1, 2, "A 5+2", 4), (1, 1, "A 3+2", 4), (1, 3, "A 3+2", 2), (2, 4, "A 3+5, B 6+2 @1", 4),
        (2, 2, "A 2+4, B 3+2", 5), (2, 9, "A 9+2, B 2+2", 3), (3, 5, "A 2+6, B 2+6, C 9+2 @1", 6),
        (1, 4, "A 9+3 ~6", 2), (1, 3, "A 4+1, B 5+1", 5), (2, 6, "A 4+3 $, B 9+2", 4),
        (3, 100, "A 7+2, B 3+1, C 5+3", 3), (1, 4, "A 8+2", 3), (3, 3, "A 4+2, B 1+5, C 6+1", 8),
        (2, 5, "A 12+2, B 3+3, C 4+2", 6), (6, 8, "A 3+2, B 1+2, C 2+2, D 1+2, E 2+2, F 4+2", 3),
    )  # fmt: skip
    yield from (random_case(seed, limit) for seed, limit in enumerate((4, 5, 7, 8, 12, 30)))


MISTAKES = """
Keep one token of the limit for each request that still has to come: every running request needs at least one.
- spare = max_num_batched_tokens => spare = max_num_batched_tokens
~ computed : computed + 1 + spare => computed : computed + max(spare, 1)
~ len(parts[-1]) - 1 => len(parts[-1])
Each request gets what is left of the limit, not the whole limit: what other requests have in the row is gone.
- parts.append => parts.append(tokens[computed : computed + 1 + max_num_batched_tokens - len(known)])
or - parts.append => parts.append(tokens[computed : computed + max_num_batched_tokens])
or - spare -= len(parts[-1]) - 1
The row ignores the limit: a prompt that doesn't fit goes in chunks.
- parts.append => parts.append(tokens[computed:])
An equal share for each leaves room in the row: a decode needs one token only. Give the rest to those with more.
- parts.append => parts.append(tokens[computed : computed + max(1, max_num_batched_tokens // len(known))])
Prompts move on token by token, although the row has room for more: share what is left of the limit.
- parts.append => parts.append(tokens[computed : computed + 1])
`batch.max_num_seqs` requests may run, but fewer may be running: reserve `len(batch.running)` tokens.
~ spare = max_num_batched_tokens - len(known) => spare = max(0, max_num_batched_tokens - batch.max_num_seqs)
A decode has all its known tokens computed, too: its one token in the row was the last. It gets a token in each step.
~ request.num_computed_tokens == len(tokens) => request.num_computed_tokens == len(request.prompt_ids)
Compare with the tokens that the request had *before* this step: `append_token` makes its answer longer.
- request.num_computed_tokens += len(part)
- if request.num_computed_tokens == len(tokens):
- request.append_token(next_token)
+ request.append_token(next_token)
+ request.num_computed_tokens += len(part)
+ if request.num_computed_tokens < len(request.prompt_ids): request.output_ids.pop()
The logits are [requests, vocabulary]. `argmax(dim=-1)` finds the best token for each request.
~ argmax(dim=-1) => argmax(dim=0)
"""

TASK = Task(
    reference="lessons_lib.batching.ragged_batching:chunked_step",
    cases=cases,
    run=run,
    tell=tell,
    smaller=smaller,
    known=mistakes(MISTAKES),
)

EXERCISE = TASK.exercise(
    id="05.3",
    title="prompts in chunks",
    hints=(
        "First decide how many tokens each request gets, as a list of ints. Then the rest is your step from 05.2, with "
        "two changes: the row has only a part of what is left, and not every request gets a token.",
        "Every request has one token for sure, so `max_num_batched_tokens - len(batch.running)` are left to give away. "
        "Go over the requests: each takes what it needs beyond its first token, as long as some are left. "
        "After the pass, a request gets a token if all its known tokens are computed now.",
        "In the loop: `part = tokens[computed : computed + 1 + spare]` and `spare -= len(part) - 1`, where `tokens` is "
        "`prompt_ids + output_ids` and `computed` is `num_computed_tokens`. After `forward`: "
        "`request.num_computed_tokens += len(part)`, and `if request.num_computed_tokens == len(tokens): "
        "request.append_token(next_token)`.",
    ),
    points=4,
)
