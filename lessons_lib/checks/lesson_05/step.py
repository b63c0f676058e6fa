"""05.2, `ragged_step`: one row with all uncomputed tokens, one new token each, then retire and admit."""

from collections.abc import Iterator

from lessons_lib.checks.diagnosis import Task, mistakes
from lessons_lib.checks.exercise import Exercise
from lessons_lib.checks.lesson_05.serving import Case, random_case, run, smaller, tell


def cases() -> Iterator[Case]:
    for max_num_seqs, text, steps in (
        (1, "A 3+3", 1), (1, "A 3+4", 3), (3, "A 4+3, B 3+3, C 5+3", 2), (2, "A 3+5, B 4+5 @1", 2), (1, "A 5+3 ~2", 2),
        (1, "A 3+1, B 3+3", 2), (1, "A 3+3 $, B 3+3", 2), (3, "A 3+1, B 3+1, C 3+4, D 3+4, E 3+4", 2),
        (2, "A 3+1, B 3+4", 2), (2, "A 3+9, B 3+2, C 3+3", 4), (3, "A 2+4, B 7+2 ~3, C 5+4 ~4, D 9+1", 5),
        (2, "A 3+3 @1, B 8+2 ~7, C 3+2 $, D 3+3", 6),
    ):  # fmt: skip
        yield max_num_seqs, None, text, steps
    yield from (random_case(seed) for seed in range(6))


