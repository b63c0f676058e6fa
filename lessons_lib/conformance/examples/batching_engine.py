"""The level `batches` of the capstone: batch slots, a cache for each request, and lesson 05's packed row."""

from collections import deque
from dataclasses import dataclass, field
from typing import Any

from transformers import DynamicCache

from lessons_lib.attention.packing import concatenate_caches, pack, packed_forward, scatter_cache
from lessons_lib.conformance.contract import Limits, NewTokens, Params


@dataclass
class Sequence:
    """A request: its prompt, what it has got so far, and a cache of its own.

    Attributes:
        tokens: the prompt and the answer so far.
    """

    request_id: str
    tokens: list[int]
    params: Params
    num_prompt: int
    cache: DynamicCache = field(default_factory=DynamicCache)

    @property
    def num_computed(self) -> int:
        return int(self.cache.get_seq_length())


class BatchingEngine:
    """Continuous batching.

    Attributes:
        waiting: sequences without a batch slot, in order of arrival.
        running: those with one, at most `max_num_seqs`, in order of admission.
    """

    def __init__(self, model: Any, limits: Limits):
        self.model, self.limits = model, limits
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []

    def add_request(self, request_id: str, prompt_ids: list[int], params: Params) -> None:
        if len(prompt_ids) >= self.limits.max_model_len:
            raise ValueError(f"the prompt has {len(prompt_ids)} tokens, which leaves no room for an answer.")
        self.waiting.append(Sequence(request_id, list(prompt_ids), params, len(prompt_ids)))

    def step(self) -> list[NewTokens]:
        while self.waiting and len(self.running) < self.limits.max_num_seqs:
            self.running.append(self.waiting.popleft())
        chosen = self.choose()
        if not chosen:
            return []
        packed = pack([new for _, new in chosen], [sequence.num_computed for sequence, _ in chosen])
        joined = concatenate_caches([sequence.cache for sequence, _ in chosen])
        logits = packed_forward(self.model, packed, joined)  # if it raises, nothing has changed
        events = []
        caches = scatter_cache(joined, packed)
        for (sequence, _), cache, token in zip(chosen, caches, logits.argmax(dim=-1).tolist()):
            sequence.cache = cache
            if sequence.num_computed < len(sequence.tokens):
                continue  # there is more of the prompt
            sequence.tokens.append(token)
            events.append(NewTokens(sequence.request_id, [token], self.finish_reason(sequence)))
            if events[-1].finish_reason:
                self.running.remove(sequence)
        return events

    def choose(self) -> list[tuple[Sequence, list[int]]]:
        """Which sequences compute which of their tokens in this step, the oldest first, within the budget."""
        chosen, left = [], self.limits.max_num_batched_tokens
        for sequence in self.running:
            if new := sequence.tokens[sequence.num_computed :][:left]:
                chosen.append((sequence, new))
                left -= len(new)
        return chosen

    def finish_reason(self, sequence: Sequence) -> str | None:
        token, params = sequence.tokens[-1], sequence.params
        if token in params.stop_token_ids or (token == self.limits.eos_token_id and not params.ignore_eos):
            return "stop"
        is_full = len(sequence.tokens) == self.limits.max_model_len
        return "length" if is_full or len(sequence.tokens) - sequence.num_prompt == params.max_tokens else None

    def abort(self, request_id: str) -> None:
        self.waiting = deque(each for each in self.waiting if each.request_id != request_id)
        self.running = [each for each in self.running if each.request_id != request_id]

    def has_unfinished(self) -> bool:
        return bool(self.waiting or self.running)


def make_batching_engine(model: Any, limits: Limits, tokenizer: Any) -> Any:
    """A new engine that serves many requests at once. It has the model to itself, and stays within these limits."""
    return BatchingEngine(model, limits)
