"""05.2, `ragged_step`: one row with all uncomputed tokens, one new token each, then retire and admit."""

from collections.abc import Iterator

from lessons_lib.checks.diagnosis import Task, mistakes
from lessons_lib.checks.lesson_05.serving import Case, random_case, run, smaller, tell


def cases() -> Iterator[Case]:
    for max_num_seqs, text, steps in (
        (1, "A 3+3", 1), (1, "A 3+4", 3), (3, "A 4+3, B 3+3, C 5+3", 2), (2, "A 3+5, B 4+5 @1", 2), (1, "A 5+3 ~2", 2),
        (1, "A 3+1, B 3+3", 2), (1, "A 3+3 $, B 3+3", 2), (3, "A 3+1, B 3+1, C 3+4, D 3+4, E 3+4", 2),
        (2, "A 3+1, B 3+4", 2), (2, "A 3+9, B 3+2, C 3+3", 4), (3, "A 2+4, B 7+2 ~3, C 5+4 ~4, D 9+1", 5),
        (2, "A 3+3 @1, B 8+2 ~7, C 3+2 $, D 3+3", 6), (6, "A 3+2, B 1+2, C 2+2, D 1+2, E 2+2, F 4+2", 1),
    ):  # fmt: skip
        yield max_num_seqs, None, text, steps
    yield from (random_case(seed) for seed in range(6))


MISTAKES = """
Take the largest logit, not the smallest.
~ argmax(dim=-1) => argmin(dim=-1)
The logits are [requests, vocabulary]. `argmax(dim=-1)` finds the best token for each request, `dim=0` the best request
for each token.
~ argmax(dim=-1) => argmax(dim=0)
A token is the *index* of the largest logit. `max` also gives the logit itself: use `argmax`, or `.indices`.
~ argmax(dim=-1) => max(dim=-1).values
`max(dim=...)` gives two tensors, values and indices. `argmax` gives the indices.
~ argmax(dim=-1).tolist() => max(dim=-1).tolist()
`argmax()` without `dim` finds one largest logit of all. Each request needs its own: `dim=-1`.
~ argmax(dim=-1).tolist() => argmax().tolist()
or ~ argmax(dim=-1).tolist() => flatten().argmax()[None].tolist()
`forward` returns one row of logits for each request, not for each token: `packed.logits_index` is used already.
~ packed).argmax => packed)[packed.logits_index].argmax
The end token is part of the answer: append it. `append_token` sees that the request has finished.
~ request.append_token(next_token) => next_token != request.eos_token_id and request.append_token(next_token)
Your loop leaves out a request: `batch.running` changes while the loop goes over it, or the loop ends early. Append all
tokens first; then retire and admit, once.
- request.append_token(next_token)
+ request.append_token(next_token)
+ retire(batch)
+ admit(batch)
or - retire(batch) => pass
- request.append_token(next_token)
+ request.append_token(next_token)
+ retire(batch)
or - for request, tokens, next_token ... request.append_token(next_token)
+ for index, tokens in enumerate(uncomputed):
+     batch.running[index].num_computed_tokens += len(tokens)
+     batch.running[index].append_token(next_tokens[index])
+     retire(batch)
or - retire(batch)
+ for request in batch.running:
+     if request.state is RequestState.FINISHED:
+         batch.running.remove(request)
+         batch.close_cache(request)
"""

TASK = Task(
    reference="lessons_lib.batching.ragged_batching:ragged_step",
    cases=cases,
    run=run,
    tell=tell,
    smaller=smaller,
    known=mistakes(MISTAKES),
)

EXERCISE = TASK.exercise(
    id="05.2",
    title="one step of the ragged batch",
    hints=(
        "No `if` is needed for prefill or decode: one slice of a request's known tokens gives its part of the row. "
        "When the row is computed, what has changed for each request, and what for the batch?",
        "Collect the uncomputed tokens of every running request and `pack` them with each request's "
        "`num_computed_tokens`. Call `forward`, then take the argmax. For every request, increase "
        "`num_computed_tokens` by its number of tokens in the row, and append its token. Then `retire`, then "
        "`admit`.",
        "`uncomputed = [(request.prompt_ids + request.output_ids)[request.num_computed_tokens :] for request in "
        "batch.running]`, and `next_tokens = forward(batch, packed).argmax(dim=-1).tolist()`. Iterate over "
        "`zip(batch.running, uncomputed, next_tokens)`.",
    ),
    points=3,
)
