"""02.2, `serve`: only what can be seen of the loop counts, its passes and the answers."""

from collections.abc import Iterator
from random import Random
from typing import Any

from lessons_lib.batching.continuous_batching import SlotBatch
from lessons_lib.checks.diagnosis import Known, Task, mistakes
from lessons_lib.checks.exercise import Exercise
from lessons_lib.checks.lesson_02.passes import Case, run, tell


def cases() -> Iterator[Case]:
    yield Case(1, 4, [("A", 3, 1)])
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
    yield Case(2, 16, [("A", 4, 9), ("B", 5, 9), ("C", 3, 9)], end=82)  # their tokens 7, 2 and 1
    yield Case(1, 4, [("A", 3, 4)], late=((2, ("B", 5, 2)),))
    yield Case(2, 4, [("A", 3, 8), ("B", 3, 2)], late=((4, ("C", 6, 3)), (4, ("D", 2, 2))))
    draw = Random(5)
    for _ in range(4):
        asked = [(name, draw.choice((1, 3, 8, 9)), draw.choice((1, 2, 5, 7))) for name in "ABCDEF"]
        yield Case(draw.choice((2, 3)), draw.choice((3, 4)), asked)


def serve_otherwise(order: str) -> Any:
    """A right loop but for the order in which a step does its work: of f(ill), l(ist what decodes), d(ecode), c(hunk),
    r(elease)."""

    def serve(batch: SlotBatch) -> None:
        def fill() -> None:
            for slot in range(batch.num_slots):
                if batch.waiting and slot not in batch.running:
                    batch.running[slot] = batch.waiting.popleft()

        listed: list[list[int]] = []

        def listing() -> None:
            listed.append([slot for slot, request in batch.running.items() if request.output_ids])

        def decode() -> None:
            if not listed:
                listing()
            decoding = listed.pop()
            if not decoding:
                return
            tokens, positions = [[0]] * batch.num_slots, [[0]] * batch.num_slots
            for slot, request in batch.running.items():
                tokens[slot], positions[slot] = request.output_ids[-1:] or [0], [request.num_computed_tokens]
            new = batch.forward(range(batch.num_slots), tokens, positions)
            for slot in decoding:
                batch.running[slot].num_computed_tokens += 1
                batch.running[slot].output_ids.append(new[slot])

        def chunk() -> None:
            for slot, request in batch.running.items():
                if not request.output_ids:
                    start = request.num_computed_tokens
                    request.num_computed_tokens = end = min(start + batch.prefill_step, len(request.prompt_ids))
                    new = batch.forward(
                        range(slot, slot + 1), [request.prompt_ids[start:end]], [list(range(start, end))]
                    )
                    request.output_ids += new if end == len(request.prompt_ids) else []
                    return

        def release() -> None:
            for slot in [slot for slot, request in batch.running.items() if request.is_done]:
                del batch.running[slot]

        while batch.waiting or batch.running:
            for part in order:
                {"f": fill, "l": listing, "d": decode, "c": chunk, "r": release}[part]()

    return serve


