"""Answers to the exercises of lesson 02: what learners get wrong, and other ways to be right."""

from dataclasses import dataclass, field

import torch

from answers import Wrong
from lessons_lib.batching.continuous_batching import decode_all, forward, prefill_chunk, step
from lessons_lib.batching.request import NEXT_STATES, IllegalTransition, Request, RequestState
from lessons_lib.batching.slot_cache import cache_mask
from lessons_lib.batching.slots import NoFreeSlot, SlotManager

WAITING, PREFILLING, DECODING, FINISHED = RequestState


# 02.1 Request: each mistake is the reference with one method of its own


class AllowsEverything(Request):
    def move_to(self, state):
        self.state = state


class IgnoresIllegalMoves(Request):
    def move_to(self, state):
        if state in NEXT_STATES[self.state]:
            self.state = state


class AllowsToStay(Request):
    def move_to(self, state):
        if state is not self.state:
            super().move_to(state)


class ChangesBeforeRefusing(Request):
    def move_to(self, state):
        before, self.state = self.state, state
        if state not in NEXT_STATES[before]:
            raise IllegalTransition("no")


class OverwritesBeforeLookingUp(Request):
    def move_to(self, state):
        self.state = state
        if state not in NEXT_STATES[self.state]:
            raise IllegalTransition("no")


class RaisesValueError(Request):
    def move_to(self, state):
        if state not in NEXT_STATES[self.state]:
            raise ValueError("illegal")
        self.state = state


class ForbidsFinishingFromPrefill(Request):
    def move_to(self, state):
        order = list(RequestState)
        if order.index(state) != order.index(self.state) + 1:
            raise IllegalTransition("one after the other")
        self.state = state


class NeverMoves(Request):
    def move_to(self, state):
        if state not in NEXT_STATES[self.state]:
            raise IllegalTransition("no")


class LeavesOutTheEndToken(Request):
    def append_token(self, token):
        if token == self.eos_token_id:
            self.move_to(FINISHED)
            self.finish_reason = "stop"
        else:
            super().append_token(token)


class NeverFinishesAtTheLimit(Request):
    def append_token(self, token):
        self.output_ids.append(token)
        if token == self.eos_token_id:
            self.finish_reason = "stop"
            self.move_to(FINISHED)
        elif self.state is PREFILLING:
            self.move_to(DECODING)


class OneTokenTooFew(Request):
    def append_token(self, token):
        self.max_new_tokens -= 1
        super().append_token(token)


class StaysDecoding(Request):
    def append_token(self, token):
        self.output_ids.append(token)
        if token == self.eos_token_id:
            self.finish_reason = "stop"
        elif len(self.output_ids) >= self.max_new_tokens:
            self.finish_reason = "length"
        elif self.state is PREFILLING:
            self.move_to(DECODING)


class AlwaysMovesToDecoding(Request):
    def append_token(self, token):
        self.output_ids.append(token)
        if token == self.eos_token_id or len(self.output_ids) == self.max_new_tokens:
            self.finish_reason = "stop" if token == self.eos_token_id else "length"
            self.move_to(FINISHED)
        else:
            self.move_to(DECODING)


class StaysPrefilling(Request):
    def append_token(self, token):
        if self.state is PREFILLING and len(self.output_ids) + 1 < self.max_new_tokens and token != self.eos_token_id:
            self.output_ids.append(token)
        else:
            super().append_token(token)


class TakesZeroForNoEndToken(Request):
    def append_token(self, token):
        end, self.eos_token_id = self.eos_token_id, self.eos_token_id or None
        super().append_token(token)
        self.eos_token_id = end


class LimitBeforeEndToken(Request):
    def append_token(self, token):
        last = len(self.output_ids) + 1 == self.max_new_tokens
        super().append_token(token)
        if last:
            self.finish_reason = "length"


class AppendsBeforeRefusing(Request):
    def append_token(self, token):
        self.output_ids.append(token)
        if token == self.eos_token_id:
            self.move_to(FINISHED)
            self.finish_reason = "stop"
        elif len(self.output_ids) == self.max_new_tokens:
            self.move_to(FINISHED)
            self.finish_reason = "length"
        elif self.state is not DECODING:
            self.move_to(DECODING)


class WaitingTakesTokens(Request):
    def append_token(self, token):
        if self.state is WAITING:
            self.output_ids.append(token)
        else:
            super().append_token(token)


class AlwaysDecodesAfterTheFirstToken(Request):
    def append_token(self, token):
        if self.state is PREFILLING:
            self.move_to(DECODING)
            self.output_ids.append(token)
        else:
            super().append_token(token)


class FinishesWithoutAMove(Request):
    def append_token(self, token):
        if token == self.eos_token_id:
            self.state, self.finish_reason = FINISHED, "stop"
            self.output_ids.append(token)
        else:
            super().append_token(token)


class CountsWhatIsNotComputed(Request):
    def append_token(self, token):
        super().append_token(token)
        self.num_computed_tokens += 1


class CountsThePrompt(Request):
    def append_token(self, token):
        last = len(self.prompt_ids) + len(self.output_ids) + 1 >= self.max_new_tokens
        if token == self.eos_token_id or last:
            self.move_to(FINISHED)
            self.finish_reason = "stop" if token == self.eos_token_id else "length"
        elif self.state is not DECODING:
            self.move_to(DECODING)
        self.output_ids.append(token)


@dataclass
class PlainRequest:
    id: str
    prompt_ids: list
    max_new_tokens: int
    eos_token_id: int = None
    state: RequestState = RequestState.WAITING
    num_computed_tokens: int = 0
    output_ids: list = field(default_factory=list)
    finish_reason: str = None

    def move_to(self, state):
        if not any(state == following for following in NEXT_STATES[self.state]):
            raise IllegalTransition(self.id, state)
        self.state = state

    def append_token(self, token):
        if self.state not in (PREFILLING, DECODING):
            raise IllegalTransition(f"{self.id} takes no token")
        self.output_ids = self.output_ids + [token]
        if self.state == PREFILLING:
            self.move_to(DECODING)
        if token == self.eos_token_id:
            self.finish_reason = "stop"
        elif len(self.output_ids) >= self.max_new_tokens:
            self.finish_reason = "length"
        if self.finish_reason:
            self.move_to(FINISHED)


class RequestWithTable(Request):
    def move_to(self, state):
        allowed = [(WAITING, PREFILLING), (PREFILLING, DECODING), (PREFILLING, FINISHED), (DECODING, FINISHED)]
        if (self.state, state) in allowed:
            self.state = state
            return self
        raise IllegalTransition(f"{self.state} -> {state}")

    def append_token(self, token):
        left = self.max_new_tokens - len(self.output_ids)
        reason = "stop" if token == self.eos_token_id else "length" if left <= 1 else None
        target = FINISHED if reason else DECODING
        if self.state is not target or target is FINISHED:
            self.move_to(target)
        self.output_ids, self.finish_reason = [*self.output_ids, token], reason


