"""Answers to the exercises of lesson 02: other ways to be right, and slips that the checks name without a list."""

import torch

from answers import Wrong
from lessons_lib.batching.continuous_batching import serve
from lessons_lib.batching.slot_cache import cache_mask
from lessons_lib.checks.diagnosis import mistakes

# 02.1


def mask_by_loops(positions, num_keys):
    rows = [[[column <= int(position) for column in range(num_keys)] for position in row] for row in positions]
    return torch.tensor(rows)[:, None]


def mask_from_a_triangle(positions, num_keys):
    size = max(num_keys, int(positions.max()) + 1)
    return torch.ones(size, size).tril().bool()[positions][..., :num_keys].unsqueeze(1)


def remembers_masks(positions, num_keys, masks={}):  # noqa: B006
    return masks.setdefault((positions.shape, num_keys), cache_mask(positions, num_keys))


# 02.2


def serve_with_a_stage_for_each(batch):
    """Leaves at the start of a step, lowest stage first; the slots from the last to the first."""
    computed, order = {}, []
    while True:
        for slot, request in list(batch.running.items()):
            if request.is_done:
                batch.running.pop(slot)
                order.remove(slot)
        for slot in reversed(range(batch.num_slots)):
            if slot not in batch.running and len(batch.waiting) > 0:
                batch.running[slot] = batch.waiting.popleft()
                computed[slot] = 0
                order.append(slot)
        if not batch.running:
            return
        answering = {slot for slot in order if computed[slot] >= len(batch.running[slot].prompt_ids)}
        if answering:
            rows = [(batch.running.get(slot), computed.get(slot, 0)) for slot in range(batch.num_slots)]
            tokens = [[request.output_ids[-1]] if request and request.output_ids else [999] for request, _ in rows]
            positions = [[place if request else 0] for request, place in rows]
            for slot, token in enumerate(batch.forward(range(batch.num_slots), tokens, positions)):
                if slot in answering:
                    batch.running[slot].output_ids.append(token)
                    computed[slot] += 1
        rest = [slot for slot in order if slot not in answering]
        if rest:
            slot, request = rest[0], batch.running[rest[0]]
            places = [*range(computed[slot], len(request.prompt_ids))][: batch.prefill_step]
            token = batch.forward(range(slot, slot + 1), [[request.prompt_ids[place] for place in places]], [places])[0]
            computed[slot] += len(places)
            if computed[slot] == len(request.prompt_ids):
                request.output_ids.append(token)


def serves_each_alone(batch):
    while batch.waiting:
        request = batch.waiting.popleft()
        ids = torch.tensor([request.prompt_ids])
        options = dict(max_new_tokens=request.max_new_tokens, do_sample=False, pad_token_id=0)
        answer = batch.model.generate(ids, attention_mask=torch.ones_like(ids), **options)
        request.output_ids += answer[0, ids.shape[1] :].tolist()


# What a check says, and changes of the reference that it says this of.

MASKS = """
In row 0, the token at position 2 misses column 2.
~ columns <= => columns <
In row 0, the token at position 2 sees column 3.
~ columns <= positions[:, :, None] => columns <= positions[:, :, None] + 1
or
~ columns <= positions[:, :, None] => columns <= num_keys + 0 * positions[:, :, None]
In row 0, the token at position 2 misses column 0.
~ columns <= => columns ==
In row 0, the token at position 64 misses column 0.
~ (columns <= positions[:, :, None]) => ((columns <= positions[:, :, None]) & (columns > positions[:, :, None] - 64))
The axes are [rows, 1, new tokens, num_keys]
= return (columns <= positions[:, :, None])[None]
or
= return (columns <= positions[:, :, None])[..., None]
or
= columns = torch.arange(positions.max() + 1)
or
= return (columns <= positions.T[:, :, None])[:, None]
Return the comparison itself
= return (columns <= positions[:, :, None])[:, None].long()
or
= return torch.zeros(*positions.shape, num_keys).masked_fill(columns > positions[:, :, None], -torch.inf)[:, None]
"""

