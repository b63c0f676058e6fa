"""Lesson 02: continuous batching. A free slot is filled in the next step, while the other requests keep decoding."""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from lessons_lib.batching.prompts import make_requests
from lessons_lib.batching.request import Request
from lessons_lib.batching.slot_cache import SlotCache, cache_mask
from lessons_lib.models.validate import must


@dataclass
class SlotBatch:
    """Requests that share a batch of slots, and the model that computes them.

    Attributes:
        prefill_step: maximum prompt tokens per step.
        waiting: requests without a slot, in order of arrival.
        running: batch slot -> the request in it, in order of admission.
        mask: function (positions, num_keys) -> mask of a forward pass.
    """

    model: PreTrainedModel
    cache: SlotCache
    prefill_step: int
    waiting: deque[Request]
    running: dict[int, Request] = field(default_factory=dict)
    mask: Callable[[torch.Tensor, int], torch.Tensor] = cache_mask

    @property
    def num_slots(self) -> int:
        return self.cache.num_slots

    @torch.inference_mode()
    def forward(self, slots: range, tokens: list[list[int]], positions: list[list[int]]) -> list[int]:
        """One forward pass over adjacent slots, each with the same number of new tokens.

        Writes the new tokens' keys and values to the columns `positions` of their rows. Reads the columns up to the
        largest position.

        Args:
            slots: such as `range(num_slots)`, or `range(2, 3)` for slot 2 alone.
            tokens, positions: of each slot, the new tokens and their positions.

        Returns:
            Of each slot, the token that follows its last new one.
        """
        num_keys = 1 + max(map(max, positions))
        position_ids = torch.tensor(positions, device=self.model.device)
        self.cache.look_at(slots, position_ids, num_keys)
        logits = self.model(
            input_ids=torch.tensor(tokens, device=self.model.device),
            position_ids=position_ids,
            attention_mask=self.mask(position_ids, num_keys),
            past_key_values=self.cache,
            logits_to_keep=1,
        ).logits
        next_tokens: list[int] = logits[:, -1].argmax(dim=-1).tolist()
        return next_tokens


def serve(batch: "SlotBatch") -> None:
    """Serve all requests in `batch.waiting`, and those that are added to it meanwhile, until every answer is complete.

    In each step, free slots are filled from the front of `batch.waiting`; each request whose prompt is computed gets a
    token, all of them in one forward pass; and one chunk is computed, at most `batch.prefill_step` tokens of the first
    admitted prompt that isn't done. The chunk that ends a prompt gives the request's first token.

    Tokens go to `request.output_ids`. `batch.running` has the requests that have a slot, in order of admission; at the
    end it is empty.
    """
    while batch.waiting or batch.running:
        for slot in range(batch.num_slots):
            if batch.waiting and slot not in batch.running:
                batch.running[slot] = batch.waiting.popleft()
        decoding = [slot for slot, request in batch.running.items() if request.output_ids]
        prefilling = [slot for slot, request in batch.running.items() if not request.output_ids]
        if decoding:
            # The pass covers all slots. A dummy's key goes where the row's next token will overwrite it.
            tokens, positions = [[0]] * batch.num_slots, [[0]] * batch.num_slots
            for slot, request in batch.running.items():
                tokens[slot] = request.output_ids[-1:] or [0]
                positions[slot] = [request.num_computed_tokens]
            next_tokens = batch.forward(range(batch.num_slots), tokens, positions)
            for slot in decoding:
                batch.running[slot].num_computed_tokens += 1
                batch.running[slot].output_ids.append(next_tokens[slot])
        if prefilling:
            slot = prefilling[0]
            request = batch.running[slot]
            start = request.num_computed_tokens
            chunk = request.prompt_ids[start : start + batch.prefill_step]
            end = start + len(chunk)
            next_tokens = batch.forward(range(slot, slot + 1), [chunk], [list(range(start, end))])
            request.num_computed_tokens = end
            if end == len(request.prompt_ids):
                request.output_ids.append(next_tokens[0])
        for slot in [slot for slot, request in batch.running.items() if request.is_done]:
            del batch.running[slot]


def batch_generate(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, prompts: Sequence[str | Sequence[int]], *,
    max_seq_len: int = 256, batch_size: int = 4, prefill_step: int = 64,
    max_new_tokens: int | Sequence[int] | None = None, names: Sequence[str] | None = None,
    loop: Callable[[SlotBatch], None] = serve, mask: Callable[[torch.Tensor, int], torch.Tensor] = cache_mask,
) -> list[list[int]]:  # fmt: skip
    """Serve requests with continuous batching.

    Args:
        prompts: see `generate_one_by_one`.
        max_seq_len: length of a cache row. An answer ends when its row is full.
        batch_size: number of batch slots.
        prefill_step: maximum prompt tokens per step.
        max_new_tokens: one limit for all requests, or one for each; by default only the row's length limits an answer.
        names: ids of the requests; "0", "1", ... if not given.
        loop, mask: functions that serve the batch and make a pass's mask; you can pass your own.

    Raises:
        BadRequest: see `batching.prompts`, with `max_seq_len` as the context; or a size is below 1. Nothing was
            computed.
    """
    must(batch_size >= 1, "batch_size", batch_size, "at least 1")
    must(prefill_step >= 1, "prefill_step", prefill_step, "at least 1")
    requests = make_requests(model, tokenizer, prompts, max_new_tokens, names, max_seq_len)
    loop(SlotBatch(model, SlotCache(model, batch_size, max_seq_len), prefill_step, deque(requests), mask=mask))
    return [request.output_ids for request in requests]