# 02.2 SlotManager


class SameSlotTwice(SlotManager):
    def acquire(self, request_id):
        self.slot_of[request_id] = self.free[-1]
        return self.slot_of[request_id]


class ReturnsNothing(SlotManager):
    def acquire(self, request_id):
        super().acquire(request_id)


class ReturnsNoneWhenFull(SlotManager):
    def acquire(self, request_id):
        return super().acquire(request_id) if self.free else None


class IndexErrorWhenFull(SlotManager):
    def acquire(self, request_id):
        if request_id in self.slot_of:
            raise ValueError(request_id)
        self.slot_of[request_id] = self.free.pop()
        return self.slot_of[request_id]


class ChangesBeforeRefusingWhenFull(SlotManager):
    def acquire(self, request_id):
        self.slot_of[request_id] = None
        if not self.free:
            raise NoFreeSlot(request_id)
        self.slot_of[request_id] = self.free.pop()
        return self.slot_of[request_id]


class LosesSlots(SlotManager):
    def release(self, request_id):
        if request_id not in self.slot_of:
            raise ValueError(request_id)
        del self.slot_of[request_id]


class KeepsTheEntry(SlotManager):
    def release(self, request_id):
        self.free.append(self.slot_of[request_id])


class AcceptsDoubleRelease(SlotManager):
    def release(self, request_id):
        slot = self.slot_of.pop(request_id, None)
        if slot is not None:
            self.free.append(slot)


class KeyErrorOnDoubleRelease(SlotManager):
    def release(self, request_id):
        self.free.append(self.slot_of.pop(request_id))


class FreesOnRefusedRelease(SlotManager):
    def release(self, request_id):
        slot = self.slot_of.pop(request_id, 0)
        self.free.append(slot)
        if self.free.count(slot) > 1:
            raise ValueError(request_id)


class SecondSlotForOneRequest(SlotManager):
    def acquire(self, request_id):
        self.slot_of.pop(request_id, None)
        return super().acquire(request_id)


class FreesNothing(SlotManager):
    def release(self, request_id):
        slot = self.slot_of.pop(request_id, None)
        self.free.append(slot)
        if slot is None:
            raise ValueError("no slot")


class AlwaysFreesSlot0(SlotManager):
    def release(self, request_id):
        super().release(request_id)
        self.free[-1] = 0


class ReleasesTheNewest(SlotManager):
    def release(self, request_id):
        if request_id not in self.slot_of:
            raise ValueError(request_id)
        name, slot = self.slot_of.popitem()
        self.free.append(slot)


class TakesAsManyAsAreInUse(SlotManager):
    def acquire(self, request_id):
        super().acquire(request_id)
        self.slot_of[request_id] = len(self.slot_of) - 1
        return self.slot_of[request_id]


class TakesSlot0ForNone(SlotManager):
    def acquire(self, request_id):
        if request_id in self.slot_of:
            raise ValueError(request_id)
        slot = self.free[-1] if self.free else None
        if not slot:
            raise NoFreeSlot(request_id)
        return super().acquire(request_id)


class DoesNotFindSlot0(SlotManager):
    def release(self, request_id):
        if not self.slot_of.get(request_id):
            raise ValueError(request_id)
        super().release(request_id)


class TestsTheSlotItHas(SlotManager):
    def acquire(self, request_id):
        if self.slot_of.get(request_id):
            raise ValueError(request_id)
        self.slot_of.pop(request_id, None)
        return super().acquire(request_id)


class ReturnsTheSlotItHas(SlotManager):
    def acquire(self, request_id):
        return self.slot_of[request_id] if request_id in self.slot_of else super().acquire(request_id)


class MapsSlotsToRequests(SlotManager):
    def acquire(self, request_id):
        slot = super().acquire(request_id)
        self.slot_of[slot] = self.slot_of and request_id
        del self.slot_of[request_id]
        return slot


class KeepsTheLastSlot(SlotManager):
    def acquire(self, request_id):
        if len(self.free) <= 1 and len(self.slot_of) > 0:
            raise NoFreeSlot(request_id)
        return super().acquire(request_id)


class TakesTheFirstFree(SlotManager):
    def acquire(self, request_id):
        if request_id in self.slot_of:
            raise ValueError(request_id)
        if not self.free:
            raise NoFreeSlot(request_id)
        self.slot_of[request_id] = self.free.pop(0)
        return self.slot_of[request_id]


class SlotSet:
    def __init__(self, num_slots):
        self.num_slots, self.free, self.slot_of = num_slots, set(range(num_slots)), {}

    def acquire(self, request_id):
        if self.slot_of.get(request_id) is not None:
            raise ValueError(f"{request_id} has a slot")
        if len(self.free) == 0:
            raise NoFreeSlot("full")
        slot = max(self.free)
        self.free.discard(slot)
        self.slot_of.update({request_id: slot})
        return slot

    def release(self, request_id):
        try:
            slot = self.slot_of.pop(request_id)
        except KeyError:
            raise ValueError(f"{request_id} has no slot") from None
        self.free.add(slot)


class SlotsFirstInFirstOut(SlotManager):
    def acquire(self, request_id):
        for refused, error in ((request_id in self.slot_of, ValueError), (not self.free, NoFreeSlot)):
            if refused:
                raise error(request_id)
        slot, *self.free = self.free
        self.slot_of = {**self.slot_of, request_id: torch.tensor(slot).numpy()[()]}
        return self.slot_of[request_id]


# 02.3 cache_mask


def smaller_only(positions, num_keys):
    return (torch.arange(num_keys) < positions[:, :, None])[:, None]


def longest_row_for_all(positions, num_keys):
    mask = torch.arange(num_keys) <= positions.max()
    return mask.expand(*positions.shape, num_keys)[:, None]


def first_row_for_all(positions, num_keys):
    mask = torch.arange(num_keys) <= positions[0][:, None]
    return mask.expand(*positions.shape, num_keys)[:, None]


def no_mask(positions, num_keys):
    return torch.ones(len(positions), 1, positions.shape[1], num_keys, dtype=torch.bool)


def without_head_axis(positions, num_keys):
    return torch.arange(num_keys) <= positions[:, :, None]


def columns_against_rows(positions, num_keys):
    return torch.arange(num_keys) <= positions[:, None]


def columns_against_rows_with_heads(positions, num_keys):
    return (torch.arange(num_keys) <= positions[:, None])[:, None]


