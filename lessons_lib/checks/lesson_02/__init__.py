"""The exercises and the quiz of lesson 02: request, slots, mask, one prefill chunk, one step of the loop."""

from lessons_lib.checks.exercise import Exercise
from lessons_lib.checks.lesson_02.chunk import check_prefill_chunk
from lessons_lib.checks.lesson_02.mask import check_cache_mask
from lessons_lib.checks.lesson_02.quiz import QUIZ
from lessons_lib.checks.lesson_02.request import check_request
from lessons_lib.checks.lesson_02.slots import check_slot_manager
from lessons_lib.checks.lesson_02.step import check_step

__all__ = ["EXERCISES", "QUIZ"]

EXERCISES = [
    Exercise(
        id="02.1",
        title="a request and its states (optional)",
        reference="lessons_lib.batching.request:Request",
        test=check_request,
        hints=(
            "`move_to` asks one question: is the new state in the set `NEXT_STATES[self.state]`? `append_token` asks "
            "two: is this the end token, and is it the last token that `max_new_tokens` allows?",
            "`move_to`: if the new state is not in the set, raise `IllegalTransition`; otherwise store it. "
            "`append_token`: answer both questions before you append the token. Then move to FINISHED, or to DECODING "
            "if the request isn't decoding yet: `move_to` refuses that for a waiting or finished request, so you need "
            "no check of your own. Append the token to `output_ids` last.",
            "`is_last = len(self.output_ids) + 1 == self.max_new_tokens`. If `is_end or is_last`: "
            "`self.move_to(RequestState.FINISHED)` and set `finish_reason`. Otherwise, if `self.state is not "
            "RequestState.DECODING`: `self.move_to(RequestState.DECODING)`.",
        ),
    ),
    Exercise(
        id="02.2",
        title="the slot manager (optional)",
        reference="lessons_lib.batching.slots:SlotManager",
        test=check_slot_manager,
        hints=(
            "Every slot is either in `free`, or in `slot_of` under the id of its request. Each method moves a slot "
            "from one container to the other.",
            "`acquire`: refuse a request that is already in `slot_of`, and refuse if `free` is empty. Then take a slot "
            "out of `free`, record it, and return it. `release`: refuse a request that is not in `slot_of`, then move "
            "its slot back.",
            "`self.slot_of[request_id] = self.free.pop()` moves a slot one way; "
            "`self.free.append(self.slot_of.pop(request_id))` moves it back. Before each: `if ...: raise`.",
        ),
    ),
    Exercise(
        id="02.3",
        title="the mask of every row",
        reference="lessons_lib.batching.slot_cache:cache_mask",
        test=check_cache_mask,
        hints=(
            "Write down the row of one token at position 2, for 4 columns. Which comparison of each column's index "
            "with 2 gives it? All tokens at once is the same comparison, of two tensors whose shapes broadcast.",
            "Compare two tensors that broadcast: the column indices, [num_keys], and the positions with an extra last "
            "axis of size 1, [rows, new tokens, 1]. The result is [rows, new tokens, num_keys]. Then insert the axis "
            "for the heads.",
            "`torch.arange(num_keys) <= positions[:, :, None]`, and `[:, None]` on the result.",
        ),
        points=1,
    ),
    Exercise(
        id="02.4",
        title="one chunk of a prompt",
        reference="lessons_lib.batching.continuous_batching:prefill_chunk",
        test=check_prefill_chunk,
        hints=(
            "In the example's second call, what are `tokens`, `positions` and `num_keys`? Write each in terms of "
            "`num_computed_tokens` and the length of the chunk.",
            "Find the first prefilling slot, or return. Slice the chunk out of the prompt: at most "
            "`batch.prefill_step` tokens from `num_computed_tokens` on. Call `forward` for that one slot. Move "
            "`num_computed_tokens` to the chunk's end. If that is the end of the prompt, append the token.",
            "`start = request.num_computed_tokens`, `end = start + len(chunk)`, then `logits = forward(batch, "
            "range(slot, slot + 1), [chunk], [list(range(start, end))], num_keys=end)`. The first token is "
            "`int(logits[0].argmax())`, if `end == len(request.prompt_ids)`.",
        ),
    ),
    Exercise(
        id="02.5",
        title="one step of continuous batching",
        reference="lessons_lib.batching.continuous_batching:step",
        test=check_step,
        hints=(
            "Settle which request is in which slot before you compute anything. Then ask of the two passes: which of "
            "them changes what the other one finds?",
            "Four things, in this order: release, admit, `decode_all(batch)`, `prefill_chunk(batch)`. After the chunk, "
            "the decode pass would give a new request its second token. Release: for every slot whose request has "
            "finished, remove the request from `batch.running` and release its id. Admit: while there is a free slot "
            "and a waiting request, take the first one from the queue, acquire a slot, put the request into "
            "`batch.running`, and move it to PREFILLING.",
            "`for slot in batch.slots_in(RequestState.FINISHED): batch.slots.release(batch.running.pop(slot).id)`. "
            "Then `while batch.waiting and batch.slots.free:` with `request = batch.waiting.popleft()` and "
            "`batch.running[batch.slots.acquire(request.id)] = request`.",
        ),
        points=3,
    ),
]
