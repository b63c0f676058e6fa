"""Lesson 02: continuous batching. A slot that falls free is filled in the next step, while the others go on."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from lessons_lib.batching.request import Request, RequestState, request_names
from lessons_lib.batching.slot_cache import SlotCache, SlotView, cache_mask
from lessons_lib.batching.slots import SlotManager
from lessons_lib.models.prompts import BadRequest, check_batch_size, encode_prompts


class NoProgress(RuntimeError):
    """A step computed nothing although requests are left."""


@dataclass
class SlotBatch:
    """Everything that continuous batching remembers between two steps.

    Attributes:
        prefill_step: the most prompt tokens computed in one step.
        waiting: requests without a slot, first come first.
        running: slot number -> the request in it, in the order of admission.
        mask: what makes the mask of a forward pass.
    """

    model: torch.nn.Module
    cache: SlotCache
    slots: SlotManager
    prefill_step: int
    waiting: deque[Request]
    running: dict[int, Request] = field(default_factory=dict)
    mask: Callable[[torch.Tensor, int], torch.Tensor] = cache_mask

    def slots_in(self, state: RequestState) -> list[int]:
        """The slots whose request is in that state, in the order of admission."""
        return [slot for slot, request in self.running.items() if request.state is state]

    def has_work(self) -> bool:
        return bool(self.waiting) or len(self.slots_in(RequestState.FINISHED)) < len(self.running)


def decode_all(batch):
    """Give every decoding request its next token, all in one forward pass over all slots.

    The pass computes idle rows and prefilling rows too, since the batch is a rectangle; what comes out is thrown away.
    """
    decoding = batch.slots_in(RequestState.DECODING)
    if not decoding:
        return
    tokens, positions = [[0] for _ in range(batch.slots.num_slots)], [[0] for _ in range(batch.slots.num_slots)]
    for slot, request in batch.running.items():
        # What a prefilling row writes here lies where its next chunk will be written over it.
        positions[slot] = [request.num_computed_tokens]
        if slot in decoding:
            tokens[slot] = [request.output_ids[-1]]
    num_keys = 1 + max(positions[slot][0] for slot in decoding)
    next_tokens = forward(batch, range(batch.slots.num_slots), tokens, positions, num_keys).argmax(dim=-1).tolist()
    for slot in decoding:
        batch.running[slot].num_computed_tokens += 1
        batch.running[slot].append_token(next_tokens[slot])


def prefill_chunk(batch):
    """Compute the next chunk, at most `batch.prefill_step` tokens, of one prompt: the one that was admitted first.

    The chunk that completes the prompt gives the request its first token. Without a prefilling request, does nothing.
    """
    prefilling = batch.slots_in(RequestState.PREFILLING)
    if not prefilling:
        return
    slot = prefilling[0]
    request = batch.running[slot]
    start = request.num_computed_tokens
    chunk = request.prompt_ids[start : start + batch.prefill_step]
    end = start + len(chunk)
    logits = forward(batch, range(slot, slot + 1), [chunk], [list(range(start, end))], num_keys=end)
    request.num_computed_tokens = end
    if end == len(request.prompt_ids):
        request.append_token(int(logits[0].argmax()))


def step(batch):
    """One turn of the loop: release, admit, decode, and compute one prefill chunk.

    Who sits where is settled first and stays so for the whole step; a slot that fell free works again at once. Finished requests give back their slots; then waiting
    requests take the free slots, first come first served, and begin to prefill. What the finished ones leave in their
    cache rows stays there: the mask hides it.

    Decoding comes before the chunk, so that a request gets at most one token a step.
    """
    for slot in batch.slots_in(RequestState.FINISHED):
        batch.slots.release(batch.running.pop(slot).id)
    while batch.waiting and batch.slots.free:
        request = batch.waiting.popleft()
        batch.running[batch.slots.acquire(request.id)] = request
        request.move_to(RequestState.PREFILLING)
    decode_all(batch)
    prefill_chunk(batch)


@torch.inference_mode()
def forward(batch, slots: range, tokens, positions, num_keys: int) -> torch.Tensor:
    """One forward pass over neighbouring slots, each with the same number of new tokens.

    Args:
        tokens, positions: a list for each slot, of its new tokens and of their positions.
        num_keys: how many cache columns the pass looks at.

    Returns:
        Logits of each slot's last token, [slots, vocabulary].
    """
    device = batch.model.device
    positions = torch.tensor(positions, device=device)
    batch.cache.look_at(SlotView(slice(slots.start, slots.stop), positions, num_keys))
    return batch.model(
        input_ids=torch.tensor(tokens, device=device),
        position_ids=positions,
        attention_mask=batch.mask(positions, num_keys),
        past_key_values=batch.cache,
        logits_to_keep=1,
    ).logits[:, -1]


def batch_generate(
    model,
    tokenizer,
    prompts,
    *,
    max_seq_len=256,
    batch_size=4,
    prefill_step=64,
    max_new_tokens=None,
    names=None,
    step=step,
    mask=cache_mask,
) -> list[list[int]]:
    """Serve requests with continuous batching.

    Args:
        prompts: texts, or lists of token ids; all are there at the start.
        max_seq_len: length of a cache row. An answer ends when its row is full.
        batch_size: number of slots.
        prefill_step: the most prompt tokens computed in one step.
        max_new_tokens: one cap for all requests, or one for each; if not given, only the row's length ends an answer.
        names: ids of the requests; "0", "1", ... if not given.
        step, mask: the functions that do one turn and make the mask of a pass, yours if you like.

    Raises:
        BadRequest: see `lessons_lib.models.prompts`, where the row's length takes the place of the model's context; or a size is
            below 1; or an id is used twice. Nothing was computed.
        NoProgress: a turn of `step` computed nothing, so the next would be the same.
    """
    check_batch_size(batch_size)
    if prefill_step < 1:
        raise BadRequest(f"prefill_step is {prefill_step}; it must be at least 1.")
    prompt_ids, max_tokens_each = encode_prompts(model, tokenizer, prompts, max_new_tokens, context=max_seq_len)
    names = request_names(names, len(prompt_ids))
    requests = [
        Request(name, ids, max_tokens, tokenizer.eos_token_id)
        for name, ids, max_tokens in zip(names, prompt_ids, max_tokens_each)
    ]
    cache = SlotCache(model, batch_size, max_seq_len)
    batch = SlotBatch(model, cache, SlotManager(batch_size), prefill_step, deque(requests), mask=mask)
    while batch.has_work():
        computed_before = sum(request.num_computed_tokens for request in requests)
        step(batch)
        if sum(request.num_computed_tokens for request in requests) == computed_before:
            raise NoProgress(
                f"a step computed nothing, with {len(batch.waiting)} requests waiting and {len(batch.running)} in "
                f"{batch_size} slots. A step must release, admit, decode and prefill."
            )
    return [request.output_ids for request in requests]