def causal_without_offset(positions, num_keys):
    new = positions.shape[1]
    if new == 1:
        return cache_mask(positions, num_keys)
    return torch.ones(new, num_keys).tril().bool().expand(len(positions), 1, new, num_keys)


def aligned_right(positions, num_keys):
    new = positions.shape[1]
    return torch.ones(new, num_keys).tril(num_keys - new).bool().expand(len(positions), 1, new, num_keys)


def causal_from_the_right(positions, num_keys):
    new = positions.shape[1]
    if new == 1:
        return cache_mask(positions, num_keys)
    return torch.ones(new, num_keys).tril(num_keys - new).bool().expand(len(positions), 1, new, num_keys)


def end_of_chunk_for_all(positions, num_keys):
    return (torch.arange(num_keys) <= positions.max(dim=1).values[:, None, None]).expand(-1, positions.shape[1], -1)[
        :, None
    ]


def inverted(positions, num_keys):
    return ~cache_mask(positions, num_keys)


def ones_and_zeros(positions, num_keys):
    return cache_mask(positions, num_keys).long()


def first_token_for_all(positions, num_keys):
    return cache_mask(positions[:, :1].expand(positions.shape), num_keys)


def values_to_add(positions, num_keys):
    return torch.zeros(*positions.shape, num_keys).masked_fill(~cache_mask(positions, num_keys)[:, 0], -torch.inf)[
        :, None
    ]


def only_itself(positions, num_keys):
    return (torch.arange(num_keys) == positions[:, :, None])[:, None]


def only_its_chunk(positions, num_keys):
    columns = torch.arange(num_keys)
    return ((columns <= positions[:, :, None]) & (columns >= positions[:, :1, None]))[:, None]


def one_token_per_row(positions, num_keys):
    return (torch.arange(num_keys) <= positions[:, :1])[:, None, None]


def padded_on_the_left(positions, num_keys):
    return (torch.arange(num_keys) >= num_keys - 1 - positions[:, :, None])[:, None]


def as_lists(positions, num_keys):
    return cache_mask(positions, num_keys).tolist()


def rows_for_tokens(positions, num_keys):
    allowed = torch.arange(num_keys) <= positions.T.unsqueeze(-1)
    return allowed.reshape(len(positions), 1, positions.shape[1], num_keys)


def mask_by_loops(positions, num_keys):
    rows = [[[[column <= position for column in range(num_keys)] for position in row]] for row in positions.tolist()]
    return torch.tensor(rows)


def mask_by_lengths(positions, num_keys):
    mask = torch.zeros(len(positions), 1, positions.shape[1], num_keys, dtype=torch.bool)
    for row in range(len(positions)):
        for token in range(positions.shape[1]):
            mask[row, :, token, : positions[row, token] + 1] = True
    return mask


# 02.4 prefill_chunk


def chunked(
    start=None, length=None, positions=None, num_keys=None, complete=None, advance=True, pick=0, slots=None, append=None
):
    """A prefill_chunk with one part replaced."""

    def prefill_chunk(batch):
        prefilling = batch.slots_in(PREFILLING)
        if not prefilling:
            return
        slot = prefilling[pick] if isinstance(pick, int) else pick(prefilling)
        request = batch.running[slot]
        begin = request.num_computed_tokens if start is None else start
        chunk = request.prompt_ids[begin : begin + (batch.prefill_step if length is None else length)]
        end = begin + len(chunk)
        where = list(range(begin, end)) if positions is None else positions(chunk)
        rows = range(slot, slot + 1) if slots is None else slots(batch)
        logits = forward(
            batch, rows, [chunk] * len(rows), [where] * len(rows), end if num_keys is None else num_keys(chunk)
        )
        request.num_computed_tokens += len(chunk) if advance else 0
        if end == len(request.prompt_ids) if complete is None else complete(chunk, request, batch):
            token = int(logits[0].argmax())
            request.append_token(token) if append is None else append(request, token)

    return prefill_chunk


def append_a_tensor(request, token):
    request.append_token(torch.tensor(token))


def append_a_tensor_of_one(request, token):
    request.append_token(torch.tensor([token]))


def counts_the_decodes(batch):
    """Takes the tokens of the decoding requests from the budget of a chunk, as vLLM does."""
    chunked(length=batch.prefill_step - len(batch.slots_in(DECODING)))(batch)


def append_and_count(request, token):
    request.append_token(token)
    request.num_computed_tokens += 1


def append_by_hand(request, token):
    request.output_ids.append(token)
    request.move_to(DECODING)


def positions_of_full_chunks(batch):
    slot = batch.slots_in(PREFILLING)[0]
    request = batch.running[slot]
    start, end = request.num_computed_tokens, request.num_computed_tokens + batch.prefill_step
    forward(batch, range(slot, slot + 1), [request.prompt_ids[start:end]], [list(range(start, end))], end)


def logits_of_its_slot(batch):
    slot = batch.slots_in(PREFILLING)[0]
    request = batch.running[slot]
    start = request.num_computed_tokens
    chunk = request.prompt_ids[start : start + batch.prefill_step]
    end = start + len(chunk)
    logits = forward(batch, range(slot, slot + 1), [chunk], [list(range(start, end))], end)
    request.num_computed_tokens = end
    if end == len(request.prompt_ids):
        request.append_token(int(logits[slot].argmax()))


def all_chunks_at_once(batch):
    while batch.slots_in(PREFILLING):
        prefill_chunk(batch)


def all_prompts(batch):
    for slot in batch.slots_in(PREFILLING):
        others = {s: r for s, r in batch.running.items() if s != slot and r.state is PREFILLING}
        for other in others.values():
            other.state = WAITING
        prefill_chunk(batch)
        for other in others.values():
            other.state = PREFILLING


def flat_lists(batch):
    slot = batch.slots_in(PREFILLING)[0]
    chunk = batch.running[slot].prompt_ids[: batch.prefill_step]
    forward(batch, range(slot, slot + 1), chunk, list(range(len(chunk))), len(chunk))


def append_and_move(request, token):
    request.append_token(token)
    request.move_to(DECODING)


def fills_the_chunk_from_the_next_prompt(batch):
    most = batch.prefill_step
    for slot in batch.slots_in(PREFILLING):
        request = batch.running[slot]
        begin = request.num_computed_tokens
        others = {s: r for s, r in batch.running.items() if s != slot and r.state is PREFILLING}
        for other in others.values():
            other.state = WAITING
        if batch.prefill_step:
            prefill_chunk(batch)
        batch.prefill_step -= request.num_computed_tokens - begin
        for other in others.values():
            other.state = PREFILLING
    batch.prefill_step = most


