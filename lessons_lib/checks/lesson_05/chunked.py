"""05.3, `chunked_step`: a row with a limit, and prompts in chunks. Which prompt gets how much is up to the learner."""

from collections.abc import Iterator

from lessons_lib.checks.diagnosis import Task, mistakes
from lessons_lib.checks.exercise import Exercise
from lessons_lib.checks.lesson_05.serving import Case, random_case, run, smaller, tell


def cases() -> Iterator[Case]:
    yield from (
        (1, 4, "A 3+3", 3), (1, 2, "A 5+2", 4), (1, 1, "A 3+2", 4), (1, 3, "A 3+2", 2), (2, 4, "A 3+5, B 6+2 @1", 4),
        (2, 2, "A 2+4, B 3+2", 5), (2, 9, "A 9+2, B 2+2", 3), (3, 5, "A 2+6, B 2+6, C 9+2 @1", 6),
        (1, 4, "A 9+3 ~6", 2), (1, 3, "A 4+1, B 5+1", 5), (2, 6, "A 4+3 $, B 9+2", 4),
        (3, 100, "A 7+2, B 3+1, C 5+3", 3), (1, 4, "A 8+2", 3), (3, 3, "A 4+2, B 1+5, C 6+1", 8),
        (2, 5, "A 12+2, B 3+3, C 4+2", 6),
    )  # fmt: skip
    yield from (random_case(seed, limit) for seed, limit in enumerate((4, 5, 7, 8, 12, 30)))