MISTAKES = """
A wave: free slots stay empty until all requests in the others are done. Fill a slot as soon as it is free.
~ if batch.waiting and slot not in batch.running => if batch.waiting and slot not in batch.running and not held
- for slot in range(batch.num_slots):
+ held = list(batch.running)
+ ...
Fill *all* free slots at the beginning of a step, not only one of them.
- for slot in range(batch.num_slots):
+ for slot in [slot for slot in range(batch.num_slots) if slot not in batch.running][:1]:
The number of requests that run isn't a free slot: once slot 0 is free and slot 1 isn't, it is 1, and the new request
takes the place of the one in slot 1. Look for a slot that isn't in `batch.running`.
- for slot in range(batch.num_slots):
- if batch.waiting and slot not in
- batch.running[slot] = batch.waiting.popleft()
+ while batch.waiting and len(batch.running) < batch.num_slots:
+     batch.running[len(batch.running)] = batch.waiting.popleft()
The requests that have a slot belong into `batch.running` itself; a dict of your own isn't seen.
~ batch.running => running
- while batch.waiting or running:
+ running = {}
+ ...
The decode pass covers all slots, `range(batch.num_slots)`, also those that have nothing to decode.
- next_tokens = batch.forward(range(batch.num_slots), tokens, positions)
+ first, last = min(decoding), max(decoding) + 1
+ next_tokens = [0] * first + batch.forward(range(first, last), tokens[first:last], positions[first:last])
An empty slot needs a position, too, such as 0. At -1 the dummy's key goes to the last column of the row.
~ [[0]] * batch.num_slots, [[0]] * batch.num_slots => [[0]] * batch.num_slots, [[-1]] * batch.num_slots
First come, first served: the request at the front of the queue has waited longest, `popleft()`.
~ batch.waiting.popleft() => batch.waiting.pop()
In a step, the model computes one chunk of *one* prompt. The other prompts wait for the next steps.
- if prefilling:
- slot = prefilling[0]
+ for slot in prefilling:
A chunk has at most `batch.prefill_step` tokens. Yours computes all that is left of the prompt at once, and every other
request waits for it.
~ [start : start + batch.prefill_step] => [start:]
or
~ [start : start + batch.prefill_step] => [start : start + batch.prefill_step + 1]
A chunk is as long as it may be: `batch.prefill_step` tokens, if as many are left.
~ [start : start + batch.prefill_step] => [start : start + batch.prefill_step - 1]
or
~ [start : start + batch.prefill_step] => [start : start + 1]
The chunks of a prompt go on next to the decodes: don't wait until no request decodes.
~ if prefilling: => if prefilling and not decoding:
The requests whose prompts are done get a token in every step, also while a chunk is computed.
~ if decoding: => if decoding and not prefilling:
If several prompts aren't done, the chunk is one of the request that was admitted first.
~ prefilling[0] => prefilling[-1]
A slot's number says nothing about who was first. A slot that is filled again has the newest request; `batch.running`
keeps them in the order in which they were put in.
~ prefilling[0] => min(prefilling)
Positions count from the beginning of the sequence. From 0, each chunk overwrites the keys of the first.
~ list(range(start, end)) => list(range(end - start))
or
~ list(range(start, end)) => list(range(1, 1 + end - start))
The first position of a chunk is the number of tokens that are computed already.
~ list(range(start, end)) => list(range(start + 1, end + 1))
Only the chunk that ends the prompt gives a token. After any other one, the model predicts what the prompt already says.
~ if end == len(request.prompt_ids): => if True:
or
~ if end == len(request.prompt_ids): => if start == 0:
or
~ if end == len(request.prompt_ids): => if end >= len(request.prompt_ids) - 1:
The chunk that ends the prompt gives the request its first token, and yours drops it.
- request.output_ids.append(next_tokens[0])
+ batch.running[slot].output_ids += [next_tokens[0]] if len(request.prompt_ids) == 1 else [0]
The position of a decoding request's token moves by one with every token: count what is computed.
- batch.running[slot].num_computed_tokens += 1
A row that is still prefilling takes part in the decode pass, too, and its dummy token's key goes to the position that
you give. At 0 it overwrites the key of the prompt's first token. Put it where the row's next token goes.
~ = [request.num_computed_tokens] => = [request.num_computed_tokens * (slot in decoding)]
or
~ = [request.num_computed_tokens] => = [max(0, request.num_computed_tokens - (slot not in decoding))]
Feed the newest token at the position behind those that are computed: the prompt's length plus the tokens of the answer,
less one.
~ = [request.num_computed_tokens] => = [request.num_computed_tokens + 1]
or
~ = [request.num_computed_tokens] => = [len(request.output_ids)]
or
~ = [request.num_computed_tokens] => = [max(0, len(request.output_ids) - 1)]
or
~ = [request.num_computed_tokens] => = [len(request.prompt_ids) * (slot in decoding)]
What goes in is the newest token of each decoding request, `output_ids[-1]`.
~ request.output_ids[-1:] or [0] => request.output_ids[:1] or [0]
or
~ request.output_ids[-1:] or [0] => request.prompt_ids[-1:]
All decoding requests share *one* pass: that is the point of a batch. Yours makes one for each.
- next_tokens = batch.forward(range(batch.num_slots), tokens, positions)
- for slot in decoding:
- batch.running[slot].num_computed_tokens += 1
- batch.running[slot].output_ids.append(next_tokens[slot])
+ for slot in decoding:
+     new = batch.forward(range(slot, slot + 1), [tokens[slot]], [positions[slot]])
+     batch.running[slot].num_computed_tokens += 1
+     batch.running[slot].output_ids += new
The rows that aren't decoding are computed with dummy tokens, and what comes out of them belongs to no answer.
~ for slot in decoding: => for slot in batch.running:
A request that has its last token leaves, and its slot is free: yours keeps it.
~ if request.is_done] => if False]
or
~ if request.is_done] => if all(each.is_done for each in batch.running.values())]
All requests that are done leave at the end of the step, not only the first of them.
~ if request.is_done]: => if request.is_done][:1]:
A chunk may give a request its last token, too: look at `is_done` of all requests at the end of a step.
~ if request.is_done] => if request.is_done and slot in decoding]
A request leaves when its answer is complete, neither earlier nor later: at its limit, or with the end token.
~ if request.is_done] => if len(request.output_ids) >= request.max_new_tokens - 1 and request.output_ids]
or
~ if request.is_done] => if len(request.output_ids) > request.max_new_tokens]
or
~ if request.is_done] => if request.output_ids and request.num_computed_tokens >= request.max_new_tokens]
The end token ends an answer, too: `request.is_done` asks for both.
~ if request.is_done] => if len(request.output_ids) == request.max_new_tokens]
Your code changes `batch.running` while a loop goes over it, and Python stops that. Collect the slots first.
- for slot in [slot for slot, request
- del batch.running[slot]
+ for slot, request in batch.running.items():
+     if request.is_done: del batch.running[slot]
Requests may arrive at any time: look at `batch.waiting` itself in every step, and not at a copy from the start.
- while batch.waiting or batch.running:
+ queue = deque(batch.waiting); batch.waiting.clear()
+ while queue or batch.running:
~ if batch.waiting and slot => if queue and slot
~ = batch.waiting.popleft() => = queue.popleft()
The queue is empty, but requests are still running: go on until both are empty.
~ while batch.waiting or batch.running => while batch.waiting
The slots are a range of rows: `range(slot, slot + 1)` for a single one.
~ range(slot, slot + 1) => [slot]
or
~ range(slot, slot + 1) => slot
"""