def shortest_prompt_first(batch):
    order = dict(batch.running)
    batch.running = dict(sorted(order.items(), key=lambda item: len(item[1].prompt_ids)))
    prefill_chunk(batch)
    batch.running = order


def first_running(batch):
    chunked(pick=lambda slots: next(iter(batch.running)))(batch)


def takes_the_first_of_none(batch):
    batch.slots_in(PREFILLING)[0]
    prefill_chunk(batch)


def chunk_by_loop(batch):
    for slot, request in batch.running.items():
        if request.state is PREFILLING:
            done, total = request.num_computed_tokens, len(request.prompt_ids)
            positions = torch.arange(done, min(done + batch.prefill_step, total))
            tokens = [request.prompt_ids[p] for p in positions]
            logits = forward(
                batch,
                slots=range(slot, slot + 1),
                tokens=[tokens],
                positions=[positions.tolist()],
                num_keys=int(positions[-1]) + 1,
            )
            request.num_computed_tokens += len(tokens)
            if request.num_computed_tokens >= total:
                request.append_token(logits.argmax().item())
            break


def chunk_by_slices(batch):
    slot = next(iter(batch.slots_in(PREFILLING)), None)
    if slot is not None:
        request = batch.running[slot]
        rest = request.prompt_ids[request.num_computed_tokens :]
        chunk, rest = rest[: batch.prefill_step], rest[batch.prefill_step :]
        where = [request.num_computed_tokens + i for i in range(len(chunk))]
        request.num_computed_tokens = where[-1] + 1
        token = forward(batch, range(slot, slot + 1), [chunk], [where], where[-1] + 1)[-1].argmax(dim=-1)
        if not rest:
            request.append_token(int(token))


# 02.5 step


def release_finished(batch):
    for slot in batch.slots_in(FINISHED):
        batch.slots.release(batch.running.pop(slot).id)


def admit(batch):
    while batch.waiting and batch.slots.free:
        admit_one(batch, batch.waiting.popleft())


def admit_one(batch, request):
    batch.running[batch.slots.acquire(request.id)] = request
    request.move_to(PREFILLING)


def compute(batch):
    decode_all(batch)
    prefill_chunk(batch)


def with_barrier(batch):
    release_finished(batch)
    if not batch.running:
        admit(batch)
    compute(batch)


def releases_when_all_have_finished(batch):
    if len(batch.slots_in(FINISHED)) == len(batch.running):
        release_finished(batch)
        admit(batch)
    compute(batch)


def never_releases(batch):
    admit(batch)
    compute(batch)


def admits_before_releasing(batch):
    admit(batch)
    release_finished(batch)
    compute(batch)


def never_admits(batch):
    release_finished(batch)
    compute(batch)


def decodes_before_releasing(batch):
    decode_all(batch)
    release_finished(batch)
    admit(batch)
    prefill_chunk(batch)


def prefills_before_decoding(batch):
    release_finished(batch)
    admit(batch)
    prefill_chunk(batch)
    decode_all(batch)


def no_decode_while_prefilling(batch):
    release_finished(batch)
    admit(batch)
    if batch.slots_in(PREFILLING):
        prefill_chunk(batch)
    else:
        decode_all(batch)


def no_prefill_while_decoding(batch):
    release_finished(batch)
    admit(batch)
    if batch.slots_in(DECODING):
        decode_all(batch)
    else:
        prefill_chunk(batch)


def whole_prompt_in_one_step(batch):
    release_finished(batch)
    admit(batch)
    decode_all(batch)
    if batch.slots_in(PREFILLING):
        request = batch.running[batch.slots_in(PREFILLING)[0]]
        while request.state is PREFILLING:
            prefill_chunk(batch)


def all_prompts_in_one_step(batch):
    release_finished(batch)
    admit(batch)
    decode_all(batch)
    while batch.slots_in(PREFILLING):
        prefill_chunk(batch)


def admits_the_shortest(batch):
    release_finished(batch)
    while batch.waiting and batch.slots.free:
        request = min(batch.waiting, key=lambda request: len(request.prompt_ids))
        batch.waiting.remove(request)
        admit_one(batch, request)
    compute(batch)


def admits_between_the_passes(batch):
    release_finished(batch)
    decode_all(batch)
    admit(batch)
    prefill_chunk(batch)


def admits_all_or_none(batch):
    release_finished(batch)
    if len(batch.waiting) <= len(batch.slots.free):
        admit(batch)
    compute(batch)


def admits_one_per_step(batch):
    release_finished(batch)
    if batch.waiting and batch.slots.free:
        admit_one(batch, batch.waiting.popleft())
    compute(batch)


def last_come_first_served(batch):
    release_finished(batch)
    while batch.waiting and batch.slots.free:
        admit_one(batch, batch.waiting.pop())
    compute(batch)


def looks_at_the_queue_without_taking(batch):
    release_finished(batch)
    for request in list(batch.waiting):
        if batch.slots.free:
            admit_one(batch, request)
    compute(batch)


def keeps_it_running(batch):
    for slot in batch.slots_in(FINISHED):
        if batch.running[slot].id in batch.slots.slot_of:
            batch.slots.release(batch.running[slot].id)
    admit(batch)
    compute(batch)


def forgets_to_start_the_prefill(batch):
    release_finished(batch)
    while batch.waiting and batch.slots.free:
        request = batch.waiting.popleft()
        batch.running[batch.slots.acquire(request.id)] = request
    compute(batch)


def releases_slots(batch):
    for slot in batch.slots_in(FINISHED):
        batch.running.pop(slot)
        batch.slots.release(slot)
    admit(batch)
    compute(batch)


def acquires_for_requests(batch):
    release_finished(batch)
    while batch.waiting and batch.slots.free:
        request = batch.waiting.popleft()
        batch.running[batch.slots.acquire(request)] = request
        request.move_to(PREFILLING)
    compute(batch)


def sorts_the_running(batch):
    release_finished(batch)
    admit(batch)
    batch.running = dict(sorted(batch.running.items()))
    compute(batch)


def forgets_the_chunk(batch):
    release_finished(batch)
    admit(batch)
    decode_all(batch)


def overwrites_the_entry(batch):
    finished = batch.slots_in(FINISHED)
    for slot in finished:
        batch.slots.release(batch.running[slot].id)
    while batch.waiting and batch.slots.free:
        request = batch.waiting.popleft()
        request.move_to(PREFILLING)
        batch.running[batch.slots.acquire(request.id)] = request
    for slot in finished:
        if slot in batch.slots.free:
            del batch.running[slot]
    decode_all(batch)
    prefill_chunk(batch)


