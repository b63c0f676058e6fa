"""The small size of the capstone: batch slots and ragged packing, no blocks. It uses torch and the model only."""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import DynamicCache

from lessons_lib.conformance.contract import Limits, NewTokens, Params

Layers = list[tuple[torch.Tensor, torch.Tensor]]  # keys and values of each layer, [1, heads, tokens, head size]


@dataclass
class Sequence:
    """A request: its prompt, what it has got so far, and its own keys and values.

    Attributes:
        tokens: the prompt and the answer so far.
        layers: the cache of the first `num_computed` of these tokens; [] before the first pass.
    """

    request_id: str
    tokens: list[int]
    params: Params
    num_prompt: int
    num_computed: int = 0
    layers: Layers = field(default_factory=list)


class SmallEngine:
    """Continuous batching in one packed row.

    Attributes:
        waiting: sequences without a batch slot, in order of arrival.
        running: those of the next pass, at most `max_num_seqs`, in order of admission.
        unread: what `stream` has computed for other requests; the next `step` returns it.
    """

    def __init__(self, model: Any, limits: Limits):
        self.model, self.limits = model, limits
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []
        self.unread: list[NewTokens] = []
        self.streams: dict[str, deque[NewTokens]] = {}

    def add_request(self, request_id: str, prompt_ids: list[int], params: Params) -> None:
        vocabulary, longest = self.model.config.vocab_size, self.limits.max_model_len
        if not prompt_ids:
            raise ValueError("the prompt has no tokens; give at least one.")
        if wrong := [token for token in prompt_ids if not 0 <= token < vocabulary]:
            raise ValueError(f"token {wrong[0]} isn't in the vocabulary; tokens are 0 to {vocabulary - 1}.")
        if params.max_tokens < 1:
            raise ValueError(f"max_tokens is {params.max_tokens}; it must be 1 or more.")
        if len(prompt_ids) + params.max_tokens > longest:
            total = f"{len(prompt_ids)} + {params.max_tokens}"
            raise ValueError(f"the prompt and max_tokens are {total} tokens, and {longest} fit; ask for less.")
        # A stream that is still open aborts its id when it is closed.
        if request_id in self.streams.keys() | {sequence.request_id for sequence in [*self.waiting, *self.running]}:
            raise ValueError(f"request id {request_id!r} is in use; give each request an id of its own.")
        self.waiting.append(Sequence(request_id, list(prompt_ids), params, len(prompt_ids)))

    def step(self) -> list[NewTokens]:
        computed = self.compute()  # if it raises, what is unread stays
        unread, self.unread = self.unread, []
        return unread + computed

    def compute(self) -> list[NewTokens]:
        """One pass; tokens of streams go to their readers, the others are returned."""
        while self.waiting and len(self.running) < self.limits.max_num_seqs:
            self.running.append(self.waiting.popleft())
        chosen = self.choose()
        if not chosen:
            return []
        next_tokens, caches = self.forward(chosen)  # if the model fails, nothing has changed, and one can step again
        returned = []
        for (sequence, count), token, layers in zip(chosen, next_tokens, caches):
            sequence.layers, sequence.num_computed = layers, sequence.num_computed + count
            if sequence.num_computed < len(sequence.tokens):
                continue  # there is more of the prompt
            sequence.tokens.append(token)
            event = NewTokens(sequence.request_id, [token], self.finish_reason(sequence))
            if event.finish_reason:
                self.running.remove(sequence)
            if sequence.request_id in self.streams:
                self.streams[sequence.request_id].append(event)
            else:
                returned.append(event)
        return returned

    def choose(self) -> list[tuple[Sequence, int]]:
        """Which sequences compute how many tokens in this step, the oldest first, within the budget of tokens."""
        chosen, left = [], self.limits.max_num_batched_tokens
        for sequence in self.running:
            if count := min(len(sequence.tokens) - sequence.num_computed, left):
                chosen.append((sequence, count))
                left -= count
        return chosen

    @torch.inference_mode()
    def forward(self, chosen: list[tuple[Sequence, int]]) -> tuple[list[int], list[Layers]]:
        """One pass over the chosen tokens in one row. A token sees the earlier tokens of its own sequence only.

        Returns:
            (the likeliest token after each sequence's last one, each sequence's new cache).
        """
        counts = [count for _, count in chosen]
        cached = [sequence.num_computed for sequence, _ in chosen]
        spans = [range(begin, begin + count) for begin, count in zip(cached, counts)]
        input_ids = [sequence.tokens[each] for (sequence, _), span in zip(chosen, spans) for each in span]
        owner = torch.repeat_interleave(torch.arange(len(chosen)), torch.tensor(counts))
        position = torch.tensor([each for span in spans for each in span])
        # The keys of the pass: all that is cached, sequence after sequence, then those of the row itself.
        key_owner = torch.cat([torch.repeat_interleave(torch.arange(len(chosen)), torch.tensor(cached)), owner])
        key_position = torch.cat([*(torch.arange(each) for each in cached), position])
        sees = (owner[:, None] == key_owner) & (key_position <= position[:, None])
        mask = torch.zeros(sees.shape).masked_fill(~sees, torch.finfo(torch.float32).min)
        cache = DynamicCache()
        with_cache = [sequence.layers for sequence, _ in chosen if sequence.layers]
        for index, parts in enumerate(zip(*with_cache)):
            keys, values = (torch.cat(part, dim=2) for part in zip(*parts))
            cache.update(keys, values, index)
        logits = self.model(
            input_ids=torch.tensor([input_ids]), position_ids=position[None], attention_mask=mask[None, None],
            past_key_values=cache, use_cache=True,
        ).logits[0]  # fmt: skip
        ends = torch.tensor(counts).cumsum(0) - 1
        caches: list[Layers] = [[] for _ in chosen]
        for layer in cache.layers:
            old_and_new = [each.split([*cached, *counts], dim=2) for each in (layer.keys, layer.values)]  # type: ignore[union-attr]
            for index, layers in enumerate(caches):
                keys, values = (torch.cat([each[index], each[index + len(chosen)]], dim=2) for each in old_and_new)
                layers.append((keys, values))
        return logits[ends].argmax(dim=-1).tolist(), caches

    def finish_reason(self, sequence: Sequence) -> str | None:
        token, params = sequence.tokens[-1], sequence.params
        if token in params.stop_token_ids or (token == self.limits.eos_token_id and not params.ignore_eos):
            return "stop"
        return "length" if len(sequence.tokens) - sequence.num_prompt == params.max_tokens else None

    def abort(self, request_id: str) -> None:
        self.waiting = deque(each for each in self.waiting if each.request_id != request_id)
        self.running = [each for each in self.running if each.request_id != request_id]
        self.unread = [event for event in self.unread if event.request_id != request_id]
        if request_id in self.streams:
            self.streams[request_id].clear()
            self.streams[request_id].append(NewTokens(request_id, [], "abort"))

    def has_unfinished(self) -> bool:
        return bool(self.waiting or self.running or self.unread)

    def stream(self, request_id: str, prompt_ids: list[int], params: Params) -> Iterator[int]:
        self.add_request(request_id, prompt_ids, params)
        events = self.streams[request_id] = deque()
        try:
            reason = None
            while reason is None:
                while not events:
                    self.unread += self.compute()
                event = events.popleft()
                reason = event.finish_reason
                yield from event.token_ids
        finally:
            del self.streams[request_id]
            self.abort(request_id)


def make_engine(model: Any, limits: Limits, tokenizer: Any) -> Any:
    """A new engine that keeps the contract. It has the model to itself, and stays within these limits."""
    return SmallEngine(model, limits)
