"""Lesson 02: continuous batching. A free slot is filled in the next step, while the other requests keep decoding."""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from lessons_lib.batching.prompts import make_requests
from lessons_lib.batching.request import Request, RequestState
from lessons_lib.batching.slot_cache import SlotCache, SlotView, cache_mask
from lessons_lib.batching.slots import SlotManager
from lessons_lib.models.validate import must


class NoProgress(RuntimeError):
    """A step computed nothing although requests are unfinished."""


@dataclass
class SlotBatch:
    """The state of continuous batching between two steps.

    Attributes:
        prefill_step: maximum prompt tokens per step.
        waiting: requests without a slot, in order of arrival.
        running: batch slot -> the request in it, in order of admission.
        mask: function (positions, num_keys) -> mask of a forward pass.
    """

    model: PreTrainedModel
    cache: SlotCache
    slots: SlotManager
    prefill_step: int
    waiting: deque[Request]
    running: dict[int, Request] = field(default_factory=dict)
    mask: Callable[[torch.Tensor, int], torch.Tensor] = cache_mask

    def slots_in(self, state: RequestState) -> list[int]:
        """Slots whose request is in this state, in order of admission."""
        return [slot for slot, request in self.running.items() if request.state is state]

    def has_work(self) -> bool:
        """True if any request is unfinished."""
        return bool(self.waiting) or len(self.slots_in(RequestState.FINISHED)) < len(self.running)


# A prefilling row's writes in this pass are overwritten by its next chunk. (Not in the function: lesson 02 shows its
# source and asks about it.)
def decode_all(batch: SlotBatch) -> None:
    """Compute the next token of every decoding request, all in one forward pass over all slots.

    The batch is a rectangle, so the pass computes idle and prefilling rows too; their outputs are discarded.
    """
    decoding = batch.slots_in(RequestState.DECODING)
    if not decoding:
        return
    tokens, positions = [[0] for _ in range(batch.slots.num_slots)], [[0] for _ in range(batch.slots.num_slots)]
    for slot, request in batch.running.items():
        positions[slot] = [request.num_computed_tokens]
        if slot in decoding:
            tokens[slot] = [request.output_ids[-1]]
    num_keys = 1 + max(positions[slot][0] for slot in decoding)
    next_tokens = forward(batch, range(batch.slots.num_slots), tokens, positions, num_keys).argmax(dim=-1).tolist()
    for slot in decoding:
        batch.running[slot].num_computed_tokens += 1
        batch.running[slot].append_token(next_tokens[slot])


def prefill_chunk(batch: "SlotBatch") -> None:
    """Compute the next chunk, at most `batch.prefill_step` tokens, of the prompt that was admitted first.

    The chunk that completes the prompt yields the first token. Without a prefilling request, does nothing.
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


def step(batch: "SlotBatch") -> None:
    """One step of the loop: one token for each request that is decoding when it begins, and one prefill chunk."""
    # Slots first, so that a freed slot does useful work at once. The stale keys stay: the mask hides them.
    for slot in batch.slots_in(RequestState.FINISHED):
        batch.slots.release(batch.running.pop(slot).id)
    while batch.waiting and batch.slots.free:
        request = batch.waiting.popleft()
        batch.running[batch.slots.acquire(request.id)] = request
        request.move_to(RequestState.PREFILLING)
    # Decoding comes before the chunk; after it, the new request would get a second token.
    decode_all(batch)
    prefill_chunk(batch)


@torch.inference_mode()
def forward(
    batch: SlotBatch, slots: range, tokens: list[list[int]], positions: list[list[int]], num_keys: int
) -> torch.Tensor:
    """One forward pass over adjacent slots, each with the same number of new tokens.

    Args:
        tokens, positions: the new tokens of each slot, and their positions.
        num_keys: number of cache columns to read.

    Returns:
        Logits of each slot's last token, [slots, vocabulary].
    """
    device = batch.model.device
    position_ids = torch.tensor(positions, device=device)
    batch.cache.look_at(SlotView(slice(slots.start, slots.stop), position_ids, num_keys))
    logits: torch.Tensor = batch.model(
        input_ids=torch.tensor(tokens, device=device),
        position_ids=position_ids,
        attention_mask=batch.mask(position_ids, num_keys),
        past_key_values=batch.cache,
        logits_to_keep=1,
    ).logits
    return logits[:, -1]


def batch_generate(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    prompts: Sequence[str | Sequence[int]],
    *,
    max_seq_len: int = 256,
    batch_size: int = 4,
    prefill_step: int = 64,
    max_new_tokens: int | Sequence[int] | None = None,
    names: Sequence[str] | None = None,
    step: Callable[[SlotBatch], None] = step,
    mask: Callable[[torch.Tensor, int], torch.Tensor] = cache_mask,
    new_request: Callable[..., Request] = Request,
    new_slots: Callable[[int], SlotManager] = SlotManager,
) -> list[list[int]]:
    """Serve requests with continuous batching.

    Args:
        prompts: see `generate_one_by_one`.
        max_seq_len: length of a cache row. An answer ends when its row is full.
        batch_size: number of batch slots.
        prefill_step: maximum prompt tokens per step.
        max_new_tokens: one limit for all requests, or one for each; by default only the row's length limits an answer.
        names: ids of the requests; "0", "1", ... if not given.
        step, mask, new_request, new_slots: function of a step, a pass's mask, and classes; you can pass your own.

    Raises:
        BadRequest: see `batching.prompts`, with `max_seq_len` as the context; or a size is below 1. Nothing was
            computed.
        NoProgress: a call of `step` computed nothing.
    """
    must(batch_size >= 1, "batch_size", batch_size, "at least 1")
    must(prefill_step >= 1, "prefill_step", prefill_step, "at least 1")
    requests = make_requests(model, tokenizer, prompts, max_new_tokens, names, max_seq_len, new_request)
    cache = SlotCache(model, batch_size, max_seq_len)
    batch = SlotBatch(model, cache, new_slots(batch_size), prefill_step, deque(requests), mask=mask)
    while batch.has_work():
        computed_before = sum(request.num_computed_tokens for request in requests)
        step(batch)
        if sum(request.num_computed_tokens for request in requests) == computed_before:
            raise NoProgress(
                f"a step computed nothing, with {len(batch.waiting)} requests waiting and {len(batch.running)} in "
                f"{batch_size} slots. A step must release, admit, decode and prefill."
            )
    return [request.output_ids for request in requests]