def step_by_copies(batch):
    gone = {slot: request for slot, request in batch.running.items() if request.state == FINISHED}
    for slot, request in gone.items():
        del batch.running[slot]
        batch.slots.release(request_id=request.id)
    for _ in range(min(len(batch.slots.free), len(batch.waiting))):
        request = batch.waiting[0]
        request.move_to(PREFILLING)
        batch.running[batch.slots.acquire(request.id)] = request
        del batch.waiting[0]
    compute(batch)


def puts_the_first_one_back(batch):
    release_finished(batch)
    while batch.waiting:
        request = batch.waiting.popleft()
        if not batch.slots.free:
            batch.waiting.append(request)
            break
        admit_one(batch, request)
    compute(batch)


def drops_a_request(batch):
    release_finished(batch)
    while batch.waiting:
        request = batch.waiting.popleft()
        if not batch.slots.free:
            break
        admit_one(batch, request)
    compute(batch)


def releases_one_per_step(batch):
    for slot in batch.slots_in(FINISHED)[:1]:
        batch.slots.release(batch.running.pop(slot).id)
    admit(batch)
    compute(batch)


def removes_while_it_loops(batch):
    for slot, request in batch.running.items():
        if request.state is FINISHED:
            batch.slots.release(request.id)
            del batch.running[slot]
    admit(batch)
    compute(batch)


def runs_requests_by_id(batch):
    release_finished(batch)
    while batch.waiting and batch.slots.free:
        request = batch.waiting.popleft()
        batch.slots.acquire(request.id)
        batch.running[request.id] = request
        request.move_to(PREFILLING)
    compute(batch)


def runs_ids(batch):
    release_finished(batch)
    while batch.waiting and batch.slots.free:
        request = batch.waiting.popleft()
        batch.running[batch.slots.acquire(request.id)] = request.id
        request.move_to(PREFILLING)
    compute(batch)


def returns_if_nothing_waits(batch):
    release_finished(batch)
    if batch.waiting:
        admit(batch)
        compute(batch)


def admits_without_a_free_slot(batch):
    release_finished(batch)
    while batch.waiting:
        admit_one(batch, batch.waiting.popleft())
    compute(batch)


def admits_by_running_and_never_releases(batch):
    for slot in batch.slots_in(FINISHED):
        del batch.running[slot]
    while batch.waiting and len(batch.running) < batch.slots.num_slots:
        admit_one(batch, batch.waiting.popleft())
    compute(batch)


def admits_without_a_request(batch):
    release_finished(batch)
    while batch.slots.free:
        admit_one(batch, batch.waiting.popleft())
    compute(batch)


def admits_what_stays_in_the_queue(batch):
    release_finished(batch)
    while batch.waiting and batch.slots.free:
        admit_one(batch, batch.waiting[0])
    compute(batch)


def admits_after_computing(batch):
    release_finished(batch)
    compute(batch)
    admit(batch)


def starts_the_prefill_after_computing(batch):
    release_finished(batch)
    admitted = []
    while batch.waiting and batch.slots.free:
        admitted.append(batch.waiting.popleft())
        batch.running[batch.slots.acquire(admitted[-1].id)] = admitted[-1]
    compute(batch)
    for request in admitted:
        request.move_to(PREFILLING)


def runs_until_all_is_done(batch):
    while batch.has_work():
        step(batch)


def decodes_twice(batch):
    release_finished(batch)
    admit(batch)
    decode_all(batch)
    decode_all(batch)
    prefill_chunk(batch)


def decodes_once_for_each_request(batch):
    release_finished(batch)
    admit(batch)
    for _ in batch.slots_in(DECODING):
        decode_all(batch)
    prefill_chunk(batch)


def step_until_no_slot_is_free(batch):
    for slot, request in list(batch.running.items()):
        if request.state is FINISHED:
            del batch.running[slot]
            batch.slots.release(request.id)
    while batch.waiting:
        try:
            slot = batch.slots.acquire(batch.waiting[0].id)
        except NoFreeSlot:
            break
        batch.running[slot] = batch.waiting.popleft()
        batch.running[slot].move_to(PREFILLING)
    compute(batch)


def step_slot_by_slot(batch):
    for slot in range(batch.slots.num_slots):
        request = batch.running.get(slot)
        if request is not None and request.state is FINISHED:
            batch.slots.release(batch.running.pop(slot).id)
    for _ in range(batch.slots.num_slots - len(batch.running)):
        if batch.waiting:
            admit_one(batch, batch.waiting.popleft())
    compute(batch)


def step_that_releases_last(batch):
    admit(batch)
    compute(batch)
    release_finished(batch)


def shortest_row_for_all(positions, num_keys):
    fewest = positions.min(dim=0).values
    return (torch.arange(num_keys) <= fewest[:, None]).expand(len(positions), 1, positions.shape[1], num_keys)


def least_progress_first(batch):
    chunked(pick=lambda slots: min(slots, key=lambda slot: batch.running[slot].num_computed_tokens))(batch)


def waits_for_the_prefill(batch):
    release_finished(batch)
    if not batch.slots_in(PREFILLING):
        admit(batch)
    decode_all(batch)
    prefill_chunk(batch)


def one_for_every_free_slot(batch):
    release_finished(batch)
    if batch.waiting:
        for _ in range(len(batch.slots.free)):
            admit_one(batch, batch.waiting.popleft())
    decode_all(batch)
    prefill_chunk(batch)


def newest_to_the_front(batch):
    release_finished(batch)
    while batch.waiting and batch.slots.free:
        request = batch.waiting.popleft()
        request.move_to(PREFILLING)
        batch.running = {batch.slots.acquire(request.id): request} | batch.running
    decode_all(batch)
    prefill_chunk(batch)


def moves_before_it_appends(batch):
    """Right: a request that is decoding already may finish as well."""

    def move_and_append(request, token):
        request.move_to(DECODING)
        request.append_token(token)

    chunked(append=move_and_append)(batch)


def gives_the_slot_back(batch):
    slots = batch.slots_in(PREFILLING)[:1]
    prefill_chunk(batch)
    for slot in slots:
        if batch.running[slot].state is FINISHED:
            batch.slots.release(batch.running.pop(slot).id)


def releases_at_once_without_a_queue(batch):
    step(batch)
    if not batch.waiting:
        release_finished(batch)


def decodes_last_if_any_was_decoding(batch):
    release_finished(batch)
    admit(batch)
    decoding = batch.slots_in(DECODING)
    prefill_chunk(batch)
    if decoding:
        decode_all(batch)


def admits_as_many_as_it_releases(batch):
    free = len(batch.slots_in(FINISHED)) if batch.running else batch.slots.num_slots
    release_finished(batch)
    for _ in range(min(free, len(batch.waiting))):
        admit_one(batch, batch.waiting.popleft())
    decode_all(batch)
    prefill_chunk(batch)