LOOPS = """
Fill *all* free slots at the beginning of each step
- for slot in range(batch.num_slots):
+ for slot in [slot for slot in range(batch.num_slots) if slot not in batch.running][:1]:
or
~ if batch.waiting and slot not in batch.running => if batch.waiting and slot not in batch.running and not held
- for slot in range(batch.num_slots):
+ held = list(batch.running)
+ ...
`batch.running` has none that decodes in slots [0]
~ batch.running => running
- while batch.waiting or running:
+ running = {}
+ ...
`batch.running` has none that decodes in slots [0, 1]
~ if decoding: => if True:
it covers all slots: `range(batch.num_slots)`
- next_tokens = batch.forward(range(batch.num_slots), tokens, positions)
+ first, last = min(decoding), max(decoding) + 1
+ next_tokens = [0] * first + batch.forward(range(first, last), tokens[first:last], positions[first:last])
Each slot of the range needs a list of tokens
~ range(slot, slot + 1) => range(slot)
or
~ range(slot, slot + 1) => slot
or
~ [chunk], [list(range(start, end))] => chunk, list(range(start, end))
or
~ if end == len(request.prompt_ids): => if end > len(request.prompt_ids):
a row has columns 0 to 63
~ [[0]] * batch.num_slots, [[0]] * batch.num_slots => [[0]] * batch.num_slots, [[-1]] * batch.num_slots
First come, first served
~ batch.waiting.popleft() => batch.waiting.pop()
or
~ prefilling[0] => min(prefilling)
or
~ prefilling[0] => prefilling[-1]
A step fills the free slots, decodes, and then computes one chunk
- if prefilling:
- slot = prefilling[0]
+ for slot in prefilling:
A chunk has the next `batch.prefill_step` tokens
~ [start : start + batch.prefill_step] => [start:]
or
~ [start : start + batch.prefill_step] => [start : start + 1]
or
~ list(range(start, end)) => list(range(end - start))
or
~ list(range(start, end)) => list(range(start + 1, end + 1))
chunks don't wait for decodes
~ if prefilling: => if prefilling and not decoding:
Only the chunk that ends A's prompt gives it its first token
~ if end == len(request.prompt_ids): => if True:
Only the chunk that ends B's prompt gives it its first token
~ for slot in decoding: => for slot in batch.running:
Feed each decoding request its newest token
- batch.running[slot].num_computed_tokens += 1
or
~ = [request.num_computed_tokens] => = [request.num_computed_tokens + 1]
or
~ request.output_ids[-1:] or [0] => request.prompt_ids[-1:]
All answers are complete by then
~ if request.is_done] => if len(request.output_ids) > request.max_new_tokens]
or
~ if request.is_done]: => if request.is_done][:1]:
`is_done` asks for the limit and for the end token
~ if request.is_done] => if len(request.output_ids) == request.max_new_tokens]
A request leaves when it `is_done`, not earlier
~ if request.is_done] => if len(request.output_ids) >= request.max_new_tokens - 1 and request.output_ids]
Go on until both `batch.waiting` and `batch.running` are empty
~ while batch.waiting or batch.running => while batch.waiting
or
- while batch.waiting or batch.running:
+ queue = deque(batch.waiting); batch.waiting.clear()
+ while queue or batch.running:
~ if batch.waiting and slot => if queue and slot
~ = batch.waiting.popleft() => = queue.popleft()
the `prompt_ids` of A have changed
~ num_computed_tokens = end => num_computed_tokens = end; request.prompt_ids.append(0)
"""


def slips(reference, text):
    return [Wrong(known.patch.split("\n")[0], known.attempt(reference), known.why) for known in mistakes(text)]


WRONG = {
    "02.1": [
        Wrong("keeps masks by shape", remembers_masks, "should be False; yours is True"),
        *slips(cache_mask, MASKS),
    ],
    "02.2": [Wrong("the oracle itself", serves_each_alone, "your code calls `model.generate`"), *slips(serve, LOOPS)],
}

RIGHT_LOOPS = """
A dummy may go further right: what it overwrites isn't computed yet.
~ = [request.num_computed_tokens] => = [request.num_computed_tokens + (slot not in decoding)]
Another dict with the requests that stay.
- for slot in [slot for slot, request
- del batch.running[slot]
+ batch.running = {slot: each for slot, each in batch.running.items() if not each.is_done}
Tuples are as good as lists.
~ [chunk], [list(range(start, end))] => (tuple(chunk),), (range(start, end),)
"""

RIGHT = {
    "02.1": [mask_by_loops, mask_from_a_triangle],
    "02.2": [serve_with_a_stage_for_each, *(each.attempt(serve) for each in mistakes(RIGHT_LOOPS))],
}