MISTAKES = """
The limit counts the tokens of the whole row, and your row exceeds it. What other requests have in the row is no longer
there to give away.
- parts.append
+ parts.append(tokens[computed : computed + 1 + max_num_batched_tokens - len(known)])
or
- parts.append
+ parts.append(tokens[computed : computed + max_num_batched_tokens])
or
- parts.append
+ parts.append(tokens[computed:])
or
- spare -= len(parts[-1]) - 1
Keep one token of the limit for each request that still has to come: every running request needs at least one.
- spare = max_num_batched_tokens
+ spare = max_num_batched_tokens
~ computed : computed + 1 + spare => computed : computed + spare
~ len(parts[-1]) - 1 => len(parts[-1])
or
- spare = max_num_batched_tokens
+ spare = max_num_batched_tokens
~ computed : computed + 1 + spare => computed : computed + max(spare, 1)
~ len(parts[-1]) - 1 => len(parts[-1])
The row has room, and prompts have tokens left to compute: fill it, up to the limit. Is a term off by one, or rounded?
~ spare = max_num_batched_tokens - len(known) => spare = max_num_batched_tokens - len(known) - 1
or
~ computed + 1 + spare] => computed + max(1, spare)]
or
~ -= len(parts[-1]) - 1 => -= len(parts[-1])
~ computed + 1 + spare] => computed + 1 + max(spare, 0)]
One token over the limit: count the token that each request has for sure, too.
~ spare = max_num_batched_tokens - len(known) => spare = max_num_batched_tokens - len(known) + 1
or
~ computed + 1 + spare] => computed + 1 + spare + (spare > 0)]
An equal share for each leaves room in the row: a decode needs one token only. Give the rest to those with more.
- parts.append
+ parts.append(tokens[computed : computed + max(1, max_num_batched_tokens // len(known))])
Only one request got what is left of the row, and it may need less. Give the rest to the next one.
- parts.append
+ parts.append(tokens[computed : computed + (1 + spare if len(parts) == 0 else 1)])
or
- for tokens, computed
+ longest = max(range(len(known)), key=lambda i: len(known[i]) - cached[i])
+ for index, (tokens, computed) in enumerate(zip(known, cached)):
- parts.append
+     parts.append(tokens[computed : computed + (1 + spare if index == longest else 1)])
Prompts move on token by token, although the row has room for more: share what is left of the limit.
- parts.append
+ parts.append(tokens[computed : computed + 1])
A prompt that doesn't fit as a whole still gets what is left: a part of it.
- parts.append
+ parts.append(tokens[computed:] if len(tokens) - computed <= 1 + spare else tokens[computed : computed + 1])
The row has other tokens than the next ones. A chunk begins where the last one ended, at `num_computed_tokens`.
- parts.append
+ parts.append(tokens[: 1 + spare])
or
- parts.append
+ parts.append(tokens[computed:][-1 - spare :])
or
- parts.append
+ parts.append(tokens[-1:] if computed else tokens[: 1 + spare])
A chunk that isn't the end of a prompt predicts a token that you know already. Append one only once all known tokens are
computed: `num_computed_tokens`, increased by the chunk, says how many are.
~ num_computed_tokens += len(part) => num_computed_tokens = len(tokens)
or
- if request.num_computed_tokens == len(tokens):
- request.append_token(next_token)
+ request.append_token(next_token)
or
~ request.num_computed_tokens == len(tokens) => request.num_computed_tokens
The last chunk of a prompt gives the first token of the answer, in the same step: ask what is computed *after* the pass.
- request.num_computed_tokens += len(part)
- if request.num_computed_tokens == len(tokens):
- request.append_token(next_token)
+ if request.num_computed_tokens >= len(request.prompt_ids): request.append_token(next_token)
+ request.num_computed_tokens += len(part)
or
~ request.num_computed_tokens == len(tokens) => request.num_computed_tokens - len(part) >= len(request.prompt_ids)
or
~ request.num_computed_tokens == len(tokens) => request.state is RequestState.DECODING
or
- if request.num_computed_tokens == len(tokens):
+ if request.output_ids:
or
~ request.num_computed_tokens == len(tokens) => len(part) == 1
or
~ request.num_computed_tokens == len(tokens) => request.num_computed_tokens > len(tokens)
A decode has all its known tokens computed, too: its one token in the row was the last. It gets a token in each step.
~ request.num_computed_tokens == len(tokens) => request.num_computed_tokens == len(request.prompt_ids)
Compare with the tokens that the request had *before* this step: `append_token` makes its answer longer.
- request.num_computed_tokens += len(part)
- if request.num_computed_tokens == len(tokens):
- request.append_token(next_token)
+ request.append_token(next_token)
+ request.num_computed_tokens += len(part)
+ if request.num_computed_tokens < len(request.prompt_ids): request.output_ids.pop()
Count what this step has computed, the chunk, and not all that was left.
- request.num_computed_tokens += len(part)
- if request.num_computed_tokens == len(tokens):
+ is_last = request.num_computed_tokens + len(part) == len(tokens)
+ request.num_computed_tokens = len(tokens)
+ if is_last:
or
~ num_computed_tokens += len(part) => num_computed_tokens += len(tokens)
`num_computed_tokens` grows by the length of the chunk: the next one begins there.
- request.num_computed_tokens += len(part)
- if request.num_computed_tokens == len(tokens):
+ if request.num_computed_tokens + len(part) == len(tokens):
or
~ num_computed_tokens += len(part) => num_computed_tokens = len(part)
or
~ num_computed_tokens += len(part) => num_computed_tokens += 1
or
- request.num_computed_tokens += len(part)
- if request.num_computed_tokens == len(tokens):
- request.append_token(next_token)
+ if request.num_computed_tokens + len(part) == len(tokens):
+     request.num_computed_tokens += len(part)
+     request.append_token(next_token)
Each request's part must follow the order of `batch.running`: the logits and the caches do. Decide who gets how much in
any order you like, and then build the row in this one.
- known =
+ batch.running.sort(key=lambda request: len(request.prompt_ids) - request.num_computed_tokens)
+ ...
or
- next_tokens =
+ order = sorted(range(len(parts)), key=lambda i: len(parts[i]))
+ parts, cached, known = [[each[i] for i in order] for each in (parts, cached, known)]
+ ...
`forward` joins the caches of all requests in `batch.running`, so each needs a part in the row: first one token each.
- next_tokens =
+ keep = range(max(1, len(parts) - 1))
+ parts, cached, known = [parts[i] for i in keep], [cached[i] for i in keep], [known[i] for i in keep]
+ ...
or
- for tokens, computed
+ spare = max_num_batched_tokens
+ for tokens, computed in zip(known, cached):
+     if spare <= 0: break
- parts.append
+     parts.append(tokens[computed : computed + spare])
~ len(parts[-1]) - 1 => len(parts[-1])
Pass to `pack` how many tokens of each request are in its cache: `num_computed_tokens`, also in the middle of a prompt.
~ pack(parts, cached) => pack(parts, [0] * len(parts))
or
- next_tokens =
+ cached = [0 if not request.output_ids else request.num_computed_tokens for request in batch.running]
+ ...
`num_computed_tokens` says what is in the cache *before* the pass. Increase it after `forward`.
- next_tokens =
+ for request, part in zip(batch.running, parts): request.num_computed_tokens += len(part)
+ cached = [request.num_computed_tokens for request in batch.running]
+ ...
- request.num_computed_tokens += len(part)
The logits are [requests, vocabulary]. `argmax(dim=-1)` finds the best token for each request.
~ argmax(dim=-1) => argmax(dim=0)
or
~ argmax(dim=-1) => argmin(dim=-1)
A token id is a plain int, and yours is a tensor: `.tolist()` or `.item()` converts it.
~ argmax(dim=-1).tolist() => argmax(dim=-1)
A finished request leaves at the end of its own step: call `retire(batch)`, then `admit(batch)`.
- retire(batch)
or
- retire(batch)
- admit(batch)
The step ends with `retire(batch)` and then `admit(batch)`, so that the next row has the prompts of those that wait.
- admit(batch)
or
- retire(batch)
- admit(batch)
+ admit(batch)
+ retire(batch)
Each step is one row, with one call of `forward`. What doesn't fit is for the next step.
- next_tokens =
+ for _ in range(2): next_tokens = forward(batch, pack(parts, cached)).argmax(dim=-1).tolist()
"""

TASK = Task(
    reference="lessons_lib.batching.ragged_batching:chunked_step",
    cases=cases,
    run=run,
    tell=tell,
    smaller=smaller,
    known=mistakes(MISTAKES),
)

EXERCISE = Exercise(
    id="05.3",
    title="prompts in chunks",
    reference=TASK.reference,
    test=TASK,
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