LATE = (
    "In this step a slot is free and a request waits. Order matters: first fill the free slots, then decode, then "
    "compute the chunk; requests that are done leave at the end, so that the next step can fill their slots."
)
ORDER = (
    "In a step, the decode pass comes first, then the chunk, and slots are filled only at the beginning. If the chunk "
    "comes first, a request whose prompt ends there gets two tokens in one step."
)
CHUNK_FIRST = "In a step, the decode pass comes first, then the chunk: yours computes them the other way around."
TASK = Task(
    reference="lessons_lib.batching.continuous_batching:serve",
    cases=cases,
    run=run,
    tell=tell,
    known=[
        *mistakes(MISTAKES),
        Known(LATE, answer=serve_otherwise("dcfr")),
        *(Known(ORDER, answer=serve_otherwise(order)) for order in ("fcdr", "fdrfc")),
        Known(CHUNK_FIRST, answer=serve_otherwise("flcdr")),
    ],
    enough=6,
    about={
        "the passes": "In every step: fill the free slots, one decode pass for all requests whose prompts are done, "
        "one chunk for the first of the others.",
        "the answers": "Batching changes when a token is computed, never which one. What went in, and where?",
        "batch.running": "At the end every request has left.",
        "batch.waiting": "At the end the queue is empty.",
        "raised TooManyPasses": "Which request is never done?",
    },
)

EXERCISE = Exercise(
    id="02.2",
    title="the loop",
    reference=TASK.reference,
    test=TASK,
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
