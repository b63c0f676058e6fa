"""Answers to the exercises of lesson 02: other ways to be right, and slips that the checks name without a list."""

import torch

from answers import Wrong, rights, slips
from lessons_lib.batching.continuous_batching import serve
from lessons_lib.batching.slot_cache import cache_mask


def mask_by_loops(positions, num_keys):
    rows = [[[column <= int(position) for column in range(num_keys)] for position in row] for row in positions]
    return torch.tensor(rows)[:, None]


def mask_from_a_triangle(positions, num_keys):
    size = max(num_keys, int(positions.max()) + 1)
    return torch.ones(size, size).tril().bool()[positions][..., :num_keys].unsqueeze(1)


def remembers_masks(positions, num_keys, masks={}):  # noqa: B006
    return masks.setdefault((positions.shape, num_keys), cache_mask(positions, num_keys))


# What a check says, and changes of the reference that it says this of.

MASKS = """
In row 0, the token at position 2 misses column 2.
~ columns <= => columns <
In row 0, the token at position 2 sees column 3.
~ columns <= positions[:, :, None] => columns <= positions[:, :, None] + 1
or ~ columns <= positions[:, :, None] => columns <= num_keys + 0 * positions[:, :, None]
In row 0, the token at position 2 misses column 0.
~ columns <= => columns ==
In row 0, the token at position 64 misses column 0.
~ (columns <= positions[:, :, None]) => ((columns <= positions[:, :, None]) & (columns > positions[:, :, None] - 64))
The axes are [rows, 1, new tokens, num_keys]
= return (columns <= positions[:, :, None])[None]
or = return (columns <= positions[:, :, None])[..., None]
or = columns = torch.arange(positions.max() + 1)
or = return (columns <= positions.T[:, :, None])[:, None]
Return the comparison itself
= return (columns <= positions[:, :, None])[:, None].long()
or = return torch.zeros(*positions.shape, num_keys).masked_fill(columns > positions[:, :, None], -torch.inf)[:, None]
"""