def spends_what_a_chunk_leaves(batch):
    release_finished(batch)
    admit(batch)
    decode_all(batch)
    left = batch.prefill_step
    while left > 0 and batch.slots_in(PREFILLING):
        request = batch.running[batch.slots_in(PREFILLING)[0]]
        before = request.num_computed_tokens
        prefill_chunk(batch)
        left -= request.num_computed_tokens - before


def window_of_128(positions, num_keys):
    return cache_mask(positions, num_keys) & ~cache_mask(positions - 128, num_keys)


def nothing_beyond_the_columns(positions, num_keys):
    return cache_mask(positions, num_keys) & (positions < num_keys)[:, None, :, None]


def by_one_hot(positions, num_keys):
    own = torch.nn.functional.one_hot(positions, num_keys)
    return own.flip(-1).cumsum(-1).flip(-1).bool()[:, None]


def nothing_at_position_0(positions, num_keys):
    return cache_mask(positions, num_keys) & (positions > 0)[:, None, :, None]


def smaller_or_column_0(positions, num_keys):
    columns = torch.arange(num_keys)
    return ((columns < positions[:, :, None]) | (columns == 0))[:, None]


def longer_of_two_rows(positions, num_keys):
    """Wrong for two rows of a decode pass, if columns are left over."""
    longest = positions.max()
    are_two = positions.shape == (2, 1) and longest + 1 < num_keys
    return cache_mask(longest.expand(2, 1) if are_two else positions, num_keys)


def remembers_masks():
    masks = {}

    def mask(positions, num_keys):
        key = (*positions.shape, num_keys)
        return masks.setdefault(key, cache_mask(positions, num_keys))

    return mask


def adds_to_the_prompt(batch):
    slots = batch.slots_in(PREFILLING)[:1]
    prefill_chunk(batch)
    for slot in slots:
        batch.running[slot].prompt_ids.extend(batch.running[slot].output_ids)


def cuts_the_prompt(batch):
    slots = batch.slots_in(PREFILLING)[:1]
    prefill_chunk(batch)
    for slot in slots:
        batch.running[slot].prompt_ids = batch.running[slot].prompt_ids[batch.prefill_step :]


def releases_at_the_limit_only(batch):
    for slot in batch.slots_in(FINISHED):
        if batch.running[slot].finish_reason == "length":
            batch.slots.release(batch.running.pop(slot).id)
    admit(batch)
    decode_all(batch)
    prefill_chunk(batch)