MISTAKES = """
The row takes only what isn't computed yet: the whole prompt in the first step, then the newest token. What is in the
cache isn't computed again.
- uncomputed =
+ uncomputed = [request.prompt_ids + request.output_ids for request in batch.running]
or
- uncomputed = ... packed =
+ uncomputed = [request.prompt_ids + request.output_ids for request in batch.running]
+ packed = pack(uncomputed, [0 for request in batch.running])
Nothing of a new request is computed yet, so the row takes its whole prompt: slice the known tokens from
`num_computed_tokens` on.
- uncomputed =
+ uncomputed = [(request.prompt_ids + request.output_ids)[-1:] for request in batch.running]
A prompt may be partly in the cache already, without any answer yet. There is no need to ask whether a request prefills
or decodes: slice the known tokens from `num_computed_tokens` on, and each case is right.
- uncomputed = ... packed =
+ known = [request.prompt_ids + request.output_ids for request in batch.running]
+ uncomputed = [each[-1:] if r.num_computed_tokens else each for each, r in zip(known, batch.running)]
+ packed = pack(uncomputed, [request.num_computed_tokens for request in batch.running])
or
- uncomputed =
+ uncomputed = [[r.output_ids[-1]] if r.num_computed_tokens else r.prompt_ids for r in batch.running]
or
- uncomputed =
+ uncomputed = [r.output_ids[-1:] or r.prompt_ids for r in batch.running]
or
- uncomputed = ... packed =
+ uncomputed = [r.output_ids[-1:] or r.prompt_ids for r in batch.running]
+ packed = pack(uncomputed, [r.num_computed_tokens if r.output_ids else 0 for r in batch.running])
Only the prompts go into this row. The newest token of each answer isn't computed yet, either.
- uncomputed =
+ uncomputed = [request.prompt_ids[request.num_computed_tokens :] for request in batch.running]
or
~ request.prompt_ids + request.output_ids) => request.prompt_ids + request.output_ids[:-1])
Pass to `pack` how many tokens of each request are in its cache: `request.num_computed_tokens`.
- packed =
+ packed = pack(uncomputed, [0 for request in batch.running])
or
- packed =
+ packed = pack(uncomputed, [len(r.prompt_ids) + len(r.output_ids) for r in batch.running])
or
- packed =
+ packed = pack(uncomputed, [len(tokens) for tokens in uncomputed])
`num_computed_tokens` says what is in the cache *before* the pass. Increase it after `forward`.
- packed =
+ for request, tokens in zip(batch.running, uncomputed): request.num_computed_tokens += len(tokens)
+ ...
- request.num_computed_tokens += len(tokens)
The row is in the cache now: increase `num_computed_tokens` by the number of tokens that the request had in the row.
- request.num_computed_tokens += len(tokens)
Increase `num_computed_tokens` by the number of tokens that the request had in the row: a prompt has more than one.
~ += len(tokens) => += 1
You counted the new token as well. Its key and value are computed in the next step, when it goes into the row.
~ += len(tokens) => += len(tokens) + 1
or
- request.num_computed_tokens += len(tokens)
- request.append_token(next_token)
+ request.append_token(next_token)
+ request.num_computed_tokens = len(request.prompt_ids + request.output_ids)
`num_computed_tokens` counts all tokens in the cache, not those of this row. Add to it with `+=`.
~ += len(tokens) => = len(tokens)
Every request in the row has its new tokens in the cache, even one that finishes. Count before it leaves.
- request.num_computed_tokens += len(tokens)
- request.append_token(next_token)
+ request.append_token(next_token)
+ if request.state is not RequestState.FINISHED: request.num_computed_tokens += len(tokens)
or
- request.num_computed_tokens += len(tokens)
- request.append_token(next_token)
+ request.append_token(next_token)
- retire(batch)
+ retire(batch)
+ for request in batch.running: request.num_computed_tokens = len(request.prompt_ids + request.output_ids) - 1
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
or
~ argmax(dim=-1).tolist() => flatten().argmax()[None].tolist()
or
~ next_tokens = forward(batch, packed).argmax(dim=-1).tolist() => next_tokens = [forward(batch, packed).argmax().item()]
A token id is a plain int, and yours is a tensor: `.tolist()` or `.item()` converts it.
~ argmax(dim=-1).tolist() => argmax(dim=-1)
A token id is a plain int, and yours is a list.
~ argmax(dim=-1).tolist() => argmax(dim=-1, keepdim=True).tolist()
The same token goes to every request. Row i of the logits belongs to request i.
~ request.append_token(next_token) => request.append_token(next_tokens[0])
or
~ request.append_token(next_token) => request.append_token(next_tokens[-1])
Every request in the row gets a new token: call `request.append_token(token)`.
- request.append_token(next_token)
Every request in the row gets a token, also one whose prompt was just computed: a prompt gives the first token.
~ request.append_token(next_token) => len(tokens) == 1 and request.append_token(next_token)
`request.append_token(token)` also updates the state. `output_ids.append` doesn't, so nothing ever finishes.
~ request.append_token(next_token) => request.output_ids.append(next_token)
The end token is part of the answer: append it. `append_token` sees that the request has finished.
~ request.append_token(next_token) => next_token != request.eos_token_id and request.append_token(next_token)
`batch.running` changes while your loop goes over it. Append all tokens first; then retire and admit, once.
- request.append_token(next_token)
+ request.append_token(next_token)
+ retire(batch)
+ admit(batch)
or
- retire(batch)
+ pass
- request.append_token(next_token)
+ request.append_token(next_token)
+ retire(batch)
or
- for request, tokens, next_token ... request.append_token(next_token)
+ for index, tokens in enumerate(uncomputed):
+     batch.running[index].num_computed_tokens += len(tokens)
+     batch.running[index].append_token(next_tokens[index])
+     retire(batch)
or
- retire(batch)
+ for request in batch.running:
+     if request.state is RequestState.FINISHED:
+         batch.running.remove(request)
+         batch.close_cache(request)
The logits and the caches follow `batch.running`, so the row must, too: don't sort it.
- uncomputed =
+ batch.running.sort(key=lambda request: request.num_computed_tokens)
+ ...
or
- uncomputed =
+ batch.running.sort(key=lambda request: -request.num_computed_tokens)
+ ...
or
- uncomputed = ... packed =
+ order = sorted(batch.running, key=lambda r: len(r.prompt_ids + r.output_ids) - r.num_computed_tokens)
+ uncomputed = [(request.prompt_ids + request.output_ids)[request.num_computed_tokens :] for request in order]
+ packed = pack(uncomputed, [request.num_computed_tokens for request in order])
or
- uncomputed = ... packed =
+ order = sorted(batch.running, key=lambda request: len(request.output_ids))
+ uncomputed = [(request.prompt_ids + request.output_ids)[request.num_computed_tokens :] for request in order]
+ packed = pack(uncomputed, [request.num_computed_tokens for request in order])
or
- uncomputed = ... packed =
+ order = batch.running[::-1]
+ uncomputed = [(request.prompt_ids + request.output_ids)[request.num_computed_tokens :] for request in order]
+ packed = pack(uncomputed, [request.num_computed_tokens for request in order])
One row for *all* running requests: prefills and decodes together. Yours has only some of them, or one at a time.
- uncomputed =
+ some = [r for r in batch.running if r.state is RequestState.PREFILLING] or list(batch.running)
+ uncomputed = [(request.prompt_ids + request.output_ids)[request.num_computed_tokens :] for request in some]
- packed =
+ packed = pack(uncomputed, [request.num_computed_tokens for request in some])
- for request, tokens
+ for request, tokens, next_token in zip(some, uncomputed, next_tokens):
or
- packed =
+ uncomputed = uncomputed[:1]
+ packed = pack(uncomputed, [batch.running[0].num_computed_tokens])
or
- uncomputed = ... retire(batch)
+ running = list(batch.running)
+ for request in running:
+     batch.running = [request]
+     tokens = (request.prompt_ids + request.output_ids)[request.num_computed_tokens :]
+     token = int(forward(batch, pack([tokens], [request.num_computed_tokens])).argmax())
+     request.num_computed_tokens += len(tokens)
+     request.append_token(token)
+ batch.running = running
+ retire(batch)
A finished request leaves at the end of its own step: call `retire(batch)` once all tokens are appended.
- retire(batch)
or
- retire(batch)
+ if all(request.state is RequestState.FINISHED for request in batch.running): retire(batch)
or
- retire(batch)
+ if batch.waiting: retire(batch)
or
- retire(batch)
- admit(batch)
+ pass
- uncomputed =
+ retire(batch)
+ admit(batch)
+ ...
or
- retire(batch)
+ pass
- next_tokens =
+ retire(batch)
+ ...
The step ends with `admit(batch)`, so that the next row already has the prompts of those that wait. Yours admits too
early, too late, or not at all.
- admit(batch)
or
- retire(batch)
- admit(batch)
+ admit(batch)
+ retire(batch)
or
- admit(batch)
+ pass
- uncomputed =
+ admit(batch)
+ ...
or
- admit(batch)
+ if not batch.running: admit(batch)
A finished request leaves, and its cache with it. Let `retire(batch)` and `admit(batch)` do it: they keep running
requests, caches and states together.
- retire(batch)
+ batch.running = [request for request in batch.running if request.state is not RequestState.FINISHED]
or
- admit(batch)
+ while batch.waiting and len(batch.running) < batch.max_num_seqs: batch.running.append(batch.waiting.popleft())
A request finishes with its end token, too, not only at its limit. `retire(batch)` goes by its state.
- retire(batch)
+ for request in [each for each in batch.running if len(each.output_ids) == each.max_new_tokens]:
+     batch.running.remove(request)
+     batch.close_cache(request)
Pack a row, and compute it with the `forward` that your step gets, not with a function of the library: a caller may pass
another one.
- next_tokens =
+ from lessons_lib.batching.ragged_batching import forward as other
+ next_tokens = other(batch, packed).argmax(dim=-1).tolist()
`request.prompt_ids += ...` changes the request's own prompt: `prompt_ids + output_ids` makes a new list.
- uncomputed =
+ for request in batch.running: request.prompt_ids += request.output_ids[-1:]
+ uncomputed = [request.prompt_ids[request.num_computed_tokens :] for request in batch.running]
or
- uncomputed =
+ for request in batch.running: request.prompt_ids.extend(request.output_ids)
+ uncomputed = [request.prompt_ids[request.num_computed_tokens :] for request in batch.running]
`forward` takes a PackedBatch, not lists: `pack(new_tokens, cached_lens)` makes one.
~ forward(batch, packed) => forward(batch, uncomputed)
"""

TASK = Task(
    reference="lessons_lib.batching.ragged_batching:ragged_step",
    cases=cases,
    run=run,
    tell=tell,
    smaller=smaller,
    known=mistakes(MISTAKES),
)

EXERCISE = Exercise(
    id="05.2",
    title="one step of the ragged batch",
    reference=TASK.reference,
    test=TASK,
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