LOOPS = """
leaves a slot free while a request waits
- for slot in range(batch.num_slots):
+ for slot in [slot for slot in range(batch.num_slots) if slot not in batch.running][:1]:
A is neither in `batch.waiting` nor in `batch.running`
~ batch.running => running
< while batch.waiting or running: => running = {}
or ~ if request.is_done] => if len(request.output_ids) >= request.max_new_tokens - 1 and request.output_ids]
B is neither in `batch.waiting` nor in `batch.running`
- for slot in range(batch.num_slots):
- if batch.waiting and slot not in
- batch.running[slot] = batch.waiting.popleft()
+ while batch.waiting and len(batch.running) < batch.num_slots:
+     batch.running[len(batch.running)] = batch.waiting.popleft()
A is twice in `batch.waiting` and `batch.running`
~ = batch.waiting.popleft() => = batch.waiting[0]
There is no decode pass if no request has a token
~ if decoding: => if True:
it covers all slots: `range(batch.num_slots)`
- next_tokens = batch.forward(range(batch.num_slots), tokens, positions)
+ first, last = min(decoding), max(decoding) + 1
+ next_tokens = [0] * first + batch.forward(range(first, last), tokens[first:last], positions[first:last])
puts a dummy at position 0 of B, over a token of its prompt
~ = [request.num_computed_tokens] => = [request.num_computed_tokens * (slot in decoding)]
puts a dummy at position 3 of B, over a token of its prompt
~ = [request.num_computed_tokens] => = [max(0, request.num_computed_tokens - (slot not in decoding))]
Each slot of the range needs a list of tokens
~ range(slot, slot + 1) => slot
or ~ [chunk], [list(range(start, end))] => chunk, list(range(start, end))
or ~ [[0]] * batch.num_slots, [[0]] * batch.num_slots => [[0]] * batch.num_slots, [[-1]] * batch.num_slots
or ~ [[0]] * batch.num_slots, [[0]] * batch.num_slots => [[0]] * batch.num_slots, [[64]] * batch.num_slots
The chunk that ends a prompt gives the first token, however long
~ if end == len(request.prompt_ids): => if end > len(request.prompt_ids):
not in that of `batch.running`
- for slot in decoding:
- batch.running[slot].num_computed_tokens += 1
+ for new, slot in zip(next_tokens, decoding):
+     batch.running[slot].num_computed_tokens += 1
~ append(next_tokens[slot]) => append(new)
or ~ append(next_tokens[0]) => append(next_tokens)
First come, first served
~ batch.waiting.popleft() => batch.waiting.pop()
or ~ prefilling[0] => min(prefilling)
or ~ prefilling[0] => prefilling[-1]
A step computes one chunk, of *one* prompt
- if prefilling:
- slot = prefilling[0]
+ for slot in prefilling:
Free slots are filled at the beginning of a step
- if prefilling:
+ for slot in [slot for slot, request in batch.running.items() if request.is_done and batch.waiting]:
+     del batch.running[slot]
+     batch.running[slot] = batch.waiting.popleft()
+ if prefilling := [slot for slot, request in batch.running.items() if not request.output_ids]:
A chunk has the next `batch.prefill_step` tokens
~ [start : start + batch.prefill_step] => [start:]
or ~ [start : start + batch.prefill_step] => [start : start + 1]
`prompt_ids[p]` is at position p, and in slot 0 there is A
~ list(range(start, end)) => list(range(end - start))
or ~ list(range(start, end)) => list(range(start + 1, end + 1))
A chunk begins where the one before it ended
- for slot in decoding:
- batch.running[slot].num_computed_tokens += 1
+ for slot in batch.running: batch.running[slot].num_computed_tokens += 1
+ for slot in decoding:
chunks don't wait for decodes
~ if prefilling: => if prefilling and not decoding:
Only the chunk that ends a prompt gives the first token
~ if end == len(request.prompt_ids): => if True:
or ~ for slot in decoding: => for slot in batch.running:
Feed each decoding request its newest token
- batch.running[slot].num_computed_tokens += 1
or ~ = [request.num_computed_tokens] => = [request.num_computed_tokens + 1]
or ~ request.output_ids[-1:] or [0] => request.prompt_ids[-1:]
`output_ids` is until the chunk that ends the prompt
~ if request.output_ids] => if request.num_computed_tokens >= len(request.prompt_ids)]
~ request.output_ids[-1:] or [0] => [request.output_ids[-1]] if slot in decoding else [0]
~ if end == len(request.prompt_ids): => if len(chunk) < batch.prefill_step:
`batch.running` has only the slots that are taken
~ for slot, request in batch.running.items() if request.is_done => for slot, request in enumerate(batch.running.values()) if request.is_done
All answers are complete by then
~ if request.is_done] => if len(request.output_ids) > request.max_new_tokens]
or ~ if request.is_done]: => if request.is_done][:1]:
by its limit or the end token
~ if request.is_done] => if len(request.output_ids) == request.max_new_tokens]
At the end every request has left
~ if request.is_done] => if request.is_done and batch.waiting]
~ while batch.waiting or batch.running => while batch.waiting or not all(each.is_done for each in batch.running.values())
Go on until both `batch.waiting` and `batch.running` are empty
~ while batch.waiting or batch.running => while batch.waiting
the `prompt_ids` of A have changed
~ num_computed_tokens = end => num_computed_tokens = end; request.prompt_ids.append(0)
"""

WRONG = {
    "02.1": [
        Wrong("keeps masks by shape", remembers_masks, "should be False; yours is True"),
        *slips(cache_mask, MASKS),
    ],
    "02.2": slips(serve, LOOPS),
}

RIGHT_LOOPS = """
A dummy may go further right: what it overwrites isn't computed yet.
~ = [request.num_computed_tokens] => = [request.num_computed_tokens + (slot not in decoding)]
Those that are done leave at the beginning of the next step; the last slots are filled first.
- for slot in range(batch.num_slots):
+ batch.running = {slot: each for slot, each in batch.running.items() if not each.is_done}
+ for slot in reversed(range(batch.num_slots)):
- for slot in [slot for slot, request
- del batch.running[slot]
A count of its own, any token as a dummy, and answers that are appended at the end of the step.
~ batch.running[slot].num_computed_tokens => computed[batch.running[slot].id]
~ request.num_computed_tokens => computed[request.id]
~ or [0] => or [999]
~ batch.running[slot].output_ids.append(next_tokens[slot]) => got.append((batch.running[slot], next_tokens[slot]))
~ request.output_ids.append(next_tokens[0]) => got.append((request, next_tokens[0]))
< while batch.waiting or => computed = dict.fromkeys("ABCDEF", 0)
< for slot in range(batch.num_slots): => got = []
< for slot in [slot for slot, request => for request, token in got: request.output_ids.append(token)
Tuples are as good as lists.
~ [chunk], [list(range(start, end))] => (tuple(chunk),), (range(start, end),)
"""

RIGHT = {
    "02.1": [mask_by_loops, mask_from_a_triangle],
    "02.2": rights(serve, RIGHT_LOOPS),
}