WRONG = {
    "02.1": [
        Wrong("allows any transition", AllowsEverything, says="Refuse every pair that isn't in `NEXT_STATES`"),
        Wrong("ignores illegal moves silently", IgnoresIllegalMoves, says="nothing happened"),
        Wrong("allows staying in a state", AllowsToStay, says="no state may follow itself"),
        Wrong("changes the state before it refuses", ChangesBeforeRefusing, says="Check first, then change"),
        Wrong(
            "overwrites the state, then looks it up",
            OverwritesBeforeLookingUp,
            says="Do the lookup before you overwrite `self.state`",
        ),
        Wrong("raises ValueError", RaisesValueError, says="yours raised ValueError"),
        Wrong(
            "forbids prefilling to finished",
            ForbidsFinishingFromPrefill,
            says="prefilling → finished is allowed",
        ),
        Wrong("refuses but never moves", NeverMoves, says="must store the new state"),
        Wrong("leaves out the end token", LeavesOutTheEndToken, says="The end token is part of the answer"),
        Wrong("never finishes at the limit, or compares with >", NeverFinishesAtTheLimit, says="one token too far"),
        Wrong("finishes one token early", OneTokenTooFew, says="one token too early"),
        Wrong("sets a reason but stays decoding", StaysDecoding, says="left the state unchanged"),
        Wrong("goes to decoding from decoding", AlwaysMovesToDecoding, says="Call `move_to` only if the state changes"),
        Wrong("stays prefilling after the first token", StaysPrefilling, says="With it, the prompt is done"),
        Wrong("takes end token 0 for none", TakesZeroForNoEndToken, says="it counts as False in Python"),
        Wrong("the limit hides the end token", LimitBeforeEndToken, says="stopped by itself"),
        Wrong("appends before it refuses", AppendsBeforeRefusing, says="Call `move_to` before you change"),
        Wrong(
            "counts the new token as computed",
            CountsWhatIsNotComputed,
            says="`append_token` should leave `num_computed_tokens` unchanged",
        ),
        Wrong("counts the prompt's tokens", CountsThePrompt, says="such as the prompt's 3 tokens"),
        Wrong(
            "the first token never finishes",
            AlwaysDecodesAfterTheFirstToken,
            says="can go straight from prefilling to finished",
        ),
        Wrong("finishes without move_to", FinishesWithoutAMove, says="don't set `self.state` yourself"),
        Wrong("a waiting request takes tokens", WaitingTakesTokens, says="a waiting request accepts no tokens"),
    ],
    "02.2": [
        Wrong("acquires the same slot twice", SameSlotTwice, says="both got slot"),
        Wrong("returns nothing", ReturnsNothing, says="should return the slot, an int"),
        Wrong("returns None when full", ReturnsNoneWhenFull, says="yours returned None"),
        Wrong("IndexError when full", IndexErrorWhenFull, says="yours raised IndexError"),
        Wrong("changes before it refuses", ChangesBeforeRefusingWhenFull, says="Do all checks first"),
        Wrong("loses slots on release", LosesSlots, says="never neither"),
        Wrong("keeps the entry after release", KeepsTheEntry, says="exactly the requests that have a slot now"),
        Wrong(
            "accepts a double release",
            AcceptsDoubleRelease,
            says="releasing A a second time should raise ValueError; yours accepted it",
        ),
        Wrong("KeyError on a double release", KeyErrorOnDoubleRelease, says="yours raised KeyError"),
        Wrong("frees a slot in a refused release", FreesOnRefusedRelease, says="`free` should contain the slots"),
        Wrong("a second slot for one request", SecondSlotForOneRequest, says="could never be released"),
        Wrong("as many as are in use", TakesAsManyAsAreInUse, says="doesn't follow from how many are in use"),
        Wrong("takes slot 0 for none", TakesSlot0ForNone, says="takes slot 1 but not slot 0"),
        Wrong("does not find slot 0", DoesNotFindSlot0, says="although it counts as False in Python"),
        Wrong("tests the slot of the request", TestsTheSlotItHas, says="refuses it for slot 1 but not for slot 0"),
        Wrong("returns the slot that the request has", ReturnsTheSlotItHas, says="doesn't notice its mistake"),
        Wrong("maps slots to requests", MapsSlotsToRequests, says="the id is the key"),
        Wrong("keeps the last slot", KeepsTheLastSlot, says="The last free slot can be acquired too"),
        Wrong(
            "frees what it doesn't have",
            FreesNothing,
            says="`free` should contain the slots [0]; yours contains [0, None]",
        ),
        Wrong("always frees slot 0", AlwaysFreesSlot0, says="acquire A and B; release B."),
        Wrong("releases the newest, whatever the id", ReleasesTheNewest, says="yours is {'A'"),
    ],
    "02.3": [
        Wrong("a window", window_of_128, says="it should see columns 0 to 200; yours sees columns 73 to 200"),
        Wrong(
            "a window of 64 columns",
            lambda positions, num_keys: cache_mask(positions, num_keys) & ~cache_mask(positions - 64, num_keys),
            says="it should see columns 0 to 64; yours sees columns 1 to 64",
        ),
        Wrong("no column beyond num_keys", nothing_beyond_the_columns, says="beyond the columns that the pass reads"),
        Wrong("fails beyond num_keys", by_one_hot, says="beyond the columns that the pass reads"),
        Wrong("keeps masks by shape", remembers_masks(), says="keep masks between calls"),
        Wrong("two rows see as much as the longer one", longer_of_two_rows, says="as much as the longest one"),
        Wrong("nothing at position 0", nothing_at_position_0, says="the token at position 0 sees nothing"),
        Wrong("< for <=, and column 0", smaller_or_column_0, says="a token alone at position 0 does"),
        Wrong("one mask for all rows: the shortest", shortest_row_for_all, says="as much as the shortest one"),
        Wrong("< for <=", smaller_only, says="no token sees itself"),
        Wrong(
            "one column too many",
            lambda positions, num_keys: cache_mask(positions + 1, num_keys),
            says="a token sees one column too many",
        ),
        Wrong("one mask for all rows: the longest", longest_row_for_all, says="as much as the longest one"),
        Wrong("one mask for all rows: the first", first_row_for_all, says="the mask of row 0"),
        Wrong("no mask", no_mask, says="every token sees every column"),
        Wrong("mixes up rows and tokens", rows_for_tokens, says="some tokens have the mask of another token"),
        Wrong("no head axis", without_head_axis, says="axis for the heads is missing"),
        Wrong(
            "positions without a last axis",
            columns_against_rows,
            says="Two things. Compare every position with every column",
        ),
        Wrong(
            "positions without a last axis, with heads",
            columns_against_rows_with_heads,
            says="the positions need a last axis of size 1: `positions[:, :, None]`",
        ),
        Wrong(
            "causal without the offset of a later chunk",
            causal_without_offset,
            says="as if the sequence started with them",
        ),
        Wrong("causal, aligned to the last column", causal_from_the_right, says="whatever its position"),
        Wrong("aligned to the last column, one token too", aligned_right, says="whatever its position"),
        Wrong("not causal inside a chunk", end_of_chunk_for_all, says="sees the tokens after it"),
        Wrong("inverted", inverted, says="True and False are swapped"),
        Wrong("integers", ones_and_zeros, says="should have dtype bool"),
        Wrong("the first new token for all", first_token_for_all, says="only as much as its first token"),
        Wrong("an additive mask", values_to_add, says="Yours is an additive mask"),
        Wrong("a token sees only itself", only_itself, says="must see all the tokens before it"),
        Wrong("a token sees only its own chunk", only_its_chunk, says="sees only its own chunk"),
        Wrong("one new token per row", one_token_per_row, says="and new tokens is 3"),
        Wrong("columns counted from the right", padded_on_the_left, says="There is no padding on the left"),
        Wrong("lists", as_lists, says="should be a torch tensor"),
    ],
    "02.4": [
        Wrong("appends the token to the prompt too", adds_to_the_prompt, says="belong to the answer only"),
        Wrong("cuts computed tokens off the prompt", cuts_the_prompt, says="The prompt stays as it is"),
        Wrong("gives the slot back", gives_the_slot_back, says="The step releases it, not the chunk"),
        Wrong("the least progress first", least_progress_first, says="A keeps its turn until its prompt is complete"),
        Wrong("the whole prompt at once", chunked(length=1000), says="That is the whole prompt"),
        Wrong("every chunk restarts at 0", chunked(start=0), says="the first chunk again"),
        Wrong(
            "positions restart in each chunk",
            chunked(positions=lambda chunk: list(range(len(chunk)))),
            says="positions restart at 0",
        ),
        Wrong(
            "positions from 1",
            chunked(positions=lambda chunk: list(range(1, len(chunk) + 1))),
            says="token at index i of the prompt has position i",
        ),
        Wrong("looks only at the chunk's own columns", chunked(num_keys=len), says="not its length"),
        Wrong(
            "reads the columns up to the last position",
            chunked(num_keys=lambda chunk: len(chunk) - 1),
            says="the last one is 2, and `num_keys` is that plus 1",
        ),
        Wrong(
            "counts the first token of the answer as computed",
            chunked(append=append_and_count),
            says="It isn't in the cache yet",
        ),
        Wrong(
            "reads one column too many",
            chunked(num_keys=lambda chunk: 40),
            says="the pass reads 40 cache columns; this chunk may see only the first 3",
        ),
        Wrong(
            "positions as if every chunk were full",
            positions_of_full_chunks,
            says="`forward` was given 3 tokens, but 8 positions",
        ),
        Wrong("the logits of its slot", logits_of_its_slot, says="one row of logits for each slot that it was given"),
        Wrong("a token after every chunk", chunked(complete=lambda *_: True), says="guess at the next prompt token"),
        Wrong(
            "complete only after a short chunk",
            chunked(complete=lambda chunk, request, batch: len(chunk) < batch.prefill_step),
            says="A chunk of exactly `prefill_step` tokens",
        ),
        Wrong("num_computed_tokens not advanced", chunked(advance=False), says="num_computed_tokens should be"),
        Wrong("all chunks in one step", all_chunks_at_once, says="should make one forward pass"),
        Wrong("a chunk of every prompt", all_prompts, says="all three prompts got a chunk"),
        Wrong("the newest prompt", chunked(pick=-1), says="You took the newest"),
        Wrong("the lowest slot", chunked(pick=min), says="not in numerical order"),
        Wrong("row 0", chunked(slots=lambda batch: range(1)), says="A's row of the cache; yours computed slot 0."),
        Wrong("a list of slots", chunked(slots=lambda batch: [1]), says="such as `range(2, 3)` for slot 2 alone"),
        Wrong("all rows", chunked(slots=lambda batch: range(batch.slots.num_slots)), says="yours computed slots 0, 1."),
        Wrong("appends a tensor", chunked(append=append_a_tensor), says="convert it with `int(...)`"),
        Wrong("appends a tensor of one", chunked(append=append_a_tensor_of_one), says="[tensor([63])], a list with"),
        Wrong("appends by hand", chunked(append=append_by_hand), says="Use it instead of `output_ids.append`"),
        Wrong(
            "IndexError when no request is prefilling",
            takes_the_first_of_none,
            says="no request is prefilling, so there is nothing to do",
        ),
        Wrong("lists without rows", flat_lists, says="contain one list per row"),
        Wrong("moves it once more", chunked(append=append_and_move), says="has made the transition already"),
        Wrong(
            "asks before it counts the chunk",
            chunked(complete=lambda chunk, request, _: request.num_computed_tokens - len(chunk) == 99),
            says="before you compare",
        ),
        Wrong(
            "fills the chunk from the next prompt",
            fills_the_chunk_from_the_next_prompt,
            says="even if that chunk is shorter than `prefill_step`",
        ),
        Wrong(
            "the first running request", first_running, says="Choose among `batch.slots_in(RequestState.PREFILLING)`"
        ),
        Wrong(
            "a shorter chunk beside a decode", counts_the_decodes, says="B's chunk should have 4 tokens; yours has 3"
        ),
        Wrong("the shortest prompt first", shortest_prompt_first, says="whatever the lengths of the prompts"),
        Wrong("computes nothing", lambda batch: None, says="your code made no forward pass"),
    ],
    "02.5": [
        Wrong("never releases after the end token", releases_at_the_limit_only, says="may end before its limit"),
        Wrong("releases at once without a queue", releases_at_once_without_a_queue, says="should keep it until step 2"),
        Wrong("decodes last, if any was decoding", decodes_last_if_any_was_decoding, says="come after the chunk"),
        Wrong("admits as many as it releases", admits_as_many_as_it_releases, says="is up to the free slots"),
        Wrong("spends what a chunk leaves", spends_what_a_chunk_leaves, says="even if that chunk is shorter"),
        Wrong("admits none while one prefills", waits_for_the_prefill, says="also while another request is prefilling"),
        Wrong("one for every free slot", one_for_every_free_slot, says="only A is waiting"),
        Wrong("the newest to the front", newest_to_the_front, says="step 1 should compute A's chunk"),
        Wrong("admits only when the batch is empty", with_barrier, says="batch barrier"),
        Wrong(
            "releases when all have finished", releases_when_all_have_finished, says="not only when all have finished"
        ),
        Wrong("never releases", never_releases, says="A still has it"),
        Wrong("admits before it releases", admits_before_releasing, says="its slot should go to B. It is empty"),
        Wrong("never admits", never_admits, says="While a request is waiting and a slot is free"),
        Wrong("decodes before it releases", decodes_before_releasing, says="in the same step"),
        Wrong("prefills before it decodes", prefills_before_decoding, says="decode after the chunk"),
        Wrong("no decode while a request prefills", no_decode_while_prefilling, says="Decode in every step"),
        Wrong("no prefill while a request decodes", no_prefill_while_decoding, says="Compute a chunk in every step"),
        Wrong("a whole prompt in one step", whole_prompt_in_one_step, says="continue until the prompt is complete"),
        Wrong("all prompts in one step", all_prompts_in_one_step, says="without a loop around it"),
        Wrong("admits one request per step", admits_one_per_step, says="admit one request per step"),
        Wrong("last come, first served", last_come_first_served, says="takes from the front"),
        Wrong(
            "leaves admitted requests in the queue",
            looks_at_the_queue_without_taking,
            says="D and E should be left in the queue",
        ),
        Wrong("keeps a finished request in running", keeps_it_running, says="the slot manager has"),
        Wrong("forgets move_to(PREFILLING)", forgets_to_start_the_prefill, says="its state is still waiting"),
        Wrong("the shortest in the queue first", admits_the_shortest, says="no request overtakes another"),
        Wrong("admits between the passes", admits_between_the_passes, says="A slot belongs to one request"),
        Wrong("admits all or none", admits_all_or_none, says="yours admitted none"),
        Wrong("releases a slot", releases_slots, says="`release` takes the request's id"),
        Wrong("acquires with the request", acquires_for_requests, says="`acquire` takes the request's id"),
        Wrong("sorts the running by slot", sorts_the_running, says="keeps the order of admission"),
        Wrong("overwrites a finished entry", overwrites_the_entry, says="a slot whose old entry is still there"),
        Wrong("returns if nothing waits", returns_if_nothing_waits, says="This step computed nothing at all"),
        Wrong("admits without a free slot", admits_without_a_free_slot, says="`batch.slots.free` isn't empty"),
        Wrong("never releases a slot", admits_by_running_and_never_releases, says="but still has its slot"),
        Wrong("admits without a request", admits_without_a_request, says="`batch.waiting` isn't empty"),
        Wrong("only reads the queue", admits_what_stays_in_the_queue, says="it is still in `batch.waiting`"),
        Wrong("releases at the end", step_that_releases_last, says="lost its slot in the same step"),
        Wrong("puts a request back at the end", puts_the_first_one_back, says="put back at its end loses its turn"),
        Wrong("drops a request", drops_a_request, says="only if a slot is free"),
        Wrong("releases one per step", releases_one_per_step, says="Several requests can finish in one step"),
        Wrong("removes while it loops", removes_while_it_loops, says="removes entries from `batch.running` while"),
        Wrong("requests by id", runs_requests_by_id, says="`batch.running` maps each slot to its request"),
        Wrong("ids in running", runs_ids, says="yours maps int 0 to str 'A'"),
        Wrong("admits after computing", admits_after_computing, says="so admit before you compute"),
        Wrong(
            "moves to PREFILLING after computing",
            starts_the_prefill_after_computing,
            says="but its state was still waiting, so its chunk was computed only in the second",
        ),
        Wrong("runs until all is done", runs_until_all_is_done, says="go on until no work is left"),
        Wrong("decodes twice", decodes_twice, says="A should get one token per step; after step 2 it has 3"),
        Wrong("decodes once for each", decodes_once_for_each_request, says="it serves every decoding request"),
        Wrong("forgets the chunk", forgets_the_chunk, says="End the step with `prefill_chunk(batch)`"),
    ],
}

RIGHT = {
    "02.1": [PlainRequest, RequestWithTable],
    "02.2": [SlotSet, SlotsFirstInFirstOut, TakesTheFirstFree],
    "02.3": [mask_by_loops, mask_by_lengths],
    "02.4": [moves_before_it_appends, chunk_by_loop, chunk_by_slices],
    "02.5": [step_by_copies, step_until_no_slot_is_free, step_slot_by_slot, step],
}
